import numpy as np
import pytest
from scipy import stats

from lathe.training.evaluation.comparison import System, compare_scores, compare_systems


@pytest.fixture
def compare(build):
    """Return a function that compares the systems of results built from scores."""

    def make(values, **options):
        return compare_systems(build(values, **options))

    return make


def draw_units(score, seed, count=50):
    """Draw values of units whose mean is the score."""
    values = np.random.default_rng(seed).normal(0, 0.05, count)
    return values - values.mean() + score


def test_encoders_are_compared_with_the_first_and_chains_with_raw_vectors_and_the_first_chain(compare):
    methods = ("control", "small@1", "codes@1", "small@1 rescored")
    values = {("one", method, "t"): 0.5 for method in methods} | {("two", "control", "t"): 0.6}
    values["three", "control", "t"] = 0.7
    assert [(one.baseline, one.compared) for one in compare(values)] == [
        (System("one"), System("two")),
        (System("one"), System("three")),
        (System("one"), System("one", "small@1")),
        (System("one"), System("one", "codes@1")),
        (System("one"), System("one", "small@1 rescored")),
        (System("one", "small@1"), System("one", "codes@1")),
    ]


def test_one_data_set_is_judged_by_its_units(compare):
    """The interval is that of a paired t-test over the units, and not over data sets."""
    units = {("one", "control", "t"): draw_units(0.5, 0), ("two", "control", "t"): draw_units(0.53, 1)}
    values = {key: float(one.mean()) for key, one in units.items()}
    (found,) = compare(values, units=units, types={"t": "Retrieval"}, metric="ndcg_at_10")
    assert found.between is None
    verdict = found.verdict
    assert (verdict.data_set, verdict.unit, verdict.units, verdict.metric) == ("t", "query", 50, "nDCG@10")
    test = stats.ttest_rel(units["two", "control", "t"], units["one", "control", "t"]).confidence_interval(0.95)
    assert (verdict.difference.low, verdict.difference.high) == pytest.approx((100 * test.low, 100 * test.high))
    assert verdict.scores == pytest.approx((50, 53))
    assert verdict.outcome == "better"


def test_several_data_sets_are_judged_by_their_differences_and_each_by_its_units(compare, table):
    gains = [0.01, 0.02, 0.03, 0.01]
    values = table("one", "abcd", control=[0.5] * 4) | table("two", "abcd", control=[0.5 + gain for gain in gains])
    units = {key: draw_units(value, place) for place, (key, value) in enumerate(values.items())}
    (found,) = compare(values, units=units)
    assert found.verdict is found.between
    assert (found.between.data_set, found.between.unit, found.between.units) == (None, "data set", 4)
    expected = stats.ttest_1samp([100 * gain for gain in gains], 0).confidence_interval(0.95)
    assert (found.between.difference.low, found.between.difference.high) == pytest.approx(tuple(expected))
    assert [verdict.data_set for verdict in found.within] == list("abcd")


def test_only_data_sets_that_both_completed_are_compared(compare):
    values = {("one", "control", "a"): 0.5, ("one", "control", "b"): 0.5, ("two", "control", "a"): 0.6}
    values |= {("two", "control", "b"): None, ("three", "control", "b"): None}
    (found,) = compare(values)
    assert [verdict.data_set for verdict in found.within] == ["a"]
    assert (found.baseline, found.compared) == (System("one"), System("two"))


def test_equal_values_of_all_units_give_no_interval():
    values = draw_units(0.5, 0)
    found = compare_scores(values, values, 0.0)
    assert (found.value, found.low, found.high) == (0, None, None)
