from pathlib import Path

import numpy as np
import pytest

from lathe.training.datasets.records import Search
from lathe.training.synthesis.near_duplicates import split_shingles
from research.evidence.corect.__main__ import build_table, measure, search
from research.evidence.corect.collection import (
    DISTRACTORS,
    RELEVANT,
    Collection,
    Query,
    choose_documents,
    is_taken_from,
)
from research.evidence.corect.compression import (
    FLOATS,
    Compression,
    bin_by_percentiles,
    bin_equally,
    fit_compressions,
)
from research.evidence.corect.plot import write_plot


@pytest.fixture(scope="module")
def vectors():
    """Return 2,000 unit vectors of 32 dimensions, of which the first ones vary most."""
    rows = np.random.default_rng(0).normal(size=(2000, 32)) * np.linspace(2, 0.2, 32) + 0.2
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def collection():
    """Return five queries, each with ten relevant documents, and one that is ignored."""
    queries = [Query(f"query {n}", "set", tuple(range(10 * n, 10 * n + 10)), (50 + n,)) for n in range(5)]
    return Collection(queries, [f"document {n}" for n in range(60)], [], [])


def test_bins_are_numbered_in_order_and_need_no_more_than_their_bits(vectors):
    for bits in (2, 4, 8):
        equal, percentiles = bin_equally(vectors, bits)(vectors), bin_by_percentiles(vectors, bits)(vectors)
        half = 2 ** (bits - 1)
        assert (equal.min(), equal.max()) == (-half, half - 1)
        assert (percentiles.min(), percentiles.max()) == (0, 2 * half - 1)
        for bins in (equal, percentiles):
            order = np.argsort(vectors[:, 3], kind="stable")
            assert (np.diff(bins[order, 3]) >= 0).all() and (bins == np.round(bins)).all()
        counts = np.bincount(percentiles[:, 0].astype(int), minlength=2 * half)
        assert counts.max() - counts.min() <= 2


def test_compressions_take_the_bytes_that_they_say_and_more_bytes_keep_more_likeness(vectors):
    found = {one.name: one for one in fit_compressions(vectors)}
    assert next(iter(found)) == FLOATS and found[FLOATS].size == 128
    sizes = {name: one.size for name, one in found.items()}
    assert (sizes["binary, zero"], sizes["LSH, 256 bits"], sizes["PQ, 4 × 2 bits"]) == (4, 32, 1)
    assert (sizes["float16"], sizes["truncation to 1/4"], sizes["codes:16"]) == (64, 32, 16)
    true = vectors[:50] @ vectors.T

    def error(name: str) -> float:
        """Return how far the similarities of compressed vectors are from the true ones."""
        one = found[name]
        return float(np.abs(one.queries(vectors[:50]) @ one.documents(vectors).T - true).mean())

    assert error("float16") < error("float8_e4m3fn") < error("PCA to 1/4") < error("PCA to 1/16")
    assert error("codes:16") < error("codes:8") < error("codes:4")


def test_ignored_documents_are_not_ranked_and_random_texts_lower_the_score(collection):
    documents = np.eye(64, dtype=np.float32)
    queries = np.zeros((5, 64), np.float32)
    for number in range(5):
        queries[number, 10 * number : 10 * number + 10] = 1
        queries[number, 50 + number] = 9  # the ignored one
        queries[number, 60] = 2  # a random text
    plain = Compression(FLOATS, "casting", 0, lambda rows: rows, lambda rows: rows)
    small, large = search(plain, collection, queries, np.concatenate([documents, documents]), (60, 128))
    np.testing.assert_allclose(small["ndcg_at_10"], 1)
    np.testing.assert_allclose(small["recall_at_100"], 1)
    assert (large["ndcg_at_10"] < 1).all()


def test_changes_are_paired_with_the_vectors_as_they_are(vectors, collection, tmp_path):
    """Check the table and the picture too: they show every method."""
    queries = np.stack([vectors[10 * n : 10 * n + 10].mean(axis=0) for n in range(5)])
    rows = measure(collection, queries, vectors, (1000, 2000))
    assert all(change["ndcg_at_10"]["value"] == 0 for change in rows[0]["changes"])
    for row in rows:
        value = row["changes"][1]["ndcg_at_10"]["value"] - row["changes"][0]["ndcg_at_10"]["value"]
        assert row["growth"]["ndcg_at_10"]["value"] == pytest.approx(value)
    assert len(build_table(rows, (1000, 2000)).splitlines()) == len(rows) + 2
    figures = {"sizes": [1000, 2000], "encoders": {"one": {"methods": rows}}}
    assert write_plot(Path(tmp_path), figures).read_text().startswith("<svg")


def test_a_query_gets_its_highest_grades_and_distractors_that_are_not_relevant():
    corpus = {str(n): ("", f"cats and dogs number {n}" if n < 40 else f"stones {n}") for n in range(60)}
    grades = {str(n): 2 if n < 6 else 1 for n in range(15)} | {"50": 0}
    few = {str(n): 1 for n in range(9)}
    contents = Search(corpus, {"a": "dogs and cats", "b": "stones"}, {"a": grades, "b": few})
    (found,) = choose_documents("set", contents)
    assert len(found.relevant) == RELEVANT and len(found.further) == 5 and len(found.distractors) == DISTRACTORS
    assert {f"set {n}" for n in range(6)} <= set(found.relevant)
    assert not set(found.distractors) & {*found.relevant, *found.further}
    assert all(int(key.split()[1]) < 40 for key in found.distractors)


def test_a_text_is_taken_from_documents_if_more_than_half_of_its_runs_of_words_are():
    known = split_shingles("The cat sat on the mat, and then it slept for many hours in the sun.", 4)
    assert is_taken_from("and then it slept for many hours", known)
    assert not is_taken_from("Then it slept for as long as we had hoped, which was a week or more.", known)
    assert not is_taken_from("short", known)
