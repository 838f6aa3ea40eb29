"""Relations of a mixture's pairs by the base model: computed once before training, and stored on disk.

FOLDER/
├── manifest.json      encoder, mixture and settings that everything in the folder belongs to
└── relations.npy      r, relation of each pair, `(n, 2d)` float32
"""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from lathe.training.encoder.encoder import Encoder
from lathe.training.errors import JobError
from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.reference import ReferenceVectors
from lathe.training.finetuning.regularizers.settings import RegularizerSettings
from lathe.training.finetuning.regularizers.shrinkage import blocks
from lathe.transforms.files import replace_synced
from lathe.transforms.npy import open_npy
from lathe.transforms.progress import Progress

MANIFEST, RELATIONS = "manifest.json", "relations.npy"
"""Names of the files."""


def load_or_compute_relations(
    encoder: Encoder, mixture: Mixture, settings: RegularizerSettings, folder: Path, cache: Path, on_progress: Progress
) -> tuple[NDArray[np.float32], bool]:
    """Load the relations of a mixture's pairs from a folder, or compute and store them there.
    Return them as a memmap `(n, 2d)`, and whether they were loaded.

    If it did not, the folder is emptied, the texts are encoded, and relations and manifest are written. The
    relation of a pair is its anchor's and its positive's vector, concatenated.

    Args:
        encoder: the model before training.
        mixture: the pairs.
        settings: settings of the regularizer.
        folder: folder for the relations and all that is derived from them.
        cache: folder for the vectors of single texts.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        JobError: if the folder is of another encoder, other pairs or other settings.
    """
    depends = _build_manifest(encoder, mixture, settings)
    _require_same_manifest(folder, depends)
    shape = (len(mixture), 2 * encoder.dimensions)
    known = (folder / MANIFEST).is_file()  # written last: without it, rows may be of anything
    if known and (relations := open_rows(folder / RELATIONS, shape)) is not None:
        return relations, True

    reference = ReferenceVectors(encoder, cache)
    reference.encode([*mixture.anchors, *mixture.positives], on_progress)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    relations = write_rows(folder / RELATIONS, shape, lambda rows: reference.relations(mixture, rows))
    # Last: a killed run leaves relations without a manifest, which are computed again.
    replace_synced(folder / MANIFEST, orjson.dumps(depends, option=orjson.OPT_INDENT_2))

    return relations, False


def _build_manifest(encoder: Encoder, mixture: Mixture, settings: RegularizerSettings) -> dict[str, object]:
    """Build a JSON-serializable dict of all that the targets depend on.
    It has the encoder, a digest of the pairs, and the regularizer's settings without the loss weight.
    """
    return {
        "encoder": encoder.fingerprint,
        "dimensions": encoder.dimensions,
        "max_length": encoder.max_length,
        "pairs": len(mixture),
        "mixture": mixture.digest_pairs(),
        "sources": mixture.names,
        "regularizer": settings.model_dump(exclude={"loss_weight"}, exclude_defaults=True),
    }


def _require_same_manifest(folder: Path, depends: dict[str, object]) -> None:
    """Raise `JobError` if the folder's manifest is damaged or differs from `depends` in encoder, pairs or settings.
    A folder without a manifest is accepted.

    Raises:
        JobError: if it is not, or is damaged.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return

    try:
        stored = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise JobError(f"{path} is damaged: {error}; remove the folder to begin anew") from error

    if not isinstance(stored, dict):
        raise JobError(f"{path} is damaged: it holds no JSON object; remove the folder to begin anew")

    reasons = {
        "max_length": "the targets were made with another max_length",
        "encoder": "the base model changed since its targets were made",
        "mixture": "the pairs changed since their targets were made",
        "regularizer": "the targets were made with other settings of the regulariser",
    }
    for key, reason in reasons.items():
        if stored.get(key) != depends[key]:
            raise JobError(f"{reason}: {folder} belongs to another run. Name another folder with --out, or remove it")


def write_rows(
    path: Path, shape: tuple[int, ...], rows_of: Callable[[slice], NDArray[np.float32]]
) -> NDArray[np.float32]:
    """Write float32 rows to a .npy file block by block, and return the file as a read-only memmap.

    The file appears in one step, so a killed run leaves no half-written file.

    Bytes are written instead of a memmap, because a full disk then raises an error instead of killing the process.

    Args:
        path: the file.
        shape: shape of all rows.
        rows_of: returns the rows of a slice.
    """
    partial = path.with_name(f".{path.name}")
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)), "fortran_order": False, "shape": shape}
    with partial.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks(shape[0]):
            file.write(np.ascontiguousarray(rows_of(block), np.float32).tobytes())
        file.flush()
        os.fsync(file.fileno())

    partial.replace(path)
    rows = open_rows(path, shape)
    assert rows is not None

    return rows


def open_rows(path: Path, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
    """Open a .npy file as a read-only memmap. Return None if it is missing, damaged, or not float32 of this shape."""
    with suppress(OSError, ValueError):
        rows = open_npy(path)
        if rows.shape == shape and rows.dtype == np.float32:
            return rows
    return None
