"""Settings and interface of a regularizer, and `NoRegularizer`, with which the loss is plain InfoNCE."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from lathe.training.encoder.encoder import Encoder
from lathe.training.finetuning.mixture import Mixture
from lathe.training.settings import NotNegative, StrictSettings
from lathe.transforms.progress import Progress


class RegularizerSettings(StrictSettings):
    """Settings of the REZE regularizer, with the paper's defaults.

    Attributes:
        loss_weight: α of Eq. 10.
        target: `debiased` for REZE; `reference` for the unchanged relations, which is plain distillation.
        strength: η of Eq. 6, the fraction by which a source's mean is moved towards the band around the centre.
        scale: γ of Eqs. 4 and 5, which scales the threshold and the band.
        variance_ratio: ρ of Eq. 3, the share of variance that the active dimensions explain.
        center: centre of the source means; `median` averages the two middle means of an even count, `mean` is the
            ablation.
        denominator: denominator of Eq. 6. `literal` is |μ| + ε, as printed, which depends on the arbitrary sign of an
            eigenvector; `signed` is sgn(μ)(|μ| + ε), which does not.
        operation: `scale` multiplies a source's coordinates, as the paper does; `translate` shifts them by the shift of
            the source's mean, and keeps the spread within the source.
        contrast: embeddings that InfoNCE compares. `plain` uses them unchanged; `debiased` subtracts the offset of the
            source's reference mean from the centre in the variant dimensions, so that negatives of other sources cannot
            be recognized by their source alone. `debiased` is our addition, not the paper's.
        clip: whether to clip factors to [0, 1].
        epsilon_denominator: ε of Eq. 6.
        epsilon_threshold: ε of Eq. 4, which should be small compared with the dispersions (1e-6 for unit vectors).
    """

    loss_weight: NotNegative = 1.0
    target: Literal["debiased", "reference"] = "debiased"
    strength: NotNegative = 0.7
    scale: NotNegative = 1.0
    variance_ratio: Annotated[float, Field(gt=0, le=1)] = 0.99
    center: Literal["median", "mean"] = "median"
    denominator: Literal["signed", "literal"] = "signed"
    operation: Literal["scale", "translate"] = "scale"
    contrast: Literal["plain", "debiased"] = "plain"
    clip: bool = True
    epsilon_denominator: NotNegative = 1e-8
    epsilon_threshold: NotNegative = 1e-8


class Regularizer(ABC):
    """Interface of a regularizer: a loss that is added to InfoNCE, and is prepared once before the training.

    Attributes:
        settings: settings of the regularizer; None if it has none.
        weight: weight of the loss that is added to InfoNCE (α of REZE's Eq. 10).
    """

    settings: RegularizerSettings | None = None
    weight: float = 0.0

    @abstractmethod
    def prepare(self, encoder: Encoder, mixture: Mixture, folder: Path, cache: Path, on_progress: Progress) -> None:
        """Compute the data that the loss needs from the base model and the mixture, or load these data from the folder.

        Computed data are stored in the folder.

        Args:
            encoder: the model before training.
            mixture: the pairs.
            folder: folder for the computed data; another run with the same settings may have written to it.
            cache: folder for the vectors of single texts, shared by several runs.
            on_progress: called with progress in [0, 1] and a message.

        Raises:
            JobError: if the folder holds data for another encoder, other pairs or other settings.
        """

    @abstractmethod
    def loss(self, anchors: Tensor, positives: Tensor, rows: NDArray[np.int64]) -> Tensor | None:
        """Compute the regularizer's loss of a batch, a scalar that is weighted and added to InfoNCE. None adds nothing.

        Args:
            anchors: unit vectors by the model that is trained, `(b, d)` float32.
            positives: unit vectors by the same model, `(b, d)` float32.
            rows: index of each pair in the mixture, `(b,)`.
        """

    def contrast(self, anchors: Tensor, candidates: Tensor, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return the unit vectors that InfoNCE compares: anchors `(b, d)` and candidates `(b, 1+k, d)`.

        The vectors are returned unchanged unless a regularizer overrides this. The candidates of a pair are its
        positive and its k hard negatives. Missing negatives are masked later.
        """
        return anchors, candidates

    def list_source_warnings(self, sources: int) -> list[str]:
        """Return warnings about the number of sources, which are known before any data are read.

        The list is empty unless a regularizer overrides this.
        """
        return []

    def list_warnings(self, mixture: Mixture, dimensions: int) -> list[str]:
        """Return warnings about too few sources or pairs, which are known before the training.

        The list is empty unless a regularizer overrides this.

        Args:
            mixture: the pairs.
            dimensions: dimensions d of the encoder's vectors.
        """
        return []

    @abstractmethod
    def summarize(self, mixture: Mixture) -> list[str]:
        """Return sentences about the data that `prepare` computed, for the terminal."""


class NoRegularizer(Regularizer):
    """Regularizer that adds nothing to InfoNCE. All arguments are ignored."""

    def __init__(self, *_: Any) -> None: ...

    def prepare(self, *_: Any) -> None:
        """Do nothing."""

    def loss(self, *_: Any) -> None:
        """Return None, which adds nothing to InfoNCE."""

    def summarize(self, mixture: Mixture) -> list[str]:
        """Return one sentence in a list, which says that there is no regularizer."""
        return ["There is no regularizer: nothing keeps the encoder near the base model."]
