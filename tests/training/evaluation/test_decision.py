import numpy as np
import pytest

from lathe.training.evaluation.comparison import System
from lathe.training.evaluation.decision import decide as decide_on


def spread(score, gain=0.0, noise=0.0, count=400):
    """Return values of units around a score plus a gain. The noise differs between gains."""
    random = np.random.default_rng(0)
    values = score + random.normal(0, 0.2, count)
    return values + gain + noise * np.random.default_rng(round(1e6 * abs(gain)) + 1).normal(0, 1, count)


@pytest.fixture
def decide(build):
    """Return a function that answers from the values of units by (encoder, method, task)."""

    def make(units, tasks="my_set", **options):
        values = {key: float(np.mean(one)) for key, one in units.items()}
        types = {task: "Retrieval" for _, _, task in units}
        options = {"types": types, "metric": "ndcg_at_10", **options}
        return decide_on(build(values, units=units, **options))

    return make


def test_the_answer_on_one_data_set_names_points_interval_data_set_and_queries(decide):
    units = {("A", "control", "my_set"): spread(0.5), ("B", "control", "my_set"): spread(0.5, 0.019, 0.08)}
    found = decide(units)
    verdict = found.comparison.verdict
    reach = (verdict.difference.high - verdict.difference.low) / 2
    points = f"{verdict.difference.value:.1f} ± {reach:.1f}"
    assert found.sentence == f"B is better than A by {points} points of nDCG@10 on my_set (400 queries)."
    assert found.choice == System("B")


def test_a_worse_encoder_is_called_worse_and_the_first_is_chosen(decide):
    units = {("A", "control", "my_set"): spread(0.5), ("B", "control", "my_set"): spread(0.5, -0.05, 0.08)}
    found = decide(units)
    assert found.sentence.startswith("B is worse than A by ")
    assert found.choice == System("A")


def test_an_interval_that_contains_0_is_not_decided(decide):
    units = {("A", "control", "my_set"): spread(0.5), ("B", "control", "my_set"): spread(0.5, 0.001, 0.2)}
    found = decide(units)
    assert found.sentence.startswith("Whether B is better than A is not decided on my_set (400 queries): ")
    assert found.choice == System("A")


def test_without_anything_to_compare_the_answer_is_the_score_with_its_interval(decide):
    found = decide({("A", "control", "my_set"): spread(0.5)})
    assert found.sentence.startswith("A scores ")
    assert " points of nDCG@10 on my_set (400 queries). Nothing was compared with it" in found.sentence
    assert found.comparison is None
    assert set(found.to_fields()) == {"sentence", "choice"}


def test_one_failed_encoder_leaves_an_answer(decide, build):
    results = build({("A", "control", "t"): None})
    assert decide_on(results).sentence == "A has no score."
