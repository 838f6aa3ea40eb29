from functools import partial

import numpy as np
import pytest
import torch

from lathe.transforms.learned.losses import positional_loss, prefix_losses
from lathe.transforms.statistics import distances


def positional_losses(x, weight, sizes, importance):
    """Return losses of normalised outputs, each at its best scale, and the gradient."""
    return prefix_losses(partial(positional_loss, scaled=True), x, weight, sizes, importance)


def batch(m, d, k, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(m, d)) + 0.3
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return torch.from_numpy(x), torch.from_numpy(rng.normal(size=(k, d)))


def by_autograd(x, weight, sizes, importance):
    """Return the same losses and gradient by autograd. The scale takes part in the gradient here."""
    weight = weight.clone().requires_grad_()
    original = torch.pdist(x)
    losses = []
    for p in sizes:
        reduced = torch.pdist(torch.nn.functional.normalize(x @ weight[:p].T))
        scale = (original * reduced).sum() / reduced.square().sum()
        losses.append((original - scale * reduced).square().mean())
    sum(i * loss for i, loss in zip(importance, losses, strict=True)).backward()
    return [loss.item() for loss in losses], weight.grad


@pytest.mark.parametrize(
    ("m", "sizes", "importance"),
    [
        (3, [4], [1.0]),
        (60, [8], [1.0]),
        (60, [2, 4, 6, 8], [0.3, 2.0, 0.0, 1.0]),
        (60, [3, 8], [5.0, 0.0]),
        (512, [8], [1.0]),  # one whole block
        (513, [8], [1.0]),  # a last block of one row
        (1100, [2, 8], [0.1, 1.0]),  # several blocks, the last one shorter
    ],
)
def test_positional_losses_and_gradient_equal_autograds_for_any_prefix_sizes_and_number_of_blocks(m, sizes, importance):
    x, weight = batch(m, 12, sizes[-1])
    losses, gradient = positional_losses(x, weight, sizes, importance)
    expected_losses, expected_gradient = by_autograd(x, weight, sizes, importance)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-8)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=0, atol=1e-8 * expected_gradient.abs().max())


def test_positional_losses_and_gradient_of_repeated_rows_equal_autograds():
    x, weight = batch(40, 12, 5)
    x = torch.cat([x, x[:15], x[:1].expand(10, -1)])
    losses, gradient = positional_losses(x, weight, [5], [1.0])
    expected_losses, expected_gradient = by_autograd(x, weight, [5], [1.0])
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-8)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=0, atol=1e-7 * expected_gradient.abs().max())


def test_positional_gradients_in_float32_are_within_1e_4_of_float64():
    x, weight = batch(600, 32, 8)
    _, exact = positional_losses(x, weight, [4, 8], [0.5, 1.0])
    _, single = positional_losses(x.float(), weight.float(), [4, 8], [0.5, 1.0])
    np.testing.assert_allclose(single, exact, rtol=0, atol=1e-4 * exact.abs().max())


def test_positional_loss_of_rows_in_a_narrow_cone_is_accurate_in_float32():
    # Not centred first, such rows cost the losses forty times the error.
    x, weight = batch(300, 32, 8)
    x = torch.nn.functional.normalize(x + 50 * x[:1])
    losses, exact = positional_losses(x, weight, [8], [1.0])
    single_losses, single = positional_losses(x.float(), weight.float(), [8], [1.0])
    np.testing.assert_allclose(single_losses, losses, rtol=1e-5)
    np.testing.assert_allclose(single, exact, rtol=0, atol=0.05 * exact.abs().max())


def test_distances_are_euclidean_and_never_nan():
    x, _ = batch(30, 5, 2)
    expected = np.linalg.norm(x[:7, None].numpy() - x[None].numpy(), axis=2)
    np.testing.assert_allclose(distances(x[:7], x), expected, atol=1e-7)
    twice = torch.cat([x, x]).float()
    assert torch.isfinite(distances(twice, twice)).all()
