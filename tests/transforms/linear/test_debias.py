import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lathe.transforms import ABTT, R2, InputError, Moments


@pytest.fixture(scope="module")
def rows(embeddings):
    return embeddings(400, 24)


@pytest.fixture(scope="module")
def r2(rows):
    return R2().fit(rows)


def unit(rows):
    rows = np.asarray(rows, np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_r2_matches_the_papers_formula_in_float64(rows, r2):
    mean = unit(rows).mean(0)
    direction = mean / np.linalg.norm(mean)
    e = unit(rows)
    expected = unit(e - (e @ direction)[:, None] * direction)
    np.testing.assert_allclose(r2.direction, direction, atol=1e-7)
    np.testing.assert_allclose(r2.transform(rows), expected, atol=1e-6)
    assert float(r2.mean_norm) == pytest.approx(np.linalg.norm(mean), rel=1e-6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(factor=st.floats(1e-15, 1e15), sign=st.sampled_from([-1, 1]))
def test_r2_maps_a_row_parallel_to_the_mean_to_exactly_zero(rows, r2, factor, sign):
    mean = unit(rows).mean(0, keepdims=True)
    assert not r2.transform((sign * factor * mean).astype(np.float32)).any()


def test_r2_maps_a_row_close_to_the_mean_to_its_normalised_orthogonal_part(r2):
    direction = r2.direction.double().numpy()
    own = np.zeros(24)
    own[:2] = direction[1], -direction[0]
    own /= np.linalg.norm(own)
    out = r2.transform((direction + 1e-3 * own)[None].astype(np.float32))
    np.testing.assert_allclose(out[0], own, atol=1e-3)


def test_r2_fit_ignores_row_lengths(rows, r2):
    lengths = 10 ** np.random.default_rng(0).uniform(-3, 3, size=(len(rows), 1))
    np.testing.assert_allclose(R2().fit(rows * lengths).direction, r2.direction, atol=1e-6)
    # … and it would, were the mean taken of the rows as they are.
    plain = (rows * lengths).mean(0)
    assert np.abs(plain / np.linalg.norm(plain) - r2.direction.numpy()).max() > 1e-2


def test_r2_fitted_on_5000_rows_in_two_blocks_equals_r2_fitted_on_their_moments(embeddings):
    rows = embeddings(5000, 4)
    expected = R2().fit(Moments.from_vectors(unit(rows)))
    np.testing.assert_allclose(R2().fit(rows).direction, expected.direction, atol=1e-7)


def test_r2_refuses_rows_whose_mean_is_exactly_zero(rows):
    opposites = np.stack([rows, -rows], axis=1).reshape(-1, 24)
    for data in (opposites, np.zeros((3, 24)), Moments.from_vectors(opposites)):
        with pytest.raises(InputError, match="exactly zero"):
            R2().fit(data)


WIDTH = 24


@pytest.fixture(scope="module")
def rows_of_abtt(embeddings):
    return embeddings(400, WIDTH)


@pytest.fixture(scope="module")
def fresh(embeddings):
    return embeddings(60, WIDTH, seed=1)


def unit_of_abtt(rows_of_abtt):
    return rows_of_abtt / np.linalg.norm(rows_of_abtt, axis=1, keepdims=True)


def formula(rows_of_abtt, fresh, directions, literal=False):
    """Compute the algorithm in float64: y = v − μ − Σ(…·u)u over the top directions of the covariance."""
    rows_of_abtt, fresh = rows_of_abtt.astype(np.float64), fresh.astype(np.float64)
    mean = rows_of_abtt.mean(0)
    top = np.linalg.eigh(np.cov(rows_of_abtt.T))[1][:, ::-1][:, :directions]
    centred = fresh - mean
    return centred - ((fresh if literal else centred) @ top) @ top.T


@pytest.mark.parametrize("directions", [1, 3, 15])
@pytest.mark.parametrize("literal", [False, True])
def test_abtt_matches_the_papers_formula_in_float64(rows_of_abtt, fresh, directions, literal):
    expected = formula(rows_of_abtt, fresh, directions, literal)
    plain = ABTT(directions, literal, renormalize=False).fit(rows_of_abtt)
    np.testing.assert_allclose(plain.transform(fresh), expected, atol=1e-5)
    np.testing.assert_allclose(
        ABTT(directions, literal).fit(rows_of_abtt).transform(fresh), unit_of_abtt(expected), atol=1e-4
    )


@pytest.mark.parametrize(
    ("width", "expected"),
    [(2, 1), (8, 1), (100, 1), (149, 1), (151, 2), (300, 3), (384, 4), (768, 8), (1024, 10), (4096, 41)],
)
def test_abtt_removes_one_direction_per_hundred_dimensions_and_at_least_one_by_default(width, expected):
    assert ABTT().removed_count(width) == expected == max(1, round(width / 100))
    assert ABTT(7).removed_count(width) == 7


def test_abtt_refuses_more_directions_than_the_rows_vary_in_and_names_the_maximum(rows_of_abtt):
    with pytest.raises(InputError, match="abtt needs 5 directions .* these 5 rows have 4: .* at most 4"):
        ABTT(5).fit(rows_of_abtt[:5])
    ABTT(4).fit(rows_of_abtt[:5])
