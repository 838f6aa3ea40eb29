"""Gradient descent over random batches of vectors that stay on disk: what all trained transforms share."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transforms.arrays import Vectors, as_numpy, finite_blocks
from transforms.checkpoint import Checkpoint
from transforms.errors import InputError
from transforms.transform import Run

CHECKPOINT_SECONDS = 10.0
"""Between two states kept on disk: what a kill costs at most."""

STATE = ("exp_avg", "exp_avg_sq")
"""What Adam remembers of each parameter."""


@dataclass(frozen=True)
class Recipe:
    """How to descend: AdamW, a linear warm-up, then a linear fall of the learning rate to 0.

    Attributes:
        steps: batches at most.
        batch: rows of each, drawn uniformly at random.
        learning_rate: at its highest.
        weight_decay: of AdamW.
        warmup: share of the steps.
        betas: of AdamW.
        heldout: rows never trained on, at most, that say when to stop; 0 for none.
        check_every: steps between two looks at them.
        patience: looks without a better loss before it stops.
    """

    steps: int
    batch: int
    learning_rate: float
    weight_decay: float = 0.0
    warmup: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    heldout: int = 0
    check_every: int = 0
    patience: int = 0

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        warm = int(self.warmup * self.steps)
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        return self.learning_rate * (self.steps - step) / max(1, self.steps - warm)


PAPER = Recipe(
    steps=0,  # so many as epochs have
    batch=20_000,
    learning_rate=1e-2,
    weight_decay=0.1,
    warmup=0.1,
    heldout=10_000,
    patience=3,
)
"""The GeoPres paper, section 4.2, for its map and its autoencoder; without what depends on the rows."""

PAPER_EPOCHS = 10
LEAST_BETWEEN_LOOKS = 20
"""Steps; on 10,000 rows, a look at every second one ends training after 18: a recall@10 of .37 instead of .58."""


def changed(recipe: Recipe, steps: int | None, batch: int | None, learning_rate: float | None) -> Recipe:
    """A recipe with what was asked for otherwise; None leaves it as it is."""
    asked: dict[str, Any] = {"steps": steps, "batch": batch, "learning_rate": learning_rate}
    return replace(recipe, **{name: value for name, value in asked.items() if value is not None})


def paper_recipe(rows: int, steps: int | None, batch: int | None, learning_rate: float | None) -> Recipe:
    """The paper's recipe for so many rows: ten epochs unless `steps` says else, a look after each.

    The paper's epochs have 500 steps. With few rows they have one or two, and the loss swings so
    much from one to the next that patience would end at the start; so looks are not closer than
    `LEAST_BETWEEN_LOOKS`.
    """
    recipe = changed(PAPER, steps, batch, learning_rate)
    epoch = max(1, rows // recipe.batch)
    steps = PAPER_EPOCHS * epoch if steps is None else steps
    return replace(recipe, steps=steps, check_every=max(epoch, LEAST_BETWEEN_LOOKS))


@dataclass
class Record:
    """What happened in training.

    Attributes:
        recipe: as it was followed.
        steps: taken.
        loss: of the last batch.
        heldout_losses: at every look, in order; the best one's parameters are those that are kept.
        stopped_early: whether patience ran out.
        diverged: whether a loss was not finite, and the best parameters before were kept.
    """

    recipe: Recipe
    steps: int = 0
    loss: float = float("nan")
    heldout_losses: list[float] = field(default_factory=list)
    stopped_early: bool = False
    diverged: bool = False

    @property
    def still_falling(self) -> bool:
        """Whether the last look at held-out rows was the best one."""
        losses = np.nan_to_num(self.heldout_losses, nan=np.inf)
        return len(losses) > 1 and int(losses.argmin()) == len(losses) - 1

    def as_json(self) -> dict[str, Any]:
        """As a JSON object; what is not finite is null."""
        losses = [loss if np.isfinite(loss) else None for loss in (*self.heldout_losses, self.loss)]
        return asdict(self) | {"heldout_losses": losses[:-1], "loss": losses[-1]}


class Batches:
    """Random rows of vectors, the same for the same seed and step; some are held out.

    Memory is that of a batch: rows are read when they are asked for.

    Args:
        vectors: `(n, d)`.
        recipe: says how many rows a batch has, and how many are held out: a tenth at most.
        seed: of the draws.
        device: where batches go.
        noise: standard deviation of a normal noise added to every entry.

    Raises:
        InputError: if too few rows are left to train on.
    """

    def __init__(self, vectors: Vectors, recipe: Recipe, seed: int, device: torch.device, noise: float = 0.0) -> None:
        self.vectors, self.seed, self.device, self.noise = vectors, seed, device, noise
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
    began, first, saved = time.monotonic(), record.steps, time.monotonic()
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
        said = ""
        now = time.monotonic()
        if checkpoint is not None and (last or record.stopped_early or now - saved >= CHECKPOINT_SECONDS):
            said = keep(checkpoint, state_of(parameters, best, optimizer, record))
            saved = now
        left = (now - began) / (record.steps - first) * (recipe.steps - record.steps)
        said = f"{kind} step {record.steps} of {recipe.steps}, loss {record.loss:.3g}, {left:.0f} s left{said}"
        run.report(record.steps / recipe.steps, said)
    finish(kind, parameters, best, record)
    return record


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
        return f", no checkpoint: {error.strerror}"
    return ""


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
