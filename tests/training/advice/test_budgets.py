import sys

import numpy as np
import pytest

from lathe.training.advice.budgets import CODES, BudgetComparison, BudgetTrial, compare_budgets, list_budgets
from lathe.training.advice.database_codes import RABITQ, TRUNCATED, RaBitQSearch, find_candidates
from lathe.training.advice.sizes import SizeComparison, SizeMeasurer, SizeTrial
from lathe.training.evaluation.statistics import Interval
from lathe.training.split_half import reciprocal_ranks
from lathe.transforms import Chain, parse_steps
from lathe.transforms.quality.metrics import search_recall_of_anchors
from lathe.transforms.statistics import moments_of


def silent(_fraction, _sentence):
    return


def compare(sample, debiasing="r2", reducers=()):
    measurer = SizeMeasurer(sample, debiasing)
    return measurer, compare_budgets(measurer, SizeComparison(measurer.full, list(reducers), {}, 150), silent)


@pytest.mark.parametrize(("width", "largest"), [(8, None), (16, 16), (384, 384), (700, 384), (1024, 768)])
def test_list_budgets_allows_a_byte_for_each_dimension_at_most(width, largest):
    assert max(list_budgets(width), default=None) == largest


def test_compare_budgets_measures_codes_like_the_chain_that_would_be_fitted(make_sample):
    sample = make_sample(rows=300, width=32, spectrum=0.7, common=1.0)
    measurer, found = compare(sample)
    assert [(one.setting, one.bytes) for one in found.codes] == [(f"r2,codes:{size}", size) for size in (16, 24, 32)]
    chain, trial = Chain(parse_steps("r2,codes:16")).fit(sample.fit), found.codes[0]
    queries, documents = chain.transform_queries(sample.heldout), chain.floats(sample.heldout)
    for interval, oversampling in ((trial.recall_at_10, 1), (trial.rescored_4x, 4)):
        recall = search_recall_of_anchors(measurer.before, queries, documents, 10, oversampling).mean()
        assert interval.value == pytest.approx(recall, abs=0.01)
    assert trial.recall_at_10.low < trial.recall_at_10.value < trial.recall_at_10.high
    assert found.codes[-1].recall_at_10.value > trial.recall_at_10.value
    # Split-half retrieval by codes of nearly 8 bits for each dimension is that by floats.
    full = reciprocal_ranks(*(measurer.chain.floats(side) for side in (sample.halves.first, sample.halves.second)))
    assert found.codes[-1].loss.value == pytest.approx(0, abs=2) and measurer.full.retrieval == full.mean()


def test_methods_of_databases_stay_within_the_budget(make_sample):
    _, found = compare(make_sample(rows=300, width=64, spectrum=0.7, cut=0), "normalize")
    assert {one.method for one in found.databases} == {RABITQ, *TRUNCATED}
    assert all(one.bytes <= one.budget and one.loss is None for one in found.databases)
    assert found.codes[0].setting == "codes:16" and found.codes[0].loss is None
    best = found.best_settings(64)
    assert best["truncated int8"].setting == "first 64 dimensions" and best["truncated int8"].recall_at_10.value > 0.95
    assert best["truncated floats"].setting == "first 16 dimensions" and best["truncated sign bits"].bytes == 8
    several = [one for one in found.databases if (one.budget, one.method) == (64, RABITQ)]
    assert len(several) == 4 and best[RABITQ].recall_at_10.value == max(one.recall_at_10.value for one in several)


def test_rabitq_search_finds_other_rows_than_the_query():
    rows = np.random.default_rng(0).standard_normal((200, 32)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    *_, found = RaBitQSearch(moments_of(rows), rows).search(64, 10)
    assert (found.setting, found.candidates.shape) == ("4 bits of 32 principal axes", (200, 10))
    assert not (found.candidates == np.arange(200)[:, None]).any()
    exact = find_candidates(rows, rows, 10)
    assert (found.candidates[:, :, None] == exact[:, None, :]).any(2).mean() > 0.8


def test_compare_budgets_without_faiss_leaves_out_rabitq_only(make_sample, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    _, found = compare(make_sample(rows=300, width=32, cut=0))
    assert {one.method for one in found.databases} == set(TRUNCATED) and "pip install" in found.problems[RABITQ]


def test_compare_budgets_notes_why_codes_cannot_be_fitted(make_sample):
    sample = make_sample(rows=300, width=16, cut=0)
    sample.fit[:] = sample.fit[0]
    _, found = compare(sample, "normalize")
    assert found.codes == [] and "vectors that differ" in found.problems[CODES] and found.databases


def test_compare_budgets_takes_reducers_whose_floats_fill_a_budget(make_sample):
    near = Interval(1.0, None, None)
    reducers = [SizeTrial(name, 8, 1.0, 1.0, near, None, None, 32, 1.0) for name in ("PCA", "truncation")]
    _, found = compare(make_sample(rows=300, width=32, cut=0), reducers=reducers)
    assert [(one.method, one.budget) for one in found.chains if one.method != CODES] == [("PCA", 32)]
    assert [one.method for one in found.best_chains()] == [CODES, CODES, "PCA"]


def test_list_databases_ahead_needs_separate_intervals():
    def trial(method, budget, value):
        recall = Interval(value, value - 0.01, value + 0.01)
        return BudgetTrial(method, "", budget, budget, recall, recall)

    rivals = [trial(RABITQ, 16, 0.53), trial(RABITQ, 16, 0.4), trial(RABITQ, 24, 0.61), trial("int8", 24, 0.7)]
    found = BudgetComparison([trial(CODES, 16, 0.5), trial(CODES, 24, 0.6)], rivals, {}, 1000)
    assert found.list_databases_ahead() == {RABITQ: [16], "int8": [24]}
