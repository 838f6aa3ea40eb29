"""REZE: pairs are pulled to their relations by the base model, shrunk where these separate the sources.

TARGETS/
├── manifest.json, relations.npy    as relations.py writes them
└── targets.npy                     r̂, target of each pair, `(n, 2d)` float32

Its control is plain distillation: pairs keep the relations that the base model gave them.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from lathe.training.encoder.encoder import Encoder
from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.regularizers.regularizer import Regularizer
from lathe.training.finetuning.regularizers.relations import load_or_compute_relations, open_rows, write_rows
from lathe.training.finetuning.regularizers.settings import RegularizerSettings
from lathe.training.finetuning.regularizers.shrinkage import Shrinkage, fit_shrinkage, source_moments
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


TARGETS = "targets.npy"
"""Name of the file with the targets."""


class Reze(Distillation):
    """Distillation towards shrunk relations.

    With `target: reference`, it is towards the relations themselves.

    Attributes:
        shrinkage: shrinkage of each source; None if the targets are the relations themselves.
        offsets: offset of each source, `(S, 2d)`, subtracted from its vectors before InfoNCE; None to subtract nothing.
        sources: index of each pair's source, `(n,)`.
    """

    shrinkage: Shrinkage | None = None
    offsets: NDArray[np.float32] | None = None
    sources: NDArray[np.int64]

    def __init__(self, settings: RegularizerSettings) -> None:
        super().__init__(settings)
        self.settings = settings

    def prepare(self, encoder: Encoder, mixture: Mixture, folder: Path, cache: Path, on_progress: Progress) -> None:
        """Compute the targets of all pairs from the base model's relations (anchor's vector followed by positive's).
        Sources are shrunk towards their common centre, and `targets` and `shrinkage` are set.

        Relations and targets that the folder holds are loaded.

        What is computed is written to the folder. With `target: reference`, the targets are the relations themselves,
        and the shrinkage is only fitted for the offsets of `contrast: debiased`.
        """
        settings, self.sources = self.settings, mixture.sources
        relations, stored = load_or_compute_relations(encoder, mixture, settings, folder, cache, on_progress)
        self.targets = relations
        if settings.target == "reference" and settings.contrast == "plain":
            return

        on_progress(1.0, "finding the directions that separate the sources")
        before = source_moments(relations, mixture.sources, len(mixture.names))
        # Fitted also without shrunk targets: the offsets of `contrast: debiased` come from it.
        shrinkage = fit_shrinkage(before, settings)
        self.offsets = shrinkage.offsets() if settings.contrast == "debiased" else None
        if settings.target == "reference":
            return

        path = folder / TARGETS
        targets = open_rows(path, relations.shape) if stored else None
        if targets is None:
            targets = write_rows(path, relations.shape, lambda r: shrinkage.apply(relations[r], mixture.sources[r]))
        self.targets, self.shrinkage = targets, shrinkage

    def contrast(self, anchors: Tensor, candidates: Tensor, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Subtract the offset of each pair's source from its anchor and candidates, and return them as unit vectors.
        Without `offsets` they are returned unchanged.
        """
        if self.offsets is None:
            return anchors, candidates
        # An offset is a relation [a; p], (2d,): its halves belong to anchors and to positives.
        of_anchors, of_positives = copy_rows(self.offsets, self.sources[rows], anchors.device).chunk(2, dim=1)
        return normalize(anchors - of_anchors, dim=1), normalize(candidates - of_positives[:, None], dim=2)

    def list_source_warnings(self, sources: int) -> list[str]:
        """Return a warning if so few sources cannot be shrunk: one source, or two at scale 1 or above."""
        if self.settings.target == "reference":
            return []
        if sources == 1:
            return ["there is one source: no direction separates it from others, and nothing is shrunk; add sources"]
        if sources == 2 and self.settings.scale >= 1:
            return [
                f"there are two sources: their median is their mean, and at scale {self.settings.scale:g} nothing is "
                "shrunk; add a third source, or set `scale` below 1"
            ]

        return []

    def list_warnings(self, mixture: Mixture, dimensions: int) -> list[str]:
        """Return warnings that there are too few sources to shrink, or too few pairs.
        Pairs are too few if they are no more than the 2d dimensions of their relations.

        With `target: reference` there are none.
        """
        warnings = self.list_source_warnings(len(mixture.names))
        if self.settings.target == "reference":
            return warnings

        if len(mixture) <= 2 * dimensions:
            warnings.append(
                f"{len(mixture):,} pairs span at most {len(mixture) - 1:,} of the {2 * dimensions:,} dimensions of "
                "their relations; the eigenspace is estimated on few"
            )

        return warnings

    def summarize(self, mixture: Mixture) -> list[str]:
        """Summarize the shrinkage in a sentence: numbers of active, separating and shrunk dimensions.

        If nothing was shrunk to make the targets, the sentence says that this is plain distillation.
        """
        shrinkage = self.shrinkage
        if shrinkage is None:
            return super().summarize(mixture)

        shrunk = int(((shrinkage.shrink != 1) | (shrinkage.shift != 0)).sum())
        return [
            f"{shrinkage.active} of {len(shrinkage.eigenvalues)} dimensions are active, {shrinkage.variant.sum()} of "
            f"them separate the sources by more than the threshold {shrinkage.dispersion_threshold:.3g}; {shrunk:,} of "
            f"{shrinkage.shrink.size:,} (source, dimension) pairs are shrunk, {shrinkage.clipped:,} factors were "
            "clipped."
        ]
