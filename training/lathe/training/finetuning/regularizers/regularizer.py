"""Interface of a regularizer, and the one that does nothing: plain InfoNCE."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lathe.training.encoder.encoder import Encoder
from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.regularizers.settings import RegularizerSettings
from lathe.transforms.progress import Progress


class Regularizer(ABC):
    """Term added to InfoNCE, prepared once before the training.

    Attributes:
        settings: settings that it uses; None if it has none.
        weight: weight of its loss beside InfoNCE (α of REZE's Eq. 10).
    """

    settings: RegularizerSettings | None = None
    weight: float = 0.0

    @abstractmethod
    def prepare(self, encoder: Encoder, mixture: Mixture, folder: Path, cache: Path, on_progress: Progress) -> None:
        """Compute what the loss needs of model and mixture, or load it from the folder.

        Args:
            encoder: the model before training.
            mixture: the pairs.
            folder: folder for what is computed; it may be written to by another run with the same settings.
            cache: folder for the vectors of single texts, shared by several runs.
            on_progress: called with progress in [0, 1] and a message.

        Raises:
            JobError: if the folder holds what was computed for another encoder, other pairs or other settings.
        """

    @abstractmethod
    def loss(self, anchors: Tensor, positives: Tensor, rows: NDArray[np.int64]) -> Tensor | None:
        """Return the loss of a batch, a scalar that is multiplied by `weight`.

        None adds nothing.

        Args:
            anchors: unit vectors by the model that is trained, `(b, d)` float32.
            positives: likewise, `(b, d)`.
            rows: index of each pair in the mixture, `(b,)`.
        """

    def contrast(self, anchors: Tensor, candidates: Tensor, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return the unit vectors that InfoNCE compares: anchors `(b, d)` and candidates `(b, 1+k, d)`.

        They are the embeddings themselves unless a regularizer overrides this. The candidates of a pair are its
        positive and its k hard negatives; missing ones are masked later.
        """
        return anchors, candidates

    def list_source_warnings(self, sources: int) -> list[str]:
        """Return warnings about the number of sources, before any data is read.
        There are none unless a regularizer overrides this.
        """
        return []

    def list_warnings(self, mixture: Mixture, dimensions: int) -> list[str]:
        """Return warnings about too few sources or pairs, before training.
        There are none unless a regularizer overrides this.

        Args:
            mixture: the pairs.
            dimensions: dimensions d of the encoder's vectors.
        """
        return []

    @abstractmethod
    def summarize(self, mixture: Mixture) -> list[str]:
        """Return sentences on the targets that `prepare` computed, for the terminal."""


class NoRegularizer(Regularizer):
    """Regularizer that adds nothing to InfoNCE.

    Any settings are ignored.
    """

    def __init__(self, *_: Any) -> None: ...

    def prepare(self, *_: Any) -> None:
        """Do nothing."""

    def loss(self, *_: Any) -> None:
        """Return None."""

    def summarize(self, mixture: Mixture) -> list[str]:
        """Return a sentence that says that there is no regularizer."""
        return ["There is no regulariser: the encoder is free to move."]
