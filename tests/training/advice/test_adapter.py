"""The trial of a query adapter on judged queries, as advice makes it."""

import json

import numpy as np
import pytest

from lathe.training.advice.adapter import try_adapter
from lathe.training.advice.advise import advise
from lathe.training.advice.request import AdviceRequest
from lathe.training.errors import AdviceError
from lathe.transforms.progress import no_progress
from tests.training.fitting.test_pairs import NumberEncoder, pairs_of, write

TEXTS = [f"document {n}" for n in range(600)]


@pytest.fixture
def run(tmp_path, out_of_domain_texts):
    """Return a function that tries an adapter on the pairs of a file."""

    def go(pairs):
        request = AdviceRequest("documents.jsonl", pairs=pairs)
        return try_adapter(request, TEXTS, NumberEncoder(), out_of_domain_texts.parent, no_progress)

    return go


def test_an_adapter_that_gains_is_recommended_with_its_interval(run, tmp_path):
    trial = run(write(tmp_path / "pairs.jsonl", pairs_of(range(400))))
    assert trial.recommended
    assert trial.steps == "query_adapter"
    assert trial.reasons[0].startswith("Map queries: nDCG@10 of 80 queries that neither taught nor chose goes from")
    assert trial.reasons[-1].startswith("With lathe adapt")
    assert json.loads(json.dumps(trial.ladder, allow_nan=False)) == trial.ladder
    assert {row["rung"] for row in trial.ladder["trials"] if row["problem"]} == {"fine_tuning", "pre_finetuning"}


def test_no_pairs_give_no_trial_and_too_few_are_an_answer(run, tmp_path):
    assert run(None) is None
    trial = run(write(tmp_path / "few.jsonl", pairs_of(range(20))))
    assert not trial.recommended
    assert "20 different judged queries leave" in trial.reasons[0]


def test_pairs_with_a_source_of_vectors_are_refused(tmp_path):
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32))
    with pytest.raises(AdviceError, match="holds vectors, and pairs are texts"):
        advise(AdviceRequest(str(tmp_path / "rows.npy"), pairs="pairs.jsonl"), None, tmp_path, no_progress)
