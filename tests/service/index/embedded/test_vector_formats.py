from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from lathe.service.index.embedded.exact import search_exactly
from lathe.service.index.embedded.vector_formats import choose_format
from lathe.service.index.reducer import Reducer, normalize_rows

CASES = [
    ("codes:6", "cosine", True), ("codes:6", "ip", False), ("r2,codes:8", "l2", True), ("int8", "l2", False),
    ("codes:6,restore_norm=false", "ip", True), ("codes:6,restore_norm=false", "cosine", False), ("int8", "ip", True),
    ("product_codes:4", "l2", False), ("product_codes:4", "cosine", True), ("pca:12,binary", "cosine", False),
    ("pca:12,binary", "ip", True),
]  # fmt: skip
"""Steps of a chain, the metric of an index, and whether the chain normalizes."""


@pytest.fixture(params=CASES, ids=str)
def case(request):
    return request.param


@pytest.fixture
def metric(case):
    return case[1]


@pytest.fixture
def made(chain_of, coded_spec, case):
    """Return the chain, the format of an index with it, and its reducer."""
    steps, metric, normalize = case
    chain, artifact = chain_of(steps, normalize)
    spec = replace(coded_spec(metric), dimensions=chain.output_dimensions)
    reducer = Reducer(spec, artifact)
    return chain, choose_format(spec, reducer), reducer


def compute_scores(queries, decoded, metric):
    """Compute every score `(q, n)` in float64. A zero vector has the cosine 0."""
    queries, decoded = queries.astype(np.float64), decoded.astype(np.float64)
    if metric == "l2":
        return -np.linalg.norm(queries[:, None] - decoded[None], axis=2)
    if metric == "cosine":
        lengths = np.linalg.norm(decoded, axis=1)
        decoded = decoded / np.where(lengths == 0, 1, lengths)[:, None]
        queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    return queries @ decoded.T


def test_rows_are_the_codes_of_the_chain_and_decode_to_its_floats(made, biased, metric):
    chain, vectors, _ = made
    given = biased(300)
    rows = vectors.encode(given)
    assert rows.dtype == np.uint8 and rows.shape == (300, vectors.width)
    assert vectors.width == chain.bytes_per_vector and vectors.file_name == "codes.u8"
    np.testing.assert_array_equal(rows, np.asarray(chain.fold().transform(given)).view(np.uint8))
    decoded = chain.floats(given)
    expected = normalize_rows(decoded) if metric == "cosine" else decoded
    assert np.isclose(vectors.decode(rows), expected, atol=1e-4).all(axis=1).mean() >= 0.99


def test_search_of_codes_equals_brute_force_over_decoded_vectors(made, biased, case):
    chain, vectors, reducer = made
    steps, metric, _ = case
    given = biased(700)
    rows = vectors.encode(given)
    if "codes" in steps or "binary" in steps:
        rows[5] = 0  # stands for the zero vector
    asked = reducer.reduce_queries(biased(9, 1))
    expected = compute_scores(asked, chain.dequantize(reducer.view_codes(rows)), metric)
    allowed = np.random.default_rng(3).random(700) < 0.4
    for among, mask in ((slice(0, 700), None), (np.arange(0, 700, 3), None), (slice(50, 700), allowed)):
        found, scores = search_exactly(asked, rows, among, mask, 12, vectors.score, block_entries=1000)
        inside = np.zeros(700, np.bool_)
        inside[among] = True
        right = np.where(inside & (True if mask is None else mask), expected, -np.inf)
        np.testing.assert_allclose(scores, -np.sort(-right, axis=1)[:, :12], atol=2e-5)
        np.testing.assert_allclose(np.take_along_axis(right, found, 1), scores, atol=2e-5)


def test_threads_that_search_at_once_find_what_each_finds_alone(chain_of, coded_spec, biased):
    chain, artifact = chain_of("r2,codes:8")
    reducer = Reducer(coded_spec(), artifact)
    vectors = choose_format(coded_spec(), reducer)
    rows, asked = vectors.encode(biased(3000)), [reducer.reduce_queries(biased(size, size)) for size in range(1, 25)]

    def search(queries):
        return search_exactly(queries, rows, slice(0, 3000), None, 10, vectors.score, 4000)

    alone = [search(queries) for queries in asked]
    fresh = Reducer(coded_spec(), artifact)  # nothing is prepared yet
    vectors = choose_format(coded_spec(), fresh)
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(search, asked))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])
