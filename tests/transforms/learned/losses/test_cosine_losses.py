import numpy as np
import pytest
import torch

from lathe.transforms.learned.losses.cosine_losses import non_increasing_regression, soft_ranks


def average_ranks(values):
    """Return ranks from 1 for the smallest. Equal values share the mean of their ranks."""
    return np.array([(values < value).sum() + ((values == value).sum() + 1) / 2 for value in values])


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


def test_soft_ranks_in_float32_with_little_smoothing_are_the_ranks():
    values = np.random.default_rng(0).permuted(np.tile(np.linspace(-1, 1, 200), (5, 1)), axis=1).astype(np.float32)
    np.testing.assert_allclose(ranks_of(values, 1e-4), [average_ranks(row) for row in values], atol=2e-3)


@pytest.mark.parametrize("strength", [0.01, 0.05, 0.2, 0.7, 2.0])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 25, 300])
def test_soft_ranks_with_moderate_smoothing_equal_a_slow_projection_on_the_permutahedron(strength, ties, n):
    values = rows(8, n, seed=n, ties=ties)
    expected = [slow_soft_ranks(row, strength) for row in values]
    np.testing.assert_allclose(ranks_of(values, strength), expected, rtol=1e-9, atol=1e-8)


def test_non_increasing_regression_equals_pooling_one_violation_at_a_time():
    hard = [np.arange(500.0), np.sin(np.arange(500) / 9), np.cumsum(np.random.default_rng(0).normal(size=500))]
    for values in hard:
        groups, means = non_increasing_regression(torch.from_numpy(values)[None])
        np.testing.assert_allclose(means[0], pooled(values), atol=1e-9)
        assert (np.diff(means[0].numpy()) <= 0).all()
        # A group is a stretch of equal means, numbered along the row.
        np.testing.assert_array_equal(np.unique(groups[0]), np.arange(int(groups[0, -1]) + 1))


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
