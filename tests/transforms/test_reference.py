"""What fitted rows look like travels with a chain, and tells rows of another kind from theirs."""

import json

import numpy as np
import pytest

from transforms import ArtifactError, Chain, Moments, parse_steps
from transforms.artifact import DISTRIBUTION, MANIFEST, TENSORS, FitDistribution, FitStatistics, vector_norms
from transforms.artifact.fit_distribution import _weighted_percentiles
from transforms.artifact.folder import manifest_digest
from transforms.chain import retained_subspace
from transforms.statistics import Gaussian
from transforms.statistics.gaussian import MAX_DIRECTIONS

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
def reference(rows, heldout, chain):
    return FitDistribution.measure(rows, heldout, retained_subspace(chain))


def ranks(reference, rows):
    gaussian = reference.gaussian
    return reference.quantile_ranks(gaussian.score(gaussian.standardize(rows)))


def test_scores_are_the_distances_that_the_written_out_covariance_gives(rows, fresh):
    gaussian = Gaussian.fit(Moments.from_vectors(rows))
    moments = gaussian.to_moments(50)
    apart = fresh.astype(np.float64) - moments.mean
    expected = np.einsum("ij,jk,ik->i", apart, np.linalg.inv(moments.covariance(ddof=0)), apart) / WIDTH
    np.testing.assert_allclose(gaussian.score(gaussian.standardize(fresh)), expected, rtol=1e-4)


def test_the_gaussian_keeps_the_total_variance_and_the_largest_directions(rows):
    moments = Moments.from_vectors(rows)
    gaussian = Gaussian.fit(moments)
    assert gaussian.directions.shape == (MAX_DIRECTIONS, WIDTH)
    ours = gaussian.to_moments(moments.count)
    assert np.trace(ours.scatter) == pytest.approx(np.trace(moments.scatter), rel=1e-5)
    top = gaussian.directions[0].astype(np.float64)
    assert top @ ours.scatter @ top == pytest.approx(top @ moments.scatter @ top, rel=1e-5)
    assert 0 < sum(gaussian.shares) < 1 and gaussian.shares == sorted(gaussian.shares, reverse=True)


def test_rows_of_the_same_kind_have_even_percentiles_and_others_lie_beyond(reference, fresh, embeddings):
    same = ranks(reference, fresh)
    assert abs(same.mean() - 0.5) < 4 * 0.29 / np.sqrt(len(same))
    assert np.abs(np.quantile(same, [0.1, 0.5, 0.9]) - [0.1, 0.5, 0.9]).max() < 0.06
    turned = fresh[:, ::-1]
    assert ranks(reference, turned).mean() > 0.95


def test_percentiles_are_exact_on_the_heldout_rows_themselves(reference, heldout):
    found = np.sort(ranks(reference, heldout))
    np.testing.assert_allclose(found, np.linspace(0, 1, len(found)), atol=0.01)


def test_the_middle_of_weighted_values_is_their_median():
    found = _weighted_percentiles(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 1.0]))
    assert [found[level] for level in (0, 50, 100)] == pytest.approx([1, 2, 3])
    found = _weighted_percentiles(np.array([1.0, 2.0]), np.array([3.0, 1.0]))  # whose middles lie at 1.5 and 3.5 of 4
    assert found[50] == pytest.approx(1.25)


def test_rows_that_are_all_the_same_are_in_the_middle_of_themselves():
    same = np.ones((60, 8), np.float32)
    reference = FitDistribution.measure(same, same[:20], None)
    np.testing.assert_allclose(ranks(reference, same[:3]), 0.5)
    np.testing.assert_allclose(ranks(reference, -same[:3]), 1.0)


@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e15])
def test_the_scale_of_rows_does_not_matter(rows, heldout, fresh, reference, scale):
    other = FitDistribution.measure(rows * np.float32(scale), heldout * np.float32(scale), None)
    np.testing.assert_allclose(ranks(other, fresh * np.float32(scale)), ranks(reference, fresh), atol=1e-3)


def test_rows_past_float32_are_farther_than_all(reference):
    huge = np.full((2, WIDTH), 3e38, np.float32)
    np.testing.assert_array_equal(ranks(reference, huge), 1.0)
    assert reference.outlier_norms(vector_norms(huge)).all()


@pytest.mark.parametrize(("count", "width"), [(4, 30), (40, 30), (5, 1), (300, 2)])
def test_few_rows_and_few_dimensions_have_one_too(count, width):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(count, width)).astype(np.float32)
    reference = FitDistribution.measure(rows, rng.normal(size=(3, width)).astype(np.float32), None)
    assert np.isfinite(ranks(reference, rows)).all() and reference.outside is None


def test_lengths_of_unit_rows_differ_by_rounding_and_that_is_not_odd(rows, heldout):
    def unit(some):
        return some / np.linalg.norm(some, axis=1, keepdims=True)

    reference = FitDistribution.measure(unit(rows), unit(heldout), None)
    assert not reference.outlier_norms(vector_norms(unit(rows) * np.float32(1.0005))).any()
    assert reference.outlier_norms(vector_norms(unit(rows) * np.float32(1.01))).all()
    assert reference.outlier_norms(vector_norms(unit(rows) * np.float32(0.99))).all()
    assert reference.outlier_norms(np.array([np.nan, np.inf, 0.0])).all()


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
def test_what_lies_outside_changes_no_output_and_what_lies_inside_does(rows, steps):
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


def test_a_chain_that_is_more_than_affine_maps_or_takes_any_width_keeps_no_subspace(rows):
    assert retained_subspace(Chain(parse_steps("flow:steps=2")).fit(rows[:200])) is None
    assert retained_subspace(Chain(parse_steps("normalize")).fit(rows)) is None


def test_the_share_outside_is_what_the_chain_loses_of_the_spread(rows, heldout, reference, chain):
    apart = heldout - reference.gaussian.mean
    back = np.linalg.qr(np.linalg.pinv(jacobian(chain)))[0]
    lost = apart - (apart @ back) @ back.T
    assert reference.outside == pytest.approx((lost**2).sum() / (apart**2).sum(), abs=1e-4)
    assert 0.02 < reference.outside < 0.9


def jacobian(chain):
    """The product of the affine maps of `r2,pca`, `(k, d)`."""
    direction, weight = chain[0].direction.double().numpy(), chain[1].weight.double().numpy()
    return weight @ (np.eye(WIDTH) - np.outer(direction, direction))


def test_a_reference_comes_back_as_it_was_saved_and_the_tensors_are_those_without_it(chain, reference, fresh, tmp_path):
    plain = Chain(chain.transforms)
    plain.save(tmp_path / "plain")
    manifest = plain.save(tmp_path / "known", statistics=FitStatistics(distribution=reference))
    assert {file.name for file in (tmp_path / "known").iterdir()} == {MANIFEST, TENSORS, DISTRIBUTION}
    assert (tmp_path / "plain" / TENSORS).read_bytes() == (tmp_path / "known" / TENSORS).read_bytes()
    found = FitDistribution.load(tmp_path / "known")
    np.testing.assert_array_equal(ranks(found, fresh), ranks(reference, fresh))
    assert found.describe() == manifest["reference"]
    assert (found.count, found.heldout, found.norms) == (3000, 1000, reference.norms)
    assert manifest["reference"]["mean_norm"] == pytest.approx(0.5, abs=0.05)


def test_a_loaded_chain_holds_no_reference_and_says_nothing_of_one_when_it_is_saved_again(chain, reference, tmp_path):
    known = Chain(chain.transforms)
    known.save(tmp_path / "known", statistics=FitStatistics(distribution=reference))
    loaded = Chain.load(tmp_path / "known")
    loaded.save(tmp_path / "again")
    assert "reference" not in Chain.load(tmp_path / "again").metadata
    with pytest.raises(ArtifactError, match="without the distribution of its rows"):
        FitDistribution.load(tmp_path / "again")


def say(path, **changes):
    manifest = json.loads((path / MANIFEST).read_bytes())
    manifest["reference"] = manifest["reference"] | changes
    manifest["manifest_sha256"] = manifest_digest(manifest)
    (path / MANIFEST).write_text(json.dumps(manifest))


DAMAGE = {
    "altered": lambda path: (path / DISTRIBUTION).write_bytes((path / DISTRIBUTION).read_bytes()[:-1] + b"\x00"),
    "cut": lambda path: (path / DISTRIBUTION).write_bytes((path / DISTRIBUTION).read_bytes()[:100]),
    "missing": lambda path: (path / DISTRIBUTION).unlink(),
    "said to be another": lambda path: say(path, sha256="0" * 64),
    "said to have no norms": lambda path: say(path, norms=None),
    "said to be one number": lambda path: say(path, norms=[1.0]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_reference_is_refused_while_the_chain_serves_on(chain, reference, fresh, tmp_path, damage):
    known = Chain(chain.transforms)
    known.save(tmp_path / "known", statistics=FitStatistics(distribution=reference))
    DAMAGE[damage](tmp_path / "known")
    with pytest.raises(ArtifactError, match="the distribution of its rows"):
        FitDistribution.load(tmp_path / "known")
    np.testing.assert_array_equal(Chain.load(tmp_path / "known").transform(fresh), chain.transform(fresh))


def test_rows_that_are_added_are_merged_into_nearly_the_reference_of_all(rows, heldout, fresh, embeddings):
    first = FitDistribution.measure(rows, heldout, None)
    more, more_heldout = embeddings(1000, WIDTH, seed=7, mean=0.9), embeddings(400, WIDTH, seed=8, mean=0.9)
    added = FitDistribution.measure(more, more_heldout, None, first)
    whole = FitDistribution.measure(np.concatenate([rows, more]), np.concatenate([heldout, more_heldout]), None)
    assert (added.count, whole.count) == (4000, 4000)
    np.testing.assert_allclose(added.gaussian.mean, whole.gaussian.mean, atol=1e-6)
    assert abs(ranks(added, fresh).mean() - ranks(whole, fresh).mean()) < 0.03
    assert abs(ranks(added, fresh).mean() - 0.5) < 0.05


def test_weighted_percentiles_of_equal_weights_are_plain_ones():
    values = np.random.default_rng(0).normal(size=5000)
    found = _weighted_percentiles(values, np.ones(5000))
    np.testing.assert_allclose(found, np.quantile(values, np.linspace(0, 1, 101)), atol=0.02)
    far = np.full(100, 100.0)
    twice = _weighted_percentiles(np.append(values, far), np.append(np.ones(5000), np.full(100, 50.0)))
    np.testing.assert_allclose(twice[:50:10], found[:100:20], atol=0.05)
    assert twice[60] == twice[100] == 100.0
