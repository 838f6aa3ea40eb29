from statistics import mean
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from lathe.training.comparison import Interval, mean_interval
from research.reze_experiment.findings import Difference, compute_findings
from research.reze_experiment.results import Result
from research.reze_experiment.summary import judge_difference, summarize_experiment

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
    given = {"label_accuracy": None} | ({"drift": 0.1, "isoscore": 0.5} if rows == 0 else {}) | more
    return Result("unit", target, TASKS[target], "metric", method, rows, rate, seed, score, **given)


def results(scores=None, **more):
    return [result(*cell, score, **more) for cell, score in (scores or SCORES).items()]


def compute_findings_of(some):
    """Compute the findings of results.

    Nothing else of an experiment is used.
    """
    return compute_findings(SimpleNamespace(results=list(some)))  # of an experiment nothing else is looked at


def average(findings, method, measure="score", rows=100, rate=RATE):
    """Return the one average of a method, measure, number of rows and learning rate."""
    (one,) = (
        a for a in findings.averages if (a.method, a.measure, a.rows, a.learning_rate) == (method, measure, rows, rate)
    )
    return one


def difference(findings, method, rival, group="all", measure="score"):
    """Return the one difference between a method and its rival."""
    one = [
        d for d in findings.differences if (d.method, d.rival, d.group, d.measure) == (method, rival, group, measure)
    ]
    assert len(one) == 1
    return one[0]


def by_seed(method, targets=tuple(TASKS)):
    """Return a method's mean score in points for each seed."""
    return [100 * mean(SCORES[method, target, seed] for target in targets) for seed in (0, 1, 2)]


def require_interval(interval, value, low, high):
    assert (interval.value, interval.low, interval.high) == pytest.approx((value, low, high), abs=1e-9)


def test_findings_of_one_seed_have_values_without_intervals():
    assert mean_interval(np.array([47.0])) == Interval(47.0, None, None)
    findings = compute_findings_of(r for r in results() if r.seed == 1)
    assert {(a.score.low, a.score.high, a.seeds) for a in findings.averages} == {(None, None, 1)}
    one = difference(findings, "reze", "pft")
    assert (one.points.low, one.points.high, one.seeds) == (None, None, 1)
    assert one.points.value == pytest.approx(by_seed("reze")[1] - by_seed("pft")[1])
    assert "one seed tells nothing" in "".join(summarize_experiment(findings))


def test_averages_are_over_targets_with_intervals_over_seeds():
    findings = compute_findings_of(results())
    for method in ("ft", "pft", "reze"):
        one, values = average(findings, method), by_seed(method)
        require_interval(one.score, mean(values), *stats.t.interval(0.95, 2, mean(values), stats.sem(values)))
        assert (one.targets, one.seeds) == (3, 3)


def test_differences_are_paired_by_target_and_seed():
    one = difference(compute_findings_of(results()), "reze", "ft")
    expected = stats.ttest_rel(by_seed("reze"), by_seed("ft"))
    low, high = expected.confidence_interval(0.95)
    require_interval(one.points, mean(by_seed("reze")) - mean(by_seed("ft")), low, high)
    assert (one.targets, one.seeds) == (3, 3)


def test_variance_that_methods_share_does_not_widen_the_interval_of_their_difference():
    """Scores differ by tens of points between targets and seeds, those of the two methods always by about three."""
    shifts = {seed: 0.03 + 0.0001 * seed for seed in (0, 1, 2)}
    scores = SCORES | {("reze", t, s): score + shifts[s] for (m, t, s), score in SCORES.items() if m == "pft"}
    one = difference(compute_findings_of(results(scores)), "reze", "pft")
    low, high = stats.t.interval(0.95, 2, 3.01, stats.sem([3.0, 3.01, 3.02]))
    require_interval(one.points, 3.01, low, high)
    assert (one.better, one.targets, judge_difference(one)) == (3, 3, "better")


def test_label_accuracy_is_averaged_over_targets_that_have_one():
    some = [
        result(*cell, score, label_accuracy=None if cell[1] == "search" else score / 2)
        for cell, score in SCORES.items()
    ]
    findings = compute_findings_of(some)
    one = average(findings, "reze", "label_accuracy")
    assert (one.targets, one.score.value) == (2, pytest.approx(mean(by_seed("reze", ("tone", "topic"))) / 2))
    assert difference(findings, "reze", "ft", measure="label_accuracy").targets == 2
    assert average(findings, "reze").targets == 3


def test_variants_are_compared_with_reze_and_rivals_and_not_with_each_other():
    extra = {("reze, mean", t, s): 0.5 for t in TASKS for s in (0, 1, 2)}
    extra |= {("reze, weight 2", t, s): 0.6 for t in TASKS for s in (0, 1, 2)}
    pairs = {(d.method, d.rival) for d in compute_findings_of(results(SCORES | extra)).differences}
    variants = {"reze, mean", "reze, weight 2"}
    assert pairs == {("reze", other) for other in {"ft", "pft"} | variants} | {
        (variant, rival) for variant in variants for rival in ("ft", "pft")
    }


def test_shifts_average_the_results_without_fine_tuning_rows_over_targets():
    drifts = {("tone", 0): 0.1, ("topic", 0): 0.3, ("tone", 1): 0.2, ("topic", 1): 0.6}
    some = [
        result("pft", t, s, 0.5, rows=0, drift=drift, isoscore=drift / 2, seconds_per_step=drift)
        for (t, s), drift in drifts.items()
    ]
    some += [result("none", t, s, 0.5, rows=0, drift=0.0) for t, s in drifts]
    some += [result("pft", "tone", 0, 0.5, rows=100)]
    pft, none = compute_findings_of(some).shifts
    low, high = stats.t.interval(0.95, 1, 0.3, stats.sem([0.2, 0.4]))
    require_interval(pft.drift, 0.3, low, high)
    assert pft.isoscore.value == pytest.approx(0.15)
    assert pft.seconds_per_step == pytest.approx(0.25)
    assert (none.method, none.drift.value, none.seconds_per_step) == ("none", 0.0, None)


@pytest.mark.parametrize(
    ("interval", "said"),
    [
        (Interval(1.0, 0.5, 1.5), "better"),
        (Interval(-1.0, -1.5, -0.5), "worse"),
        (Interval(1.0, -0.5, 2.5), "no difference can be told"),
        (Interval(1.0, None, None), "one seed tells nothing"),
    ],
)
def test_judge_difference_decides_by_the_interval(interval, said):
    seeds = 1 if interval.low is None else 3
    assert judge_difference(Difference(1e-4, 100, "reze", "pft", "score", "all", interval, 1, 2, seeds)) == said
