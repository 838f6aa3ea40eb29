import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lathe.transforms import R2, InputError, Moments, StepError


@pytest.fixture(scope="module")
def rows(embeddings):
    return embeddings(400, 24)


@pytest.fixture(scope="module")
def r2(rows):
    return R2().fit(rows)


def unit(rows):
    rows = np.asarray(rows, np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_r2_matches_the_papers_formula_in_float64(rows, r2):
    mean = unit(rows).mean(0)
    direction = mean / np.linalg.norm(mean)
    e = unit(rows)
    expected = unit(e - (e @ direction)[:, None] * direction)
    np.testing.assert_allclose(r2.direction, direction, atol=1e-7)
    np.testing.assert_allclose(r2.transform(rows), expected, atol=1e-6)
    assert float(r2.mean_norm) == pytest.approx(np.linalg.norm(mean), rel=1e-6)


def test_r2_outputs_have_norm_one_and_are_orthogonal_to_the_mean_direction(rows, r2):
    out = r2.transform(rows).astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(out, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(out @ r2.direction.double().numpy(), 0, atol=1e-6)


def test_r2_is_idempotent(rows, r2):
    once = r2.transform(rows)
    np.testing.assert_allclose(r2.transform(once), once, atol=1e-6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(factor=st.floats(1e-15, 1e15), sign=st.sampled_from([-1, 1]))
def test_r2_maps_a_row_parallel_to_the_mean_to_exactly_zero(rows, r2, factor, sign):
    mean = unit(rows).mean(0, keepdims=True)
    assert not r2.transform((sign * factor * mean).astype(np.float32)).any()


def test_r2_maps_a_row_close_to_the_mean_to_its_normalised_orthogonal_part(r2):
    direction = r2.direction.double().numpy()
    own = np.zeros(24)
    own[:2] = direction[1], -direction[0]
    own /= np.linalg.norm(own)
    out = r2.transform((direction + 1e-3 * own)[None].astype(np.float32))
    np.testing.assert_allclose(out[0], own, atol=1e-3)


def test_r2_fit_ignores_row_lengths(rows, r2):
    lengths = 10 ** np.random.default_rng(0).uniform(-3, 3, size=(len(rows), 1))
    np.testing.assert_allclose(R2().fit(rows * lengths).direction, r2.direction, atol=1e-6)
    # … and it would, were the mean taken of the rows as they are.
    plain = (rows * lengths).mean(0)
    assert np.abs(plain / np.linalg.norm(plain) - r2.direction.numpy()).max() > 1e-2


def test_r2_output_does_not_depend_on_the_length_of_a_row(rows, r2):
    lengths = 10 ** np.random.default_rng(0).uniform(-10, 10, size=(len(rows), 1))
    np.testing.assert_allclose(r2.transform(rows * lengths), r2.transform(rows), atol=1e-6)


def test_r2_fitted_on_5000_rows_in_two_blocks_equals_r2_fitted_on_their_moments(embeddings):
    rows = embeddings(5000, 4)
    expected = R2().fit(Moments.from_vectors(unit(rows)))
    np.testing.assert_allclose(R2().fit(rows).direction, expected.direction, atol=1e-7)


def test_r2_noise_floor_is_the_standard_error_of_the_mean_of_unit_rows(rows, r2):
    assert float(r2.noise_floor) == pytest.approx(np.sqrt(unit(rows).var(0).sum() / len(rows)), rel=1e-5)


def test_r2_refuses_rows_whose_mean_is_exactly_zero(rows):
    opposites = np.stack([rows, -rows], axis=1).reshape(-1, 24)
    for data in (opposites, np.zeros((3, 24)), Moments.from_vectors(opposites)):
        with pytest.raises(InputError, match="exactly zero"):
            R2().fit(data)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_r2_transforms_a_tensor_of_any_float_dtype_to_a_float32_tensor(rows, r2, dtype):
    tensor = torch.from_numpy(rows).to(dtype)
    out = r2.transform(tensor)
    assert isinstance(out, torch.Tensor)
    assert out.dtype == torch.float32
    assert not out.requires_grad
    np.testing.assert_allclose(out, r2.transform(tensor.float().numpy()), atol=1e-6)


def test_r2_refuses_vectors_of_one_dimension_and_zero_rows():
    with pytest.raises(StepError, match="at least 2 dimensions"):
        R2().fit(np.ones((4, 1)))
    for data in (np.ones((0, 4)), Moments()):
        with pytest.raises(InputError, match="no rows"):
            R2().fit(data)
