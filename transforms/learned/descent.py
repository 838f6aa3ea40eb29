"""Gradient descent over random batches of vectors that stay on disk: what all trained transforms share."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transforms.base.checkpoint import Checkpoint
from transforms.base.training_log import Recipe, Record
from transforms.base.transform import Run, Spec
from transforms.errors import InputError
from transforms.files import make_root
from transforms.vectors import Vectors, as_numpy, finite_blocks

SMALL_BATCH = 1024
"""Rows; a matrix of all pairs takes a millisecond or so."""

STATE_VERSION = 1
"""Of what `state_of` gives."""

STATE = ("exp_avg", "exp_avg_sq")
"""What Adam remembers of each parameter."""


class Batches:
    """Random rows of vectors, the same for the same seed and step; some are held out.

    Memory is that of a batch: rows are read when they are asked for.

    Args:
        vectors: `(n, d)`.
        recipe: says how many rows a batch has, and how many are held out: a tenth at most.
        seed: of the draws.
        device: where batches go.

    Attributes:
        noise: standard deviation of a normal noise added to every entry; none at first.

    Raises:
        InputError: if too few rows are left to train on.
    """

    def __init__(self, vectors: Vectors, recipe: Recipe, seed: int, device: torch.device) -> None:
        self.vectors, self.seed, self.device, self.noise = vectors, seed, device, 0.0
        n = vectors.shape[0]
        count = min(recipe.heldout, max(2, n // 10)) if recipe.heldout else 0
        if n - count < 2:
            raise InputError(f"training needs at least {count + 2} rows, got {n}")
        self.heldout_rows = np.sort(np.random.default_rng(seed).choice(n, count, replace=False))
        self.size = min(recipe.batch, n - count)
        # The i-th row that is not held out is i plus the held-out rows before it.
        self.shifts = self.heldout_rows - np.arange(count)

    def of_step(self, step: int) -> Tensor:
        """The rows of one step `(batch, d)`, float32."""
        generator = np.random.default_rng([self.seed, step])
        drawn = np.sort(generator.choice(self.vectors.shape[0] - len(self.shifts), self.size, replace=False))
        return self.read(drawn + np.searchsorted(self.shifts, drawn, side="right"), generator)

    def heldout(self) -> Tensor:
        """The rows never trained on `(h, d)`, float32."""
        return self.read(self.heldout_rows, np.random.default_rng(self.seed))

    def read(self, rows: Any, generator: np.random.Generator) -> Tensor:
        """Some rows, on the device."""
        found = as_numpy(self.vectors[rows]).astype(np.float32)
        if self.noise:
            found += np.float32(self.noise) * generator.standard_normal(found.shape, np.float32)
        return torch.from_numpy(found).to(self.device)


def checkpoint_of(
    run: Run, spec: Spec, recipe: Recipe, vectors: Vectors, mean: NDArray[np.float64]
) -> Checkpoint | None:
    """Where the fit of one step on some vectors is kept, if it is.

    Args:
        run: says in which file; its folder is made.
        spec: of the step.
        recipe: that is followed.
        vectors: `(n, d)`; told from others by their number, the ends, and their mean.
        mean: of all of them `(d,)`, to the last bit.

    Raises:
        OSError: if the folder cannot be made.
    """
    if run.checkpoint is None:
        return None
    make_root(run.checkpoint.path.parent)
    parts = [STATE_VERSION, spec, asdict(recipe), vectors.shape[0]]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    for part in (vectors[:1], vectors[-1:], mean):
        digest.update(as_numpy(part).tobytes())
    return replace(run.checkpoint, key=digest.hexdigest())


def descend(
    kind: str,
    parameters: Mapping[str, Tensor],
    grade: Callable[[Tensor], float],
    batches: Batches,
    recipe: Recipe,
    run: Run,
    checkpoint: Checkpoint | None = None,
) -> Record:
    """Change the parameters, in place, until the steps are done or the held-out loss no longer falls.

    With held-out rows the best parameters are the ones that stay. A run that is taken up from its
    checkpoint ends as one that was never stopped, bit for bit where arithmetic repeats.

    Args:
        kind: of the transform, for messages.
        parameters: by name.
        grade: gives the loss of a batch and sets `grad` of every parameter.
        batches: to train on.
        recipe: how.
        run: told step, loss and time left; raising in there stops the fit.
        checkpoint: what a kill leaves to go on from.

    Raises:
        InputError: if the loss stops being finite before any held-out loss was.
    """
    optimizer = torch.optim.AdamW(
        list(parameters.values()), recipe.learning_rate, betas=recipe.betas, weight_decay=recipe.weight_decay
    )
    record, best = Record(recipe), {name: p.detach().clone() for name, p in parameters.items()}
    if checkpoint is not None and (kept := checkpoint.load()) is not None:
        take_up(kept, parameters, best, optimizer, record)
    heldout = batches.heldout() if len(batches.heldout_rows) else None
    began, first = time.monotonic(), record.steps
    due = began + checkpoint.seconds if checkpoint is not None else float("inf")
    while record.steps < recipe.steps and not record.stopped_early:
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(record.steps)
        record.loss = grade(batches.of_step(record.steps))
        if not np.isfinite(record.loss):
            record.diverged = True
            break
        optimizer.step()
        record.steps += 1
        last = record.steps == recipe.steps
        if heldout is not None and (last or record.steps % recipe.check_every == 0):
            look(heldout, grade, parameters, best, record)
        trouble, now = "", time.monotonic()
        if checkpoint is not None and (last or record.stopped_early or now >= due):
            trouble = keep(checkpoint, state_of(parameters, best, optimizer, record))
            wrote = time.monotonic()
            due = wrote + checkpoint.pause_after(wrote - now)
        left = (now - began) / (record.steps - first) * (recipe.steps - record.steps)
        message = f"{kind} step {record.steps} of {recipe.steps}, loss {record.loss:.3g}, {left:.0f} s left{trouble}"
        run.report(record.steps / recipe.steps, message)
    finish(kind, parameters, best, record)
    return record


def by_autograd(parameters: Mapping[str, Tensor], loss_of: Callable[[Tensor], Tensor]) -> Callable[[Tensor], float]:
    """What `descend` takes, from a loss that torch can differentiate with respect to the parameters."""

    def grade(batch: Tensor) -> float:
        for parameter in parameters.values():
            parameter.grad = None
        with torch.enable_grad():
            loss = loss_of(batch)
            loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    return grade


def finish(kind: str, parameters: Mapping[str, Tensor], best: Mapping[str, Tensor], record: Record) -> None:
    """Leave the best parameters in place, where looks have said which those are.

    Raises:
        InputError: if it diverged before there was a finite held-out loss.
    """
    if record.diverged and not np.isfinite(record.heldout_losses).any():
        raise InputError(f"{kind} diverged at step {record.steps + 1}; a smaller learning_rate may help")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.grad = None
            if record.heldout_losses:
                parameter.copy_(best[name])


def keep(checkpoint: Checkpoint, state: Mapping[str, Tensor]) -> str:
    """Write the state; what went wrong as the end of a sentence, because the fit itself needs no disk."""
    try:
        checkpoint.save(state)
    except OSError as error:
        return f", no checkpoint in {checkpoint.path.name}: {error.strerror}"
    return ""


@contextmanager
def one_thread_if_small(rows: int, device: torch.device) -> Iterator[None]:
    """One thread while the block runs, where a batch of so many rows is too small to share on a CPU.

    Two threads wait for each other after every small operation: they gain little on an idle
    machine, and where another process has a core they take twelve times as long.
    """
    threads = torch.get_num_threads()
    if device.type == "cpu" and rows <= SMALL_BATCH:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def look(
    heldout: Tensor,
    grade: Callable[[Tensor], float],
    parameters: Mapping[str, Tensor],
    best: dict[str, Tensor],
    record: Record,
) -> None:
    """Measure the held-out loss; keep the parameters if it is the best, lose patience if it has long not been."""
    loss = grade(heldout)
    record.heldout_losses.append(loss)
    so_far = np.nan_to_num(record.heldout_losses, nan=np.inf)
    if int(so_far.argmin()) == len(so_far) - 1:
        for name, parameter in parameters.items():
            best[name].copy_(parameter.detach())
    record.stopped_early = len(so_far) - 1 - int(so_far.argmin()) >= record.recipe.patience


def state_of(
    parameters: Mapping[str, Tensor], best: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, record: Record
) -> dict[str, Tensor]:
    """Everything the next step depends on, as tensors."""
    tensors = {
        "steps": torch.tensor(record.steps),
        "loss": torch.tensor(record.loss, dtype=torch.float64),
        "heldout_losses": torch.tensor(record.heldout_losses, dtype=torch.float64),
        "stopped_early": torch.tensor(record.stopped_early),
    }
    for name, parameter in parameters.items():
        tensors |= {f"parameter.{name}": parameter, f"best.{name}": best[name]}
        tensors |= {f"{part}.{name}": optimizer.state[parameter][part] for part in STATE}
    return tensors


def take_up(
    kept: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
    best: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
    record: Record,
) -> None:
    """Set everything to what `state_of` gave."""
    record.steps, record.loss = int(kept["steps"]), float(kept["loss"])
    record.heldout_losses = kept["heldout_losses"].tolist()
    record.stopped_early = bool(kept["stopped_early"])
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(kept[f"parameter.{name}"])
            best[name].copy_(kept[f"best.{name}"])
            moving = {part: kept[f"{part}.{name}"].to(parameter.device) for part in STATE}
            optimizer.state[parameter] = {"step": torch.tensor(float(record.steps)), **moving}


def mean_of_varied(kind: str, vectors: Vectors) -> NDArray[np.float64]:
    """The mean `(d,)` of rows that may be trained on: one pass, a block at a time.

    Raises:
        InputError: if any row holds NaN or inf, or all rows are the same.
    """
    low, high = np.full(vectors.shape[1], np.inf), np.full(vectors.shape[1], -np.inf)
    total = np.zeros(vectors.shape[1])
    for block in finite_blocks(vectors):
        low, high = np.minimum(low, block.min(axis=0)), np.maximum(high, block.max(axis=0))
        total += block.sum(axis=0, dtype=np.float64)
    if not (high > low).any():
        raise InputError(f"{kind} needs rows that differ: there is nothing to learn from these")
    return total / vectors.shape[0]
