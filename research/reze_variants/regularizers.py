"""Regularizers of variants: on the shrunk directions only, fading over the training, within sources."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from lathe.training.encoder.encoder import Encoder
from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.regularizers.regularizer import RegularizerSettings
from lathe.training.finetuning.regularizers.reze import Distillation, Reze, copy_rows

WITHIN = 1.0
"""Cosine that is added to pairs of the same source; divided by a temperature of 0.05, others hardly count any more."""


class ShrunkDirections(Reze):
    """REZE's loss in the directions that it shrinks.

    In all others the encoder is free to move.

    Attributes:
        directions: the shrunk directions in columns, `(2d, k)` float32.
    """

    directions: Tensor

    def prepare(self, encoder: Encoder, mixture: Mixture, *rest: object) -> None:
        """Prepare REZE's targets, and keep the directions in which any source is shrunk."""
        super().prepare(encoder, mixture, *rest)  # type: ignore[arg-type]
        assert self.shrinkage is not None
        self.directions = torch.from_numpy(self.shrinkage.basis[:, self.shrinkage.changed].astype(np.float32))

    def loss(self, anchors: Tensor, positives: Tensor, rows: NDArray[np.int64]) -> Tensor:
        """Return a quarter of the mean squared distance to the targets in these directions.

        Relations have length √2, so in all directions this would be 1 − cosine.
        """
        distance = torch.cat([anchors, positives], dim=1) - copy_rows(self.targets, rows, anchors.device)
        return (distance @ self.directions.to(anchors.device)).square().sum(dim=1).mean() / 4


class Fading(Reze):
    """REZE whose weight falls linearly from `loss_weight` to 0 over the steps of one epoch.

    Args:
        settings: settings of the regularizer.
        batch_size: pairs of a step.

    Attributes:
        steps: number of steps of the training.
        done: number of steps done.
    """

    steps: int
    done: int

    def __init__(self, settings: RegularizerSettings, batch_size: int) -> None:
        super().__init__(settings)
        self.batch_size = batch_size

    def prepare(self, encoder: Encoder, mixture: Mixture, *rest: object) -> None:
        """Prepare REZE's targets, and set the weight to that of the first step."""
        super().prepare(encoder, mixture, *rest)  # type: ignore[arg-type]
        self.steps, self.done = -(-len(mixture) // self.batch_size), 0

    def loss(self, anchors: Tensor, positives: Tensor, rows: NDArray[np.int64]) -> Tensor:
        """Return REZE's loss, and set `weight`, by which it is multiplied afterwards, to that of this step."""
        self.weight = self.settings.loss_weight * (1 - self.done / self.steps)
        self.done += 1
        return super().loss(anchors, positives, rows)


class WithinSources(Reze):
    """REZE whose InfoNCE compares a pair with those of its own source, so that no text is told by its source."""

    def contrast(self, anchors: Tensor, candidates: Tensor, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Append coordinates of the source to both, whose products add `WITHIN` to pairs of the same source."""
        sources = torch.from_numpy(self.sources[rows]).to(anchors.device)
        marks = one_hot(sources, int(self.sources.max()) + 1).to(anchors.dtype) * WITHIN**0.5
        more = marks[:, None].expand(-1, candidates.shape[1], -1)
        return torch.cat([anchors, marks], dim=1), torch.cat([candidates, more], dim=2)


class WithinSourcesDistillation(WithinSources):
    """Plain distillation whose InfoNCE compares a pair with those of its own source."""

    def __init__(self, settings: RegularizerSettings) -> None:
        super().__init__(Distillation(settings).settings)
