"""The trial of a query adapter on pairs of queries and documents."""

import json

import numpy as np
import pytest

from lathe.training.advice.adapter import try_adapter
from lathe.training.advice.advise import advise
from lathe.training.advice.encoding import SampleEncoder
from lathe.training.advice.request import AdviceRequest
from lathe.training.errors import AdviceError, FitError
from lathe.training.sources.row_sample import RowSample
from lathe.transforms.progress import no_progress
from tests.training.fitting.test_pairs import NumberEncoder, pairs_of, write

TEXTS = [f"document {n}" for n in range(600)]


@pytest.fixture
def run(tmp_path):
    """Return a function that tries an adapter on the pairs of a file."""
    encoder = NumberEncoder()
    encoding = SampleEncoder(encoder, tmp_path)
    encoding.encode(TEXTS, no_progress)

    def go(pairs):
        request = AdviceRequest("documents.jsonl", pairs=pairs)
        return try_adapter(request, RowSample(TEXTS, None, 600, 0, 0.0), encoding, encoder, no_progress)

    return go


def test_an_adapter_that_gains_is_recommended_with_its_interval_and_its_cost_elsewhere(run, tmp_path):
    trial = run(write(tmp_path / "pairs.jsonl", pairs_of(range(500))))
    ndcg = trial.relevance["ndcg_at_10"]
    assert trial.recommended == (ndcg["gain"] > ndcg["ci95"])
    assert trial.recommended
    assert trial.steps == "query_adapter"
    assert trial.reasons[0].startswith("Put query_adapter first")
    assert "On 100 queries that it was not fitted on, nDCG@10 goes" in trial.reasons[1]
    assert trial.reasons[2].startswith("Halves of other text (pydoc)")
    assert json.loads(json.dumps(trial.relevance, allow_nan=False)) == trial.relevance


def test_an_adapter_that_gains_nothing_is_not_recommended(run, tmp_path):
    """Queries are about other documents than those that are called relevant."""
    rows = [{"query": f"query {n}", "document": f"document {(7 * n + 3) % 600}"} for n in range(300)]
    trial = run(write(tmp_path / "pairs.jsonl", rows))
    assert not trial.recommended
    assert trial.reasons[0].startswith("No query adapter")


def test_no_pairs_give_no_trial_and_too_few_are_refused(run, tmp_path):
    assert run(None) is None
    with pytest.raises(AdviceError, match="no adapter can be tried on .*at least 200 different queries"):
        run(write(tmp_path / "some.jsonl", pairs_of(range(200))))
    with pytest.raises(FitError, match="the pairs have 20 different queries"):
        run(write(tmp_path / "few.jsonl", pairs_of(range(20))))


def test_pairs_with_a_source_of_vectors_are_refused(tmp_path):
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32))
    with pytest.raises(AdviceError, match="holds vectors, and pairs are texts"):
        advise(AdviceRequest(str(tmp_path / "rows.npy"), pairs="pairs.jsonl"), None, tmp_path, no_progress)
