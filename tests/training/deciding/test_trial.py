"""The choice among changes: the cheapest that is not beaten beyond the interval of the difference, paired by query."""

import json

import numpy as np
import pytest

from lathe.training.deciding.trial import AS_IS, CANDIDATES, Relevance, Trial, choose_trial, cross_validate

QUERIES = 200


def trial(change, gains):
    """Return the trial of a change that gains these points on every query, with a little noise."""
    noise = 0.01 * np.random.default_rng(change).normal(size=QUERIES)
    ndcg = 0.5 + gains + noise
    return Trial(CANDIDATES[change], None, 64, Relevance(ndcg, ndcg, {"pydoc": ndcg}))


def test_the_cheapest_of_equals_is_chosen():
    assert choose_trial([trial(0, 0.0), trial(1, 0.0), trial(2, 0.0005), trial(3, 0.0)]).candidate is AS_IS


def test_a_dearer_change_is_chosen_if_it_beats_the_cheaper_ones():
    assert choose_trial([trial(0, 0.0), trial(2, 0.1), trial(3, 0.2)]).candidate.name == "fine_tuning"
    assert choose_trial([trial(0, 0.0), trial(2, 0.2), trial(3, 0.2)]).candidate.name == "query_adapter"


def test_changes_that_were_not_tried_are_passed_over():
    missing = Trial(CANDIDATES[2], None, 64, None, problem="too few queries")
    assert choose_trial([trial(0, 0.0), missing, trial(3, 0.1)]).candidate.name == "fine_tuning"


def test_a_trial_is_described_as_json():
    rows = [trial(0, 0.0), trial(3, 0.1)]
    described = rows[1].describe(rows[0].measured_relevance)
    assert json.loads(json.dumps(described, allow_nan=False)) == described
    assert described["choose"]["gain"] == pytest.approx(0.1, abs=0.01)
    assert described["encodes_documents_again"] is True
    refused = Trial(CANDIDATES[4], 48, 48, None, problem="no folders").describe(rows[0].measured_relevance)
    assert refused == {"change": "pre_finetuning", "bytes": 48, "vector_bytes": 48, "problem": "no folders"}


def test_each_half_of_the_queries_chooses_and_is_measured_where_the_other_half_chose():
    """What one half alone finds better is no gain on the other."""
    nothing = Relevance(np.zeros(40), np.zeros(40), {}, crossed=True)
    half = Relevance(np.linspace(0.1, 0.3, 40), np.linspace(-0.3, -0.1, 40), {}, crossed=True)
    trials = [Trial(CANDIDATES[0], None, 64, nothing), Trial(CANDIDATES[2], None, 64, half)]
    assert [choose_trial(trials, fold).candidate.name for fold in range(2)] == ["query_adapter", "as_is"]
    found = cross_validate(trials, nothing)
    assert found.value == pytest.approx(-0.1) and found.sign < 0
    assert (len(half.choose), len(half.report)) == (80, 80)
    both = Relevance(half.first, half.first, {}, crossed=True)
    assert cross_validate([trials[0], Trial(CANDIDATES[2], None, 64, both)], nothing).value == pytest.approx(0.2)
    apart = Relevance(half.first, half.second, {})
    assert apart.choose is not apart.report and apart.report.tolist() == half.second.tolist()
