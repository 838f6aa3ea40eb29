"""Training with AdamW on random batches of vectors that stay on disk, shared by all trained transforms.

The training config of the GeoPres paper, for its linear map and its autoencoder, is here too.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lathe.transforms.base import Checkpoint, FitContext, Spec, TrainingConfig, TrainingLog
from lathe.transforms.errors import InputError
from lathe.transforms.files import make_root
from lathe.transforms.vectors import Vectors, as_numpy, finite_blocks

LossFunction = Callable[[Tensor], float]
"""Function of a batch that returns its loss and stores the gradient of every parameter in `parameter.grad`."""

SMALL_BATCH = 1024
"""Maximum batch size for which CPU training uses one thread; a product over all pairs takes about a millisecond."""

CHECKPOINT_VERSION = 1
"""Version of the format of `_collect_state`, part of a checkpoint's key."""

ADAM_STATE = ("exp_avg", "exp_avg_sq")
"""Names of AdamW's state tensors of each parameter, besides its step count."""


class BatchSampler(Protocol):
    """Protocol of what `train` takes: a training batch for each step, and a held-out batch."""

    @property
    def heldout_rows(self) -> NDArray[np.int64]:
        """Indices of the rows that are held out from training, ascending.

        Empty if none are.
        """

    def sample(self, step: int) -> Tensor:
        """Return the training batch of a step, the same in every call.

        It holds vectors, or row numbers where the loss looks the vectors up.
        """

    def heldout(self) -> Tensor:
        """Return all held-out rows as one batch, the same in every call."""


class Batches:
    """Sampler of random training batches, repeatable by seed and step, that excludes a fixed set of held-out rows.

    Rows are read when a batch is sampled, so memory holds one batch.

    Args:
        vectors: `(n, d)`.
        config: sets the batch size, and the number of held-out rows, which is at most max(2, n/10).
        seed: seed of the held-out rows, the batches and the noise.
        device: device of the returned batches.

    Attributes:
        heldout_rows: indices of the held-out rows, ascending.
        size: rows of a batch: the config's batch size, or all rows not held out if they are fewer.
        noise: standard deviation of the Gaussian noise added to every entry; 0 until it is set.

    Raises:
        InputError: if fewer than 2 rows are left to train on.
    """

    def __init__(self, vectors: Vectors, config: TrainingConfig, seed: int, device: torch.device) -> None:
        self.vectors, self.seed, self.device, self.noise = vectors, seed, device, 0.0
        n = vectors.shape[0]
        count = min(config.heldout, max(2, n // 10)) if config.heldout else 0
        if n - count < 2:
            raise InputError(f"training needs at least {count + 2} rows, got {n}")

        self.heldout_rows = np.sort(np.random.default_rng(seed).choice(n, count, replace=False))
        self.size = min(config.batch, n - count)
        # The i-th row that is not held out is i plus the held-out rows before it.
        self.shifts = self.heldout_rows - np.arange(count)

    def sample(self, step: int) -> Tensor:
        """Return the training batch of a step, `(size, d)` float32: distinct random rows that are not held out.

        Gaussian noise of the deviation `noise` is added.
        """
        # Seeded by the step: a resumed training draws the batches that it would have drawn without a break.
        generator = np.random.default_rng([self.seed, step])
        free_rows = np.sort(generator.choice(self.vectors.shape[0] - len(self.shifts), self.size, replace=False))
        return self._read(free_rows + np.searchsorted(self.shifts, free_rows, side="right"), generator)

    def heldout(self) -> Tensor:
        """Return the held-out rows, `(h, d)` float32, with Gaussian noise added that is the same in every call."""
        return self._read(self.heldout_rows, np.random.default_rng(self.seed))

    def _read(self, rows: Any, generator: np.random.Generator) -> Tensor:
        """Return the rows as a float32 tensor on the device, with Gaussian noise added if `noise` is not 0."""
        # `astype` copies even if the dtype is float32 already, so the noise never reaches the caller's vectors.
        values = as_numpy(self.vectors[rows]).astype(np.float32)
        if self.noise:
            values += np.float32(self.noise) * generator.standard_normal(values.shape, np.float32)
        return torch.from_numpy(values).to(self.device)


def prepare_checkpoint(
    context: FitContext, spec: Spec, config: TrainingConfig, vectors: Vectors, mean: NDArray[np.float64]
) -> Checkpoint | None:
    """Return the context's checkpoint with a key of this fit, and create the file's folder. None without checkpoint.

    The key is a SHA-256 digest, so a checkpoint of another fit is not resumed. The data are identified by their number
    of rows, the first and last row, and the mean.

    Args:
        context: has the checkpoint, or None if checkpoints are off.
        spec: kind and parameters of the step.
        config: config of the training.
        vectors: `(n, d)`.
        mean: mean of all vectors `(d,)`, exact to the last bit.

    Raises:
        OSError: if the folder cannot be created.
    """
    if context.checkpoint is None:
        return None

    make_root(context.checkpoint.path.parent)
    parts = [CHECKPOINT_VERSION, spec, asdict(config), vectors.shape[0]]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())

    for part in (vectors[:1], vectors[-1:], mean):
        digest.update(as_numpy(part).tobytes())

    return replace(context.checkpoint, key=digest.hexdigest())


def train(
    kind: str,
    parameters: Mapping[str, Tensor],
    loss: LossFunction,
    batches: BatchSampler,
    config: TrainingConfig,
    context: FitContext,
    checkpoint: Checkpoint | None = None,
    evaluate_start: bool = False,
) -> TrainingLog:
    """Train parameters with AdamW in place, to the lowest held-out loss, and return the log. Early divergence raises.

    The parameters end with the values of the lowest held-out loss, or with the last values if no rows are held out.
    Training ends after `config.steps` steps, when patience runs out, or at a loss that is not finite. It resumes from a
    checkpoint with the same key, and then ends with the same result as without interruption, bit for bit where
    arithmetic is repeatable.

    Args:
        kind: kind of the transform, for messages.
        parameters: tensors to train, by name; their `grad` is None afterwards.
        loss: returns the loss of a batch and stores the gradients in `parameter.grad`.
        batches: sampler of training batches and held-out rows.
        config: number of steps, learning rate schedule, weight decay and early stopping.
        context: its `report` is called after each step with the progress and a message; an exception that `report`
            raises stops the fit.
        checkpoint: file from which the state is resumed, and to which it is saved at intervals and at the end.
        evaluate_start: whether the initial parameters are evaluated too, and so kept if no others are better.

    Raises:
        InputError: if the loss stops being finite before there was a finite held-out loss.
    """
    optimizer = torch.optim.AdamW(
        list(parameters.values()), config.learning_rate, betas=config.betas, weight_decay=config.weight_decay
    )
    log, best = TrainingLog(config), {name: p.detach().clone() for name, p in parameters.items()}
    if checkpoint is not None and (stored := checkpoint.load()) is not None:
        _restore_state(stored, parameters, best, optimizer, log)

    # One batch for all evaluations, so that their losses can be compared.
    heldout = batches.heldout() if len(batches.heldout_rows) else None
    # A resumed training has evaluated its start already.
    if evaluate_start and heldout is not None and not log.steps:
        _evaluate(heldout, loss, parameters, best, log)

    began, first = time.monotonic(), log.steps
    due = began + checkpoint.seconds if checkpoint is not None else float("inf")
    while log.steps < config.steps and not log.stopped_early:
        for group in optimizer.param_groups:
            group["lr"] = config.rate_at(log.steps)

        log.loss = loss(batches.sample(log.steps))
        # Before the optimizer's step, which would carry NaN into the parameters and Adam's averages.
        if not np.isfinite(log.loss):
            log.diverged = True
            break

        optimizer.step()
        log.steps += 1
        is_last = log.steps == config.steps

        if heldout is not None and (is_last or log.steps % config.check_every == 0):
            _evaluate(heldout, loss, parameters, best, log)

        problem, now = "", time.monotonic()
        if checkpoint is not None and (is_last or log.stopped_early or now >= due):
            problem = _save_checkpoint(checkpoint, _collect_state(parameters, best, optimizer, log))
            wrote = time.monotonic()
            # Writing takes at most `share` of the time: a slow disk lengthens the pauses.
            due = wrote + max(checkpoint.seconds, (wrote - now) / checkpoint.share)

        seconds_left = (now - began) / (log.steps - first) * (config.steps - log.steps)
        message = f"{kind} step {log.steps} of {config.steps}, loss {log.loss:.3g}, {seconds_left:.0f} s left{problem}"
        # After the checkpoint, because `report` may raise to stop the fit.
        context.report(log.steps / config.steps, message)

    _restore_best(kind, parameters, best, log)
    return log


def autograd_loss(parameters: Mapping[str, Tensor], loss_of: Callable[[Tensor], Tensor]) -> LossFunction:
    """Return a function of a batch that computes the loss by `loss_of` and its gradients by backpropagation.

    It returns the loss as a float, and stores the gradient of every parameter in `parameter.grad`.
    """

    def loss_function(batch: Tensor) -> float:
        for parameter in parameters.values():
            # `backward` adds to a gradient that is already there.
            parameter.grad = None
        with torch.enable_grad():
            loss = loss_of(batch)
            loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    return loss_function


@contextmanager
def limit_threads(rows: int, device: torch.device) -> Iterator[None]:
    """Context manager that runs the block with one torch thread if a batch is small and the device is a CPU.

    A batch of at most `SMALL_BATCH` `rows` is small. The number of threads is restored afterwards. Two threads wait for
    each other after every small operation: they gain little on an idle machine, and where another process uses a core
    they take twelve times as long.
    """
    threads = torch.get_num_threads()
    if device.type == "cpu" and rows <= SMALL_BATCH:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def compute_checked_mean(kind: str, vectors: Vectors) -> NDArray[np.float64]:
    """Return the mean `(d,)` of rows `(n, d)` in float64. Rows that are all equal, or hold NaN or inf, raise.

    Raises:
        InputError: if a row holds NaN or inf, or all rows are equal.
    """
    # Ranges compare exactly; rounding can leave a variance above 0 in rows that are all equal.
    low, high = np.full(vectors.shape[1], np.inf), np.full(vectors.shape[1], -np.inf)
    total = np.zeros(vectors.shape[1])
    for block in finite_blocks(vectors):
        low, high = np.minimum(low, block.min(axis=0)), np.maximum(high, block.max(axis=0))
        total += block.sum(axis=0, dtype=np.float64)

    if not (high > low).any():
        raise InputError(f"{kind} needs rows that differ: there is nothing to learn from these")

    return total / vectors.shape[0]


def _evaluate(
    heldout: Tensor, loss: LossFunction, parameters: Mapping[str, Tensor], best: dict[str, Tensor], log: TrainingLog
) -> None:
    """Append the held-out loss to `log`, copy the lowest's parameters to `best`, and stop if patience has run out.

    If it is the lowest so far, copy the parameters to `best`. If the patience has run out, set `log.stopped_early`.
    """
    # The gradients that this stores are replaced by the next batch's before the optimizer's next step.
    log.heldout_losses.append(loss(heldout))
    # `argmin` returns the first NaN as the lowest, and a NaN must never be the best.
    losses = np.nan_to_num(log.heldout_losses, nan=np.inf)
    since_lowest = len(losses) - 1 - int(losses.argmin())

    if since_lowest == 0:
        for name, parameter in parameters.items():
            best[name].copy_(parameter.detach())

    log.stopped_early = since_lowest >= log.config.patience


def _restore_best(kind: str, parameters: Mapping[str, Tensor], best: Mapping[str, Tensor], log: TrainingLog) -> None:
    """Copy the best parameters back in place, if there were evaluations. Divergence before a finite loss raises.

    The parameters' `grad` becomes None.

    Raises:
        InputError: if the training diverged before there was a finite held-out loss.
    """
    if log.diverged and not np.isfinite(log.heldout_losses).any():
        raise InputError(f"{kind} diverged at step {log.steps + 1}; a smaller learning_rate may help")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.grad = None
            if log.heldout_losses:
                parameter.copy_(best[name])


def _save_checkpoint(checkpoint: Checkpoint, state: Mapping[str, Tensor]) -> str:
    """Write the state of a training to the checkpoint's file.

    Returns an empty string, or a note for the progress message if the file cannot be written.
    """
    try:
        checkpoint.save(state)
    except OSError as error:
        return f", no checkpoint in {checkpoint.path.name}: {error.strerror}"
    return ""


def _collect_state(
    parameters: Mapping[str, Tensor], best: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, log: TrainingLog
) -> dict[str, Tensor]:
    tensors = {
        "steps": torch.tensor(log.steps),
        "loss": torch.tensor(log.loss, dtype=torch.float64),
        "heldout_losses": torch.tensor(log.heldout_losses, dtype=torch.float64),
        "stopped_early": torch.tensor(log.stopped_early),
    }
    for name, parameter in parameters.items():
        tensors |= {f"parameter.{name}": parameter, f"best.{name}": best[name]}
        tensors |= {f"{part}.{name}": optimizer.state[parameter][part] for part in ADAM_STATE}

    return tensors


def _restore_state(
    stored: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
    best: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
    log: TrainingLog,
) -> None:
    log.steps, log.loss = int(stored["steps"]), float(stored["loss"])
    log.heldout_losses = stored["heldout_losses"].tolist()
    log.stopped_early = bool(stored["stopped_early"])

    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(stored[f"parameter.{name}"])
            best[name].copy_(stored[f"best.{name}"])
            averages = {part: stored[f"{part}.{name}"].to(parameter.device) for part in ADAM_STATE}
            # AdamW counts its steps in a float tensor on the CPU.
            optimizer.state[parameter] = {"step": torch.tensor(float(log.steps)), **averages}


def draw_uniform_weights(shape: Sequence[int], fan_in: int, generator: torch.Generator) -> Tensor:
    """Draw a float32 tensor on the CPU from U(−1/√fan_in, 1/√fan_in), as `torch.nn.Linear` does."""
    start: Tensor = (2 * torch.rand(*shape, generator=generator) - 1) / fan_in**0.5
    return start


PAPER = TrainingConfig(
    steps=0,  # the number of epochs decides
    batch=20_000,
    learning_rate=1e-2,
    weight_decay=0.1,
    warmup=0.1,
    heldout=10_000,
    patience=3,
)
"""Section 4.2 of the GeoPres paper; `build_paper_config` sets `steps` and `check_every` from the number of rows."""

PAPER_EPOCHS = 10
"""Epochs of a training if `steps` is not set."""

MIN_EVALUATION_INTERVAL = 20
"""Minimum number of steps between two evaluations on held-out rows.

On 10,000 rows, an evaluation at every second step ends training after 18 steps: a recall@10 of .37, not .58.
"""


def build_paper_config(rows: int, steps: int | None, batch: int | None, learning_rate: float | None) -> TrainingConfig:
    """Return the training config of the GeoPres paper for a fit on `rows` rows, with ten epochs unless `steps` is set.

    Arguments that are not None replace the paper's values. An epoch is counted in steps; there is an evaluation after
    each. The paper's epochs have 500 steps. With few rows an epoch has one or two steps, and the loss swings so much
    from one epoch to the next that patience would end the training at its start. So evaluations are at least
    `MIN_EVALUATION_INTERVAL` steps apart.
    """
    config = PAPER.override(steps, batch, learning_rate)
    steps = PAPER_EPOCHS * max(1, rows // config.batch) if steps is None else steps
    return replace(config, steps=steps, check_every=max(steps // PAPER_EPOCHS, MIN_EVALUATION_INTERVAL))
