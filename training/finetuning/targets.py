"""Targets of the regulariser for each pair's relation: computed once before training, and stored on disk.

TARGETS/
├── manifest.json      encoder, mixture and settings that the targets belong to
├── relations.npy      r, relation of each pair by the reference encoder, `(n, 2d)` float32
├── targets.npy        r̂, likewise; missing if the target is the reference itself
├── shrinkage.safetensors
└── geometry.json      summary of what shrinking changed
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import orjson
import torch
from numpy.typing import NDArray
from safetensors.torch import save

from training.encoder.encoder import Encoder
from training.errors import JobError
from training.finetuning.job import RegularizerSettings
from training.finetuning.mixture import Mixture
from training.finetuning.reference import Reference, blocks, open_rows, source_moments
from training.finetuning.shrinkage import Shrinkage, between_source_variance, fit_shrinkage, merged
from transforms.files import replace_synced
from transforms.progress import Progress
from transforms.statistics import Moments

MANIFEST, RELATIONS, TARGETS, SHRINKAGE = "manifest.json", "relations.npy", "targets.npy", "shrinkage.safetensors"
"""Names of the files."""
GEOMETRY = "geometry.json"
"""Name of the summary's file."""


@dataclass(frozen=True)
class Geometry:
    """Change of the relations by shrinking.

    Attributes:
        between: between-source variance, before and after.
        total: total variance, before and after.
        cosines: cosine of each pair's relation with its target, `(n,)`.
        source_cosines: mean of `cosines` for each source.
    """

    between: tuple[float, float]
    total: tuple[float, float]
    cosines: NDArray[np.float32]
    source_cosines: list[float]


@dataclass(frozen=True)
class Targets:
    """Targets of a mixture's pairs.

    Attributes:
        rows: r̂, or r for plain distillation, `(n, 2d)` float32, a memmap.
        shrinkage: shrinkage of each source; None if the target is the reference itself.
        geometry: change of the relations; None if the target is the reference itself.
        offsets: offset of each source that is subtracted before InfoNCE, `(S, 2d)`; None for none.
    """

    rows: NDArray[np.float32]
    shrinkage: Shrinkage | None = None
    geometry: Geometry | None = None
    offsets: NDArray[np.float32] | None = None


def prepare_targets(
    encoder: Encoder, mixture: Mixture, settings: RegularizerSettings, folder: Path, cache: Path, on_progress: Progress
) -> Targets:
    """Return the targets of a mixture; compute and store those that the folder does not hold yet.

    Stored targets of the same encoder, pairs and settings are reused.

    Args:
        encoder: the model before training.
        mixture: the pairs.
        settings: settings of the regulariser.
        folder: folder for the targets.
        cache: folder for the vectors of single texts.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        JobError: if the folder holds targets of another encoder, other pairs or other settings.
    """
    wanted = manifest(encoder, mixture, settings)
    require_same(folder, wanted)
    relations, kept = stored_relations(encoder, mixture, wanted, folder, cache, on_progress)
    if settings.target == "reference" and settings.contrast == "plain":
        return Targets(relations)
    on_progress(1.0, "finding the directions that separate the sources")
    before = source_moments(relations, mixture.sources, len(mixture.names))
    shrinkage = fit_shrinkage(before, settings)
    offsets = shrinkage.offsets() if settings.contrast == "debiased" else None
    if settings.target == "reference":
        return Targets(relations, offsets=offsets)
    targets = open_rows(folder / TARGETS, relations.shape) if kept else None
    if targets is None:
        write_rows(folder / TARGETS, relations.shape, lambda r: shrinkage.apply(relations[r], mixture.sources[r]))
        targets = written_rows(folder / TARGETS, relations.shape)
        replace_synced(folder / SHRINKAGE, as_safetensors(shrinkage))
    geometry = compare(relations, targets, before, mixture)
    if not (folder / GEOMETRY).is_file():
        replace_synced(folder / GEOMETRY, orjson.dumps(summary(shrinkage, geometry), option=orjson.OPT_INDENT_2))
    return Targets(targets, shrinkage, geometry, offsets)


def stored_relations(
    encoder: Encoder,
    mixture: Mixture,
    wanted: dict[str, object],
    folder: Path,
    cache: Path,
    on_progress: Progress,
) -> tuple[NDArray[np.float32], bool]:
    """Return the relations of a mixture, `(n, 2d)`, as a memmap, and whether they were stored already.

    If not, encode the texts, delete stale targets, and write relations and manifest to the folder.
    """
    shape = (len(mixture), 2 * encoder.dimensions)
    known = (folder / MANIFEST).is_file()  # written last: without it, rows may be of anything
    if known and (relations := open_rows(folder / RELATIONS, shape)) is not None:
        return relations, True
    reference = Reference(encoder, cache)
    reference.encode([*mixture.anchors, *mixture.positives], on_progress)
    folder.mkdir(parents=True, exist_ok=True)
    for stale in (TARGETS, SHRINKAGE, GEOMETRY):
        (folder / stale).unlink(missing_ok=True)
    write_rows(folder / RELATIONS, shape, lambda rows: reference.relations(mixture, rows))
    replace_synced(folder / MANIFEST, orjson.dumps(wanted, option=orjson.OPT_INDENT_2))
    return written_rows(folder / RELATIONS, shape), False


def summary(shrinkage: Shrinkage, geometry: Geometry) -> dict[str, float | int]:
    """Return dimensions, variances and mean cosine of the shrinkage as a JSON-serializable dict."""
    return {
        "dimensions": len(shrinkage.eigenvalues),
        "active": shrinkage.active,
        "changed": len(shrinkage.changed),
        "clipped": shrinkage.clipped,
        "dispersion_threshold": shrinkage.dispersion_threshold,
        "between_before": geometry.between[0],
        "between_after": geometry.between[1],
        "total_before": geometry.total[0],
        "total_after": geometry.total[1],
        "mean_cosine": float(geometry.cosines.mean()),
    }


def manifest(encoder: Encoder, mixture: Mixture, settings: RegularizerSettings) -> dict[str, object]:
    """Return encoder, pairs and settings that targets depend on as a JSON-serializable dict."""
    return {
        "encoder": encoder.fingerprint,
        "dimensions": encoder.dimensions,
        "max_length": encoder.max_length,
        "pairs": len(mixture),
        "mixture": mixture.digest_of_pairs(),
        "sources": mixture.names,
        "regularizer": settings.model_dump(exclude={"loss_weight"}, exclude_defaults=True),
    }


def require_same(folder: Path, wanted: dict[str, object]) -> None:
    """Raise `JobError` if the folder's manifest is damaged or of another encoder, other pairs or other settings."""
    path = folder / MANIFEST
    if not path.is_file():
        return
    try:
        found = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise JobError(f"{path} is damaged: {error}; remove the folder to begin anew") from error
    reasons = {
        "max_length": "the targets were made with another max_length",
        "encoder": "the base model changed since its targets were made",
        "mixture": "the pairs changed since their targets were made",
        "regularizer": "the targets were made with other settings of the regulariser",
    }
    for key, reason in reasons.items():
        if found.get(key) != wanted[key]:
            raise JobError(f"{reason}: {folder} belongs to another run. Name another folder with --out, or remove it")


def write_rows(path: Path, shape: tuple[int, ...], rows_of: Callable[[slice], NDArray[np.float32]]) -> None:
    """Write float32 rows to a .npy file, block by block, in one step: a killed run leaves no half-written file.

    Bytes are written instead of a memmap, because a full disk then raises an error instead of killing the process.

    Args:
        path: the file.
        shape: shape of all rows.
        rows_of: returns the rows of a slice.
    """
    written = path.with_name(f".{path.name}")
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)), "fortran_order": False, "shape": shape}
    with written.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for rows in blocks(shape[0]):
            file.write(np.ascontiguousarray(rows_of(rows), np.float32).tobytes())
        file.flush()
        os.fsync(file.fileno())
    written.replace(path)


def written_rows(path: Path, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Open rows that were just written as a read-only memmap."""
    rows = open_rows(path, shape)
    assert rows is not None
    return rows


def compare(
    relations: NDArray[np.float32], targets: NDArray[np.float32], before: list[Moments], mixture: Mixture
) -> Geometry:
    """Compare relations with their targets: variances before and after, and cosines.

    Args:
        relations: r, `(n, 2d)`.
        targets: r̂, `(n, 2d)`.
        before: moments of each source's relations.
        mixture: gives each pair's source.
    """
    after = source_moments(targets, mixture.sources, len(mixture.names))
    cosines = np.concatenate([row_cosines(relations[rows], targets[rows]) for rows in blocks(len(mixture))])
    sums = np.bincount(mixture.sources, weights=cosines, minlength=len(mixture.names))
    counts = np.bincount(mixture.sources, minlength=len(mixture.names))
    return Geometry(
        between=(between_source_variance(before), between_source_variance(after)),
        total=(total_variance(before), total_variance(after)),
        cosines=cosines,
        source_cosines=(sums / counts).tolist(),
    )


def total_variance(sources: list[Moments]) -> float:
    """Return the total variance of all sources' relations, the mean squared distance from their mean."""
    pooled = merged(sources)
    return float(np.trace(pooled.scatter) / pooled.count)


def row_cosines(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the cosine of each row of `a` with the same row of `b`, `(n,)` float32."""
    return np.asarray(np.vecdot(a, b) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)), np.float32)


def as_safetensors(shrinkage: Shrinkage) -> bytes:
    """Serialize every field of the shrinkage as a tensor in safetensors format, for inspection."""
    values = {field.name: np.asarray(getattr(shrinkage, field.name)) for field in fields(shrinkage)}
    return save({name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in values.items()})
