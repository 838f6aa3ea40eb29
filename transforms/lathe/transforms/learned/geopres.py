"""GeoPres: a learned linear map to fewer dimensions that keeps the geometry of embeddings."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lathe.transforms.base import (
    FLAG,
    Checkpoint,
    FitContext,
    Signature,
    TrainingConfig,
    TrainingLog,
    number,
    one_of,
    or_none,
    training_rules,
    whole_number,
)
from lathe.transforms.errors import InputError
from lathe.transforms.learned.descent import (
    Batches,
    build_paper_config,
    compute_checked_mean,
    draw_uniform_weights,
    limit_threads,
    prepare_checkpoint,
    train,
)
from lathe.transforms.learned.losses import LOSSES, Loss, LossSetup, prefix_losses
from lathe.transforms.linear import Linear
from lathe.transforms.statistics import Moments, Spectrum, distances, unit_moments, unit_rows
from lathe.transforms.vectors import Vectors

PREFIX_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4)
"""Prefix sizes for which a nested map is trained besides k, as shares of k."""

RIDGE = 1e-6
"""Ridge added to every eigenvalue, relative to their mean, because some are 0 if rows are fewer than dimensions."""

LATHE = TrainingConfig(steps=400, batch=512, learning_rate=5e-3)
"""Training config of the preset `lathe`."""

NESTED_STEPS = 1000
"""Steps of the preset `lathe` with `nested`; every row of the weight serves several sizes, which takes more steps."""

PRESET_LOSSES = {"lathe": "blend", "paper": "positional"}
"""Default loss of each preset, a name in `LOSSES`."""


class GeoPres(Linear):
    """Linear reduction x ↦ Wx, W `(k, d)`, trained to preserve the cosines or distances between embeddings.

    After *Geometry-Preserving Dimensionality Reduction for Text Embeddings*.

    **Preset `lathe`**, the default, trains on unit vectors and unit outputs, as they are served. W
    starts as the best map for Gaussian data: the projection on the top uncentred principal directions, the
    i-th scaled by √(1 + T/((k+2)λ_i)), with T the sum of the other eigenvalues. W is trained with AdamW on
    random batches, in the coordinates of the principal axes. The loss is `losses.blended_loss`: the paper's angular
    loss, the correlation of an anchor's cosines before and after, and the divergence of its neighbours.

    With `nested`, every prefix of the output is usable too: the loss is the mean of the blends of the
    sizes k/16, k/8, k/4, k/2, 3k/4 and k, each relative to its start.

    **Preset `paper`** is section 4.2: a random start, Eq. 1 over all pairs of 20,000 rows that are not
    normalized, AdamW, linear warm-up and decay, ten epochs, early stopping on held-out rows, the best
    map restored. Held-out rows replace the paper's paraphrases, and every batch is a new sample.
    Few rows give few steps; `steps` sets another number.

    **Experiments**, on MiniLM vectors of 10,000 Wikipedia sentences and as many headlines on
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

    At 32 dimensions the default has .415 and .617, the spectral start .403 and .576.
    Batches of 512 rows give the results of 2,048 in a sixth of the time. Without the rotation to the
    principal axes, nesting costs .006 more at 32 dimensions of the headlines.

    Args:
        dimensions: k.
        nested: whether every prefix must be usable.
        preset: `lathe` or `paper`.
        loss: one of `LOSSES`; None for the preset's own. `blend`, `positional` (Eq. 1; in the preset `lathe` of
            unit rows and unit outputs, at their best scale), `angular` (Eq. 3) or `spearman` (A.1.2).
        steps: number of training steps; None for the preset's. 0 keeps the start.
        batch: rows of a batch; None for the preset's.
        learning_rate: maximum learning rate; None for the preset's.
        rank_strength: regularization strength of the soft ranks of `spearman`. At the published 1 the loss is
            1 − the Pearson correlation. Soft ranks equal ranks only at a strength below the gaps between
            neighbouring cosines, which are smaller than 0.001 in a batch of 1,500; a step then takes forty times
            as long.
        seed: seed of the random start and of the batches.

    A fit on moments gives the spectral start without training.

    Attributes:
        training_log: steps and losses of the training, relative to the start; None if nothing was trained, or
            after loading.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import GeoPres
        >>> rows = np.random.default_rng(0).normal(size=(400, 16)).astype(np.float32)
        >>> step = GeoPres(4, steps=20, batch=128).fit(rows)
        >>> step.transform(rows).shape, step.training_log.steps
        ((400, 4), 20)
    """

    kind = "geopres"
    parameter_rules = {
        "dimensions": whole_number(1),
        "nested": FLAG,
        "preset": one_of(*PRESET_LOSSES),
        "loss": or_none(one_of(*LOSSES)),
        "rank_strength": number(1e-6, 1),
        **training_rules(min_steps=0),
    }

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

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the signature (dimensions, rank) of the inputs, reduced to `dimensions` dimensions.

        Raises:
            StepError: if the inputs are known to have `dimensions` dimensions or fewer.
        """
        return inputs.reduce(self.kind, self.dimensions, allow_same=False)

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Compute a start weight, train it on vectors, and store it. From moments, it is not trained. Equal rows raise.

        From moments, or with 0 steps, the weight is not trained. `training_log` is set too, to None if nothing was
        trained.

        Raises:
            InputError: if all rows are equal, or `data` are moments and the preset is `paper`.
        """
        if isinstance(data, Moments):
            if self.preset == "paper":
                raise InputError("geopres: the preset paper is trained on vectors and cannot be fitted on moments")
            self.set_map(_compute_spectral_start(data, self.dimensions)[0])
            self.training_log = None
            return

        if self.preset == "paper":
            mean = compute_checked_mean(self.kind, data)
            start, axes = draw_random_weight(data.shape[1], self.dimensions, self.seed), None
        else:
            # Cosines are to be kept, so the directions are computed from unit rows.
            moments = unit_moments(data)
            mean, (start, axes) = moments.mean, _compute_spectral_start(moments, self.dimensions)

        config = self._build_training_config(data.shape[0])
        checkpoint = prepare_checkpoint(context, self.spec(), config, data, mean)
        if config.steps:
            weight, log = self._train(start, axes, data, config, context, checkpoint)
        else:
            weight, log = start, None

        self.set_map(weight)
        self.training_log = log

    def _build_training_config(self, rows: int) -> TrainingConfig:
        """Return the training config of the preset, with `steps`, `batch` and `learning_rate` where they are set.

        The number of rows decides the steps of the preset `paper`, and `nested` decides the steps of the preset
        `lathe`.
        """
        overrides = (self.steps, self.batch, self.learning_rate)
        if self.preset == "paper":
            return build_paper_config(rows, *overrides)
        return (replace(LATHE, steps=NESTED_STEPS) if self.nested else LATHE).override(*overrides)

    def _train(
        self,
        start: Tensor,
        axes: Tensor | None,
        vectors: Vectors,
        config: TrainingConfig,
        context: FitContext,
        checkpoint: Checkpoint | None,
    ) -> tuple[Tensor, TrainingLog]:
        """Train a weight from `start` `(k, d)`, which may change in place, and return the weight and the training log.

        With `axes` `(d, d)`, whose rows are orthonormal, training uses the coordinates along these axes, and the result
        is rotated back. Adam adapts the rate of every coordinate separately, so the coordinates should be the ones that
        differ in scale. A weight trained for unit outputs is rescaled by `_find_best_scale`.

        Returns:
            The trained weight `(k, d)` and the training log.
        """
        k, weight = self.dimensions, start.float().to(self.device)
        if axes is not None:
            axes = axes.float().to(self.device)
            weight = weight @ axes.T

        # The full size is last: prefixes are trained besides it.
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
            """Store the gradient of Σ importance × loss in `weight.grad`, and return the mean over output sizes."""
            losses, weight.grad = prefix_losses(set_up, prepare(batch), weight, sizes, importance, normalized)
            # The gradient is of the sum: Adam's steps do not depend on a constant factor.
            return sum(i * loss for i, loss in zip(importance, losses, strict=True)) / len(losses)

        with limit_threads(batches.size, self.device):
            log = train(self.kind, {"weight": weight}, loss_function, batches, config, context, checkpoint)

        if normalized:  # such a loss does not depend on the scale
            weight *= _find_best_scale(first, weight)

        return weight if axes is None else weight @ axes, log

    def _set_up_loss(self, name: str, setup: LossSetup) -> tuple[Loss, list[float]]:
        """Build the loss of this name, and return it with each output size's weight: 1 / the loss at the start.

        The weights are of gradients. A weight is 1 for losses that are divided by their start already, and if the loss
        at the start is 0. Without weights the smallest size, whose loss is largest, would dominate, and gradients would
        depend on the scale of the vectors.
        """
        loss = LOSSES[name].set_up(setup)
        if LOSSES[name].relative:
            return loss, [1.0] * len(setup.sizes)
        # The call gives the losses without weights; the importances enter only the gradient, which is not used.
        unweighted = [0.0] * len(setup.sizes)
        starts, _ = prefix_losses(loss, setup.batch, setup.weight, setup.sizes, unweighted, setup.normalized)
        return loss, [1 / start if start > 0 else 1.0 for start in starts]


def _compute_spectral_start(moments: Moments, dimensions: int) -> tuple[Tensor, Tensor]:
    """Return the start weight (k scaled top eigenvectors of the second moment) and all eigenvectors. Equal rows raise.

    The scaled eigenvectors best keep squared distances of zero-mean Gaussian data: the i-th eigenvector is scaled by
    √(1 + T/((k+2)λ_i)), with T the sum of the eigenvalues after the k-th.

    Returns:
        The weight `(k, d)`, and all eigenvectors as rows, `(d, d)`, both float64.

    Raises:
        InputError: if all rows are equal.
    """
    second = moments.second_moment()
    total = float(second.trace())
    # The scatter of equal unit rows is rounding error, not zero.
    if moments.count < 2 or moments.scatter.trace() <= 1e-12 * moments.count * total:
        raise InputError("geopres needs rows that differ in direction: there are no distances to keep")

    spectrum = Spectrum.from_matrix(second, moments.rounding_variance())
    eigenvalues = spectrum.values + RIDGE * total / moments.dimensions
    directions = spectrum.directions[:dimensions]
    left_out = eigenvalues[dimensions:].sum()
    scales = np.sqrt(1 + left_out / ((dimensions + 2) * eigenvalues[:dimensions]))

    return torch.from_numpy(directions * scales[:, None]), torch.from_numpy(spectrum.directions)


def draw_random_weight(input_dimensions: int, dimensions: int, seed: int) -> Tensor:
    """Draw a weight `(dimensions, input_dimensions)` from U(−1/√d, 1/√d), as `torch.nn.Linear` does.

    d is `input_dimensions`.
    """
    return draw_uniform_weights((dimensions, input_dimensions), input_dimensions, torch.Generator().manual_seed(seed))


def _find_best_scale(x: Tensor, weight: Tensor) -> float:
    """Return the factor of `weight` with which distances between outputs best fit the distances between rows of `x`.

    The fit is by least squares, on the first 1024 rows. The factor is 1 if all their outputs coincide.
    """
    # `distances` uses dot products, which cancel less if rows are centred; no distance changes.
    rows = x[:1024] - x[:1024].mean(0)
    before, after = distances(rows, rows), distances(rows @ weight.T, rows @ weight.T)
    return float((before * after).sum() / after.square().sum()) if after.any() else 1.0
