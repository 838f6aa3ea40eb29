"""A fit by an encoder that stores no vectors leaves nothing of its queries and pairs on disk."""

from pathlib import Path

import numpy as np
import pytest

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
def documents(tmp_path_factory):
    return write(tmp_path_factory.mktemp("given") / "documents.jsonl", [{"text": f"document {n}"} for n in range(600)])


@pytest.fixture
def pairs(tmp_path_factory):
    rows = [*pairs_of(range(400)), {"query": CANARY, "document": "document 5"}]
    return write(tmp_path_factory.mktemp("given") / "pairs.jsonl", rows)


@pytest.fixture
def state(new_workspace):
    """Return a state folder, with out-of-domain texts in it."""
    return new_workspace.parent


def fit(state, source, on_progress=no_progress, **request):
    """Fit an adapter of queries, save the chain in the state folder, and return its certificate."""
    asked = NewFit(name="adapted", steps=ADAPTER, source=source, **request)
    with fit_new_chain(asked, NumberEncoder(), state / "vectors", on_progress) as fitted:
        fitted.chain.save(state / "chain", distribution=fitted.distribution)
        return fitted.certificate


def test_a_fit_on_pairs_leaves_no_trace(state, documents, pairs):
    certificate = fit(state, documents, pairs=pairs)
    assert find_traces(state, NumberEncoder()) == []
    np.save(state / "a.npy", NumberEncoder().encode(["query 1", CANARY]).vectors)
    assert find_traces(state, NumberEncoder()) == ["a.npy"], "a trace would be found"
    assert certificate["relevance"]["queries"] == 80


def test_a_fit_that_is_stopped_in_training_leaves_no_trace(state, documents, pairs, monkeypatch):
    always = classmethod(lambda cls, place: place if isinstance(place, cls) else cls(Path(place), seconds=0, share=1))
    monkeypatch.setattr(Checkpoint, "at", always)

    def stop(fraction, message):
        if "query_adapter step 30" in message:
            raise Stopped

    with pytest.raises(Stopped):
        fit(state, documents, on_progress=stop, pairs=pairs)
    assert any(state.rglob("*.f32")) and any(state.rglob("*query_adapter.safetensors")), "both stay, to go on from"
    assert find_traces(state, NumberEncoder()) == []
