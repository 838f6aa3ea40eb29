import itertools
import re

import numpy as np
import pytest
import torch
from torch import Tensor

from transforms import InputError
from transforms.base import FitContext, TrainingConfig
from transforms.learned.descent import Batches, mean_of_varied, one_thread_if_small
from transforms.learned.descent import train as train_parameters
from transforms.learned.paper_config import PAPER_EPOCHS, paper_config

CPU = torch.device("cpu")
ROWS = np.arange(600, dtype=np.float32).reshape(200, 3)
"""Every row says by its first entry which it is."""


class Stopped(Exception):
    """What a caller raises to stop a fit."""


def config(**asked):
    return TrainingConfig(**({"steps": 60, "batch": 16, "learning_rate": 0.1} | asked))


def quadratic(target=3.0):
    """A parameter, and what grades it: the squared distance to a target, whatever the batch."""
    weight = torch.zeros(4)

    def grade(batch: Tensor) -> float:
        weight.grad = 2 * (weight - target)
        return float((weight - target).square().sum())

    return weight, grade


def scripted(heldout_losses, rows=ROWS, training=lambda step: 1.0):
    """A parameter that counts the steps, and losses as in a script: those of held-out rows, those of batches."""
    weight, steps, looks = torch.zeros(1), itertools.count(), iter(heldout_losses)
    heldout = Batches(rows, config(heldout=20), 0, CPU).heldout()

    def grade(batch: Tensor) -> float:
        weight.grad = -torch.ones(1)
        return next(looks) if torch.equal(batch, heldout) else training(next(steps))

    return weight, grade


def train(weight, grade, asked, on_progress=lambda fraction, message: None, checkpoint=None):
    batches = Batches(ROWS, asked, 0, CPU)
    return train_parameters("thing", {"weight": weight}, grade, batches, asked, FitContext(on_progress), checkpoint)


def test_the_learning_rate_warms_up_to_its_highest_and_falls_in_a_line():
    asked = config(steps=100, warmup=0.1, learning_rate=0.5)
    rates = [asked.rate_at(step) for step in range(100)]
    np.testing.assert_allclose(rates[:10], 0.5 * np.arange(1, 11) / 10)
    np.testing.assert_allclose(rates[10:], 0.5 * np.arange(90, 0, -1) / 90)


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0.0), (1, 1.0), (7, 0.0), (7, 1.0), (3, 0.1), (60, 0.05)])
def test_every_learning_rate_is_above_zero_and_the_highest_is_met(steps, warmup):
    asked = config(steps=steps, warmup=warmup)
    rates = [asked.rate_at(step) for step in range(steps)]
    assert min(rates) > 0
    assert max(rates) == pytest.approx(0.1)


def test_the_learning_rate_of_a_step_is_the_one_it_is_taken_with():
    taken = []
    weight = torch.zeros(1)

    def grade(batch):
        taken.append(float(weight))
        weight.grad = -torch.ones(1)  # Adam then moves by the learning rate
        return 1.0

    asked = config(steps=20, warmup=0.2)
    train(weight, grade, asked)
    moves = np.diff([*taken, float(weight)])
    np.testing.assert_allclose(moves, [asked.rate_at(step) for step in range(20)], rtol=1e-4)


def test_a_config_is_overridden_only_where_a_value_is_given():
    assert config().override(None, None, None) == config()
    assert config().override(5, None, 0.2) == config(steps=5, learning_rate=0.2)
    assert config().override(None, 8, None) == config(batch=8)


@pytest.mark.parametrize(
    ("rows", "batch", "epoch", "look"),
    [(100, None, 1, 20), (95_000, None, 4, 20), (10_000_000, None, 500, 500), (9500, 100, 95, 95)],
)
def test_the_papers_config_has_ten_epochs_and_a_look_after_each_that_is_not_too_short(rows, batch, epoch, look):
    asked = paper_config(rows, None, batch, None)
    assert (asked.steps, asked.check_every) == (PAPER_EPOCHS * epoch, look)
    assert paper_config(rows, 3, batch, None).steps == 3
    assert (asked.learning_rate, asked.weight_decay, asked.warmup, asked.patience) == (1e-2, 0.1, 0.1, 3)


def numbers_of(batch):
    return batch[:, 0].numpy().astype(int) // 3


def test_batches_are_the_same_for_a_seed_and_a_step_and_others_for_others():
    one, same, other = (Batches(ROWS, config(heldout=20), seed, CPU) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.sample(7), same.sample(7))
    assert not torch.equal(one.sample(7), one.sample(8))
    assert not torch.equal(one.sample(7), other.sample(7))
    assert not np.array_equal(one.heldout_rows, other.heldout_rows)


def test_batches_are_real_rows_and_none_twice():
    batch = Batches(ROWS, config(batch=150), 0, CPU).sample(3)
    np.testing.assert_array_equal(batch, ROWS[numbers_of(batch)])
    assert len(set(numbers_of(batch))) == 150


@pytest.mark.parametrize("seed", range(5))
def test_batches_never_meet_the_held_out_rows_and_meet_all_others(seed):
    batches = Batches(ROWS, config(heldout=20), seed, CPU)
    drawn = {int(row) for step in range(300) for row in numbers_of(batches.sample(step))}
    assert drawn == set(range(200)) - set(numbers_of(batches.heldout()))
    assert len(batches.heldout()) == 20


@pytest.mark.parametrize(("n", "asked", "found"), [(200, 10_000, 20), (200, 5, 5), (12, 10_000, 2), (4, 2, 2)])
def test_a_tenth_at_most_is_held_out_and_two_rows_at_least(n, asked, found):
    batches = Batches(ROWS[:n], config(heldout=asked, batch=10_000), 0, CPU)
    assert (len(batches.heldout()), len(batches.sample(0))) == (found, n - found)


@pytest.mark.parametrize(("n", "heldout", "least"), [(1, 0, 2), (1, 5, 4), (3, 5, 4)])
def test_too_few_rows_are_refused_with_how_many_it_takes(n, heldout, least):
    with pytest.raises(InputError, match=f"at least {least} rows, got {n}"):
        Batches(ROWS[:n], config(heldout=heldout), 0, CPU)


def test_noise_has_its_deviation_repeats_and_leaves_the_vectors_alone():
    rows = np.zeros((2000, 5), np.float32)
    noisy = Batches(rows, config(batch=2000), 0, CPU)
    noisy.noise = 0.3
    assert float(noisy.sample(0).std()) == pytest.approx(0.3, rel=0.03)
    np.testing.assert_array_equal(noisy.sample(4), noisy.sample(4))
    assert not torch.equal(noisy.sample(4), noisy.sample(5))
    assert not rows.any()


@pytest.mark.parametrize("make", [torch.from_numpy, lambda rows: rows.astype(np.float16), np.asfortranarray])
def test_any_sort_of_vectors_gives_float32_batches(make):
    batch = Batches(make(ROWS), config(), 0, CPU).sample(0)
    assert batch.dtype == torch.float32
    np.testing.assert_array_equal(batch, Batches(ROWS, config(), 0, CPU).sample(0))


def test_rows_that_vary_in_one_entry_are_enough_and_equal_or_broken_ones_are_refused():
    same = np.ones((9000, 3), np.float32)
    with pytest.raises(InputError, match="thing needs rows that differ"):
        mean_of_varied("thing", same)
    last = same.copy()
    last[-1, 1] = 1.5
    np.testing.assert_allclose(mean_of_varied("thing", last), last.mean(axis=0), rtol=1e-6)
    last[8000, 2] = np.nan
    with pytest.raises(InputError, match="row 8000 "):
        mean_of_varied("thing", last)


def test_it_minimises_a_quadratic():
    weight, grade = quadratic()
    record = train(weight, grade, config(steps=300))
    np.testing.assert_allclose(weight, np.full(4, 3.0), atol=1e-2)
    assert (record.steps, record.stopped_early, record.diverged) == (300, False, False)
    assert record.loss < 1e-3
    assert weight.grad is None


def test_weight_decay_pulls_towards_zero():
    weights = []
    for decay in (0.0, 0.5):
        weight, grade = quadratic()
        train(weight, grade, config(steps=200, weight_decay=decay))
        weights.append(float(weight[0]))
    assert weights[1] < weights[0] - 0.05


def test_the_best_held_out_loss_says_which_parameters_stay():
    weight, grade = scripted([5.0, 2.0, 3.0, 2.5])
    record = train(weight, grade, config(steps=20, heldout=20, check_every=5, patience=9, learning_rate=0.1))
    assert record.heldout_losses == [5.0, 2.0, 3.0, 2.5]
    best = sum(record.config.rate_at(step) for step in range(10))
    assert float(weight) == pytest.approx(best, rel=1e-4)
    assert not record.stopped_early


def test_it_stops_when_as_many_looks_as_it_has_patience_for_were_no_better():
    weight, grade = scripted([5.0, 2.0, 2.0, 4.0, 3.0, 1.0])
    record = train(weight, grade, config(steps=60, heldout=20, check_every=5, patience=3))
    assert record.heldout_losses == [5.0, 2.0, 2.0, 4.0, 3.0]
    assert record.stopped_early
    assert record.steps == 25
    assert float(weight) == pytest.approx(sum(record.config.rate_at(step) for step in range(10)), rel=1e-4)


def test_the_last_step_is_looked_at_too():
    weight, grade = scripted([5.0, 4.0, 1.0])
    record = train(weight, grade, config(steps=12, heldout=20, check_every=5, patience=3))
    assert record.heldout_losses == [5.0, 4.0, 1.0]


def test_a_held_out_loss_that_is_not_a_number_is_never_the_best():
    weight, grade = scripted([float("nan"), 2.0, float("nan"), 3.0])
    record = train(weight, grade, config(steps=20, heldout=20, check_every=5, patience=9))
    assert float(weight) == pytest.approx(sum(record.config.rate_at(step) for step in range(10)), rel=1e-4)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
@pytest.mark.parametrize("heldout", [0, 20])
def test_a_loss_that_stops_being_finite_before_any_look_is_an_error(loss, heldout):
    weight, grade = scripted([], training=lambda step: loss if step == 3 else 1.0)
    with pytest.raises(InputError, match="thing diverged at step 4; a smaller learning_rate"):
        train(weight, grade, config(heldout=heldout, check_every=5, patience=3))


def test_a_loss_that_stops_being_finite_later_leaves_the_best_parameters():
    weight, grade = scripted([5.0, 2.0, 3.0], training=lambda step: float("nan") if step == 17 else 1.0)
    record = train(weight, grade, config(heldout=20, check_every=5, patience=9))
    assert record.diverged
    assert record.steps == 17
    assert float(weight) == pytest.approx(sum(record.config.rate_at(step) for step in range(10)), rel=1e-4)


def test_messages_say_step_loss_and_seconds_left_and_fractions_rise_to_one():
    seen = []
    train(*quadratic(), config(steps=7), lambda *said: seen.append(said))
    assert [fraction for fraction, _ in seen] == pytest.approx([step / 7 for step in range(1, 8)])
    for step, (_, message) in enumerate(seen, 1):
        assert re.fullmatch(rf"thing step {step} of 7, loss [0-9.e+-]+, \d+ s left", message)
    assert seen[0][1].startswith("thing step 1 of 7, loss 36,")


def test_what_the_report_raises_stops_it_there():
    seen = []

    def stop(fraction, message):
        seen.append(message)
        if len(seen) == 3:
            raise Stopped

    with pytest.raises(Stopped):
        train(*quadratic(), config(), stop)
    assert len(seen) == 3


def test_what_happened_can_be_written_as_json():
    weight, grade = scripted([5.0, 4.0])
    shown = train(weight, grade, config(steps=10, heldout=20, check_every=5, patience=3)).as_json()
    assert shown["recipe"]["learning_rate"] == 0.1
    assert (shown["steps"], shown["heldout_losses"]) == (10, [5.0, 4.0])


@pytest.mark.parametrize(("rows", "inside"), [(512, 1), (1024, 1), (1025, 2)])
def test_small_batches_have_one_thread_and_the_others_come_back(rows, inside):
    torch.set_num_threads(2)
    try:
        with pytest.raises(Stopped), one_thread_if_small(rows, CPU):
            assert torch.get_num_threads() == inside
            raise Stopped
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
