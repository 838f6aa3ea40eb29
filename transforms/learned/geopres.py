"""GeoPres: a learned linear map to fewer dimensions that keeps the geometry of embeddings."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from transforms.base.checkpoint import Checkpoint
from transforms.base.signature import Outline
from transforms.base.training_log import Recipe, Record, changed, paper_recipe
from transforms.base.transform import Run
from transforms.base.validation import require_between, require_choice, require_flag, require_training, require_whole
from transforms.errors import InputError
from transforms.learned.descent import Batches, checkpoint_of, descend, mean_of_varied, one_thread_if_small
from transforms.learned.losses.objectives import Objective, angular, blend, blend_starts, spearman, through_map
from transforms.learned.losses.positional import distances, positional
from transforms.linear.debias import unit_moments
from transforms.linear.linear import Linear
from transforms.linear.normalize import unit_rows
from transforms.statistics.moments import Moments
from transforms.statistics.spectrum import Spectrum
from transforms.vectors import Vectors

PREFIX_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4)
"""The nested sizes that are looked after, relative to the whole."""

RIDGE = 1e-6
"""Added to every eigenvalue, relative to their mean: fewer rows than dimensions leave some at 0."""

LATHE = Recipe(steps=400, batch=512, learning_rate=5e-3)
NESTED_STEPS = 1000
"""Many sizes have a say in every row of the map, and agree more slowly."""


PRESET_LOSSES = {"lathe": "blend", "paper": "positional"}


class GeoPres(Linear):
    """Reduce to `dimensions` by a bias-free linear map fitted to keep the geometry of embeddings.

    After *Geometry-Preserving Dimensionality Reduction for Text Embeddings*.

    **Preset `lathe`**, the default, works on unit vectors and unit outputs, because those are what
    is served. It starts from the best map for Gaussian data, the projection on the top uncentred
    principal directions with the i-th scaled by √(1 + T/((k+2)λ_i)), T the energy left out, and
    goes on with Adam, in the coordinates of the principal axes, on random batches. What it
    descends is `objectives.blend`: the paper's angular loss, the correlation of an anchor's
    cosines before and after, and who its neighbours are.

    With `nested`, every prefix of the output is usable too: the same blend of the sizes k/16,
    k/8, k/4, k/2, 3k/4 and k, each relative to its start, all counting the same.

    **Preset `paper`** is section 4.2: a random start, Eq. 1 over all pairs of 20,000 rows as they
    come, AdamW, linear warm-up and fall, ten epochs, early stopping on held-out rows, the best
    map restored; held-out rows stand for its paraphrases, and batches are drawn anew each time.
    With few rows that is few steps; `steps` sets others.

    **What was tried**, on MiniLM vectors of 10,000 Wikipedia sentences and as many headlines on
    gold, 384 → 128; recall@10 and local Spearman of 2,000 held-out rows of each:

    ====================================  =========  ========  =========  ========
    ..                                    sentences            headlines
    ------------------------------------  -------------------  -------------------
    ..                                    recall@10  Spearman  recall@10  Spearman
    ====================================  =========  ========  =========  ========
    spectral start                        .755       .946      .891       .988
    30 steps of linear SMACOF             .741       .936      .894       .990
    Eq. 1, unit outputs, best scale       .755       .944      .897       .991
    the same, near pairs weighing more    .715       .912      .894       .989
    Eq. 3 alone                           .756       .945      .896       .991
    correlation alone                     .757       .956      .896       .993
    neighbours alone                      .754       .944      .904       .991
    blend, a third each                   .762       .950      .902       .992
    blend .1 / .7 / .2 (the default)      .763       .954      .900       .992
    the same of normal quantiles          .762       .954      .901       .993
    ====================================  =========  ========  =========  ========

    At 32 dimensions the default keeps .415 and .617 where the spectral start keeps .403 and .576.
    Batches of 512 rows do what 2,048 do, in a sixth of the time. In the coordinates of the vectors
    themselves, nesting costs .006 more at 32 dimensions of the headlines.

    Args:
        dimensions: k.
        nested: whether every prefix is to be usable.
        preset: `lathe` or `paper`.
        loss: None for the preset's own; `blend`, `positional` (Eq. 1; in the preset `lathe` of unit
            rows and unit outputs, at their best scale), `angular` (Eq. 3) or `spearman` (A.1.2).
        steps: of training; None for the preset's. 0 leaves the start.
        batch: rows a step; None for the preset's.
        learning_rate: at its highest; None for the preset's.
        rank_strength: of the soft ranks of `spearman`; 1 is what was published, and makes it the
            Pearson correlation. Ranks it gets only below the gaps of neighbouring cosines, which are
            smaller than 0.001 in a batch of 1,500; a step takes forty times as long there.
        seed: of start and batches.

    Moments allow the spectral start only.

    Attributes:
        record: what happened in training, losses relative to the start; None where nothing was
            trained, or after loading.
    """

    kind = "geopres"

    def __init__(
        self,
        dimensions: int,
        nested: bool = False,
        preset: str = "lathe",
        loss: str | None = None,
        steps: int | None = None,
        batch: int | None = None,
        learning_rate: float | None = None,
        rank_strength: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        require_whole(self.kind, "dimensions", dimensions, at_least=1)
        require_flag(self.kind, "nested", nested)
        require_choice(self.kind, "preset", preset, tuple(PRESET_LOSSES))
        if loss is not None:
            require_choice(self.kind, "loss", loss, ("blend", "positional", "angular", "spearman"))
        require_between(self.kind, "rank_strength", rank_strength, 1e-6, 1)
        require_training(self.kind, steps, batch, learning_rate, seed, least_steps=0)
        self.dimensions = dimensions
        self.nested = nested
        self.preset = preset
        self.loss = loss
        self.steps = steps
        self.batch = batch
        self.learning_rate = learning_rate
        self.rank_strength = rank_strength
        self.seed = seed
        self.learns_from = "unit moments" if preset == "lathe" and steps == 0 else "rows"

    def after(self, before: Outline) -> Outline:
        """The size reduced to.

        Raises:
            StepError: if that is not smaller than the input.
        """
        return before.reduced(self.kind, self.dimensions, whole=False)

    def learn(self, data: Moments | Vectors, run: Run) -> None:
        """The start, then descent on random batches.

        Raises:
            InputError: if every row is the same, or moments are given where vectors are needed.
        """
        if isinstance(data, Moments):
            if self.preset == "paper":
                raise InputError("geopres: the preset paper is trained on vectors, and has no use for moments")
            self.set_map(spectral_start(data, self.dimensions)[0])
            self.record = None
            return
        if self.preset == "paper":
            mean = mean_of_varied(self.kind, data)
            start, axes = random_start(data.shape[1], self.dimensions, self.seed), None
        else:
            moments = unit_moments(data)
            mean, (start, axes) = moments.mean, spectral_start(moments, self.dimensions)
        recipe = self.recipe(data.shape[0])
        checkpoint = checkpoint_of(run, self.spec(), recipe, data, mean)
        weight, record = self.refine(start, axes, data, recipe, run, checkpoint) if recipe.steps else (start, None)
        self.set_map(weight)
        self.record = record

    def recipe(self, rows: int) -> Recipe:
        """How to train: the preset's way, with what was asked for otherwise."""
        asked = (self.steps, self.batch, self.learning_rate)
        if self.preset == "paper":
            return paper_recipe(rows, *asked)
        return changed(replace(LATHE, steps=NESTED_STEPS) if self.nested else LATHE, *asked)

    def refine(
        self,
        start: Tensor,
        axes: Tensor | None,
        vectors: Vectors,
        recipe: Recipe,
        run: Run,
        checkpoint: Checkpoint | None,
    ) -> tuple[Tensor, Record]:
        """Descend from a weight `(k, d)`, in the coordinates of some axes `(d, d)` if there are any.

        Adam takes every coordinate at a pace of its own; so it is given those that differ.
        """
        k, weight = self.dimensions, start.float().to(self.device)
        if axes is not None:
            axes = axes.float().to(self.device)
            weight = weight @ axes.T
        sizes = [*sorted({int(k * share) for share in PREFIX_SHARES} - {0, k}), k] if self.nested else [k]
        batches = Batches(vectors, recipe, self.seed, self.device)
        loss = self.loss or PRESET_LOSSES[self.preset]
        # Eq. 1 speaks of the vectors as they come; all else, of unit vectors.
        normalized = self.preset == "lathe" or loss != "positional"

        def prepared(batch: Tensor) -> Tensor:
            rows = unit_rows(batch) if normalized else batch
            return rows if axes is None else rows @ axes.T

        first = prepared(batches.of_step(0))
        objective, importance = self.objective(loss, first, weight, sizes, normalized)

        def grade(batch: Tensor) -> float:
            x = prepared(batch)
            losses, weight.grad = through_map(objective, x, weight, sizes, importance, normalized)
            return sum(i * loss for i, loss in zip(importance, losses, strict=True)) / len(losses)

        with one_thread_if_small(batches.size, self.device):
            record = descend(self.kind, {"weight": weight}, grade, batches, recipe, run, checkpoint)
        if normalized:  # the loss left the scale open
            weight *= best_scale(first, weight)
        return weight if axes is None else weight @ axes, record

    def objective(
        self, loss: str, first: Tensor, weight: Tensor, sizes: list[int], normalized: bool
    ) -> tuple[Objective, list[float]]:
        """What to keep, and what each size counts for: the same, relative to its loss before any training.

        Else the smallest size, which errs most, would rule the others, and the unit of length the pace.
        """
        if loss == "blend":
            y = first @ weight.T
            starts = blend_starts(first, [unit_rows(y[:, :size]) for size in sizes])
            return partial(blend, starts=starts), [1.0] * len(sizes)
        objectives: dict[str, Objective] = {
            "positional": partial(positional, scaled=normalized),
            "angular": angular,
            "spearman": partial(spearman, strength=self.rank_strength),
        }
        objective = objectives[loss]
        start, _ = through_map(objective, first, weight, sizes, [0.0] * len(sizes), normalized)
        return objective, [1 / before if before > 0 else 1.0 for before in start]


def spectral_start(moments: Moments, dimensions: int) -> tuple[Tensor, Tensor]:
    """The minimiser of squared-distance loss for Gaussian data `(k, d)`, and the principal axes `(d, d)`; float64.

    Raises:
        InputError: if all rows are the same.
    """
    second = moments.second_moment()
    total = float(second.trace())
    # The scatter of equal unit rows is rounding error, not zero.
    if moments.count < 2 or moments.scatter.trace() <= 1e-12 * moments.count * total:
        raise InputError("geopres needs rows that differ in direction: there are no distances to keep")
    spectrum = Spectrum.of(second, moments.rounding())
    eigenvalues = spectrum.values + RIDGE * total / moments.dimensions
    directions = spectrum.directions[:dimensions]
    left_out = eigenvalues[dimensions:].sum()
    scales = np.sqrt(1 + left_out / ((dimensions + 2) * eigenvalues[:dimensions]))
    return torch.from_numpy(directions * scales[:, None]), torch.from_numpy(spectrum.directions)


def random_start(width: int, dimensions: int, seed: int) -> Tensor:
    """What a linear layer of torch starts from, `(k, d)`: uniform between ±1/√d."""
    generator = torch.Generator().manual_seed(seed)
    start: Tensor = (2 * torch.rand(dimensions, width, generator=generator) - 1) / width**0.5
    return start


def best_scale(x: Tensor, weight: Tensor) -> float:
    """The factor on `weight` that brings the distances of its outputs closest to those of `x`."""
    rows = x[:1024] - x[:1024].mean(0)
    before, after = distances(rows, rows), distances(rows @ weight.T, rows @ weight.T)
    return float((before * after).sum() / after.square().sum()) if after.any() else 1.0
