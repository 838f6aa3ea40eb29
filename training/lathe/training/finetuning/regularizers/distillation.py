"""Plain distillation, REZE's control: pairs keep the relations that the base model gave them."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cosine_similarity

from lathe.training.encoder.encoder import Encoder
from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.regularizers.regularizer import Regularizer
from lathe.training.finetuning.regularizers.relations import load_or_compute_relations
from lathe.training.finetuning.regularizers.settings import RegularizerSettings
from lathe.transforms.progress import Progress


class Distillation(Regularizer):
    """Mean of 1 − cosine between each pair's relation and its target (Eq. 8 of REZE), here the base model's relation.

    The relation of a pair is its anchor's and its positive's vector, concatenated.

    Args:
        settings: settings of the regularizer; `target` and `contrast` are ignored.

    Attributes:
        targets: target relation of each pair, `(n, 2d)` float32, a memmap: it may be larger than memory.
    """

    settings: RegularizerSettings
    targets: NDArray[np.float32]

    def __init__(self, settings: RegularizerSettings) -> None:
        self.settings = settings.model_copy(update={"target": "reference", "contrast": "plain"})
        self.weight = settings.loss_weight

    def prepare(self, encoder: Encoder, mixture: Mixture, folder: Path, cache: Path, on_progress: Progress) -> None:
        """Set `targets` to the base model's relations of all pairs (anchor's vector followed by positive's).
        They are loaded from the folder, or computed and written to it.
        """
        self.targets, _ = load_or_compute_relations(encoder, mixture, self.settings, folder, cache, on_progress)

    def loss(self, anchors: Tensor, positives: Tensor, rows: NDArray[np.int64]) -> Tensor:
        """Return the regularizer's loss of a batch, the mean of 1 − cosine between relations and targets.
        A relation is a pair's anchor vector followed by its positive's.

        Args:
            anchors: unit vectors, `(b, d)`.
            positives: unit vectors, `(b, d)`.
            rows: indices of the pairs in the mixture, `(b,)`.
        """
        targets = copy_rows(self.targets, rows, anchors.device)
        # Eq. 8 of REZE; relations are [a; p], (b, 2d).
        return (1 - cosine_similarity(torch.cat([anchors, positives], dim=1), targets, dim=1)).mean()

    def summarize(self, mixture: Mixture) -> list[str]:
        """Return a sentence that says what the target is."""
        return ["The target is the reference itself: plain distillation."]


def copy_rows(values: NDArray[np.float32], rows: NDArray[np.int64], device: torch.device) -> Tensor:
    """Return the rows of an array or memmap at these indices, copied to a float32 tensor on the device."""
    return torch.from_numpy(np.ascontiguousarray(values[rows])).to(device)
