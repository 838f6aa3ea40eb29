import math

import numpy as np
import pytest
import torch

from lathe.transforms import PCA, Chain, Flow, InputError, NotFittedError, StepError
from lathe.transforms.baselines.flow import LOG_SCALE_LIMIT

QUICK = {"blocks": 2, "hidden": 16, "steps": 60, "batch": 128, "learning_rate": 1e-2}
"""Parameters of a quick fit in which the couplings still have an effect."""


@pytest.fixture(scope="module")
def rows(embeddings):
    return embeddings(800, 10, seed=1)


@pytest.fixture(scope="module")
def heldout(embeddings):
    return embeddings(300, 10, seed=2)


@pytest.fixture(scope="module")
def fitted(rows):
    return Flow(**QUICK).fit(rows)


def normal(rows, mean, covariance):
    """Return the log-densities of rows under a Gaussian."""
    y = rows - mean
    squares = np.einsum("ij,ij->i", y, np.linalg.solve(covariance, y.T).T)
    return -0.5 * (squares + np.linalg.slogdet(covariance)[1] + len(mean) * math.log(2 * math.pi))


def gaussian(n, seed):
    """Return rows of a Gaussian away from zero whose variances differ widely, and their log-densities."""
    spread = np.random.default_rng(99).normal(size=(6, 6))
    mean = np.arange(6.0)
    rows = np.random.default_rng(seed).normal(size=(n, 6)) @ spread.T + mean
    return rows.astype(np.float32), normal(rows, mean, spread @ spread.T)


def test_flow_inverse_is_exact_on_rows_that_were_not_fitted(fitted, heldout):
    assert fitted.inverse_kind == "exact"
    z = fitted.transform(heldout)
    assert np.abs(z - heldout).max() > 0.1
    np.testing.assert_allclose(fitted.inverse_transform(z), heldout, atol=1e-4)
    far = np.random.default_rng(0).normal(size=(300, 10)).astype(np.float32)
    np.testing.assert_allclose(fitted.transform(fitted.inverse_transform(far)), far, atol=1e-4)


@pytest.mark.parametrize(("d", "blocks", "hidden"), [(2, 1, 1), (3, 1, None), (3, 2, 4), (7, 3, 5)])
def test_flow_log_likelihood_equals_the_normal_density_plus_the_log_determinant_of_the_jacobian(
    embeddings, d, blocks, hidden
):
    settings = QUICK | {"blocks": blocks, "hidden": hidden}
    flow = Flow(**settings).fit(embeddings(300, d, seed=1)).double()
    some = torch.from_numpy(embeddings(8, d, seed=2)).double()
    found = flow.log_likelihood(some)
    for row, density in zip(some, found, strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda x: flow(x[None])[0], row)
        z = flow.transform(row[None])[0]
        of_z = -0.5 * float(z.square().sum()) - 0.5 * d * math.log(2 * math.pi)
        assert float(density) == pytest.approx(of_z + float(torch.linalg.slogdet(jacobian)[1]), rel=1e-9)
        assert np.linalg.cond(jacobian) < 1e6


def test_a_flow_of_one_block_matches_the_formula_of_its_docstring(rows):
    flow = Flow(**(QUICK | {"blocks": 1})).fit(rows)
    x = torch.from_numpy(rows[:50])
    y = ((x + flow.offset[0]) * flow.log_scale[0].exp()) @ flow.mixing[0].T
    a, b = y[:, :5], y[:, 5:]
    s, t = ((a @ flow.hidden_weight[0].T + flow.hidden_bias[0]).relu() @ flow.coupling_weight[0].T).split(5, 1)
    s, t = s + flow.coupling_bias[0][:5], t + flow.coupling_bias[0][5:]
    expected = torch.cat([a, b * (2 * torch.tanh(s / 2)).exp() + t], 1)
    np.testing.assert_allclose(flow.transform(x), expected, rtol=1e-4, atol=1e-4)
    assert s.abs().max() > 0.01


def test_flow_couplings_limit_their_log_scale(fitted):
    far = 1e4 * torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
    log_scale, _ = fitted.coupling(0, far)
    assert 0.9 * LOG_SCALE_LIMIT < log_scale.abs().max() <= LOG_SCALE_LIMIT


def test_flow_learns_the_density_of_the_rows_with_the_noise_added():
    rows, _ = gaussian(6000, 0)
    noise = 0.3 * math.sqrt(rows.var(axis=0).mean())
    covariance = np.cov(rows.T) + noise**2 * np.eye(6)
    flow = Flow(blocks=2, noise=0.3, learning_rate=3e-3).fit(rows)
    heldout = gaussian(4000, 1)[0]
    differences = flow.log_likelihood(heldout) - normal(heldout, rows.mean(0), covariance)
    assert abs(differences.mean()) < 0.05


def test_a_stopped_flow_fit_leaves_the_learned_parameters_unchanged(rows):
    flow = Flow(**QUICK).fit(rows)
    before = {name: buffer.clone() for name, buffer in flow.named_buffers()}

    def stop(fraction, message):
        if fraction > 0.1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        flow.fit(rows[:400], stop)
    for name, buffer in flow.named_buffers():
        np.testing.assert_array_equal(buffer, before[name])
        assert not buffer.requires_grad


def test_flow_log_likelihood_is_one_number_per_row_as_an_array_or_tensor_like_the_input(fitted, heldout):
    found = fitted.log_likelihood(heldout)
    assert isinstance(found, np.ndarray) and found.shape == (300,)
    assert isinstance(fitted.log_likelihood(torch.from_numpy(heldout)), torch.Tensor)
    np.testing.assert_allclose(fitted.log_likelihood(heldout[:7]), found[:7], rtol=1e-4)


def test_flow_log_likelihood_refuses_an_unfitted_flow_and_rows_of_other_dimensions(fitted, rows):
    with pytest.raises(NotFittedError, match="call fit before log_likelihood"):
        Flow().log_likelihood(rows)
    with pytest.raises(InputError, match="10 dimensions"):
        fitted.log_likelihood(rows[:, :9])


def test_flow_refuses_vectors_of_one_dimension(rows):
    with pytest.raises(StepError, match="at least 2 dimensions, not 1"):
        Flow().fit(rows[:, :1])
    with pytest.raises(StepError, match="at least 2 dimensions, not 1"):
        Chain([PCA(1), Flow()])


def test_flow_results_do_not_depend_on_the_number_of_torch_threads(embeddings):
    # A batch of matrices this wide is what torch and MKL factor wrongly with more than one thread.
    rows = embeddings(200, 160, seed=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        flow = Flow(blocks=8, hidden=4, steps=1, batch=32, noise=0.1).fit(rows)
        found = flow.log_likelihood(rows[:5])
        back = flow.inverse_transform(flow.transform(rows))
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_allclose(found, flow.log_likelihood(rows[:5]), rtol=1e-5)
    np.testing.assert_allclose(back, rows, atol=1e-4)
