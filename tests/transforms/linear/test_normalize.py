import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lathe.transforms import R2, InputError, Normalize, StepError, build_steps
from lathe.transforms.statistics import drop_rounding_residue, unit_rows


@settings(max_examples=50, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), d=st.integers(1, 50), exponent=st.integers(-30, 30))
def test_unit_rows_have_norm_one_for_rows_of_any_length(seed, d, exponent):
    rows = np.random.default_rng(seed).normal(size=(4, d)) * 10.0**exponent
    out = unit_rows(torch.from_numpy(rows).float())
    np.testing.assert_allclose(np.linalg.norm(out.double().numpy(), axis=1), 1, atol=1e-6)


def test_unit_rows_keeps_zero_rows_zero():
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0], [-0.0, 0.0]])
    out = unit_rows(rows)
    assert not out[[0, 2]].any()
    np.testing.assert_allclose(out[1], [0.6, 0.8], rtol=1e-6)


@pytest.mark.parametrize("build", [Normalize, R2])
def test_normalize_and_r2_map_subnormally_short_rows_to_zero(build):
    rows = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32) + 1
    fitted = build().fit(rows)
    shortest = np.finfo(np.float32).smallest_normal
    unit = rows[0].astype(np.float64) / np.linalg.norm(rows[0].astype(np.float64))
    for length, zero in ((1e-45, True), (shortest / 2, True), (shortest * 100, False)):
        found = fitted.transform((unit * length).astype(np.float32)[None])
        assert found.any() != zero, length


def test_drop_rounding_residue_zeroes_only_rows_within_rounding_error_of_their_input():
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    y = torch.tensor([[1e-7, 0.0], [1e-4, 0.0], [0.0, 0.0]])
    np.testing.assert_array_equal(drop_rounding_residue(y, x), torch.tensor([[0.0, 0.0], [1e-4, 0.0], [0.0, 0.0]]))
    assert not drop_rounding_residue(y, x, gain=1000).any(), "what a map lengthens, it lengthens the error of too"


def test_normalize_refuses_parameters():
    with pytest.raises(StepError, match="it takes none"):
        build_steps([{"kind": "normalize", "power": 2}])


@pytest.mark.parametrize("number", [3.0, np.float32(3), torch.tensor(3.0)])
def test_normalize_refuses_a_scalar(number):
    with pytest.raises(InputError, match="dimensions"):
        Normalize().transform(number)
