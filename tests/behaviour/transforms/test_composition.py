import copy

import numpy as np
import pytest
import torch

from lathe.transforms import PCA, R2, Chain, GeoPres, Int8, MeanCentering, Normalize, StepError, Truncation, Whitening


@pytest.fixture(scope="module")
def rows(embeddings):
    return embeddings(300, 24)


@pytest.fixture(scope="module")
def chain(rows):
    return Chain([R2(), PCA(12), GeoPres(6, steps=2)]).fit(rows)


def test_adding_a_step_to_a_chain_appends_the_step_and_leaves_the_chain_unchanged(rows, chain):
    longer = chain + Truncation(4)
    assert [step.kind for step in longer] == ["r2", "pca", "geopres", "truncation"]
    longer.fit(rows)
    np.testing.assert_allclose(longer.transform(rows), Chain(longer.transforms).transform(rows))
    assert len(chain) == 3


def test_the_sum_of_two_chains_applies_one_after_the_other(rows, chain):
    second = Chain([PCA(3)]).fit(chain.transform(rows))
    for normalize in (True, False):
        first = Chain(chain.transforms, normalize)
        both = first + second
        np.testing.assert_allclose(both.transform(rows), second.transform(first.transform(rows)), atol=1e-6)


def test_adding_a_step_that_cannot_follow_is_refused(chain):
    with pytest.raises(StepError, match="more than 6 dimensions, not 6"):
        _ = chain + GeoPres(6)
    with pytest.raises(StepError, match="outputs codes"):
        _ = Chain([Int8()]) + R2()


def test_slicing_a_chain_gives_a_chain_of_the_selected_steps(rows, chain):
    assert [step.kind for step in chain[:2]] == ["r2", "pca"]
    assert chain[1] is chain.transforms[1]
    expected = chain[:1].transform(rows)
    np.testing.assert_array_equal(expected, Chain([chain[0]]).transform(rows))
    assert chain[:1] + chain[1] == chain[:2]


def test_chains_are_equal_if_their_steps_parameters_and_normalisation_are_equal(rows, chain, tmp_path):
    assert copy.deepcopy(chain) == chain
    chain.save(tmp_path / "chain")
    assert Chain.load(tmp_path / "chain") == chain
    assert hash(Chain.load(tmp_path / "chain")) == hash(chain)
    assert chain != Chain(chain.transforms, normalize=False)
    assert chain != chain[:2]
    assert chain != "r2,pca:12"


def test_chains_fitted_on_different_rows_are_not_equal(embeddings, chain):
    other = Chain([R2(), PCA(12), GeoPres(6, steps=2)]).fit(embeddings(300, 24, seed=1))
    assert other.specs() == chain.specs()
    assert other != chain


@pytest.mark.parametrize(
    ("steps", "normalize", "expected"),
    [
        ([MeanCentering()], False, "exact"),
        ([PCA()], False, "exact"),
        ([MeanCentering(), PCA()], False, "exact"),
        ([PCA(12)], False, "approximate"),
        ([PCA(), Whitening(renormalize=False)], False, "exact"),
        ([MeanCentering(), GeoPres(6, steps=0)], False, "approximate"),
        ([PCA()], True, "none"),
        ([Normalize(), PCA()], False, "none"),
        ([R2()], False, "none"),
        ([Whitening()], False, "none"),
    ],
)
def test_chain_inverse_is_as_exact_as_the_least_exact_of_its_steps(rows, steps, normalize, expected):
    chain = Chain(steps, normalize).fit(rows)
    assert chain.inverse_kind == expected
    if expected == "none":
        with pytest.raises(StepError, match="cannot be inverted"):
            chain.inverse_transform(chain.transform(rows))
        return
    back = chain.inverse_transform(chain.transform(rows))
    assert back.shape == rows.shape
    error = np.abs(back - rows).max()
    assert error < 1e-4 if expected == "exact" else error > 1e-2
    np.testing.assert_allclose(chain.transform(back), chain.transform(rows), atol=1e-4)


@pytest.mark.parametrize("odd", [np.zeros(24), np.full(24, 1e-30), np.full(24, 1e18), np.full(24, 1e-20)])
def test_a_zero_tiny_or_huge_row_changes_no_other_output_of_its_batch(rows, chain, odd):
    mixed = rows.copy()
    mixed[17] = odd
    for map_ in (chain, chain.fold()):
        out = map_.transform(mixed)
        assert np.isfinite(out).all()
        np.testing.assert_allclose(np.delete(out, 17, 0), np.delete(map_.transform(rows), 17, 0), atol=1e-6)
        np.testing.assert_allclose(out[17], map_.transform(odd[None].astype(np.float32))[0], atol=1e-6)


def test_a_row_in_the_kernel_becomes_zero_in_a_batch_of_other_rows(rows, chain):
    mixed = rows.copy()
    mixed[3] = chain[0].direction.numpy() * 5
    for map_ in (chain[:1], chain, chain.fold()[:1]):
        out = map_.transform(mixed)
        assert not out[3].any() or map_ is chain  # after centring, what is zero stays zero all the same
        assert out[4].any()
    assert not chain.transform(mixed)[3].any()


def test_gradients_flow_through_a_folded_chain(rows, chain):
    x = torch.from_numpy(rows[:8]).requires_grad_()
    chain.fold()(x)[:, 0].sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("steps", [["r2"], [R2], "r2,pca:8", 3])
def test_chain_refuses_steps_that_are_not_transforms(steps):
    with pytest.raises(StepError, match="made of transforms such as R2"):
        Chain(steps)


def test_only_a_transform_or_a_chain_can_be_added(chain):
    with pytest.raises(TypeError):
        _ = chain + "int8"
