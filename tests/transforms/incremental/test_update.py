import numpy as np
import pytest
import torch

from lathe.transforms import Chain, InputError, Moments, StepError, parse_steps
from lathe.transforms.artifact import FitStatistics, load_moments
from lathe.transforms.base import TRANSFORMS
from lathe.transforms.incremental import Stages, update_chain
from lathe.transforms.incremental.update import ChainUpdate

EXACT = [
    "r2", "r1", "r1:renormalize=false", "mc", "abtt", "abtt:literal=true", "pca:8", "pca", "pca:8,center=none",
    "pca:8,center=directions", "whitening:8", "whitening:form=zca", "whitening:8,shrinkage=ledoit-wolf",
    "normalize,geopres:8,steps=0", "abtt:2,renormalize=false,pca:8", "mc,pca:12,whitening:6",
    "pca:12,random_projection:4", "rand,abtt:2", "truncation:10,pca:4", "mc,whitening:8,renormalize=false",
]  # fmt: skip
"""Chains in which no normalisation follows a step that an update changes."""

BEHIND = ["r2,pca:8", "r2,geopres:8,steps=0", "r2,abtt:2", "r2,pca:8,whitening:4"]
"""Chains in which a normalisation does; the steps after it are refitted to first order in the change."""


@pytest.fixture(scope="module")
def months(embeddings):
    """Return three months of rows whose mean drifts."""
    shift = np.random.default_rng(5).normal(size=24).astype(np.float32) * 0.03
    return [embeddings(n, 24, seed=n) + i * shift for i, n in enumerate((2000, 700, 500))]


def fitted(steps, rows, normalize=True):
    """Fit a chain and return it with its stored moments."""
    chain = Chain(parse_steps(steps), normalize).fit(rows)
    return ChainUpdate(chain, Stages.of(chain).take_moments(chain, rows), {})


def month_by_month(steps, months):
    """Fit on the first month, then update the chain with each later one."""
    added = fitted(steps, months[0])
    for rows in months[1:]:
        added = update_chain(added.chain, added.moments, rows)
    return added


def subspace_similarity(one, other):
    """Return the mean squared cosine between two spans of rows."""
    spans = [np.linalg.qr(weight.double().numpy().T)[0] for weight in (one, other)]
    return float((np.linalg.svd(spans[0].T @ spans[1])[1] ** 2).mean())


@pytest.mark.parametrize("steps", EXACT)
def test_update_chain_month_by_month_equals_the_fit_on_all_rows(months, steps):
    added, whole = month_by_month(steps, months), fitted(steps, np.concatenate(months))
    for name, buffer in whole.chain.named_buffers():
        np.testing.assert_allclose(added.chain.get_buffer(name), buffer, rtol=0, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("steps", EXACT)
def test_update_chain_month_by_month_leaves_the_moments_of_all_rows(months, steps):
    added, whole = month_by_month(steps, months), fitted(steps, np.concatenate(months))
    assert added.moments.keys() == whole.moments.keys()
    for stage, moments in whole.moments.items():
        assert added.moments[stage].count == moments.count == sum(map(len, months))
        for name in ("mean", "scatter", "third"):
            wanted = getattr(moments, name)
            found = getattr(added.moments[stage], name)
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9 * np.abs(wanted).max())


@pytest.mark.parametrize("steps", EXACT[:10])
def test_updated_first_steps_differ_from_the_fit_on_all_rows_by_at_most_float32_rounding(months, steps):
    added, whole = month_by_month(steps, months), fitted(steps, np.concatenate(months))
    for (_, found), (_, wanted) in zip(added.chain.named_buffers(), whole.chain.named_buffers(), strict=True):
        assert float((found - wanted).abs().max()) <= 2 * torch.finfo(torch.float32).eps * float(wanted.abs().max())


@pytest.mark.parametrize("steps", BEHIND)
def test_updating_a_step_behind_a_normalisation_removes_over_nine_tenths_of_its_error(months, steps):
    """The error is the distance of its directions to those of the fit on all rows."""
    old, whole = fitted(steps, months[0]), fitted(steps, np.concatenate(months))
    added = month_by_month(steps, months)
    torch.testing.assert_close(added.chain[0].direction, whole.chain[0].direction, atol=1e-7, rtol=0)
    axes = [getattr(fit.chain[1], "weight", getattr(fit.chain[1], "removed", None)) for fit in (old, added, whole)]
    lost, left = 1 - subspace_similarity(axes[0], axes[2]), 1 - subspace_similarity(axes[1], axes[2])
    assert left < 1e-3 and left < lost / 10


def test_updated_pca_behind_r2_stays_orthogonal_to_the_updated_mean_direction(months):
    added = month_by_month("r2,pca:8", months)
    assert float((added.chain[1].weight @ added.chain[0].direction).abs().max()) < 1e-5


def test_update_chain_retains_a_trained_geopres_and_updates_the_r2_before(months):
    old = fitted("r2,geopres:8,steps=5", months[0])
    done = update_chain(old.chain, old.moments, months[1])
    assert done.retained.keys() == {1} and "trained on rows" in done.retained[1]
    torch.testing.assert_close(done.chain[1].weight, old.chain[1].weight, atol=0, rtol=0)
    assert not torch.equal(done.chain[0].direction, old.chain[0].direction)


def test_update_chain_retains_the_pca_that_a_trained_geopres_was_fitted_on(months):
    old = fitted("r2,pca:16,geopres:8,steps=5", months[0])
    done = update_chain(old.chain, old.moments, months[1])
    assert "geopres was fitted on its axes" in done.retained[1]
    torch.testing.assert_close(done.chain[1].weight, old.chain[1].weight, atol=0, rtol=0)


def test_update_chain_retains_a_ledoit_wolf_whitening_without_fourth_moments(months):
    old = fitted("mc,whitening:8,shrinkage=ledoit-wolf", months[0])
    done = update_chain(old.chain, old.moments, months[1])
    assert "fourth moments" in done.retained[1]


def test_update_chain_retains_an_autoencoder_and_the_steps_after(months):
    old = fitted("r2,autoencoder:8,steps=3,pca:4", months[0])
    done = update_chain(old.chain, old.moments, months[1])
    assert done.retained.keys() == {1, 2} and "after autoencoder" in done.retained[2]


def test_update_chain_refits_int8_ranges_so_that_added_rows_decode_within_one_step(months):
    old = fitted("r2,pca:8,int8", months[0])
    added = update_chain(old.chain, old.moments, months[1]).chain
    floats = Chain(added.float_steps, added.normalize).transform(months[1])
    assert float(np.abs(added.floats(months[1]) - floats).max()) < float(added.quantizer.scale.max())


def test_update_chain_refits_codes_within_two_percent_of_the_error_of_the_fit_on_all_rows(months):
    added, whole = month_by_month("r2,codes:6", months), fitted("r2,codes:6", np.concatenate(months))
    rows = np.concatenate(months)
    assert float(added.chain.quantizer.norm) == pytest.approx(1, abs=1e-3)
    assert added.retained == {}
    exact = Chain([whole.chain[0]]).transform(rows)
    errors = [np.square(fit.chain.floats(rows) - exact).sum(1).mean() for fit in (added, whole)]
    assert errors[0] < 1.02 * errors[1]


def test_update_chain_retains_codes_weighted_by_queries(months):
    chain = Chain(parse_steps("r2,codes:6,weighting=0.5")).fit(months[0], queries=months[1][:50])
    moments = Stages.of(chain).take_moments(chain, months[0])
    added = update_chain(chain, moments, months[1])
    assert added.retained == {1: "it is weighted by queries, whose moments are not stored"}
    assert torch.equal(added.chain.quantizer.decoder, chain.quantizer.decoder)


@pytest.mark.parametrize("steps", ["geopres:8,steps=5", "random_projection:4", "truncation:4", "geopres:8,steps=0"])
def test_update_chain_refuses_a_chain_without_a_step_that_can_be_refitted(months, steps):
    old = fitted(steps, months[0])
    assert old.moments == {}
    with pytest.raises(InputError, match="no step of this chain can be refitted"):
        update_chain(old.chain, {}, months[1])


def test_update_chain_refuses_missing_moments_and_rows_of_other_dimensions(months):
    old = fitted("r2,pca:8", months[0])
    with pytest.raises(InputError, match="stage 2 of this chain are missing"):
        update_chain(old.chain, {1: old.moments[1]}, months[1])
    with pytest.raises(StepError, match="24 dimensions"):
        update_chain(old.chain, old.moments, months[1][:, :20])


def test_update_chain_leaves_the_old_chain_and_its_moments_unchanged(months):
    old = fitted("r2,abtt:2,int8", months[0])
    buffers = {name: buffer.clone() for name, buffer in old.chain.named_buffers()}
    scatter = {stage: moments.scatter.copy() for stage, moments in old.moments.items()}
    update_chain(old.chain, old.moments, months[1])
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in old.chain.named_buffers())
    assert all(np.array_equal(old.moments[stage].scatter, found) for stage, found in scatter.items())


def test_update_chain_with_five_rows_changes_outputs_by_at_most_0_05(months):
    old = fitted("r2,pca:8", months[0])
    added = update_chain(old.chain, old.moments, months[0][:5]).chain
    np.testing.assert_allclose(added.transform(months[1]), old.chain.transform(months[1]), atol=0.05)


LEARNS_FROM_MOMENTS = ["r1", "r2", "mc", "abtt", "pca", "whitening:4", "codes:4", "geopres:4,steps=0"]


@pytest.mark.parametrize("step", LEARNS_FROM_MOMENTS)
def test_steps_that_learn_from_moments_fit_moments_like_the_rows(step, months):
    rows = months[0] / np.linalg.norm(months[0], axis=1, keepdims=True)
    (of_rows,), (of_moments,) = parse_steps(step), parse_steps(step)
    assert of_rows.learns_from in ("moments", "unit moments")
    of_rows.fit(rows)
    of_moments.fit(Moments.from_vectors(rows))
    for found, wanted in zip(of_moments.buffers(), of_rows.buffers(), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


def test_the_tested_steps_are_all_kinds_that_learn_from_moments():
    kinds = {step.kind for step in parse_steps(",".join(LEARNS_FROM_MOMENTS))} - {"geopres"}
    assert {kind for kind, made in TRANSFORMS.items() if made.learns_from in ("moments", "unit moments")} == kinds


@pytest.mark.parametrize("seed", range(60))
def test_update_chain_with_rows_of_another_distribution_leaves_valid_moments_or_is_refused(seed, tmp_path):
    rng = np.random.default_rng(seed)
    spreads, centres = 10 ** rng.uniform(-2.5, 0, (2, 6)), rng.standard_normal((2, 6)) * 10 ** rng.uniform(-1, 0.5)
    old, new = (
        rng.standard_normal((200, 6)) * spread + centre for spread, centre in zip(spreads, centres, strict=True)
    )
    old *= rng.exponential(1, (200, 1))
    first = fitted("r2,pca:3", old.astype(np.float32))
    try:
        added = update_chain(first.chain, first.moments, new.astype(np.float32))
    except InputError as error:
        assert "too much" in str(error)
        return
    added.chain.save(tmp_path / "added", {}, FitStatistics(added.moments))
    kept = load_moments(tmp_path / "added")
    assert np.linalg.eigvalsh(kept[2].scatter)[0] >= -1e-9 * kept[2].count
    again = update_chain(added.chain, kept, new.astype(np.float32)).chain
    assert np.isfinite(again.transform(old.astype(np.float32))).all()
