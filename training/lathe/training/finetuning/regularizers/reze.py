"""REZE: pairs are pulled to their relations by the base model, shrunk in directions that separate the sources.

A relation is the vector of a pair's anchor followed by the vector of its positive. The control of REZE is plain
distillation, in which pairs are pulled to the unchanged relations.

TARGETS/
├── manifest.json      encoder, mixture and settings that everything in the folder belongs to
├── relations.npy      r, relation of each pair by the base model, `(n, 2d)` float32
└── targets.npy        r̂, target of each pair, `(n, 2d)` float32
"""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import orjson
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from lathe.training.encoder.encoder import Encoder
from lathe.training.errors import JobError
from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.reference import ReferenceVectors
from lathe.training.finetuning.regularizers.regularizer import Regularizer, RegularizerSettings
from lathe.training.finetuning.regularizers.shrinkage import (
    Shrinkage,
    compute_source_moments,
    fit_shrinkage,
    split_into_blocks,
)
from lathe.transforms.files import replace_synced
from lathe.transforms.npy import open_npy
from lathe.transforms.progress import Progress

MANIFEST, RELATIONS = "manifest.json", "relations.npy"
"""Names of the files."""


def _load_or_compute_relations(
    encoder: Encoder, mixture: Mixture, settings: RegularizerSettings, folder: Path, cache: Path, on_progress: Progress
) -> tuple[NDArray[np.float32], bool]:
    """Load the base model's relations of all pairs, or compute and store them. Relations of another job raise.

    If the folder lacks the relations, it is emptied first. Another job has another encoder, other pairs or other
    settings.

    Args:
        encoder: the base model.
        mixture: the pairs.
        settings: settings of the regularizer.
        folder: folder for the relations.
        cache: folder for the vectors of single texts.
        on_progress: called with progress in [0, 1] and a message.

    Returns:
        The relations, memory-mapped, `(n, 2d)`, and whether they were loaded.

    Raises:
        JobError: if the manifest of the folder is damaged, or is of another encoder, other pairs or other settings.
    """
    # Everything that the targets depend on. The weight of the loss does not change them.
    depends = {
        "encoder": encoder.fingerprint,
        "dimensions": encoder.dimensions,
        "max_length": encoder.max_length,
        "pairs": len(mixture),
        "mixture": mixture.digest_pairs(),
        "sources": mixture.names,
        "regularizer": settings.model_dump(exclude={"loss_weight"}, exclude_defaults=True),
    }
    _check_manifest(folder, depends)
    shape = (len(mixture), 2 * encoder.dimensions)
    is_complete = (folder / MANIFEST).is_file()  # the manifest is written last
    if is_complete and (relations := _open_rows(folder / RELATIONS, shape)) is not None:
        return relations, True

    reference = ReferenceVectors(encoder, cache)
    reference.encode([*mixture.anchors, *mixture.positives], on_progress)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    relations = _write_rows(folder / RELATIONS, shape, lambda rows: reference.relations(mixture, rows))
    # Last: a killed run leaves relations without a manifest, which are computed again.
    replace_synced(folder / MANIFEST, orjson.dumps(depends, option=orjson.OPT_INDENT_2))

    return relations, False


def _check_manifest(folder: Path, depends: dict[str, object]) -> None:
    """Raise `JobError` if the manifest of a folder differs from `depends` or is damaged. Without a manifest, pass.

    `depends` describes the encoder, pairs and settings of this run.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return

    try:
        stored = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise JobError(f"{path} is damaged: {error}; remove the folder to start again") from error

    if not isinstance(stored, dict):
        raise JobError(f"{path} is damaged: it is not a JSON object; remove the folder to start again")

    reasons = {
        "max_length": "the targets were computed with another max_length",
        "encoder": "the base model changed since the targets were computed",
        "mixture": "the pairs changed since the targets were computed",
        "regularizer": "the targets were computed with other settings of the regularizer",
    }
    for key, reason in reasons.items():
        if stored.get(key) != depends[key]:
            raise JobError(f"{reason}: {folder} is of another run. Name another folder with --out, or remove this one")


def _write_rows(
    path: Path, shape: tuple[int, ...], compute_rows: Callable[[slice], NDArray[np.float32]]
) -> NDArray[np.float32]:
    """Write float32 rows to a .npy file block by block, and open the file memory-mapped and read-only.

    The file is renamed when complete, so a killed run leaves no incomplete file. Bytes are written instead of a memmap,
    because a full disk then raises an error instead of killing the process.
    """
    partial = path.with_name(f".{path.name}")
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)), "fortran_order": False, "shape": shape}
    with partial.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in split_into_blocks(shape[0]):
            file.write(np.ascontiguousarray(compute_rows(block), np.float32).tobytes())
        file.flush()
        os.fsync(file.fileno())

    partial.replace(path)
    rows = _open_rows(path, shape)
    assert rows is not None

    return rows


def _open_rows(path: Path, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
    """Open the float32 rows of a .npy file, memory-mapped. None if the file is missing, damaged or of another shape."""
    with suppress(OSError, ValueError):
        rows = open_npy(path)
        if rows.shape == shape and rows.dtype == np.float32:
            return rows
    return None


class Distillation(Regularizer):
    """Mean of 1 − cosine between each pair's relation and its target, the base model's relation (Eq. 8 of REZE).

    Args:
        settings: settings of the regularizer; `target` and `contrast` are ignored.

    Attributes:
        targets: target relation of each pair, `(n, 2d)` float32, memory-mapped because it may be larger than memory.
    """

    settings: RegularizerSettings
    targets: NDArray[np.float32]

    def __init__(self, settings: RegularizerSettings) -> None:
        self.settings = settings.model_copy(update={"target": "reference", "contrast": "plain"})
        self.weight = settings.loss_weight

    def prepare(self, encoder: Encoder, mixture: Mixture, folder: Path, cache: Path, on_progress: Progress) -> None:
        """Set `targets` to the relations of all pairs by the base model.

        The relations are loaded from the folder, or computed and stored there.
        """
        self.targets, _ = _load_or_compute_relations(encoder, mixture, self.settings, folder, cache, on_progress)

    def loss(self, anchors: Tensor, positives: Tensor, rows: NDArray[np.int64]) -> Tensor:
        """Compute the mean of 1 − cosine between each pair's relation and its target, a scalar.

        Args:
            anchors: unit vectors, `(b, d)`.
            positives: unit vectors, `(b, d)`.
            rows: indices of the pairs in the mixture, `(b,)`.
        """
        targets = copy_rows(self.targets, rows, anchors.device)
        # Eq. 8 of REZE; relations are [a; p], (b, 2d).
        return (1 - cosine_similarity(torch.cat([anchors, positives], dim=1), targets, dim=1)).mean()

    def summarize(self, mixture: Mixture) -> list[str]:
        """Return one sentence in a list, which says that the targets are the base model's own relations."""
        return ["The target is the reference itself: plain distillation."]


def copy_rows(values: NDArray[np.float32], rows: NDArray[np.int64], device: torch.device) -> Tensor:
    """Copy the rows of an array at these indices to a float32 tensor on the device."""
    return torch.from_numpy(np.ascontiguousarray(values[rows])).to(device)


TARGETS = "targets.npy"
"""Name of the file with the targets."""


class Reze(Distillation):
    """Distillation towards the base model's relations, shrunk in the directions that separate the sources.

    With `target: reference`, the targets are the relations themselves.

    Attributes:
        shrinkage: shrinkage of each source; None if the targets are the relations themselves.
        offsets: offset of each source, `(S, 2d)`, subtracted from the vectors of its pairs before InfoNCE; None to
            subtract nothing.
        sources: index of each pair's source, `(n,)`.
    """

    shrinkage: Shrinkage | None = None
    offsets: NDArray[np.float32] | None = None
    sources: NDArray[np.int64]

    def __init__(self, settings: RegularizerSettings) -> None:
        super().__init__(settings)
        self.settings = settings

    def prepare(self, encoder: Encoder, mixture: Mixture, folder: Path, cache: Path, on_progress: Progress) -> None:
        """Set `targets` to the base model's relations of all pairs, shrunk in directions that separate the sources.

        `shrinkage` and `offsets` are also set. Relations and targets that the folder holds are loaded, others are
        computed and stored there. With `target: reference`, the targets are the relations themselves, and the shrinkage
        is only fitted for the offsets of `contrast: debiased`.
        """
        settings, self.sources = self.settings, mixture.sources
        relations, stored = _load_or_compute_relations(encoder, mixture, settings, folder, cache, on_progress)
        self.targets = relations
        if settings.target == "reference" and settings.contrast == "plain":
            return

        on_progress(1.0, "finding the directions that separate the sources")
        source_moments = compute_source_moments(relations, mixture.sources, len(mixture.names))
        # Fitted also without shrunk targets: the offsets of `contrast: debiased` come from it.
        shrinkage = fit_shrinkage(source_moments, settings)
        self.offsets = shrinkage.offsets() if settings.contrast == "debiased" else None
        if settings.target == "reference":
            return

        path = folder / TARGETS
        targets = _open_rows(path, relations.shape) if stored else None
        if targets is None:
            targets = _write_rows(path, relations.shape, lambda r: shrinkage.apply(relations[r], mixture.sources[r]))
        self.targets, self.shrinkage = targets, shrinkage

    def contrast(self, anchors: Tensor, candidates: Tensor, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Subtract the offset of each pair's source from its anchor and candidates, and scale them to unit length.

        Without `offsets`, both are returned unchanged. Shapes are `(b, d)` and `(b, 1+k, d)`.
        """
        if self.offsets is None:
            return anchors, candidates
        # An offset (2d,) has the layout of a relation [a; p]: the first half is for anchors, the second for positives.
        of_anchors, of_positives = copy_rows(self.offsets, self.sources[rows], anchors.device).chunk(2, dim=1)
        return normalize(anchors - of_anchors, dim=1), normalize(candidates - of_positives[:, None], dim=2)

    def list_source_warnings(self, sources: int) -> list[str]:
        """Return a list with a warning if nothing can be shrunk because there are too few sources, else an empty list.

        Too few are one source, or two sources at scale 1 or above. With `target: reference` the list is empty.
        """
        if self.settings.target == "reference":
            return []
        if sources == 1:
            return ["there is only one source, so no direction separates sources and nothing is shrunk; add sources"]
        if sources == 2 and self.settings.scale >= 1:
            return [
                f"there are two sources: their median is their mean, and at scale {self.settings.scale:g} nothing is "
                "shrunk; add a third source, or set `scale` below 1"
            ]

        return []

    def list_warnings(self, mixture: Mixture, dimensions: int) -> list[str]:
        """Return warnings that there are too few sources to shrink, or too few pairs to estimate the eigenspace.

        Pairs are too few if there are not more pairs than the 2d dimensions of their relations. The list is empty with
        `target: reference`.
        """
        warnings = self.list_source_warnings(len(mixture.names))
        if self.settings.target == "reference":
            return warnings

        if len(mixture) <= 2 * dimensions:
            warnings.append(
                f"{len(mixture):,} pairs span at most {len(mixture) - 1:,} of the {2 * dimensions:,} dimensions of "
                "their relations, too few to estimate the eigenspace well; add pairs"
            )

        return warnings

    def summarize(self, mixture: Mixture) -> list[str]:
        """Return a list with a sentence on active, separating and shrunk dimensions, or on plain distillation."""
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
