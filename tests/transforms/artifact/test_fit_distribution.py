"""The fit distribution stored with a chain: quantile ranks of rows, outlier norms and the discarded variance."""

import json

import numpy as np
import pytest

from lathe.transforms import ArtifactError, Chain, Moments, parse_steps
from lathe.transforms.artifact import DISTRIBUTION, MANIFEST, TENSORS, FitDistribution, vector_norms
from lathe.transforms.artifact.folder import manifest_digest
from lathe.transforms.chain import retained_subspace
from lathe.transforms.statistics import Gaussian
from lathe.transforms.statistics.spectrum import MAX_DIRECTIONS

WIDTH = 160


@pytest.fixture(scope="module")
def rows(embeddings):
    return embeddings(3000, WIDTH)


@pytest.fixture(scope="module")
def heldout(embeddings):
    return embeddings(1000, WIDTH, seed=1)


@pytest.fixture(scope="module")
def fresh(embeddings):
    return embeddings(1000, WIDTH, seed=2)


@pytest.fixture(scope="module")
def chain(rows):
    return Chain(parse_steps("r2,pca:24")).fit(rows)


@pytest.fixture(scope="module")
def distribution(rows, heldout, chain):
    return FitDistribution.measure(rows, heldout, retained_subspace(chain))


def ranks(distribution, rows):
    """Return the quantile ranks of rows in a fit distribution, in [0, 1]."""
    gaussian = distribution.gaussian
    return distribution.quantile_ranks(gaussian.score(gaussian.standardize(rows)))


def covariance_of(gaussian):
    """Return the covariance that a Gaussian describes: σ²I + Σ (λᵢ − σ²) vᵢvᵢᵀ."""
    along, noise = gaussian.directions.astype(np.float64), float(gaussian.variances[-1])
    return noise * np.eye(WIDTH) + (along.T * (gaussian.variances[:-1] - noise)) @ along


def test_gaussian_scores_equal_mahalanobis_distances_of_the_full_covariance(rows, fresh):
    gaussian = Gaussian.fit(Moments.from_vectors(rows))
    apart = fresh.astype(np.float64) - gaussian.mean
    expected = np.einsum("ij,jk,ik->i", apart, np.linalg.inv(covariance_of(gaussian)), apart) / WIDTH
    np.testing.assert_allclose(gaussian.score(gaussian.standardize(fresh)), expected, rtol=1e-4)


def test_gaussian_keeps_the_total_variance_and_the_largest_directions(rows):
    moments = Moments.from_vectors(rows)
    gaussian = Gaussian.fit(moments)
    assert gaussian.directions.shape == (MAX_DIRECTIONS, WIDTH)
    ours, whole = covariance_of(gaussian), moments.covariance(ddof=0)
    assert np.trace(ours) == pytest.approx(np.trace(whole), rel=1e-5)
    top = gaussian.directions[0].astype(np.float64)
    assert top @ ours @ top == pytest.approx(top @ whole @ top, rel=1e-5)
    assert 0 < sum(gaussian.shares) < 1 and gaussian.shares == sorted(gaussian.shares, reverse=True)


def test_quantile_ranks_are_uniform_for_rows_like_the_fitted_ones_and_near_one_for_others(
    distribution, fresh, embeddings
):
    same = ranks(distribution, fresh)
    assert abs(same.mean() - 0.5) < 4 * 0.29 / np.sqrt(len(same))
    assert np.abs(np.quantile(same, [0.1, 0.5, 0.9]) - [0.1, 0.5, 0.9]).max() < 0.06
    turned = fresh[:, ::-1]
    assert ranks(distribution, turned).mean() > 0.95


def test_fit_distribution_of_identical_rows_ranks_them_0_5_and_others_1():
    same = np.ones((60, 8), np.float32)
    distribution = FitDistribution.measure(same, same[:20], None)
    np.testing.assert_allclose(ranks(distribution, same[:3]), 0.5)
    np.testing.assert_allclose(ranks(distribution, -same[:3]), 1.0)


@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e15])
def test_quantile_ranks_do_not_depend_on_the_scale_of_the_rows(rows, heldout, fresh, distribution, scale):
    other = FitDistribution.measure(rows * np.float32(scale), heldout * np.float32(scale), None)
    np.testing.assert_allclose(ranks(other, fresh * np.float32(scale)), ranks(distribution, fresh), atol=1e-3)


def test_rows_close_to_the_float32_maximum_have_rank_one_and_outlier_norms(distribution):
    huge = np.full((2, WIDTH), 3e38, np.float32)
    np.testing.assert_array_equal(ranks(distribution, huge), 1.0)
    assert distribution.outlier_norms(vector_norms(huge)).all()


@pytest.mark.parametrize(("count", "width"), [(4, 30), (40, 30), (5, 1), (300, 2)])
def test_fit_distribution_of_few_rows_or_few_dimensions_gives_finite_ranks(count, width):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(count, width)).astype(np.float32)
    distribution = FitDistribution.measure(rows, rng.normal(size=(3, width)).astype(np.float32), None)
    assert np.isfinite(ranks(distribution, rows)).all() and distribution.outside is None


def test_outlier_norms_of_unit_rows_ignore_rounding_and_flag_differences_of_one_percent(rows, heldout):
    """Norms that are zero, infinite or NaN are outliers."""

    def unit(some):
        return some / np.linalg.norm(some, axis=1, keepdims=True)

    distribution = FitDistribution.measure(unit(rows), unit(heldout), None)
    assert not distribution.outlier_norms(vector_norms(unit(rows) * np.float32(1.0005))).any()
    assert distribution.outlier_norms(vector_norms(unit(rows) * np.float32(1.01))).all()
    assert distribution.outlier_norms(vector_norms(unit(rows) * np.float32(0.99))).all()
    assert distribution.outlier_norms(np.array([np.nan, np.inf, 0.0])).all()


SUBSPACES = {
    "r2": WIDTH - 1,
    "pca:24": 24,
    "r2,pca:24": 24,
    "truncation:10": 10,
    "whitening:20": 20,
    "r2,pca:24,int8": 24,
    "mc": WIDTH,
}


@pytest.mark.parametrize("steps", SUBSPACES)
def test_components_outside_the_retained_subspace_do_not_change_the_outputs(rows, steps):
    """The energy outside equals the squared norm of those components."""
    chain = Chain(parse_steps(steps), normalize=False).fit(rows)
    kept = retained_subspace(chain)
    assert len(kept.directions) == min(SUBSPACES[steps], WIDTH - SUBSPACES[steps])
    probe = rows[:50] - rows.mean(axis=0)
    basis = kept.directions.astype(np.float64)
    lost = (probe @ basis.T) @ basis if kept.complement else probe - (probe @ basis.T) @ basis
    np.testing.assert_allclose(kept.energy_outside(probe), (lost**2).sum(axis=1), rtol=1e-3, atol=1e-5)
    if "r2,pca" in steps:  # the length that is lost before the shift turns the output
        return
    floats = Chain(chain.float_steps, normalize=False)
    before, after = floats.transform(rows[:50]), floats.transform((rows[:50] - lost).astype(np.float32))
    np.testing.assert_allclose(after, before, atol=2e-4 * np.abs(before).max())


def test_retained_subspace_of_a_flow_or_a_normalize_step_is_none(rows):
    assert retained_subspace(Chain(parse_steps("flow:steps=2")).fit(rows[:200])) is None
    assert retained_subspace(Chain(parse_steps("normalize")).fit(rows)) is None


def test_fit_distribution_outside_is_the_share_of_variance_that_the_chain_discards(rows, heldout, distribution, chain):
    apart = heldout - distribution.gaussian.mean
    back = np.linalg.qr(np.linalg.pinv(jacobian(chain)))[0]
    lost = apart - (apart @ back) @ back.T
    assert distribution.outside == pytest.approx((lost**2).sum() / (apart**2).sum(), abs=1e-4)
    assert 0.02 < distribution.outside < 0.9


def jacobian(chain):
    """Return the product of the affine maps of `r2,pca`, `(k, d)`."""
    direction, weight = chain[0].direction.double().numpy(), chain[1].weight.double().numpy()
    return weight @ (np.eye(WIDTH) - np.outer(direction, direction))


def test_a_saved_fit_distribution_loads_equal_and_leaves_the_tensor_file_unchanged(
    chain, distribution, fresh, tmp_path
):
    plain = Chain(chain.transforms)
    plain.save(tmp_path / "plain")
    manifest = plain.save(tmp_path / "known", distribution=distribution)
    assert {file.name for file in (tmp_path / "known").iterdir()} == {MANIFEST, TENSORS, DISTRIBUTION}
    assert (tmp_path / "plain" / TENSORS).read_bytes() == (tmp_path / "known" / TENSORS).read_bytes()
    found = FitDistribution.load(tmp_path / "known")
    np.testing.assert_array_equal(ranks(found, fresh), ranks(distribution, fresh))
    assert found.describe() == manifest["reference"]
    assert (found.count, found.heldout, found.norms) == (3000, 1000, distribution.norms)
    assert manifest["reference"]["mean_norm"] == pytest.approx(0.5, abs=0.05)


def test_saving_a_loaded_chain_again_writes_no_fit_distribution(chain, distribution, tmp_path):
    known = Chain(chain.transforms)
    known.save(tmp_path / "known", distribution=distribution)
    loaded = Chain.load(tmp_path / "known")
    loaded.save(tmp_path / "again")
    assert "reference" not in Chain.load(tmp_path / "again").metadata
    with pytest.raises(ArtifactError, match="without the distribution of its rows"):
        FitDistribution.load(tmp_path / "again")


def edit_manifest(path, **changes):
    """Change what the manifest says of the fit distribution, with a correct digest."""
    manifest = json.loads((path / MANIFEST).read_bytes())
    manifest["reference"] = manifest["reference"] | changes
    manifest["manifest_sha256"] = manifest_digest(manifest)
    (path / MANIFEST).write_text(json.dumps(manifest))


DAMAGE = {
    "altered": lambda path: (path / DISTRIBUTION).write_bytes((path / DISTRIBUTION).read_bytes()[:-1] + b"\x00"),
    "cut": lambda path: (path / DISTRIBUTION).write_bytes((path / DISTRIBUTION).read_bytes()[:100]),
    "missing": lambda path: (path / DISTRIBUTION).unlink(),
    "said to be another": lambda path: edit_manifest(path, sha256="0" * 64),
    "said to have no norms": lambda path: edit_manifest(path, norms=None),
    "said to be one number": lambda path: edit_manifest(path, norms=[1.0]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_loading_a_damaged_fit_distribution_is_refused_while_the_chain_still_loads(
    chain, distribution, fresh, tmp_path, damage
):
    known = Chain(chain.transforms)
    known.save(tmp_path / "known", distribution=distribution)
    DAMAGE[damage](tmp_path / "known")
    with pytest.raises(ArtifactError, match="the distribution of its rows"):
        FitDistribution.load(tmp_path / "known")
    np.testing.assert_array_equal(Chain.load(tmp_path / "known").transform(fresh), chain.transform(fresh))
