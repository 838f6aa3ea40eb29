"""Fits on queries with personal data: nothing of the queries is on disk afterwards, and certificates say so."""

import json
from pathlib import Path

import numpy as np
import pytest

from lathe.training.errors import FitError
from lathe.training.fitting.fit import fit_new_chain
from lathe.training.fitting.requests import NewFit
from lathe.transforms.base import Checkpoint
from lathe.transforms.progress import no_progress
from tests.training.fitting.test_pairs import ADAPTER, NumberEncoder, pairs_of, write

CANARY = "query 777777"
"""A query that no other text has a part of; its vector is as unique."""


class Stopped(Exception):
    """Stands for a kill in the middle of a training."""


def find_traces(folder, encoder):
    """Return the files below a folder that hold the canary's text, an id of it, or its vector in any precision."""
    vector = encoder.encode([CANARY]).vectors[0]
    needles = [CANARY.encode(), b"777777", *(vector.astype(dtype)[:4].tobytes() for dtype in ("f2", "f4", "f8"))]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.name for path in files if any(needle in path.read_bytes() for needle in needles)]


@pytest.fixture
def documents(tmp_path):
    return write(tmp_path / "documents.jsonl", [{"text": f"document {n}"} for n in range(600)])


@pytest.fixture
def pairs(tmp_path):
    rows = [*pairs_of(range(400)), {"query": CANARY, "document": "document 5"}]
    return write(tmp_path / "pairs.jsonl", rows)


def fit(state, source, steps=ADAPTER, on_progress=no_progress, **request):
    """Fit with marked queries, save the chain in the state folder, and return its certificate."""
    asked = NewFit(name="adapted", steps=steps, source=source, **({"personal_data": True} | request))
    with fit_new_chain(asked, NumberEncoder(), state / "vectors", on_progress) as fitted:
        fitted.chain.save(state / "chain", statistics=fitted.statistics)
        return fitted.certificate


def test_traces_are_found_where_there_are_any(tmp_path):
    encoder = NumberEncoder()
    np.save(tmp_path / "a.npy", encoder.encode(["query 1", CANARY]).vectors)
    (tmp_path / "b.json").write_text(json.dumps({"text": CANARY}))
    (tmp_path / "c.json").write_text("query 1")
    assert sorted(find_traces(tmp_path, encoder)) == ["a.npy", "b.json"]


def test_a_fit_on_pairs_leaves_no_trace_and_its_certificate_says_so(tmp_path, documents, pairs):
    state = tmp_path / "state"
    certificate = fit(state, documents, pairs=pairs, keep_moments=True)
    assert find_traces(state, NumberEncoder()) == []
    assert certificate["personal_data"]["fields"] == ["pairs"]
    assert "no texts" in certificate["personal_data"]["kept"]
    assert certificate["relevance"]["queries"] == 80


def test_a_fit_weighted_by_queries_leaves_no_trace(tmp_path, documents):
    queries = write(tmp_path / "queries.jsonl", [{"text": f"query {n}"} for n in (*range(150), 777777)])
    state = tmp_path / "state"
    certificate = fit(state, documents, [{"kind": "codes", "bytes": 6}], queries=queries, normalize=False)
    assert find_traces(state, NumberEncoder()) == []
    assert certificate["personal_data"]["fields"] == ["queries"]


def test_a_fit_that_is_stopped_in_training_leaves_no_trace(tmp_path, documents, pairs, monkeypatch):
    always = classmethod(lambda cls, place: place if isinstance(place, cls) else cls(Path(place), seconds=0, share=1))
    monkeypatch.setattr(Checkpoint, "at", always)

    def stop(fraction, message):
        if "query_adapter step 30" in message:
            raise Stopped

    state = tmp_path / "state"
    with pytest.raises(Stopped):
        fit(state, documents, on_progress=stop, pairs=pairs)
    assert any(state.rglob("*.f32")) and any(state.rglob("*query_adapter.safetensors")), "both stay, to go on from"
    assert find_traces(state, NumberEncoder()) == []


def test_moments_of_few_queries_are_refused(tmp_path, documents):
    rows = [{"text": f"query {n % 99}"} for n in range(300)]
    queries = write(tmp_path / "queries.jsonl", rows)
    steps = [{"kind": "codes", "bytes": 6}]
    with pytest.raises(FitError, match="at least 100 different ones, these are 99"):
        fit(tmp_path / "state", documents, steps, queries=queries)
    fit(tmp_path / "state", documents, steps, queries=queries, personal_data=False)


def test_an_error_quotes_no_query_of_marked_pairs(tmp_path, documents, pairs):
    test = write(tmp_path / "test.jsonl", [*pairs_of(range(500, 540)), {"query": CANARY, "document": "document 9"}])
    with pytest.raises(FitError, match="1 queries of the test pairs are among the pairs to fit on: ") as error:
        fit(tmp_path / "state", documents, pairs=pairs, test_pairs=test)
    assert CANARY not in str(error.value)
    with pytest.raises(FitError, match=CANARY):
        fit(tmp_path / "state", documents, pairs=pairs, test_pairs=test, personal_data=False)


def test_a_mark_without_queries_is_refused(tmp_path, documents):
    with pytest.raises(FitError, match="there are none: the mark is for queries, pairs and test pairs"):
        fit(tmp_path / "state", documents, [{"kind": "mc"}])
