"""Two suites whose scores are known, compared without any data behind them."""

import json

import numpy as np
import pytest
from scipy import stats

from research.domains import compare, write_comparison
from research.domains.summary import summarize_comparison
from research.domains.tables import build_tables

ENCODERS = ("a", "b", "c", "d")
TYPES = {"r0": "Retrieval", "r1": "Retrieval", "r2": "Retrieval", "s0": "STS", "s1": "STS"}
RANDOM = np.random.default_rng(0)


def scores(types, encoders=ENCODERS):
    """Return a score for each encoder and task that grows from one encoder to the next."""
    return {
        (encoder, task): 0.3 + 0.1 * place + 0.02 * float(RANDOM.random())
        for place, encoder in enumerate(encoders)
        for task in types
    }


def compare_silently(first, second):
    return compare(first, second, lambda fraction, message: None)


@pytest.fixture(scope="module")
def pair(build):
    """Return the results of two suites with the same task types."""
    return build(scores(TYPES), TYPES), build(scores(TYPES), TYPES, "general")


@pytest.fixture(scope="module")
def comparison(pair):
    return compare_silently(*pair)


def test_rankings_are_by_task_type_then_of_the_mean_over_types(pair, comparison):
    assert [one.type for one in comparison.rankings] == ["Retrieval", "STS", "all types"]
    assert all(one.rho == pytest.approx(1) and one.p == pytest.approx(2 / 24) for one in comparison.rankings)
    values = {(score.encoder, score.task): score.score for score in pair[0].scores}
    retrieval = [np.mean([values[e, f"r{n}"] for n in range(3)]) for e in ENCODERS]
    sts = [np.mean([values[e, f"s{n}"] for n in range(2)]) for e in ENCODERS]
    assert comparison.rankings[0].means[0] == pytest.approx(retrieval)
    assert comparison.rankings[2].means[0] == pytest.approx((np.array(retrieval) + sts) / 2)


def test_paired_t_tests_compare_the_best_of_four_encoders_with_each_other(pair, comparison):
    some = [one for one in comparison.tests if (one.suite, one.type) == (0, "Retrieval")]
    assert [(one.encoder, one.other) for one in some] == [("d", "c"), ("d", "b"), ("d", "a")]
    values = {(score.encoder, score.task): score.score for score in pair[0].scores}
    best, other = ([values[e, f"r{n}"] for n in range(3)] for e in ("d", "b"))
    expected = stats.ttest_rel(best, other)
    assert (some[1].test.t, some[1].test.p) == (pytest.approx(expected.statistic), pytest.approx(expected.pvalue))
    assert some[1].means == (pytest.approx(np.mean(best)), pytest.approx(np.mean(other)))


def test_one_way_analyses_equal_scipys_f_oneway(pair, comparison):
    values = {(score.encoder, score.task): score.score for score in pair[1].scores}
    groups = [[values[e, f"s{n}"] for n in range(2)] for e in ENCODERS]
    (found,) = [one for one in comparison.one_ways if (one.suite, one.type) == (1, "STS")]
    expected = stats.f_oneway(*groups)
    assert (found.f, found.p) == (pytest.approx(expected.statistic), pytest.approx(expected.pvalue))


def test_split_half_correlations_are_reported_beside_rankings_of_four_data_sets_or_more(comparison, build):
    assert [one.within for one in comparison.rankings] == [(None, None)] * 2 + [(pytest.approx(1),) * 2]
    header, *rows = build_tables(comparison)["Rank correlation of encoders between the suites"].cells
    assert header[-2:] == ["ρ of halves of finance", "ρ of halves of general"]
    assert [row[-2:] for row in rows] == [["–", "–"]] * 2 + [["1.00", "1.00"]]
    said = summarize_comparison(comparison)
    within = "within a suite two halves of the data sets rank them alike at ρ = 1.00 (finance) and ρ = 1.00 (general)."
    assert sum(within in one for one in said) == sum(one.startswith("Read ρ between the suites") for one in said) == 1
    noise = {(encoder, task): float(RANDOM.random()) for encoder in ENCODERS for task in TYPES}
    unlike = compare_silently(build(noise, TYPES), build(scores(TYPES), TYPES, "general")).rankings[2]
    assert unlike.within[0] < 0.9 < unlike.within[1]
    few = compare_silently(*(build(scores({"r0": "Retrieval"}), {"r0": "Retrieval"}, title) for title in "ab"))
    assert not any("halves" in one or one.startswith("These are") for one in summarize_comparison(few))


def test_split_half_correlations_use_the_encoders_that_both_suites_have(build, pair):
    values = (
        scores(TYPES) | {("e", task): 0.0 for task in ("r0", "s0", "s1")} | {("e", task): 1.0 for task in ("r1", "r2")}
    )
    found = compare_silently(build(values, TYPES), pair[1]).rankings[2]
    assert (found.encoders, found.within[0]) == (ENCODERS, pytest.approx(1))


def test_write_comparison_writes_json_and_html_with_all_tables(comparison, tmp_path):
    paths = write_comparison(comparison, tmp_path)
    assert [path.name for path in paths] == ["domains.json", "domains.html"]
    found, html = json.loads(paths[0].read_text()), paths[1].read_text()
    assert [one["rho"] for one in found["rankings"]] == [one.rho for one in comparison.rankings]
    assert len(found["tests"]) == len(comparison.tests) == 12
    shown = build_tables(comparison)
    assert all(name in html for name in shown)
    assert html.count("<svg") == 1  # the scores; without data behind them there is no more to draw
    assert all(len(row) == len(rows[0]) for rows in (table.cells for table in shown.values()) for row in rows)
