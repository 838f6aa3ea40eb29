"""The choice among trials: the cheapest that is not beaten beyond the interval of the difference, paired by query."""

from types import SimpleNamespace

import numpy as np
import pytest

from lathe.training.deciding.adapt import AS_IS, CANDIDATES
from lathe.training.deciding.trial import Trial, choose_trial, cross_validate

QUERIES = 200
ALL = np.arange(QUERIES)


def trial(change, gains):
    """Return the trial of a change that gains these points on every query, with a little noise."""
    noise = 0.01 * np.random.default_rng(change).normal(size=QUERIES)
    return Trial(CANDIDATES[change], 64, scores=0.5 + gains + noise)


def test_the_cheapest_of_equals_is_chosen():
    assert choose_trial([trial(0, 0.0), trial(1, 0.0), trial(2, 0.0005), trial(3, 0.0)], ALL).candidate is AS_IS


def test_a_dearer_change_is_chosen_if_it_beats_the_cheaper_ones():
    assert choose_trial([trial(0, 0.0), trial(2, 0.1), trial(3, 0.2)], ALL).candidate.name == "fine_tuning"
    assert choose_trial([trial(0, 0.0), trial(2, 0.2), trial(3, 0.2)], ALL).candidate.name == "query_adapter"


def test_changes_that_were_not_tried_are_passed_over():
    missing = Trial(CANDIDATES[2], 64, problem="too few queries")
    assert choose_trial([trial(0, 0.0), missing, trial(3, 0.1)], ALL).candidate.name == "fine_tuning"


def test_each_half_of_the_queries_chooses_and_is_measured_where_the_other_half_chose():
    """What one half alone finds better is not a gain on the other."""
    first, second = np.arange(40), np.arange(40, 80)
    searches = SimpleNamespace(folds=[(first, second), (second, first)])
    gains, losses = np.linspace(0.1, 0.3, 40), np.linspace(-0.3, -0.1, 40)
    nothing = Trial(CANDIDATES[0], 64, scores=np.zeros(80))
    trials = [nothing, Trial(CANDIDATES[2], 64, scores=np.concatenate([gains, losses]))]
    assert [choose_trial(trials, rows).candidate.name for rows in (first, second)] == ["query_adapter", "as_is"]
    found = cross_validate(trials, searches)
    assert found.value == pytest.approx(-0.1) and found.sign < 0
    both = Trial(CANDIDATES[2], 64, scores=np.concatenate([gains, gains]))
    assert cross_validate([nothing, both], searches).value == pytest.approx(0.2)
