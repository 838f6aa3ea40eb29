import numpy as np
import pytest
import torch

from lathe.transforms.learned.losses.cosine_losses import soft_ranks


def pooled(values):
    """Return the closest non-increasing sequence, by pooling adjacent violators one at a time."""
    blocks = []
    for value in values:
        blocks.append([value, 1])
        while len(blocks) > 1 and blocks[-1][0] > blocks[-2][0]:
            mean, count = blocks.pop()
            before, others = blocks[-1]
            blocks[-1] = [(mean * count + before * others) / (count + others), count + others]
    return np.concatenate([np.full(count, mean) for mean, count in blocks])


def slow_soft_ranks(values, strength):
    """Return the projection of one row, values/strength, onto the permutahedron of (1, …, n)."""
    scaled = values / strength
    order = np.argsort(-scaled, kind="stable")
    ranks = np.empty_like(scaled)
    ranks[order] = scaled[order] - pooled(scaled[order] - np.arange(len(values), 0, -1))
    return ranks


def rows(b, n, seed=0, ties=False):
    values = np.random.default_rng(seed).normal(size=(b, n))
    return np.round(values) if ties else values


def ranks_of(values, strength):
    """Return soft ranks counted from 1."""
    values = np.asarray(values)
    return soft_ranks(torch.from_numpy(values), strength)[0].numpy() + (values.shape[1] + 1) / 2


@pytest.mark.parametrize("strength", [0.01, 0.05, 0.2, 0.7, 2.0])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 25, 300])
def test_soft_ranks_with_moderate_smoothing_equal_a_slow_projection_on_the_permutahedron(strength, ties, n):
    values = rows(8, n, seed=n, ties=ties)
    expected = [slow_soft_ranks(row, strength) for row in values]
    np.testing.assert_allclose(ranks_of(values, strength), expected, rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("strength", [0.03, 0.3, 1.0])
@pytest.mark.parametrize("n", [1, 2, 20])
def test_soft_ranks_pull_back_matches_finite_differences(strength, n):
    values = torch.from_numpy(rows(4, n, seed=5))
    towards = torch.from_numpy(rows(4, n, seed=6))
    gradient = soft_ranks(values, strength)[1](towards)
    step = 1e-6
    for column in range(n):
        moved = torch.zeros_like(values)
        moved[:, column] = step
        up, down = (soft_ranks(values + sign * moved, strength)[0] for sign in (1, -1))
        expected = ((up - down) * towards).sum(1) / (2 * step)
        np.testing.assert_allclose(gradient[:, column], expected, rtol=1e-6, atol=1e-6)
