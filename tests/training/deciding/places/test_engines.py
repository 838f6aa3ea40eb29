"""What stores find in their own engine is what is computed of their forms without it."""

import numpy as np
import pytest

from lathe.training.deciding.places import decision
from lathe.training.deciding.places.databases import PLACES
from lathe.training.deciding.places.decision import decide
from lathe.training.deciding.places.engines import require_engine, search_in_engine
from lathe.training.deciding.places.forms import FormSearch, StoredForm
from lathe.training.deciding.places.recall import find_nearest, measure_recall
from lathe.training.deciding.requests import AdviceRequest
from lathe.training.deciding.sample import build_vector_sample
from lathe.training.errors import AdviceError
from lathe.training.sources.row_sample import RowSample
from lathe.transforms.progress import no_progress

WIDTH = 64
MODULES = {"qdrant": "qdrant_edge", "faiss": "faiss"}


@pytest.fixture(scope="module")
def drawn():
    """Draw rows `(3000, 64)` and queries `(200, 64)` in clusters around a common mean, with a few large coordinates."""
    rng = np.random.default_rng(0)
    scales = np.geomspace(2, 0.3, WIDTH)
    centres = rng.normal(size=(60, WIDTH)) * scales
    vectors = centres[rng.integers(60, size=3200)] + 0.7 * rng.normal(size=(3200, WIDTH)) * scales
    vectors[:, 5] += 6
    return vectors[:3000].astype(np.float32), vectors[3000:].astype(np.float32)


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
@pytest.mark.parametrize("place", MODULES)
def test_an_engine_finds_what_was_computed_for_each_candidate(place, metric, drawn):
    pytest.importorskip(MODULES[place])
    search = FormSearch(*drawn, metric)
    nearest = find_nearest(search.score(StoredForm("float32", WIDTH)))
    candidates = [
        candidate
        for candidate in PLACES[place].list_candidates(WIDTH)
        # A product quantizer is fitted on more rows than these.
        if metric in candidate.metrics and candidate.form.element != "pq" and not candidate.form.steps
    ]
    for candidate in candidates if metric == "cosine" else candidates[:5]:
        found, _ = search_in_engine(place, candidate, 1, search)
        computed = measure_recall(find_nearest(search.score(candidate.form)), nearest)
        assert abs(found - computed) < 0.04, (candidate.words, found, computed)


def test_a_store_ranks_candidates_by_its_full_vectors(drawn):
    pytest.importorskip("qdrant_edge")
    search = FormSearch(*drawn, "cosine")
    [binary] = [one for one in PLACES["qdrant"].list_candidates(WIDTH) if one.words == "binary quantization"]
    (alone, size), (ranked, _) = (search_in_engine("qdrant", binary, multiple, search) for multiple in (1, 8))
    assert alone + 0.2 < ranked
    assert size > len(search.rows) * WIDTH / 8


def test_a_verified_decision_says_what_the_engine_found(drawn, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(decision, "CHAIN_BYTES", 0)
    sample = build_vector_sample(RowSample([], drawn[0], 3000, 0, 0.0), drawn[0])
    decided = decide(AdviceRequest(source="vectors.npy", place="faiss", rows=30_000, verify=True), sample, no_progress)
    assert decided.checks
    for check in decided.checks:
        assert abs(check.recall - check.computed) < 0.03
        assert any(check.words in note and check.engine in note for note in decided.notes)


def test_an_engine_that_is_a_server_or_not_installed_is_refused(monkeypatch):
    with pytest.raises(AdviceError, match="leave it out for pgvector"):
        require_engine("pgvector")
    monkeypatch.setattr("lathe.training.deciding.places.engines.find_spec", lambda name: None)
    with pytest.raises(AdviceError, match="needs qdrant-edge-py: pip install"):
        require_engine("qdrant")
