import numpy as np
import pytest
import torch

from lathe.transforms import InputError, Moments, ProductCoding, TransformCoding
from tests.transforms.test_codes import biased_rows


@pytest.fixture(scope="module")
def rows():
    # Squared coordinates are not normal, so that there is something to learn.
    rows = biased_rows(3000) ** 2
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def fresh(rows):
    return rows[2500:]


@pytest.fixture(scope="module")
def step(rows):
    return ProductCoding(8, adjust_levels=False).fit(rows[:2500])


def mean_error(step, rows):
    return np.square(step.inverse_transform(step.transform(rows)) - rows).sum(1).mean()


def test_learned_codebooks_decode_new_rows_with_less_error_than_the_grid(rows, fresh, step):
    grid = TransformCoding(8, adjust_levels=False).fit(rows[:2500])
    assert mean_error(step, fresh) < 0.95 * mean_error(grid, fresh)


def test_more_iterations_of_k_means_reduce_the_error_on_the_fitted_rows(rows):
    errors = [mean_error(ProductCoding(4, iterations=n).fit(rows), rows) for n in (0, 2, 10)]
    assert errors[0] > errors[1] > errors[2]


def test_score_equals_the_inner_product_with_the_decoded_vectors(fresh, step):
    codes, queries = step.transform(fresh), biased_rows(9, seed=2)
    decoded = step.inverse_transform(codes)
    np.testing.assert_allclose(np.linalg.norm(decoded, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(step.score(queries, codes), queries @ decoded.T, atol=1e-5)
    np.testing.assert_allclose(
        step.score(queries[:2], codes, step.norm_factors(codes)), queries[:2] @ decoded.T, atol=1e-5
    )


def test_each_code_is_that_of_the_nearest_centroids(fresh, step):
    codes = step.transform(fresh)
    y = step.coordinates(torch.from_numpy(fresh)).numpy() * step.deviations.numpy()[:, None]
    centroids, octets = step.centroids.numpy() * step.deviations.numpy()[:, None], step.layout[1].numpy()
    for octet in range(7):  # the last byte leaves out the code 0
        own = octets == octet
        distances = np.square(y[own].T[:, None] - centroids[own].T).sum(2)
        found = np.take_along_axis(distances, codes[:, octet, None].astype(int), 1)[:, 0]
        np.testing.assert_allclose(found, distances.min(1), atol=1e-6)


@pytest.mark.parametrize("octets", [1, 8, 24])
def test_recode_returns_the_codes_of_decoded_vectors(rows, fresh, octets):
    step = ProductCoding(octets, iterations=3).fit(rows)
    some = fresh.copy()
    some[3] = 0
    codes = step.transform(some)
    found = step.recode(step.inverse_transform(codes))
    assert (found != codes).any(axis=1).mean() <= 0.01
    assert not codes[3].any() and codes[np.arange(len(codes)) != 3].any(axis=1).all()


def test_a_prefix_of_a_code_is_a_coarser_code(fresh, step):
    codes = step.transform(fresh)
    errors = [
        np.square(step.shorten(n).inverse_transform(np.ascontiguousarray(codes[:, :n])) - fresh).sum(1).mean()
        for n in (2, 4, 8)
    ]
    assert errors[0] > errors[1] > errors[2]


def test_fit_refuses_moments_few_rows_and_a_byte_for_each_coordinate(rows):
    with pytest.raises(InputError, match="fitted on rows, not on moments"):
        ProductCoding(8).fit(Moments.from_vectors(rows))
    with pytest.raises(InputError, match="at least 256 rows"):
        ProductCoding(8).fit(rows[:255])
    with pytest.raises(InputError, match="a byte of its own"):
        ProductCoding(64).fit(rows)
