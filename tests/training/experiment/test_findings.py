import random
from statistics import mean
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from training.evaluation.statistics import Interval, mean_interval
from training.research.reze_experiment.findings import Difference, compute_findings
from training.research.reze_experiment.results import Result
from training.research.reze_experiment.summary import judge_difference, summarize_experiment

RATE = 1e-4
TASKS = {"tone": "classification", "topic": "classification", "search": "retrieval"}
DRAWN = np.random.default_rng(0)
SCORES = {
    (method, target, seed): float(DRAWN.uniform(0.2, 0.9))
    for method in ("ft", "pft", "reze")
    for target in TASKS
    for seed in (0, 1, 2)
}


def result(method, target, seed, score, rows=100, rate=RATE, **more):
    given = {"linear_probe": None} | ({"drift": 0.1, "isoscore": 0.5} if rows == 0 else {}) | more
    return Result("unit", target, TASKS[target], "metric", method, rows, rate, seed, score, **given)


def results(scores=None, **more):
    return [result(*cell, score, **more) for cell, score in (scores or SCORES).items()]


def found(some):
    return compute_findings(SimpleNamespace(results=list(some)))  # of an experiment nothing else is looked at


def average(findings, method, measure="score", rows=100, rate=RATE):
    (one,) = (
        a for a in findings.averages if (a.method, a.measure, a.rows, a.learning_rate) == (method, measure, rows, rate)
    )
    return one


def difference(findings, method, rival, group="all", measure="score"):
    one = [
        d for d in findings.differences if (d.method, d.rival, d.group, d.measure) == (method, rival, group, measure)
    ]
    assert len(one) == 1
    return one[0]


def by_seed(method, targets=tuple(TASKS)):
    return [100 * mean(SCORES[method, target, seed] for target in targets) for seed in (0, 1, 2)]


def require_interval(interval, value, low, high):
    assert (interval.value, interval.low, interval.high) == pytest.approx((value, low, high), abs=1e-9)


@pytest.mark.parametrize("count", [2, 3, 5, 20])
def test_the_interval_over_seeds_is_students(count):
    values = np.random.default_rng(count).normal(50, 5, count)
    low, high = stats.t.interval(0.95, count - 1, values.mean(), stats.sem(values))
    require_interval(mean_interval(values), values.mean(), low, high)


def test_one_seed_has_a_value_and_no_interval():
    assert mean_interval(np.array([47.0])) == Interval(47.0, None, None)
    findings = found(r for r in results() if r.seed == 1)
    assert {(a.score.low, a.score.high, a.seeds) for a in findings.averages} == {(None, None, 1)}
    one = difference(findings, "reze", "pft")
    assert (one.points.low, one.points.high, one.seeds) == (None, None, 1)
    assert one.points.value == pytest.approx(by_seed("reze")[1] - by_seed("pft")[1])
    assert "one seed tells nothing" in "".join(summarize_experiment(findings))


def test_an_average_is_over_targets_and_its_interval_over_seeds():
    findings = found(results())
    for method in ("ft", "pft", "reze"):
        one, values = average(findings, method), by_seed(method)
        require_interval(one.score, mean(values), *stats.t.interval(0.95, 2, mean(values), stats.sem(values)))
        assert (one.targets, one.seeds) == (3, 3)


def test_a_difference_is_paired_by_target_and_seed():
    one = difference(found(results()), "reze", "ft")
    expected = stats.ttest_rel(by_seed("reze"), by_seed("ft"))
    low, high = expected.confidence_interval(0.95)
    require_interval(one.points, mean(by_seed("reze")) - mean(by_seed("ft")), low, high)
    assert (one.targets, one.seeds) == (3, 3)


def test_what_targets_and_seeds_share_takes_nothing_from_a_pairing():
    """Scores differ by tens of points from target to target and seed to seed, the two methods always by three or so."""
    shifts = {seed: 0.03 + 0.0001 * seed for seed in (0, 1, 2)}
    scores = SCORES | {("reze", t, s): score + shifts[s] for (m, t, s), score in SCORES.items() if m == "pft"}
    one = difference(found(results(scores)), "reze", "pft")
    low, high = stats.t.interval(0.95, 2, 3.01, stats.sem([3.0, 3.01, 3.02]))
    require_interval(one.points, 3.01, low, high)
    assert (one.better, one.targets, judge_difference(one)) == (3, 3, "better")


@pytest.mark.parametrize("more", [0.0, 0.25])
def test_seeds_that_agree_to_the_digit_are_not_said_to_be_one(more):
    scores = {(m, t, s): 0.25 + more * (m == "reze") for m in ("pft", "reze") for t in TASKS for s in (0, 1, 2)}
    findings = found(results(scores))
    one = difference(findings, "reze", "pft")
    assert (one.points.value, one.seeds, one.better) == (100 * more, 3, 3 if more else 0)
    assert not any("one seed" in sentence for sentence in summarize_experiment(findings))


def test_a_seed_that_is_not_complete_is_left_out_of_averages_and_of_the_differences_that_need_it():
    findings = found(r for r in results() if (r.method, r.target, r.seed) != ("pft", "search", 2))
    for method in ("ft", "pft", "reze"):
        assert average(findings, method).seeds == 2
        assert average(findings, method).score.value == pytest.approx(mean(by_seed(method)[:2]))
    assert (difference(findings, "reze", "pft").seeds, difference(findings, "reze", "ft").seeds) == (2, 3)
    expected = mean(by_seed("reze")[:2]) - mean(by_seed("pft")[:2])
    assert difference(findings, "reze", "pft").points.value == pytest.approx(expected)


def test_a_target_that_a_method_lacks_is_left_out_of_every_average():
    findings = found(r for r in results() if (r.method, r.target) != ("pft", "search"))
    for method in ("ft", "pft", "reze"):
        assert average(findings, method).targets == 2
        assert average(findings, method).score.value == pytest.approx(mean(by_seed(method, ("tone", "topic"))))
    assert difference(findings, "reze", "pft").targets == 2
    assert difference(findings, "reze", "ft").targets == 3


def test_targets_ahead_are_those_with_a_higher_mean_over_seeds_and_a_tie_is_none():
    wins = {"tone": (0.5, 0.1), "topic": (0.25, 0.25), "search": (0.3, 0.1)}  # less the rival's 0.25 of each seed
    scores = {("reze", target, seed): value for target, two in wins.items() for seed, value in enumerate(two)}
    scores |= {("pft", target, seed): 0.25 for target in wins for seed in (0, 1)}
    one = difference(found(results(scores)), "reze", "pft")
    assert (one.better, one.targets) == (1, 3)
    assert one.points.value == pytest.approx(100 * (0.05 + 0 - 0.05) / 3, abs=1e-9)


def test_differences_are_grouped_by_task_where_there_are_several():
    findings = found(results())
    assert {d.group for d in findings.differences} == {"all", "classification", "retrieval"}
    one = difference(findings, "reze", "pft", "classification")
    expected = mean(by_seed("reze", ("tone", "topic"))) - mean(by_seed("pft", ("tone", "topic")))
    assert (one.targets, one.points.value) == (2, pytest.approx(expected))
    assert difference(findings, "reze", "pft", "retrieval").targets == 1
    alone = found(r for r in results() if r.target != "search")
    assert {d.group for d in alone.differences} == {"all"}


def test_the_linear_probe_is_averaged_over_those_targets_that_have_one():
    some = [
        result(*cell, score, linear_probe=None if cell[1] == "search" else score / 2) for cell, score in SCORES.items()
    ]
    findings = found(some)
    one = average(findings, "reze", "linear_probe")
    assert (one.targets, one.score.value) == (2, pytest.approx(mean(by_seed("reze", ("tone", "topic"))) / 2))
    assert difference(findings, "reze", "ft", measure="linear_probe").targets == 2
    assert average(findings, "reze").targets == 3


def test_sizes_and_learning_rates_are_not_mixed():
    other = {cell: 1 - score for cell, score in SCORES.items()}
    some = [*results(), *results(other, rows=500), *results(other, rate=2e-5)]
    findings, alone = found(some), found(results())
    assert average(findings, "reze") == average(alone, "reze")
    assert average(findings, "reze", rows=500).score.value == pytest.approx(100 - average(alone, "reze").score.value)
    assert {(a.learning_rate, a.rows) for a in findings.averages} == {(RATE, 100), (RATE, 500), (2e-5, 100)}
    assert len(findings.differences) == 3 * len(alone.differences)


def test_a_variant_is_compared_with_reze_and_the_rivals_and_not_with_other_variants():
    extra = {("reze, mean", t, s): 0.5 for t in TASKS for s in (0, 1, 2)}
    extra |= {("reze, weight 2", t, s): 0.6 for t in TASKS for s in (0, 1, 2)}
    pairs = {(d.method, d.rival) for d in found(results(SCORES | extra)).differences}
    variants = {"reze, mean", "reze, weight 2"}
    assert pairs == {("reze", other) for other in {"ft", "pft"} | variants} | {
        (variant, rival) for variant in variants for rival in ("ft", "pft")
    }


def test_without_reze_there_are_averages_and_nothing_is_compared():
    findings = found(r for r in results() if r.method != "reze")
    assert {a.method for a in findings.averages} == {"ft", "pft"}
    assert findings.differences == []


def test_what_is_found_does_not_depend_on_the_order_of_results():
    shuffled = random.Random(0).sample(results(), len(SCORES))
    first, other = found(results()), found(shuffled)
    for one in first.averages:
        assert average(other, one.method).score.value == pytest.approx(one.score.value)
    assert len(other.averages) == len(first.averages) and len(other.differences) == len(first.differences)
    for one in first.differences:
        same = difference(other, one.method, one.rival, one.group)
        require_interval(same.points, one.points.value, one.points.low, one.points.high)
        assert same.better == one.better


def test_a_shift_is_averaged_over_targets_before_any_fine_tuning():
    drifts = {("tone", 0): 0.1, ("topic", 0): 0.3, ("tone", 1): 0.2, ("topic", 1): 0.6}
    some = [
        result("pft", t, s, 0.5, rows=0, drift=drift, isoscore=drift / 2, seconds_per_step=drift)
        for (t, s), drift in drifts.items()
    ]
    some += [result("none", t, s, 0.5, rows=0, drift=0.0) for t, s in drifts]
    some += [result("pft", "tone", 0, 0.5, rows=100)]
    pft, none = found(some).shifts
    low, high = stats.t.interval(0.95, 1, 0.3, stats.sem([0.2, 0.4]))
    require_interval(pft.drift, 0.3, low, high)
    assert pft.isoscore.value == pytest.approx(0.15)
    assert pft.seconds_per_step == pytest.approx(0.25)
    assert (none.method, none.drift.value, none.seconds_per_step) == ("none", 0.0, None)


def test_a_shift_leaves_out_a_seed_that_is_not_complete_over_its_targets():
    drifts = {("tone", 0): 0.1, ("topic", 0): 0.3, ("tone", 1): 0.1}
    some = [result("pft", t, s, 0.5, rows=0, drift=drift) for (t, s), drift in drifts.items()]
    (pft,) = found(some).shifts
    assert pft.drift == Interval(pytest.approx(0.2), None, None)


@pytest.mark.parametrize(
    ("interval", "said"),
    [
        (Interval(1.0, 0.5, 1.5), "better"),
        (Interval(-1.0, -1.5, -0.5), "worse"),
        (Interval(1.0, -0.5, 2.5), "no difference can be told"),
        (Interval(1.0, None, None), "one seed tells nothing"),
    ],
)
def test_a_verdict_is_what_the_interval_allows(interval, said):
    seeds = 1 if interval.low is None else 3
    assert judge_difference(Difference(1e-4, 100, "reze", "pft", "score", "all", interval, 1, 2, seeds)) == said
