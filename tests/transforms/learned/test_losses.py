from functools import partial

import numpy as np
import pytest
import torch

from lathe.transforms.learned.losses import positional_loss, prefix_losses
from lathe.transforms.learned.losses.cosine_losses import (
    SHARES,
    TEMPERATURE,
    angular_loss,
    blended_loss,
    compute_starting_losses,
    soft_ranks,
    spearman_loss,
)

STARTS = [[0.02, 0.3, 0.4], [0.01, 0.2, 0.1], [0.5, 0.1, 0.2]]


def batch(m, d, k, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(m, d)) + 0.3
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return torch.from_numpy(x), torch.from_numpy(rng.normal(size=(k, d)))


def others(z):
    """Return the cosines of every row to all others, without the diagonal."""
    m = len(z)
    return (z @ z.T)[~torch.eye(m, dtype=torch.bool)].view(m, m - 1)


def plain_pearson(a, b):
    a, b = (t - t.mean(1, keepdim=True) for t in (a, b))
    return ((a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))).mean()


def plain_positional(x, z):
    return (torch.pdist(x) - torch.pdist(z)).square().mean()


def plain_scaled_positional(x, z):
    original, reduced = torch.pdist(x), torch.pdist(z)
    scale = (original * reduced).sum() / reduced.square().sum()
    return (original - scale * reduced).square().mean()


def plain_angular(x, z):
    return (others(x) - others(z)).square().mean()


def plain_one_minus_pearson(x, z):
    return 1 - plain_pearson(others(x), others(z))


def plain_divergence(x, z):
    p, q = ((others(t) / TEMPERATURE).softmax(1) for t in (x, z))
    return (p * (p / q).log()).sum(1).mean()


def plain_blend(x, z, start):
    parts = (plain_angular(x, z), plain_one_minus_pearson(x, z), plain_divergence(x, z))
    return sum(share * part / before for share, part, before in zip(SHARES, parts, start, strict=True))


class SoftRank(torch.autograd.Function):
    """`soft_ranks` as an autograd function."""

    @staticmethod
    def forward(ctx, values, strength):
        soft, ctx.pull_back = soft_ranks(values, strength)
        return soft

    @staticmethod
    def backward(ctx, gradient):
        return ctx.pull_back(gradient), None


def plain_spearman(x, z, strength):
    return 1 - plain_pearson(*(SoftRank.apply(others(t), strength) for t in (x, z)))


# What is asked for, the same written plainly, and whether outputs are normalised first.
OBJECTIVES = {
    "angular": (angular_loss, lambda x, z, _: plain_angular(x, z), True),
    "spearman": (spearman_loss, lambda x, z, _: plain_spearman(x, z, 1.0), True),
    "spearman, close to ranks": (
        partial(spearman_loss, strength=1e-2),
        lambda x, z, _: plain_spearman(x, z, 1e-2),
        True,
    ),
    "blend": (
        lambda x, outputs, **held: blended_loss(x, outputs, STARTS[: len(outputs)], **held),
        lambda x, z, index: plain_blend(x, z, STARTS[index]),
        True,
    ),
    "positional as published": (partial(positional_loss, scaled=False), lambda x, z, _: plain_positional(x, z), False),
    "positional": (partial(positional_loss, scaled=True), lambda x, z, _: plain_scaled_positional(x, z), True),
}


@pytest.fixture(params=OBJECTIVES)
def asked(request):
    """Return an objective, the same written plainly, and whether outputs are normalised first."""
    return OBJECTIVES[request.param]


# How much of the pairs is in memory: entries of a block, rows of a tile. The answers must not depend on it.
HELD_AT_ONCE = {"whole": None, "blocks": (700, 17), "single anchors": (1, 1)}


def by_autograd(plain, normalized, x, weight, sizes, importance):
    """Return the losses of a plain objective and the gradient of their weighted sum, by autograd."""
    weight = weight.clone().requires_grad_()
    outputs = [x @ weight[:p].T for p in sizes]
    if normalized:
        outputs = [torch.nn.functional.normalize(z) for z in outputs]
    losses = [plain(x, z, index) for index, z in enumerate(outputs)]
    sum(i * loss for i, loss in zip(importance, losses, strict=True)).backward()
    return [loss.item() for loss in losses], weight.grad


def assert_close(found, expected, tolerance):
    """Assert that arrays differ by at most `tolerance` of the largest expected entry."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("m", "sizes", "importance"),
    [(4, [4], [1.0]), (60, [8], [1.0]), (60, [2, 4, 8], [0.3, 0.0, 2.0]), (61, [3, 8], [5.0, 1.0])],
)
@pytest.mark.parametrize("held_at_once", HELD_AT_ONCE)
def test_losses_and_gradient_equal_autograds_for_any_prefix_sizes_and_block_size(
    asked, held_at_once, m, sizes, importance
):
    objective, plain, normalized = asked
    if HELD_AT_ONCE[held_at_once] is not None:
        entries, tile = HELD_AT_ONCE[held_at_once]
        if getattr(objective, "func", None) is positional_loss:
            objective = partial(objective, tile=tile)
        elif objective is not angular_loss:  # which needs no matrix of pairs
            objective = partial(objective, block_entries=entries)
    x, weight = batch(m, 12, sizes[-1])
    losses, gradient = prefix_losses(objective, x, weight, sizes, importance, normalized)
    expected_losses, expected_gradient = by_autograd(plain, normalized, x, weight, sizes, importance)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-8)
    assert expected_gradient.any() or m == 4  # the hard ranks of three others stay as they are
    assert_close(gradient, expected_gradient, 1e-7)


def test_blend_loss_at_its_start_is_one():
    x, weight = batch(80, 12, 8)
    outputs = [torch.nn.functional.normalize(x @ weight[:p].T) for p in (2, 8)]
    graded = blended_loss(x, outputs, compute_starting_losses(x, outputs))
    assert sum(SHARES) == pytest.approx(1)
    assert [loss for loss, _ in graded] == pytest.approx([1, 1], rel=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_losses_of_repeated_rows_equal_autograds_and_gradients_are_finite(asked, dtype):
    objective, plain, normalized = asked
    x, weight = (t.to(dtype) for t in batch(40, 12, 5))
    x = torch.cat([x, x[:15], x[:1].expand(10, -1)])
    losses, gradient = prefix_losses(objective, x, weight, [2, 5], [1.0, 1.0], normalized)
    expected, _ = by_autograd(plain, normalized, x.double(), weight.double(), [2, 5], [1.0, 1.0])
    np.testing.assert_allclose(losses, expected, rtol=1e-3 if dtype == torch.float32 else 1e-7)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("outputs", ["all zero", "all equal"])
def test_losses_of_all_zero_or_all_equal_outputs_are_positive_with_finite_gradients(asked, outputs, dtype):
    objective, _, normalized = asked
    x, weight = (t.to(dtype) for t in batch(40, 12, 5))
    if outputs == "all zero":
        weight = torch.zeros_like(weight)
    else:  # the same first entry in every row, which alone is mapped
        x[:, 0] = 0.5
        x = torch.nn.functional.normalize(x)
        weight[:, 1:] = 0
    losses, gradient = prefix_losses(objective, x, weight, [2, 5], [1.0, 1.0], normalized)
    scaled = getattr(objective, "keywords", {}).get("scaled", False)  # rounding errors scaled up fit anything
    assert np.isfinite(losses).all() and (min(losses) > 0 or scaled)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("scale", [0.0, 1e-9])
def test_outputs_too_short_to_have_a_direction_do_not_inflate_the_gradient(scale):
    x, weight = batch(30, 12, 5)
    unseen = torch.linalg.qr(weight.T, mode="complete")[0][:, -1]
    x[0] = unseen + scale * x[1]  # 1e-9: what rounding may leave of a row the map cannot see
    x[0] /= x[0].norm()
    for objective in (angular_loss, spearman_loss):
        _, ordinary = prefix_losses(objective, x[1:], weight, [5], [1.0])
        _, gradient = prefix_losses(objective, x, weight, [5], [1.0])
        assert float(gradient.abs().max()) < 10 * float(ordinary.abs().max())


def test_float32_losses_and_gradients_are_within_1e_4_of_float64(asked):
    objective, _, normalized = asked
    x, weight = batch(600, 32, 8)
    losses, exact = prefix_losses(objective, x, weight, [4, 8], [0.5, 1.0], normalized)
    single_losses, single = prefix_losses(objective, x.float(), weight.float(), [4, 8], [0.5, 1.0], normalized)
    np.testing.assert_allclose(single_losses, losses, rtol=1e-4)
    assert_close(single, exact, 1e-4)


def test_positional_loss_of_rows_in_a_narrow_cone_is_accurate_in_float32():
    """Not centred first, such rows cost the losses forty times the error."""
    x, weight = batch(300, 32, 8)
    x = torch.nn.functional.normalize(x + 50 * x[:1])
    found = [
        prefix_losses(partial(positional_loss, scaled=True), x.to(dtype), weight.to(dtype), [8], [1.0])
        for dtype in (torch.float32, torch.float64)
    ]
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5)
    assert_close(found[0][1], found[1][1], 0.05)
