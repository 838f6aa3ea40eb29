"""GeoPres: a learned linear map to fewer dimensions that keeps the geometry of embeddings."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from transforms.base import (
    Checkpoint,
    FitContext,
    LearnsFrom,
    Signature,
    TrainingConfig,
    TrainingLog,
    require_between,
    require_choice,
    require_flag,
    require_training,
    require_whole,
)
from transforms.errors import InputError
from transforms.learned.descent import Batches, checkpoint_for, mean_of_varied, one_thread_if_small, train
from transforms.learned.initialization import uniform_start
from transforms.learned.losses import LOSSES, Loss, LossSetup, prefix_losses
from transforms.learned.paper_config import paper_config
from transforms.linear import Linear
from transforms.statistics import Moments, Spectrum, distances, unit_moments, unit_rows
from transforms.vectors import Vectors

PREFIX_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4)
"""Sizes that a nested map is trained for, relative to the whole."""

RIDGE = 1e-6
"""Added to every eigenvalue, relative to their mean: fewer rows than dimensions leave some at 0."""

LATHE = TrainingConfig(steps=400, batch=512, learning_rate=5e-3)
NESTED_STEPS = 1000
"""Every row of the map serves several sizes, which takes more steps."""

PRESET_LOSSES = {"lathe": "blend", "paper": "positional"}


class GeoPres(Linear):
    """Reduce dimensions by a bias-free linear map that is trained to keep the geometry of embeddings.

    After *Geometry-Preserving Dimensionality Reduction for Text Embeddings*.

    **Preset `lathe`**, the default, works on unit vectors and unit outputs, because those are what
    is served. It starts from the best map for Gaussian data, the projection on the top uncentred
    principal directions with the i-th scaled by √(1 + T/((k+2)λ_i)), T the energy left out, and
    trains it with Adam, in the coordinates of the principal axes, on random batches. Its loss is
    `losses.blend`: the paper's angular loss, the correlation of an anchor's cosines before and
    after, and which rows are its neighbours.

    With `nested`, every prefix of the output is usable too: the same blend of the sizes k/16,
    k/8, k/4, k/2, 3k/4 and k, each relative to its start, with equal weights.

    **Preset `paper`** is section 4.2: a random start, Eq. 1 over all pairs of 20,000 rows as they
    come, AdamW, linear warm-up and decay, ten epochs, early stopping on held-out rows, the best
    map restored; held-out rows take the place of its paraphrases, and every batch is a new sample.
    With few rows that is few steps; `steps` sets another number.

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
        nested: whether every prefix must be usable.
        preset: `lathe` or `paper`.
        loss: one of `LOSSES`; None for the preset's own. `blend`, `positional` (Eq. 1; in the preset `lathe` of
            unit rows and unit outputs, at their best scale), `angular` (Eq. 3) or `spearman` (A.1.2).
        steps: number of training steps; None for the preset's. 0 keeps the start.
        batch: rows of a batch; None for the preset's.
        learning_rate: the highest; None for the preset's.
        rank_strength: of the soft ranks of `spearman`; the published 1 makes them the Pearson
            correlation. They are ranks only below the gaps of neighbouring cosines, which are
            smaller than 0.001 in a batch of 1,500; a step takes forty times as long there.
        seed: of start and batches.

    Fitted on moments, it is the spectral start without training.

    Attributes:
        training_log: what happened in training, losses relative to the start; None where nothing was
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
        self.dimensions = dimensions
        self.nested = nested
        self.preset = preset
        self.loss = loss
        self.steps = steps
        self.batch = batch
        self.learning_rate = learning_rate
        self.rank_strength = rank_strength
        self.seed = seed

    def check_parameters(self) -> None:
        """Raise `StepError` for a parameter out of range."""
        require_whole(self.kind, "dimensions", self.dimensions, at_least=1)
        require_flag(self.kind, "nested", self.nested)
        require_choice(self.kind, "preset", self.preset, tuple(PRESET_LOSSES))
        if self.loss is not None:
            require_choice(self.kind, "loss", self.loss, tuple(LOSSES))
        require_between(self.kind, "rank_strength", self.rank_strength, 1e-6, 1)
        require_training(self.kind, self.steps, self.batch, self.learning_rate, self.seed, min_steps=0)

    @property
    def learns_from(self) -> LearnsFrom:  # type: ignore[override]  # depends on the parameters
        """Rows, or the moments of unit rows for the spectral start alone."""
        return "unit moments" if self.preset == "lathe" and self.steps == 0 else "rows"

    @property
    def chooses_axes(self) -> bool:
        """Always, because a trained map has its own axes."""
        return True

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the reduced signature.

        Raises:
            StepError: if the inputs do not have more dimensions.
        """
        return inputs.reduce(self.kind, self.dimensions, allow_same=False)

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Compute the start, then train it on random batches.

        Raises:
            InputError: if every row is the same, or moments are given where vectors are needed.
        """
        if isinstance(data, Moments):
            if self.preset == "paper":
                raise InputError("geopres: the preset paper is trained on vectors and cannot be fitted on moments")
            self.set_map(spectral_start(data, self.dimensions)[0])
            self.training_log = None
            return
        if self.preset == "paper":
            mean = mean_of_varied(self.kind, data)
            start, axes = random_start(data.shape[1], self.dimensions, self.seed), None
        else:
            moments = unit_moments(data)
            mean, (start, axes) = moments.mean, spectral_start(moments, self.dimensions)
        config = self._training_config(data.shape[0])
        checkpoint = checkpoint_for(context, self.spec(), config, data, mean)
        if config.steps:
            weight, log = self._train(start, axes, data, config, context, checkpoint)
        else:
            weight, log = start, None
        self.set_map(weight)
        self.training_log = log

    def _training_config(self, rows: int) -> TrainingConfig:
        """Return the preset's training config for a number of rows, with the given parameters."""
        given = (self.steps, self.batch, self.learning_rate)
        if self.preset == "paper":
            return paper_config(rows, *given)
        return (replace(LATHE, steps=NESTED_STEPS) if self.nested else LATHE).override(*given)

    def _train(
        self,
        start: Tensor,
        axes: Tensor | None,
        vectors: Vectors,
        config: TrainingConfig,
        context: FitContext,
        checkpoint: Checkpoint | None,
    ) -> tuple[Tensor, TrainingLog]:
        """Train a weight `(k, d)`, in the coordinates of some axes `(d, d)` if there are any.

        Adam adapts the rate of every coordinate separately, so the coordinates should be those that differ in scale.
        """
        k, weight = self.dimensions, start.float().to(self.device)
        if axes is not None:
            axes = axes.float().to(self.device)
            weight = weight @ axes.T
        sizes = [*sorted({int(k * share) for share in PREFIX_SHARES} - {0, k}), k] if self.nested else [k]
        batches = Batches(vectors, config, self.seed, self.device)
        loss = self.loss or PRESET_LOSSES[self.preset]
        # Eq. 1 is defined for vectors as they come, every other loss for unit vectors.
        normalized = self.preset == "lathe" or LOSSES[loss].of_unit_rows

        def prepare(batch: Tensor) -> Tensor:
            rows = unit_rows(batch) if normalized else batch
            return rows if axes is None else rows @ axes.T

        first = prepare(batches.sample(0))
        set_up, importance = self._set_up_loss(loss, LossSetup(first, weight, sizes, normalized, self.rank_strength))

        def loss_function(batch: Tensor) -> float:
            losses, weight.grad = prefix_losses(set_up, prepare(batch), weight, sizes, importance, normalized)
            return sum(i * loss for i, loss in zip(importance, losses, strict=True)) / len(losses)

        with one_thread_if_small(batches.size, self.device):
            log = train(self.kind, {"weight": weight}, loss_function, batches, config, context, checkpoint)
        if normalized:  # such a loss does not depend on the scale
            weight *= best_scale(first, weight)
        return weight if axes is None else weight @ axes, log

    def _set_up_loss(self, name: str, setup: LossSetup) -> tuple[Loss, list[float]]:
        """Return a loss, and the importance of each size: one over its loss at the start, so that all count the same.

        Without that the smallest size, which errs most, would dominate, and the unit of length would set the pace.
        """
        loss = LOSSES[name].set_up(setup)
        if LOSSES[name].relative:
            return loss, [1.0] * len(setup.sizes)
        unweighted = [0.0] * len(setup.sizes)
        starts, _ = prefix_losses(loss, setup.batch, setup.weight, setup.sizes, unweighted, setup.normalized)
        return loss, [1 / start if start > 0 else 1.0 for start in starts]


def spectral_start(moments: Moments, dimensions: int) -> tuple[Tensor, Tensor]:
    """Return the minimizer of the squared-distance loss for Gaussian data `(k, d)`, and the principal axes `(d, d)`.

    Both in float64.

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
    """Draw a weight `(k, d)` as torch draws that of a linear layer."""
    return uniform_start((dimensions, width), width, torch.Generator().manual_seed(seed))


def best_scale(x: Tensor, weight: Tensor) -> float:
    """Return the factor on `weight` that brings the distances of its outputs closest to those of `x`."""
    rows = x[:1024] - x[:1024].mean(0)
    before, after = distances(rows, rows), distances(rows @ weight.T, rows @ weight.T)
    return float((before * after).sum() / after.square().sum()) if after.any() else 1.0
