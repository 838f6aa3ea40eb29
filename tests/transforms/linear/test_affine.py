import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lathe.transforms import R2, Chain, Normalize, StepError, build_steps, parse_steps
from lathe.transforms.base import Signature
from lathe.transforms.linear import Affine
from lathe.transforms.statistics import drop_rounding_residue, unit_rows


def affine(k, d, bias, seed):
    rng = np.random.default_rng(seed)
    return Affine(torch.from_numpy(rng.normal(size=(k, d))), torch.from_numpy(rng.normal(size=k)) if bias else None)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_affine_maps_rows_in_its_kernel_to_exact_zeros_at_any_scale(scale):
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.normal(size=(64, 64)))
    weight = torch.from_numpy(rng.normal(size=(8, 8)) @ basis[:8] * scale).float()
    kernel = torch.from_numpy(rng.normal(size=(100, 56)) @ basis[8:]).float()
    outside = torch.from_numpy(rng.normal(size=(100, 8)) @ basis[:8]).float()
    assert not Affine(weight)(kernel).any()
    assert Affine(weight)(outside).any(dim=1).all()


@pytest.mark.parametrize("bias", [False, True])
def test_fold_drops_a_normalisation_before_an_affine_map_only_if_the_map_has_no_bias(bias):
    chain = Chain([Normalize(), affine(6, 8, bias, 0).float()])
    x = np.random.default_rng(2).normal(size=(20, 8)).astype(np.float32) * 7
    folded = chain.fold()
    assert [step.kind for step in folded.transforms] == (["normalize", "affine"] if bias else ["affine"])
    np.testing.assert_allclose(folded.transform(x), chain.transform(x), atol=1e-5)


def test_affine_cannot_be_fitted_built_from_a_spec_or_given_other_dimensions():
    with pytest.raises(StepError, match="cannot be fitted"):
        Chain([affine(4, 8, False, 0)]).fit(np.ones((3, 8)))
    with pytest.raises(StepError, match="unknown kind"):
        build_steps([{"kind": "affine"}])
    with pytest.raises(StepError, match="8 dimensions, not 9"):
        affine(4, 8, False, 0).output_signature(Signature(9))


@pytest.mark.parametrize("steps", ["r2", "abtt:2", "abtt:2,literal=true", "abtt:2,renormalize=false"])
def test_fold_keeps_a_removal_of_directions_as_thin_products(steps, embeddings):
    rows = embeddings(300, 16).astype(np.float32)
    alone = Chain(parse_steps(steps)).fit(rows)
    folded = alone.fold()
    assert [step.kind for step in folded.transforms] == ["projection"]
    np.testing.assert_allclose(folded.transform(rows), alone.transform(rows), atol=1e-5)
    (projection,) = folded.transforms
    dense = Affine(projection.weight, projection.bias, projection.normalize)
    np.testing.assert_allclose(projection.transform(rows), dense.transform(rows), atol=1e-5)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), d=st.integers(1, 50), exponent=st.integers(-30, 30))
def test_unit_rows_have_norm_one_for_rows_of_any_length(seed, d, exponent):
    rows = np.random.default_rng(seed).normal(size=(4, d)) * 10.0**exponent
    out = unit_rows(torch.from_numpy(rows).float())
    np.testing.assert_allclose(np.linalg.norm(out.double().numpy(), axis=1), 1, atol=1e-6)


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
