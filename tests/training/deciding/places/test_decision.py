"""Decisions: what is chosen among a place's candidates, and the sentence that says it."""

from dataclasses import asdict
from typing import get_args

import numpy as np
import pytest

from lathe.training.deciding.places.databases import PLACES
from lathe.training.deciding.places.decision import decide
from lathe.training.deciding.places.forms import FormSearch, StoredForm
from lathe.training.deciding.requests import AdviceRequest, PlaceName
from lathe.training.deciding.sample import build_vector_sample
from lathe.training.sources.row_sample import RowSample
from lathe.transforms.progress import no_progress


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    """Resample the queries of an interval 40 times, since 300 take most of a decision's time."""
    monkeypatch.setattr("lathe.training.deciding.places.recall.RESAMPLES", 40)


@pytest.fixture
def no_floor(monkeypatch):
    """Advise chains for vectors of any size."""
    monkeypatch.setattr("lathe.training.deciding.places.decision.CHAIN_BYTES", 0)


def request_of(place, rows=None, **fields):
    """Return a request of advice for vectors in a file."""
    return AdviceRequest(source="vectors.npy", place=place, rows=rows, **fields)


def make_sample(rows=1200, width=96, rank=96, seed=0):
    """Sample vectors that vary in `rank` directions, with a little noise in the others."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(width, width)))[0]
    scales = np.where(np.arange(width) < rank, 1.0, 0.01)
    drawn = (rng.normal(size=(rows, width)) * scales @ basis).astype(np.float32)
    return build_vector_sample(RowSample([], drawn, rows, 0, 0.0), drawn)


def test_every_place_of_a_request_is_known():
    assert tuple(PLACES) == get_args(PlaceName)


@pytest.mark.parametrize("name", PLACES)
def test_a_decision_names_bytes_recall_and_commands_and_its_table_has_the_vectors_as_they_are(name, no_floor):
    pytest.importorskip("faiss")
    decision = decide(request_of(name, 100_000), make_sample(rank=24), no_progress)
    assert decision.sentence.startswith(f"In {PLACES[name].title}, ")
    assert "100,000 rows" in decision.sentence
    assert decision.before is decision.options[0]
    assert decision.notes[-1].startswith("Recall among 100,000 rows is extrapolated from ")
    others = decision.notes[1:-1] if PLACES[name].computed else decision.notes[:-1]
    assert all("a product quantizer takes 9,984 rows to fit" in note for note in others)
    assert PLACES[name].computed == decision.notes[0].startswith(f"{PLACES[name].title} itself was not run")
    if decision.chosen is not None:
        assert decision.commands and decision.chosen.reaches
        assert decision.chosen.counted <= 0.9 * decision.before.counted
        assert decision.chosen.recall.low >= decision.goal
    assert asdict(decision)["options"][0]["recall"]["value"] > 0.99


def test_below_a_gigabyte_no_chain_is_advised_and_a_note_says_what_it_would_save():
    decision = decide(request_of("milvus", 10_000), make_sample(rank=12), no_progress)
    assert not decision.chosen.takes_chain and "Without a chain" not in decision.sentence
    assert any(
        "HNSW_SQ of 16 dimensions" in note and "would take 1.52 MB; vectors of less than 1 GB" in note
        for note in decision.notes
    )
    decision = decide(request_of("lathe", 10_000), make_sample(rank=12), no_progress)
    assert decision.chosen is None and "leave the vectors as they are (5.2 MB)" in decision.sentence


def test_vectors_of_low_rank_are_reduced_and_a_setting_of_the_place_is_named_beside(no_floor):
    decision = decide(request_of("milvus", 10_000), make_sample(rank=12), no_progress)
    assert decision.chosen.candidate.form.steps == "pca:16,center=none"
    assert "Without a chain, " in decision.sentence and "do only that" in decision.sentence
    assert not decision.simpler.takes_chain


def test_a_chain_that_saves_little_more_than_a_setting_of_the_place_is_not_chosen():
    decision = decide(request_of("pgvector", 10_000), make_sample(rank=96), no_progress)
    assert decision.chosen.candidate.words == "an index of halfvec(96)"
    index = "CREATE INDEX CONCURRENTLY ON items USING hnsw ((embedding::halfvec(96)) halfvec_cosine_ops);"
    assert decision.commands[0] == index


def test_no_form_finds_more_than_the_form_that_ranks_its_candidates(monkeypatch):
    """Half precision loses some neighbours here, as its scores are rounded."""
    score = FormSearch.score

    def score_roughly(self, form):
        scores = score(self, form)
        return np.round(scores, 1) if form == StoredForm("float16", 96) else scores

    monkeypatch.setattr(FormSearch, "score", score_roughly)
    decision = decide(request_of("faiss", 5_000, recall=0.9999), make_sample(rank=12), no_progress)
    half = next(option for option in decision.options if option.candidate.form == StoredForm("float16", 96))
    ranked = [option for option in decision.options if option.candidate.beside is not None and option.multiple > 1]
    assert half.recall.value < 0.9 and ranked
    for option in ranked:
        assert option.recall.value <= half.recall.value and option.recall.low <= half.recall.low
    assert all("product quantizer" in note for note in decision.notes)


def test_vectors_are_left_as_they_are_if_nothing_is_sure_to_find_enough():
    decision = decide(request_of("elasticsearch", 1_000_000, recall=0.9999), make_sample(), no_progress)
    assert "leave the vectors as they are" in decision.sentence
    assert decision.chosen is None and decision.commands == ()


def test_from_few_rows_nothing_is_decided():
    decision = decide(request_of("lathe"), make_sample(rows=500), no_progress)
    assert "nothing can be decided from 500 distinct rows: 1,000 are needed" in decision.sentence
    assert decision.options == []


def test_the_size_of_an_index_of_pgvector_is_that_of_its_pages():
    """Sizes that were measured: benchmarks/results/databases.json, 20,000 rows of 384 and 128 dimensions."""
    measured = {
        ("float32", 384): 41.0,
        ("float16", 384): 23.4,
        ("float32", 128): 16.7,
        ("float16", 128): 11.4,
        ("bit", 384): 7.0,
    }
    place = PLACES["pgvector"]
    by_form = {(one.form.element, one.form.dimensions): one for one in place.list_candidates(384)}
    for (element, dimensions), megabytes in measured.items():
        candidate = by_form.get((element, dimensions))
        if candidate is not None:
            assert place.measure(candidate, 20_000)["graph"] / 1e6 == pytest.approx(megabytes, rel=0.05)
