"""Plans of an index: what is measured on a sample, what is expected of more rows, and what is chosen."""

from dataclasses import replace

import numpy as np
import pytest

from lathe.training.advice.index_plan import IndexGoal, IndexPlanner, Setting, Trial, choose_setting, extrapolate
from lathe.transforms.progress import no_progress

SMALL = Setting("small", 8, 40, 1, 10, 100, 0.96, 0.97, 500, 1.0, None)
MEDIUM = replace(SMALL, chain="medium", memory=20, recall=0.97, microseconds=300)
LARGE = replace(SMALL, chain="large", memory=99, recall=0.99, microseconds=100)
SETTINGS = [SMALL, MEDIUM, LARGE]


@pytest.fixture
def planner():
    """Return a function that builds a planner whose graphs find all rows among few, and fewer among more."""

    def build(**goal):
        def measure(chain, m, base, queries, truth, k):
            assert truth.shape == (len(queries), k)
            width = 4 * base.shape[1] if chain is None else chain.bytes_per_vector
            recall = 0.99 - 0.01 * np.log10(len(base)) - (0.05 if chain else 0)
            return Trial(len(base), width + 8.0 * m, 100, 1.0 + m, {(40, 1): (recall, 100.0), (80, 2): (0.99, 200.0)})

        return IndexPlanner(IndexGoal(**goal), measure)

    return build


def test_recall_is_extrapolated_by_its_logit_and_time_by_the_logarithm_of_rows():
    few = Trial(1000, 200.0, 100, 1.0, {(40, 1): (0.98, 100.0), (80, 1): (0.9, 300.0)})
    more = Trial(10_000, 200.0, 100, 10.0, {(40, 1): (0.95, 150.0), (80, 1): (0.95, 200.0)})
    first, second = extrapolate(None, 16, (few, more), 100_000)
    odds = 0.95 / 0.05 * (0.95 / 0.05) / (0.98 / 0.02)
    assert first.recall == pytest.approx(odds / (1 + odds))
    assert (first.microseconds, first.memory, first.disk) == (200.0, 20_000_000, 10_000_000)
    assert first.build_seconds == pytest.approx(100)
    assert (second.recall, second.microseconds) == (pytest.approx(0.95), 200.0)  # more rows improve nothing


def test_the_fastest_setting_within_the_memory_is_chosen_or_without_a_limit_the_smallest():
    chosen = {(0.95, None): SMALL, (0.95, 50): MEDIUM, (0.95, 100): LARGE, (0.98, None): LARGE, (0.98, 50): None}
    assert {goal: choose_setting(SETTINGS, IndexGoal(*goal)) for goal in chosen} == chosen


def test_a_plan_measures_rows_to_fit_on_by_held_out_queries_and_extrapolates_to_the_rows_wanted(planner, make_sample):
    plan = planner(recall=0.9, rows=1_000_000).plan(make_sample(rows=1200), no_progress)
    assert (plan.rows, plan.measured_rows, plan.problem) == (1_000_000, 600, "")
    assert {(one.chain, one.m) for one in plan.settings} == {
        (chain, m) for chain in ("none", "codes:24", "codes:32") for m in (8, 16)
    }
    assert all(one.recall <= one.sampled_recall for one in plan.settings)
    assert (plan.chosen.chain, plan.chosen.m, plan.chosen.memory) == ("codes:24", 8, (24 + 64) * 1_000_000)
    assert plan.chosen.recall >= 0.9
    hopeless = planner(recall=0.999).plan(make_sample(rows=1200), no_progress)
    assert hopeless.chosen is None and "no setting is expected to reach recall 0.999" in hopeless.problem
