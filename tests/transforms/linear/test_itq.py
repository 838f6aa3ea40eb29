"""ITQ against its definition, written again, and what signs find after it."""

import numpy as np
import pytest

from lathe.transforms import ITQ, Chain, InputError
from lathe.transforms.statistics import Moments


@pytest.fixture(scope="module")
def rows():
    """Unit rows with a long mean and a spectrum that falls, as embeddings have."""
    random = np.random.default_rng(0)
    turned = np.linalg.qr(random.normal(size=(32, 32)))[0]
    found = (random.normal(size=(3000, 32)) / np.sqrt(np.arange(1, 33))) @ turned + 1.5 * turned[0]
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def loss(x, weight):
    """Return the mean squared distance of rotated rows to their nearest corner of the cube of signs."""
    y = x.astype(np.float64) @ weight.T
    return np.square(np.where(y >= 0, 1, -1) - y).sum(axis=1).mean()


def share_of_neighbours(x, found):
    """Return how many of the ten nearest rows by cosine are among the ten with the most equal signs."""
    queries, documents = slice(0, 200), slice(200, None)
    exact = np.argsort(-x[queries] @ x[documents].T, axis=1)[:, :10]
    signs = np.where(found >= 0, 1.0, -1.0)
    near = np.argsort(-signs[queries] @ signs[documents].T, axis=1, kind="stable")[:, :10]
    return np.mean([len(set(a) & set(b)) / 10 for a, b in zip(exact, near, strict=True)])


def test_each_round_solves_the_procrustes_problem_of_the_signs_of_the_one_before(rows):
    """The solution is found here from the polar decomposition by eigenvectors, not from the SVD."""
    before, after = (ITQ(iterations=number).fit(rows).weight.numpy().astype(np.float64) for number in (4, 5))
    cross = np.where(rows @ before.T >= 0, 1.0, -1.0).T @ rows.astype(np.float64)
    values, vectors = np.linalg.eigh(cross @ cross.T)
    expected = vectors @ np.diag(values**-0.5) @ vectors.T @ cross
    np.testing.assert_allclose(after, expected, atol=1e-5)
    losses = [loss(rows, ITQ(iterations=number).fit(rows).weight.numpy()) for number in (0, 1, 5, 30)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("aligned", [False, True])
def test_inner_products_stay_and_signs_find_more(rows, aligned):
    chain = Chain([ITQ(aligned)], normalize=False).fit(rows)
    turned = chain.transform(rows)
    np.testing.assert_allclose(turned[:50] @ turned.T, rows[:50] @ rows.T, atol=1e-5)
    np.testing.assert_allclose(chain.inverse_transform(turned), rows, atol=1e-5)
    np.testing.assert_allclose(chain.fold().transform(rows), turned, atol=1e-6)
    assert share_of_neighbours(rows, turned) > share_of_neighbours(rows, rows) + 0.02


def test_the_first_coordinate_of_an_aligned_rotation_is_that_along_the_mean_and_the_others_are_balanced(rows):
    turned = Chain([ITQ(aligned=True)]).fit_transform(rows)
    mean = rows.mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(turned[:, 0], rows @ (mean / np.linalg.norm(mean)), atol=1e-5)
    assert np.abs((turned[:, 1:] > 0).mean(axis=0) - 0.5).max() < 0.1


def test_what_it_cannot_learn_from_is_refused(rows):
    with pytest.raises(InputError, match="not on moments"):
        ITQ().fit(Moments.from_vectors(rows))
    with pytest.raises(InputError, match="exactly zero"):
        ITQ(aligned=True).fit(np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], np.float32))
