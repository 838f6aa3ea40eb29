import numpy as np
import pytest
from sklearn.decomposition import PCA as Reference

from lathe.transforms import PCA, R2, Chain, InputError

WIDTH = 20
CENTERS = ["data", "directions", "none"]


@pytest.fixture(scope="module")
def rows(embeddings):
    return embeddings(400, WIDTH)


@pytest.fixture(scope="module")
def fresh(embeddings):
    return embeddings(50, WIDTH, seed=1)


def centred(rows):
    rows = np.asarray(rows, np.float64)
    return rows - rows.mean(0)


def matrix_of(rows, center):
    rows = np.asarray(rows, np.float64)
    return rows.T @ rows / len(rows) if center == "none" else centred(rows).T @ centred(rows) / len(rows)


def same_sign(found, expected):
    """Return `expected` with each row in the sign of that row of `found`."""
    return expected * np.sign((found * expected).sum(1))[:, None]


@pytest.mark.parametrize("k", [1, 7, WIDTH])
def test_pca_directions_projections_and_inverse_equal_scikit_learns(rows, fresh, k):
    reference = Reference(n_components=k, svd_solver="full").fit(rows.astype(np.float64))
    pca = PCA(k).fit(rows)
    weight = pca.weight.double().numpy()
    signs = np.sign((weight * reference.components_).sum(1))
    np.testing.assert_allclose(weight, reference.components_ * signs[:, None], atol=1e-5)
    np.testing.assert_allclose(pca.mean, reference.mean_, atol=1e-6)
    np.testing.assert_allclose(pca.transform(fresh), reference.transform(fresh) * signs, atol=1e-5)
    np.testing.assert_allclose(
        pca.inverse_transform(pca.transform(fresh)), reference.inverse_transform(reference.transform(fresh)), atol=1e-5
    )


@pytest.mark.parametrize("center", CENTERS)
def test_pca_matches_its_formula_in_float64_for_every_center(rows, fresh, center):
    values, vectors = np.linalg.eigh(matrix_of(rows, center))
    pca = PCA(6, center).fit(rows)
    directions = same_sign(pca.weight.double().numpy(), vectors[:, ::-1].T[:6])
    np.testing.assert_allclose(pca.weight, directions, atol=1e-5)
    given = fresh - rows.mean(0, dtype=np.float64) if center == "data" else fresh.astype(np.float64)
    np.testing.assert_allclose(pca.transform(fresh), given @ directions.T, atol=1e-5)


def test_chain_with_pca_serves_smaller_sizes_as_the_normalised_smaller_pca(rows, fresh):
    chain = Chain([PCA(10)]).fit(rows)
    for size in (1, 4, 10):
        np.testing.assert_allclose(
            chain.transform(fresh, dimensions=size), Chain([PCA(size)]).fit(rows).transform(fresh), atol=1e-5
        )
        np.testing.assert_allclose(
            chain.fold(size).transform(fresh), chain.transform(fresh, dimensions=size), atol=1e-5
        )


@pytest.mark.parametrize(("center", "rank"), [("data", 6), ("directions", 6), ("none", 7)])
def test_pca_refuses_more_dimensions_than_the_rank_of_the_rows_and_names_the_maximum(rows, center, rank):
    few = rows[:7]
    with pytest.raises(
        InputError, match=f"pca needs {rank + 1} directions .* these 7 rows have {rank}: .*most {rank}$"
    ):
        PCA(rank + 1, center).fit(few)
    out = PCA(rank, center).fit(few).transform(few)
    assert np.isfinite(out).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_pca_determines_the_rank_of_the_rows_in_every_float_dtype(dtype):
    rng = np.random.default_rng(0)
    rows = (rng.integers(-4, 5, size=(200, 5)) @ rng.integers(-2, 3, size=(5, 16))).astype(dtype)
    assert np.linalg.matrix_rank(rows.astype(np.float64) - rows.astype(np.float64).mean(0)) == 5
    PCA(5).fit(rows)
    with pytest.raises(InputError, match="at most 5"):
        PCA(6).fit(rows)


def test_pca_after_r2_has_one_direction_without_variance(rows):
    assert Chain([R2(), PCA(WIDTH - 1, "none")]).fit(rows).output_dimensions == WIDTH - 1
    rotated = Chain([R2(), PCA(center="none")], normalize=False).fit(rows).transform(rows)
    assert np.abs(rotated[:, -1]).max() < 1e-6 < np.abs(rotated[:, -2]).max()


def test_pca_is_accurate_for_a_mean_ten_thousand_times_the_spread():
    rng = np.random.default_rng(0)
    spread = rng.normal(size=(3000, 6)) * [3, 2.5, 2, 1.5, 1, 0.5]
    expected = PCA(4).fit(spread - spread.mean(0)).weight
    far = spread + 1e4
    pca = PCA(4).fit(far)
    np.testing.assert_allclose(pca.weight, expected, atol=1e-6)
    np.testing.assert_allclose(PCA(4, "directions").fit(far).weight, expected, atol=1e-6)
    np.testing.assert_allclose(pca.mean, far.mean(0), rtol=1e-7)
