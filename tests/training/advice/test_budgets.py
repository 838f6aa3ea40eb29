import pytest

from lathe.training.advice.budgets import compare_budgets, list_budgets
from lathe.training.advice.database_codes import RABITQ, TRUNCATED
from lathe.training.advice.sizes import SizeComparison, SizeMeasurer
from lathe.training.split_half import reciprocal_ranks
from lathe.transforms import Chain, parse_steps
from lathe.transforms.quality.metrics import search_recall_of_anchors


def silent(_fraction, _sentence):
    return


def compare(sample, debiasing="r2"):
    measurer = SizeMeasurer(sample, debiasing)
    return measurer, compare_budgets(measurer, SizeComparison(measurer.full, [], {}, 150), silent)


def test_list_budgets_allows_a_byte_for_each_dimension_at_most():
    largest = {8: None, 16: 16, 700: 384}
    assert {width: max(list_budgets(width), default=None) for width in largest} == largest


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
    _, found = compare(make_sample(rows=300, width=32, spectrum=0.7, cut=0), "normalize")
    assert {one.method for one in found.databases} == {RABITQ, *TRUNCATED}
    assert all(one.bytes <= one.budget and one.loss is None for one in found.databases)
    assert found.best_settings(32)["truncated int8"].setting == "first 32 dimensions"
