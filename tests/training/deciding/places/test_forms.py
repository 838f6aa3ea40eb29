"""Searches through the forms that places store find what an independent computation finds."""

import numpy as np
import pytest

from lathe.training.deciding.places.forms import FormSearch, StoredForm
from lathe.training.errors import AdviceError

WIDTH = 32


@pytest.fixture(scope="module")
def vectors():
    """Draw rows `(300, 32)` and queries `(20, 32)` that share a direction and vary more in some than in others."""
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(320, WIDTH)) * np.linspace(2, 0.3, WIDTH) + 0.3
    return drawn[:300].astype(np.float32), drawn[300:].astype(np.float32)


def normalize(rows):
    """Return the rows at unit length."""
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
def test_the_vectors_as_they_are_are_ranked_by_the_metric(vectors, metric):
    rows, queries = vectors
    expected = {
        "cosine": normalize(queries) @ normalize(rows).T,
        "ip": queries @ rows.T,
        "l2": -np.linalg.norm(queries[:, None] - rows[None], axis=2),
    }[metric]
    scores = FormSearch(rows, queries, metric).score(StoredForm("float32", WIDTH))
    np.testing.assert_array_equal(np.argsort(-scores, axis=1)[:, :20], np.argsort(-expected, axis=1)[:, :20])


def test_signs_are_compared_by_their_hamming_distance(vectors):
    rows, queries = vectors
    scores = FormSearch(rows, queries, "cosine").score(StoredForm("bit", WIDTH))
    different = ((queries > 0)[:, None] != (rows > 0)[None]).sum(axis=2)
    np.testing.assert_array_equal(scores, WIDTH - 2 * different)


@pytest.mark.parametrize(
    ("form", "least"),
    [
        (StoredForm("float16", WIDTH), 0.9999),
        (StoredForm("int8", WIDTH), 0.99),
        (StoredForm("sq8", WIDTH), 0.999),
        (StoredForm("float16", 24, "pca:24,center=none"), 0.95),
        (StoredForm("codes", WIDTH, code_bytes=16), 0.9),
        (StoredForm("rabitq", WIDTH), 0.7),
        (StoredForm("turbo", WIDTH, bits=8), 0.999),
        (StoredForm("turbo", WIDTH, bits=4), 0.98),
        (StoredForm("turbo_both", WIDTH, bits=4), 0.97),
        (StoredForm("turbo_scaled", WIDTH, bits=2), 0.9),
        (StoredForm("turbo_scaled", WIDTH, bits=1.5), 0.8),
        (StoredForm("turbo_scaled", WIDTH, bits=1), 0.7),
        (StoredForm("range8", WIDTH), 0.999),
        (StoredForm("range7", WIDTH), 0.998),
        (StoredForm("int4", WIDTH), 0.95),
        (StoredForm("bit_centred", WIDTH), 0.5),
    ],
)
def test_scores_through_a_form_agree_with_exact_ones_as_well_as_it_can(vectors, form, least):
    if form.element == "rabitq":
        pytest.importorskip("faiss")
    search = FormSearch(*vectors, "cosine")
    exact, scores = search.score(StoredForm("float32", WIDTH)), search.score(form)
    assert np.mean([np.corrcoef(one, other)[0, 1] for one, other in zip(exact, scores, strict=True)]) > least


def test_bytes_of_a_form_are_those_of_its_numbers_or_codes():
    elements = {"float32": 400, "float16": 200, "int8": 100, "sq8": 100, "int4": 50, "bit": 13, "bit_centred": 13}
    assert {element: StoredForm(element, 100).bytes for element in elements} == elements
    assert StoredForm("codes", 100, code_bytes=24).bytes == 24 and StoredForm("rabitq", 384, bits=4).bytes == 192
    assert [StoredForm("turbo_scaled", 384, bits=bits).bytes for bits in (1, 1.5, 2, 4, 8)] == [48, 72, 96, 192, 384]


def test_a_product_quantizer_is_fitted_on_enough_rows_or_refused(vectors):
    pytest.importorskip("faiss")
    form = StoredForm("pq", 8, code_bytes=4)
    with pytest.raises(AdviceError, match="takes 9,984 rows to fit, and the sample has 300"):
        FormSearch(*vectors, "cosine").score(form)
    rows = np.random.default_rng(0).normal(size=(10_000, 8)).astype(np.float32)
    search = FormSearch(rows, rows[:5] + np.float32(0.1), "cosine")
    exact, scores = search.score(StoredForm("float32", 8)), search.score(form)
    assert np.corrcoef(exact.ravel(), scores.ravel())[0, 1] > 0.9


def test_a_rotation_keeps_exact_scores_and_helps_signs_of_vectors_with_a_common_mean(vectors):
    rows, queries = vectors[0] + np.float32(4), vectors[1] + np.float32(4)
    search = FormSearch(rows, queries, "cosine")
    exact = search.score(StoredForm("float32", WIDTH))
    aligned = "itq:aligned=true"
    np.testing.assert_allclose(search.score(StoredForm("float32", WIDTH, rotation=aligned)), exact, atol=1e-5)
    raw, turned = (
        np.corrcoef(exact.ravel(), search.score(StoredForm("bit", WIDTH, rotation=rotation)).ravel())[0, 1]
        for rotation in ("", aligned)
    )
    assert raw + 0.1 < turned


def test_codes_of_rabitq_rank_by_the_metric(vectors):
    pytest.importorskip("faiss")
    rows, queries = vectors
    for metric in ("cosine", "ip", "l2"):
        search = FormSearch(rows, queries, metric)
        exact, scores = search.score(StoredForm("float32", WIDTH)), search.score(StoredForm("rabitq", WIDTH, bits=8))
        assert np.mean([np.corrcoef(*pair)[0, 1] for pair in zip(exact, scores, strict=True)]) > 0.99, metric
