import numpy as np
import pytest
import torch

from lathe.transforms import ABTT, PCA, R1, R2, Autoencoder, Chain, MeanCentering, Moments, Truncation, Whitening
from lathe.transforms.chain import affine_parts
from lathe.transforms.incremental.propagation import approximate_normalized_moments, propagate_moments
from lathe.transforms.linear import Affine


@pytest.fixture(scope="module")
def rows(embeddings):
    return embeddings(400, 12).astype(np.float64)


@pytest.mark.parametrize("bias", [None, torch.linspace(-1, 1, 5, dtype=torch.float64)])
def test_moments_propagated_through_an_affine_map_equal_those_of_the_mapped_rows(rows, bias):
    affine = Affine(torch.from_numpy(np.random.default_rng(0).normal(size=(5, 12))), bias)
    through, direct = (
        propagate_moments(Moments.from_vectors(rows), affine),
        Moments.from_vectors(affine.transform(rows)),
    )
    assert through.count == direct.count
    np.testing.assert_allclose(through.mean, direct.mean, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(through.scatter, direct.scatter, rtol=1e-11, atol=1e-9)


def test_propagated_third_and_fourth_moments_are_nan(rows):
    through = propagate_moments(Moments.from_vectors(rows), Affine(torch.eye(12, dtype=torch.float64)))
    assert np.isnan(through.third).all() and np.isnan(through.fourth)


@pytest.mark.parametrize(
    ("step", "maps"),
    [(R2(), 1), (R1(), 1), (MeanCentering(), 1), (ABTT(), 1), (PCA(3), 1), (Whitening(3), 1), (Truncation(3), 1)],
)
def test_affine_parts_of_each_linear_step_are_one_affine_map(rows, step, maps):
    assert len(affine_parts(step.fit(rows))) == maps


def test_affine_parts_of_an_autoencoder_is_none(rows):
    assert affine_parts(Autoencoder(3, steps=1).fit(rows)) is None


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_approximate_normalized_moments_of_an_unchanged_map_are_unchanged(rows):
    moments = Moments.from_vectors(unit(rows))
    same = approximate_normalized_moments(moments, Moments.from_vectors(rows), Moments.from_vectors(rows))
    np.testing.assert_allclose(same.mean, moments.mean, atol=1e-12)
    np.testing.assert_allclose(same.scatter, moments.scatter, atol=1e-9)


@pytest.mark.parametrize("change", [1e-1, 1e-2, 1e-3])
def test_approximate_normalized_moments_remove_over_60_percent_of_the_error_of_the_old_moments(rows, change):
    """The map changes slightly. The direction the new map removes has no variance in the result."""
    other = np.random.default_rng(1).normal(size=12)
    first = R2().fit(rows)
    second = R2().fit(Moments.from_vectors(unit(rows) + change * other / np.linalg.norm(other)))
    images = [affine_parts(step)[0].transform(unit(rows)) for step in (first, second)]
    before, after = (Moments.from_vectors(unit(image)) for image in images)
    carried = approximate_normalized_moments(before, *(Moments.from_vectors(image) for image in images))
    for name in ("mean", "scatter"):
        left = np.linalg.norm(getattr(before, name) - getattr(after, name))
        error = np.linalg.norm(getattr(carried, name) - getattr(after, name))
        assert error < 0.4 * left
    # What the new map takes away is nowhere in what is carried over.
    assert abs(second.direction.double().numpy() @ carried.second_moment() @ second.direction.double().numpy()) < 1e-12


def test_approximate_normalized_moments_are_exact_for_rows_of_equal_length():
    rng = np.random.default_rng(2)
    rows = np.sign(rng.normal(size=(300, 8)))  # every row, and every reflection of one, is √8 long
    rotation = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    carried = approximate_normalized_moments(*(Moments.from_vectors(r) for r in (unit(rows), rows, rows @ rotation)))
    expected = Moments.from_vectors(unit(rows @ rotation))
    np.testing.assert_allclose(carried.mean, expected.mean, atol=1e-12)
    np.testing.assert_allclose(carried.scatter, expected.scatter, atol=1e-10)


def test_moments_propagated_through_a_folded_chain_equal_those_through_its_affine_parts(rows):
    chain = Chain([MeanCentering(), PCA(4)], normalize=False).fit(rows)
    moments = Moments.from_vectors(rows)
    (folded,) = chain.fold().transforms
    for part in [part for step in chain for part in affine_parts(step)]:
        moments = propagate_moments(moments, part)
    np.testing.assert_allclose(
        moments.scatter, propagate_moments(Moments.from_vectors(rows), folded).scatter, rtol=1e-5
    )
