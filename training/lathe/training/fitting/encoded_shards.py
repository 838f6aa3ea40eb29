"""Encoding of single shards to vectors on disk. A shard has a folder of its own, and is resumed after a kill.

folder/<key of the shard>/
├── vectors.f32     (kept, d) float32, without blank texts
├── hashes.u64      (kept,) hash of each text or vector
└── position.json   progress, see `Position`
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
from filelock import Timeout
from numpy.typing import NDArray

from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import EngineError, FitError, NotFiniteError, SourceError
from lathe.training.locks import lock_file
from lathe.training.sources.rows import RowBatch
from lathe.training.sources.shards import BATCH_ROWS, Shard, open_local_copy, read_shards
from lathe.training.workspace import digest
from lathe.transforms.files import continue_file, create_file, make_folder, read_json_file

VECTORS, HASHES, POSITION = "vectors.f32", "hashes.u64", "position.json"
"""File names in a shard's folder."""

LOCK_SECONDS = 180.0
"""Seconds to wait for the lock of a shard, longer than NFS keeps the lock of a lost node."""


@dataclass(frozen=True)
class Position:
    """Progress of encoding a shard.

    Attributes:
        rows: number of rows read from the source.
        kept: number of vectors written, which excludes blank texts.
        width: number of dimensions of the vectors; 0 before the first vector.
    """

    rows: int = 0
    kept: int = 0
    width: int = 0

    @property
    def sizes(self) -> dict[str, int]:
        """Minimum number of bytes of the shard's files, by file name."""
        return {VECTORS: self.kept * self.width * 4, HASHES: self.kept * 8}


def shard_folder(root: Path, shard: Shard, field: str, encoder: TextEncoder | None) -> Path:
    """Return the path of the folder for a shard's vectors. The folder is not created.

    Its name is a digest of file, field, rows, dimensions and encoder.
    """
    of = encoder.vectors_key if encoder else None
    return root / digest(shard.key, field, shard.start, shard.stop, shard.width, of)[:32]


def read_position(folder: Path) -> Position:
    """Read the position of a shard's encoding from its folder, or return `Position()` if a file is missing or short."""
    try:
        position = Position(**read_json_file(folder / POSITION))
        if all((folder / name).stat().st_size >= size for name, size in position.sizes.items()):
            return position
    except (OSError, ValueError, TypeError):
        pass
    return Position()


def encode_shard(shard: Shard, field: str, encoder: TextEncoder | None, folder: Path) -> Position:
    """Encode one shard of a source into files, or resume, and return the position. A finished shard is not read again.

    An encoding is resumed after the last complete batch.

    Args:
        shard: a shard of the source's plan.
        field: the source's field.
        encoder: needed for texts; None for vectors without an encoder.
        folder: the shard's folder, see `shard_folder`. A remote file is downloaded into it temporarily.

    Raises:
        SourceError: if the file cannot be read, or has fewer rows than planned.
        FitError: if the vectors do not have the encoder's dimensions.
        EngineError: if another process holds the shard's lock for `LOCK_SECONDS`.
    """
    position = read_position(folder)
    if position.rows == shard.rows:
        return position
    with open_local_copy(shard.file, folder) as file:
        return write_shard(shard, read_shards(file, shard, shard, field), encoder, folder, lambda _rows: None)


def write_shard(
    shard: Shard, batches: Iterator[RowBatch], encoder: TextEncoder | None, folder: Path, on_rows: Callable[[int], None]
) -> Position:
    """Lock a shard's folder, encode the batches missing in its files, and return the position. A held lock raises.

    The shard's batches are consumed from the iterator. A batch is written before the next batch is read.

    Args:
        shard: a shard of the source's plan.
        batches: batches of the shard's file from the shard's first row on.
        encoder: needed for texts; None for vectors without an encoder.
        folder: the shard's folder; created if missing.
        on_rows: called with the number of rows of the shard that are done.

    Raises:
        SourceError: if the batches end before the shard does.
        FitError: if the vectors do not have the encoder's dimensions.
        EngineError: if another process holds the shard's lock for `LOCK_SECONDS`.
    """
    make_folder(folder)
    try:
        with lock_file(folder / ".lock", LOCK_SECONDS):
            return _write_locked(shard, batches, encoder, folder, on_rows)
    except Timeout:
        name = f"rows {shard.start:,} to {shard.stop:,} of {shard.file.rpartition('/')[2]}"
        raise EngineError(f"another process has been encoding {name} for {LOCK_SECONDS:.0f} s; end it first") from None


def _write_locked(
    shard: Shard, batches: Iterator[RowBatch], encoder: TextEncoder | None, folder: Path, on_rows: Callable[[int], None]
) -> Position:
    """Encode a shard's batches after the stored position, append them, and return the position. An early end raises.

    The files are first truncated to the stored position. The position is saved after every batch. The caller must hold
    the folder's lock.

    Raises:
        SourceError: if the batches end before the shard does.
        FitError: if the vectors do not have the encoder's dimensions.
    """
    position, seen = _truncate_to_position(folder), 0
    with (
        continue_file(folder / VECTORS, append=True) as vectors_file,
        continue_file(folder / HASHES, append=True) as hashes_file,
    ):
        for batch in islice(batches, -(-shard.rows // BATCH_ROWS)):
            before, seen = seen, seen + len(batch)
            if seen <= position.rows:
                continue

            def report(done: int, before: int = before) -> None:
                on_rows(before + done)

            try:
                vectors, hashes = _encode_batch(batch, encoder, report)
            except NotFiniteError as error:
                # The error's position counts the encoded texts, which are the texts that are not blank.
                not_blank = [row for row, text in enumerate(batch.values) if text.strip()]
                row = shard.start + before + not_blank[error.position or 0]
                raise error.at(f"row {row + 1:,} of {shard.file.rpartition('/')[2]}") from None

            # Data are flushed before the position is saved: after a kill, the files may only have too much data.
            for file, array in ((vectors_file, vectors), (hashes_file, hashes)):
                file.write(array.tobytes())
                file.flush()
            width = vectors.shape[1] if len(vectors) else position.width
            position = replace(position, rows=seen, kept=position.kept + len(vectors), width=width)
            _save_position(folder, position)
            on_rows(seen)
    if seen != shard.rows:
        name = shard.file.rpartition("/")[2]
        raise SourceError(f"{name} ended early: it had {shard.stop:,} rows or more, and now has {shard.start + seen:,}")
    return position


def _truncate_to_position(folder: Path) -> Position:
    """Truncate a shard's files to the stored position, or empty them without a position, and return the position."""
    position = read_position(folder)
    for name, size in position.sizes.items():
        with continue_file(folder / name) as file:
            file.truncate(size)
    _save_position(folder, position)
    return position


def _save_position(folder: Path, position: Position) -> None:
    staging = folder / f".{POSITION}"
    with create_file(staging) as file:  # not synced: after a power failure, the shard may be encoded again
        file.write(json.dumps(asdict(position)).encode())
    staging.replace(folder / POSITION)


def _encode_batch(
    batch: RowBatch, encoder: TextEncoder | None, on_batch: Callable[[int], None]
) -> tuple[NDArray[np.float32], NDArray[np.uint64]]:
    """Encode a batch without blank texts, and return vectors `(n, d)` and a hash of each row. Other dimensions raise.

    Vectors in a batch are returned unchanged. Texts without an encoder give vectors `(0, 0)`.

    Raises:
        FitError: if the vectors do not have the encoder's dimensions.
    """
    if isinstance(batch.values, list):
        texts = [text for text in batch.values if text.strip()]
        vectors = encoder.encode(texts, on_batch=on_batch).vectors if encoder else np.empty((0, 0), np.float32)
        row_bytes = [text.encode() for text in texts]
    else:
        vectors = np.ascontiguousarray(batch.values, dtype=np.float32)
        row_bytes = [row.tobytes() for row in vectors]
    if encoder is not None:
        check_encoder_dimensions(vectors.shape[1], encoder)
    return vectors, np.array([hash_row(payload) for payload in row_bytes], dtype=np.uint64)


def check_encoder_dimensions(dimensions: int, encoder: TextEncoder) -> None:
    """Raise `FitError` if vectors of the source do not have as many dimensions as the encoder's vectors."""
    if dimensions != encoder.dimensions:
        raise FitError(f"the vectors have {dimensions} dimensions, and {encoder.name} has {encoder.dimensions}")


def hash_row(payload: bytes) -> int:
    """Hash a row's bytes to 64 bits, by BLAKE2b with a digest of 8 bytes."""
    return int.from_bytes(hashlib.blake2b(payload, digest_size=8).digest(), "little")
