import itertools
import re

import numpy as np
import pytest
import torch
from torch import Tensor

from lathe.transforms import InputError
from lathe.transforms.base import FitContext, TrainingConfig
from lathe.transforms.learned.descent import PAPER_EPOCHS, Batches, build_paper_config, limit_threads
from lathe.transforms.learned.descent import train as train_parameters

CPU = torch.device("cpu")
ROWS = np.arange(600, dtype=np.float32).reshape(200, 3)
"""Rows whose first entry is three times their number."""


class Stopped(Exception):
    """Raised by a progress callback to stop a fit."""


def config(**asked):
    return TrainingConfig(**({"steps": 60, "batch": 16, "learning_rate": 0.1} | asked))


def quadratic(target=3.0):
    """Return a parameter and a function of a batch that computes its squared distance to a target and the gradient."""
    weight = torch.zeros(4)

    def loss_and_gradient(batch: Tensor) -> float:
        weight.grad = 2 * (weight - target)
        return float((weight - target).square().sum())

    return weight, loss_and_gradient


def scripted(heldout_losses, rows=ROWS, training=lambda step: 1.0):
    """Return a parameter that counts steps and a loss function that replays the given held-out and batch losses."""
    weight, steps, scripted_losses = torch.zeros(1), itertools.count(), iter(heldout_losses)
    heldout = Batches(rows, config(heldout=20), 0, CPU).heldout()

    def loss_and_gradient(batch: Tensor) -> float:
        weight.grad = -torch.ones(1)
        return next(scripted_losses) if torch.equal(batch, heldout) else training(next(steps))

    return weight, loss_and_gradient


def train(weight, loss_and_gradient, asked, on_progress=lambda fraction, message: None, checkpoint=None):
    batches = Batches(ROWS, asked, 0, CPU)
    return train_parameters(
        "thing", {"weight": weight}, loss_and_gradient, batches, asked, FitContext(on_progress), checkpoint
    )


def test_the_learning_rate_warms_up_linearly_to_its_maximum_and_then_falls_linearly():
    asked = config(steps=100, warmup=0.1, learning_rate=0.5)
    rates = [asked.rate_at(step) for step in range(100)]
    np.testing.assert_allclose(rates[:10], 0.5 * np.arange(1, 11) / 10)
    np.testing.assert_allclose(rates[10:], 0.5 * np.arange(90, 0, -1) / 90)


def test_training_takes_each_step_with_the_learning_rate_scheduled_for_that_step():
    taken = []
    weight = torch.zeros(1)

    def loss_and_gradient(batch):
        taken.append(float(weight))
        weight.grad = -torch.ones(1)  # Adam then moves by the learning rate
        return 1.0

    asked = config(steps=20, warmup=0.2)
    train(weight, loss_and_gradient, asked)
    moves = np.diff([*taken, float(weight)])
    np.testing.assert_allclose(moves, [asked.rate_at(step) for step in range(20)], rtol=1e-4)


@pytest.mark.parametrize(
    ("rows", "batch", "epoch", "interval"),
    [(100, None, 1, 20), (95_000, None, 4, 20), (10_000_000, None, 500, 500), (9500, 100, 95, 95)],
)
def test_papers_config_has_ten_epochs_and_an_evaluation_per_epoch_or_at_least_20_steps(rows, batch, epoch, interval):
    """A given number of steps takes precedence."""
    asked = build_paper_config(rows, None, batch, None)
    assert (asked.steps, asked.check_every) == (PAPER_EPOCHS * epoch, interval)
    assert build_paper_config(rows, 3, batch, None).steps == 3
    assert build_paper_config(rows, 5000, batch, None).check_every == 500
    assert (asked.learning_rate, asked.weight_decay, asked.warmup, asked.patience) == (1e-2, 0.1, 0.1, 3)


def numbers_of(batch):
    return batch[:, 0].numpy().astype(int) // 3


def test_batches_depend_on_seed_and_step_and_the_held_out_rows_on_the_seed():
    one, same, other = (Batches(ROWS, config(heldout=20), seed, CPU) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.sample(7), same.sample(7))
    assert not torch.equal(one.sample(7), one.sample(8))
    assert not torch.equal(one.sample(7), other.sample(7))
    assert not np.array_equal(one.heldout_rows, other.heldout_rows)


@pytest.mark.parametrize("seed", range(5))
def test_batches_contain_every_row_but_the_held_out_ones(seed):
    batches = Batches(ROWS, config(heldout=20), seed, CPU)
    drawn = {int(row) for step in range(300) for row in numbers_of(batches.sample(step))}
    assert drawn == set(range(200)) - set(numbers_of(batches.heldout()))
    assert len(batches.heldout()) == 20


@pytest.mark.parametrize(("n", "asked", "found"), [(200, 10_000, 20), (200, 5, 5), (12, 10_000, 2), (4, 2, 2)])
def test_at_most_a_tenth_and_at_least_two_rows_are_held_out(n, asked, found):
    batches = Batches(ROWS[:n], config(heldout=asked, batch=10_000), 0, CPU)
    assert (len(batches.heldout()), len(batches.sample(0))) == (found, n - found)


@pytest.mark.parametrize(("n", "heldout", "least"), [(1, 0, 2), (1, 5, 4), (3, 5, 4)])
def test_batches_refuse_too_few_rows_and_name_the_minimum(n, heldout, least):
    with pytest.raises(InputError, match=f"at least {least} rows, got {n}"):
        Batches(ROWS[:n], config(heldout=heldout), 0, CPU)


def test_weight_decay_pulls_parameters_towards_zero():
    weights = []
    for decay in (0.0, 0.5):
        weight, loss_and_gradient = quadratic()
        train(weight, loss_and_gradient, config(steps=200, weight_decay=decay))
        weights.append(float(weight[0]))
    assert weights[1] < weights[0] - 0.05


def test_training_keeps_the_parameters_with_the_best_held_out_loss():
    weight, loss_and_gradient = scripted([5.0, 2.0, 3.0, 2.5])
    record = train(
        weight, loss_and_gradient, config(steps=20, heldout=20, check_every=5, patience=9, learning_rate=0.1)
    )
    assert record.heldout_losses == [5.0, 2.0, 3.0, 2.5]
    best = sum(record.config.rate_at(step) for step in range(10))
    assert float(weight) == pytest.approx(best, rel=1e-4)
    assert not record.stopped_early


def test_training_stops_after_as_many_evaluations_without_improvement_as_its_patience():
    weight, loss_and_gradient = scripted([5.0, 2.0, 2.0, 4.0, 3.0, 1.0])
    record = train(weight, loss_and_gradient, config(steps=60, heldout=20, check_every=5, patience=3))
    assert record.heldout_losses == [5.0, 2.0, 2.0, 4.0, 3.0]
    assert record.stopped_early
    assert record.steps == 25
    assert float(weight) == pytest.approx(sum(record.config.rate_at(step) for step in range(10)), rel=1e-4)


def test_a_held_out_loss_that_is_nan_is_never_the_best():
    weight, loss_and_gradient = scripted([float("nan"), 2.0, float("nan"), 3.0])
    record = train(weight, loss_and_gradient, config(steps=20, heldout=20, check_every=5, patience=9))
    assert float(weight) == pytest.approx(sum(record.config.rate_at(step) for step in range(10)), rel=1e-4)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
@pytest.mark.parametrize("heldout", [0, 20])
def test_a_loss_that_is_not_finite_before_the_first_evaluation_raises_input_error(loss, heldout):
    weight, loss_and_gradient = scripted([], training=lambda step: loss if step == 3 else 1.0)
    with pytest.raises(InputError, match="thing diverged at step 4; a smaller learning_rate"):
        train(weight, loss_and_gradient, config(heldout=heldout, check_every=5, patience=3))


def test_a_loss_that_is_not_finite_after_an_evaluation_ends_training_with_the_best_parameters():
    weight, loss_and_gradient = scripted([5.0, 2.0, 3.0], training=lambda step: float("nan") if step == 17 else 1.0)
    record = train(weight, loss_and_gradient, config(heldout=20, check_every=5, patience=9))
    assert record.diverged
    assert record.steps == 17
    assert float(weight) == pytest.approx(sum(record.config.rate_at(step) for step in range(10)), rel=1e-4)


def test_progress_messages_have_step_loss_and_seconds_left_and_fractions_rise_to_one():
    seen = []
    train(*quadratic(), config(steps=7), lambda *said: seen.append(said))
    assert [fraction for fraction, _ in seen] == pytest.approx([step / 7 for step in range(1, 8)])
    for step, (_, message) in enumerate(seen, 1):
        assert re.fullmatch(rf"thing step {step} of 7, loss [0-9.e+-]+, \d+ s left", message)
    assert seen[0][1].startswith("thing step 1 of 7, loss 36,")


@pytest.mark.parametrize(("rows", "inside"), [(512, 1), (1024, 1), (1025, 2)])
def test_one_thread_if_small_limits_torch_to_one_thread_up_to_1024_rows_and_restores_the_number(rows, inside):
    torch.set_num_threads(2)
    try:
        with pytest.raises(Stopped), limit_threads(rows, CPU):
            assert torch.get_num_threads() == inside
            raise Stopped
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
