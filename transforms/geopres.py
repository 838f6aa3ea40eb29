"""GeoPres: a learned linear map to fewer dimensions that keeps the geometry of embeddings."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from transforms.arrays import Vectors
from transforms.checkpoint import Checkpoint, checkpoint_of
from transforms.debias import unit_moments
from transforms.descent import Batches, Recipe, Record, changed, descend, mean_of_varied, paper_recipe
from transforms.errors import InputError
from transforms.linear import Linear
from transforms.moments import Moments
from transforms.normalize import unit_rows
from transforms.objectives import Objective, angular, blend, blend_starts, spearman, through_map
from transforms.outline import Outline
from transforms.parameters import require_between, require_choice, require_flag, require_rate, require_whole
from transforms.positional import distances, positional
from transforms.spectrum import Spectrum
from transforms.transform import Run

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
    map restored. With few rows that is few steps; `steps` sets others.

    **What was tried**, on MiniLM vectors of 10,000 Wikipedia sentences (and of gold headlines),
    384 → 128, recall@10 of 2,000 held-out rows: the spectral start keeps .755 (.891). Eq. 1 on
    unit outputs gains .000 (.005), the angular loss .001 (.005), the correlation .002 (.005) with
    .010 (.005) of local Spearman, neighbours alone −.002 (.012), their blend .008 (.009), at 32
    dimensions .012 (.042). Thirty steps of linear SMACOF lower Eq. 1 without unit outputs to a
    quarter and lose .014 (gain .002). Weighting near pairs in Eq. 1 loses .040. Correlating normal
    quantiles instead of cosines changes nothing. Shares of one third each gain −.001 (.002) and
    lose .004 (.001) of local Spearman; batches of 512 do what 2,048 do, in a sixth of the time. In
    the coordinates of the vectors themselves nesting costs .006 more at 32 dimensions of the
    headlines.

    Args:
        dimensions: k.
        nested: whether every prefix is to be usable.
        preset: `lathe` or `paper`.
        loss: None for the preset's own; `blend`, `positional` (Eq. 1), `angular` (Eq. 3) or
            `spearman` (Appendix A.1.2).
        steps: of training; None for the preset's. 0 leaves the start.
        batch: rows a step; None for the preset's.
        learning_rate: at its highest; None for the preset's.
        rank_strength: of the soft ranks of `spearman`; 1 is what was published, and makes it the
            Pearson correlation. At 0.001 a step takes forty times as long.
        seed: of start and batches.

    Moments allow the spectral start only.

    Attributes:
        record: what happened in training; None where nothing was trained, or after loading.
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
        for name, value, least in (("steps", steps, 0), ("batch", batch, 2)):
            if value is not None:
                require_whole(self.kind, name, value, at_least=least)
        if learning_rate is not None:
            require_rate(self.kind, "learning_rate", learning_rate)
        require_between(self.kind, "rank_strength", rank_strength, 1e-6, 1)
        require_whole(self.kind, "seed", seed, at_least=0)
        self.dimensions = dimensions
        self.nested = nested
        self.preset = preset
        self.loss = loss
        self.steps = steps
        self.batch = batch
        self.learning_rate = learning_rate
        self.rank_strength = rank_strength
        self.seed = seed
        self.record: Record | None = None

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
            start, axes = random_start(data.shape[1], self.dimensions, self.seed), torch.eye(data.shape[1])
        else:
            moments = unit_moments(data)
            mean, (start, axes) = moments.mean, spectral_start(moments, self.dimensions)
        checkpoint = checkpoint_of(run, self.spec(), data, mean)
        weight, record = self.refine(start, axes, data, run, checkpoint)
        self.set_map(weight)
        self.record = record

    def recipe(self, rows: int) -> Recipe:
        """How to train: the preset's way, with what was asked for otherwise."""
        asked = (self.steps, self.batch, self.learning_rate)
        if self.preset == "paper":
            return paper_recipe(rows, *asked)
        return changed(replace(LATHE, steps=NESTED_STEPS) if self.nested else LATHE, *asked)

    def refine(
        self, start: Tensor, axes: Tensor, vectors: Vectors, run: Run, checkpoint: Checkpoint | None
    ) -> tuple[Tensor, Record | None]:
        """Descend from a weight `(k, d)`, in the coordinates of some axes `(d, d)`.

        Adam takes every coordinate at a pace of its own; so it is given those that differ.
        """
        recipe = self.recipe(vectors.shape[0])
        if not recipe.steps:
            return start, None
        k, axes = self.dimensions, axes.float().to(self.device)
        weight = start.float().to(self.device) @ axes.T
        sizes = [*sorted({int(k * share) for share in PREFIX_SHARES} - {0, k}), k] if self.nested else [k]
        batches = Batches(vectors, recipe, self.seed, self.device)
        # Eq. 1 speaks of the vectors as they come; all else, of unit vectors.
        normalized = self.preset == "lathe" or self.loss not in (None, "positional")

        def prepared(batch: Tensor) -> Tensor:
            return (unit_rows(batch) if normalized else batch) @ axes.T

        first = prepared(batches.of_step(0))
        objective, importance = self.objective(first, weight, sizes, normalized)

        def grade(batch: Tensor) -> float:
            x = prepared(batch)
            losses, weight.grad = through_map(objective, x, weight, sizes, importance, normalized)
            return losses[-1]

        record = descend(self.kind, {"weight": weight}, grade, batches, recipe, run, checkpoint)
        if normalized:  # the loss left the scale open
            weight *= best_scale(first, weight)
        return weight @ axes, record

    def objective(
        self, first: Tensor, weight: Tensor, sizes: list[int], normalized: bool
    ) -> tuple[Objective, list[float]]:
        """What to keep, and what each size counts for, judged by the losses of a batch before any training.

        All the same, relative to their start; or the smallest size, which errs most, would rule the others.
        """
        loss = self.loss or PRESET_LOSSES[self.preset]
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
        return objective, [start[-1] / max(before, 1e-12) for before in start]


def spectral_start(moments: Moments, dimensions: int) -> tuple[Tensor, Tensor]:
    """The minimiser of squared-distance loss for Gaussian data `(k, d)`, and the principal axes `(d, d)`; float64.

    Raises:
        InputError: if all rows are the same.
    """
    second = moments.second_moment()
    total = float(second.trace())
    # The scatter of equal unit rows is rounding error, not zero.
    if moments.count < 2 or moments.scatter.trace() <= 1e-12 * moments.count * total:
        raise InputError("geopres needs rows that differ: there are no distances to keep")
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
