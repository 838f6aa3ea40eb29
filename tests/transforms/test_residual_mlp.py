"""The residual MLP: a bridge between two encoders' spaces that may bend."""

import numpy as np
import pytest
import torch

from lathe.transforms import PCA, Chain, InputError, Int8, PairedMoments, Procrustes, ResidualMLP, StepError
from lathe.transforms.base import Checkpoint
from lathe.transforms.progress import no_progress

D, K, N = 24, 16, 3000


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def made(n, seed):
    """Return rows `(n, D)` and what a network makes of them `(n, K)`, both of unit length."""
    fixed, rng = np.random.default_rng(0), np.random.default_rng(seed)
    rows = unit(rng.normal(size=(n, D)) * np.linspace(2, 0.5, D) + 0.3)
    mixing, inner, outer = (fixed.normal(size=shape) for shape in ((D, K), (D, 64), (64, K)))
    return rows, unit(rows @ mixing + np.tanh(3 * rows @ inner) @ outer / 4)


@pytest.fixture(scope="module")
def pairs():
    return made(N, 1)


@pytest.fixture(scope="module")
def fresh():
    return made(500, 2)


@pytest.fixture(scope="module")
def bridge(pairs):
    return ResidualMLP(hidden=64).fit(pairs[0], targets=pairs[1])


def found_first(step, rows, targets):
    """Return the share of rows whose output is nearer to its own target than to all others."""
    nearest = (Chain([step]).transform(rows) @ targets.T).argmax(axis=1)
    return float((nearest == np.arange(len(rows))).mean())


def test_it_finds_more_targets_than_the_orthogonal_map_where_spaces_bend(bridge, pairs, fresh):
    orthogonal = Procrustes(center=True).fit(pairs[0], targets=pairs[1])
    assert found_first(bridge, *fresh) > found_first(orthogonal, *fresh) + 0.05
    assert bridge.fit_warnings() == []


def test_a_network_that_never_helps_is_left_out_with_a_warning():
    """Targets are noise, and the rate is so high that every step is a loss."""
    rng = np.random.default_rng(4)
    rows, noise = rng.normal(size=(400, 8)).astype("f"), rng.normal(size=(400, 5)).astype("f")
    step = ResidualMLP(hidden=512, learning_rate=1.0, steps=60).fit(rows, targets=noise)
    assert not step.output_weight.any()
    assert "orthogonal map alone" in step.fit_warnings()[0]
    expected = Procrustes(center=True).fit(rows, targets=noise).transform(rows)
    np.testing.assert_allclose(step.transform(rows), expected, atol=1e-5)


def test_training_stops_early_and_ends_with_the_lowest_held_out_error(bridge):
    log = bridge.training_log
    assert log.heldout_losses[0] > min(log.heldout_losses)


def test_output_is_the_formula_in_float64(bridge, fresh):
    b = {name: buffer.double().numpy() for name, buffer in bridge.named_buffers()}
    centered = fresh[0] - b["mean"]
    hidden = np.maximum(centered @ b["hidden_weight"].T + b["hidden_bias"], 0)
    expected = centered @ b["weight"].T + b["target_mean"] + hidden @ b["output_weight"].T
    np.testing.assert_allclose(bridge.transform(fresh[0]), expected, atol=1e-5)


def test_the_map_that_it_corrects_is_the_centred_orthogonal_one(bridge, pairs):
    orthogonal = Procrustes(center=True).fit(pairs[0], targets=pairs[1])
    for name in ("weight", "mean", "target_mean"):
        np.testing.assert_array_equal(bridge.get_buffer(name), orthogonal.get_buffer(name))


def test_a_killed_fit_is_resumed_with_the_same_result(pairs, tmp_path):
    class Killed(Exception):
        pass

    def kill(fraction, message):
        if fraction >= 0.5:
            raise Killed

    whole = ResidualMLP(hidden=8, steps=40).fit(pairs[0], targets=pairs[1])
    path = tmp_path / "state.safetensors"
    often = Checkpoint(path, seconds=0)
    with pytest.raises(Killed):
        ResidualMLP(hidden=8, steps=40).fit(pairs[0], kill, targets=pairs[1], checkpoint=often)
    again = ResidualMLP(hidden=8, steps=40).fit(pairs[0], no_progress, targets=pairs[1], checkpoint=often)
    assert torch.equal(again.output_weight, whole.output_weight)


def test_it_learns_from_rows_after_other_steps_and_before_codes(pairs, fresh):
    chain = Chain([PCA(20), ResidualMLP(hidden=32), Int8()]).fit(pairs[0], targets=pairs[1])
    assert chain.transform(fresh[0]).shape == (500, K)
    assert (chain.floats(fresh[0]) * fresh[1]).sum(axis=1).mean() > 0.8


def test_moments_and_missing_or_unequal_targets_are_refused(pairs):
    rows, targets = pairs
    with pytest.raises(InputError, match="trained on rows: give vectors and their targets, not their moments"):
        ResidualMLP().fit(PairedMoments.from_pairs(rows, targets))
    with pytest.raises(InputError, match="residual_mlp is fitted on pairs"):
        ResidualMLP().fit(rows)
    with pytest.raises(InputError, match="3000 vectors and 2999 targets are not pairs"):
        ResidualMLP().fit(rows, targets=targets[1:])
    with pytest.raises(InputError, match="training needs at least"):
        ResidualMLP().fit(rows[:3], targets=targets[:3])


@pytest.mark.parametrize("wrong", [{"hidden": 0}, {"temperature": 0}, {"steps": 0}, {"seed": -1}])
def test_parameters_out_of_range_are_refused(wrong, pairs):
    with pytest.raises(StepError, match="residual_mlp"):
        ResidualMLP(**wrong).fit(pairs[0], targets=pairs[1])
