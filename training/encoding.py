"""A source as vectors on disk, encoded once and taken up again where a killed run stopped."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.encoders import Encoder
from training.errors import FitError, SourceError
from training.sources import Batch, Source
from transforms.arrays import FloatArray
from transforms.transform import Progress

HASHED_BYTES = 64_000_000
VECTORS, HASHES, POSITION = "vectors.f32", "hashes.u64", "position.json"


@dataclass(frozen=True)
class EncodedSource:
    """A source's rows as vectors.

    Attributes:
        vectors: `(n, d)` float32 memmap, in the source's order, blank texts left out.
        hashes: `(n,)` a 64-bit hash of each text or vector; equal rows have equal hashes.
        blank: rows left out because they held nothing.
    """

    vectors: FloatArray
    hashes: NDArray[np.uint64]
    blank: int

    @property
    def digest(self) -> str:
        """SHA-256 over the rows' hashes: what was fitted on, without the texts."""
        return hashlib.sha256(np.ascontiguousarray(self.hashes).data).hexdigest()


@dataclass(frozen=True)
class Position:
    """How far the encoding of a source has got.

    Attributes:
        key: what source, by what encoder.
        rows: read from the source.
        kept: of those, written as vectors.
        width: of the vectors.
    """

    key: str
    rows: int = 0
    kept: int = 0
    width: int = 0

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes that belong in each file."""
        return {VECTORS: self.kept * self.width * 4, HASHES: self.kept * 8}


def encode_source(source: Source, encoder: Encoder | None, folder: Path, on_progress: Progress) -> EncodedSource:
    """Encode a source's texts, or copy its vectors, into memmaps in `folder`.

    Memory is one batch. Every batch is written out before the next starts; a later call with the
    same source and encoder goes on after the last whole batch.

    Args:
        source: texts or vectors.
        encoder: needed for texts; for vectors it says whose they are.
        folder: where the files go; made if missing.
        on_progress: told rows done, rate and time left.

    Raises:
        SourceError: if the source is empty, cannot be read, or ends before it should.
        FitError: for texts without an encoder, vectors of another width than the encoder's, or, at
            the first rows, a disk that cannot hold them all.
    """
    if source.kind() == "texts" and encoder is None:
        raise FitError("texts need an encoder to become vectors")
    total = source.count()
    position = take_up(folder, source_key(source, encoder))
    begun, rows_before = time.monotonic(), position.rows
    seen = 0
    with (folder / VECTORS).open("ab") as vectors_file, (folder / HASHES).open("ab") as hashes_file:
        for batch in source.batches():
            seen += len(batch)
            if seen <= position.rows:
                continue

            def report(done: int, before: int = seen - len(batch)) -> None:
                rows = before + done
                on_progress(min(rows / total, 1.0), pace(rows, total, rows - rows_before, time.monotonic() - begun))

            vectors, hashes = vectors_of(batch, encoder, report)
            if position.rows == rows_before:
                require_space(folder, total - position.rows, vectors.shape[1])
            for file, array in ((vectors_file, vectors), (hashes_file, hashes)):
                file.write(array.tobytes())
                file.flush()
            width = vectors.shape[1] if len(vectors) else position.width
            position = replace(position, rows=seen, kept=position.kept + len(vectors), width=width)
            save_position(folder, position)
            report(len(batch))
    if seen < total:
        raise SourceError(f"the source {source.written!r} ended early: it held {total:,} rows, and then {seen:,}")
    if position.kept == 0:
        raise SourceError(f"the source {source.written!r} holds nothing but blank texts")
    return EncodedSource(
        vectors=np.memmap(folder / VECTORS, np.float32, "r", shape=(position.kept, position.width)),
        hashes=np.memmap(folder / HASHES, np.uint64, "r", shape=(position.kept,)),
        blank=position.rows - position.kept,
    )


def require_space(folder: Path, rows: int, width: int) -> None:
    """Raise `FitError` if the disk has no room for so many rows: better now than hours later."""
    needed, free = rows * (width * 4 + 8), shutil.disk_usage(folder).free
    if needed > free:
        raise FitError(
            f"{rows:,} vectors {width} wide take {needed / 1e9:.1f} GB, the disk has {free / 1e9:.1f} GB left"
        )


def vectors_of(
    batch: Batch, encoder: Encoder | None, on_batch: Callable[[int], None]
) -> tuple[NDArray[np.float32], NDArray[np.uint64]]:
    """The vectors of a batch `(n, d)` and the hashes of its rows `(n,)`, blank texts left out.

    Raises:
        FitError: for vectors of another width than the encoder's.
    """
    if isinstance(batch.values, list):
        texts = [text for text in batch.values if text.strip()]
        vectors = encoder.encode(texts, on_batch=on_batch).vectors if encoder else np.empty((0, 0), np.float32)
        payloads = [text.encode() for text in texts]
    else:
        vectors = np.ascontiguousarray(batch.values, dtype=np.float32)
        payloads = [row.tobytes() for row in vectors]
    if encoder is not None and vectors.shape[1] != encoder.dimensions:
        raise FitError(f"the vectors are {vectors.shape[1]} wide, those of {encoder.name} are {encoder.dimensions}")
    return vectors, np.array([row_hash(payload) for payload in payloads], dtype=np.uint64)


def row_hash(payload: bytes) -> int:
    """64 bits of a BLAKE2b digest."""
    return int.from_bytes(hashlib.blake2b(payload, digest_size=8).digest(), "little")


def source_key(source: Source, encoder: Encoder | None) -> str:
    """What must be the same for a stopped run to be taken up: files, field, encoder."""
    files = [file_key(path) for path in source.files]
    parts = [source.name, source.field, files, encoder.fingerprint if encoder else None]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def file_key(path: Path) -> list[str | int]:
    """What tells a file from another; by content if it is small, so that the same texts sent again are known."""
    found = path.stat()
    if found.st_size <= HASHED_BYTES:
        with path.open("rb") as file:
            return [path.name, hashlib.file_digest(file, "sha256").hexdigest()]
    return [str(path.absolute()), found.st_size, found.st_mtime_ns]


def take_up(folder: Path, key: str) -> Position:
    """How far an earlier run got; files are cut to the last whole batch, or emptied."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        position = Position(**json.loads((folder / POSITION).read_bytes()))
        whole = all((folder / name).stat().st_size >= size for name, size in position.sizes.items())
    except (OSError, ValueError, TypeError):
        position, whole = Position(key), False
    if not whole or position.key != key:
        position = Position(key)
    for name, size in position.sizes.items():
        (folder / name).touch()
        os.truncate(folder / name, size)
    save_position(folder, position)
    return position


def save_position(folder: Path, position: Position) -> None:
    """Replace the position's file, whole or not at all."""
    staging = folder / f".{POSITION}"
    staging.write_text(json.dumps(asdict(position)))
    staging.replace(folder / POSITION)


def pace(seen: int, total: int, done: int, seconds: float) -> str:
    """Rows, rate and time left as a sentence."""
    rate = done / seconds if seconds > 0 else 0.0
    left = f", {(total - seen) / rate:.0f} s left" if rate > 0 and seen < total else ""
    return f"{seen:,} of {total:,} rows encoded, {rate:,.0f} a second{left}"
