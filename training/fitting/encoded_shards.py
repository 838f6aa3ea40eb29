"""A shard as vectors on disk, in a folder of its own, taken up again where a killed run stopped.

folder/<shard's key>/
├── vectors.f32     (kept, width) float32, blank texts left out
├── hashes.u64      (kept,) of each text or vector
└── position.json   how far it has got, see `Position`
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

from training.digests import digest
from training.encoder.encoder import Encoder
from training.errors import EngineError, FitError, SourceError
from training.locks import lock_file
from training.sources.kinds import Batch
from training.sources.shards import BATCH_ROWS, Shard, at_hand, read_shards
from transforms.files import continue_file, create_file, make_folder

VECTORS, HASHES, POSITION = "vectors.f32", "hashes.u64", "position.json"

LOCK_SECONDS = 180.0
"""How long a shard waits for a process that had it and is about to die: longer than NFS keeps a lost node's lock."""


@dataclass(frozen=True)
class Position:
    """How far the encoding of a shard has got.

    Attributes:
        rows: read from the source.
        kept: of those, written as vectors.
        width: of the vectors.
    """

    rows: int = 0
    kept: int = 0
    width: int = 0

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes that belong in each file."""
        return {VECTORS: self.kept * self.width * 4, HASHES: self.kept * 8}


def shard_folder(root: Path, shard: Shard, field: str, encoder: Encoder | None) -> Path:
    """Where the vectors of a shard go: other bytes, rows, fields and encoders have other folders."""
    of = encoder.fingerprint if encoder else None
    return root / digest(shard.key, field, shard.start, shard.stop, shard.width, of)[:32]


def position_in(folder: Path) -> Position:
    """How far an earlier run got; at the start if there was none, or its files lost bytes."""
    try:
        position = Position(**json.loads((folder / POSITION).read_bytes()))
        if all((folder / name).stat().st_size >= size for name, size in position.sizes.items()):
            return position
    except (OSError, ValueError, TypeError):
        pass
    return Position()


def encode_shard(
    shard: Shard, field: str, encoder: Encoder | None, folder: Path, on_rows: Callable[[int], None] = lambda rows: None
) -> Position:
    """Encode one shard alone; a finished one is not read again.

    Args:
        shard: of a source's plan.
        field: of the source.
        encoder: needed for texts.
        folder: the shard's own, see `shard_folder`; a file that is elsewhere is fetched into it meanwhile.
        on_rows: told how many rows of the shard are done.

    Raises:
        SourceError: if it cannot be read, or ends before it should.
        FitError: for vectors of another width than the encoder's.
        EngineError: if another process encodes it and does not end.
    """
    position = position_in(folder)
    if position.rows == shard.rows:
        return position
    with at_hand(shard.file, folder) as file:
        return write_shard(shard, read_shards(file, shard, shard, field), encoder, folder, on_rows)


def write_shard(
    shard: Shard, batches: Iterator[Batch], encoder: Encoder | None, folder: Path, on_rows: Callable[[int], None]
) -> Position:
    """Encode a shard from its batches, which are taken from the iterator; see `encode_shard`.

    Every batch is written out before the next starts; batches that an earlier run wrote are passed over.
    """
    make_folder(folder)
    try:
        with lock_file(folder / ".lock", LOCK_SECONDS):
            return write_locked(shard, batches, encoder, folder, on_rows)
    except Timeout:
        name = f"rows {shard.start:,} to {shard.stop:,} of {shard.file.rpartition('/')[2]}"
        raise EngineError(f"another process has been encoding {name} for {LOCK_SECONDS:.0f} s; end it first") from None


def write_locked(
    shard: Shard, batches: Iterator[Batch], encoder: Encoder | None, folder: Path, on_rows: Callable[[int], None]
) -> Position:
    """The same, where nobody else writes to the folder."""
    position, seen = take_up(folder), 0
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

            vectors, hashes = vectors_of(batch, encoder, report)
            for file, array in ((vectors_file, vectors), (hashes_file, hashes)):
                file.write(array.tobytes())
                file.flush()
            width = vectors.shape[1] if len(vectors) else position.width
            position = replace(position, rows=seen, kept=position.kept + len(vectors), width=width)
            save_position(folder, position)
            on_rows(seen)
    if seen != shard.rows:
        name = shard.file.rpartition("/")[2]
        raise SourceError(f"{name} ended early: it held {shard.stop:,} rows or more, and then {shard.start + seen:,}")
    return position


def take_up(folder: Path) -> Position:
    """How far an earlier run got; files are cut to the last whole batch, or emptied."""
    position = position_in(folder)
    for name, size in position.sizes.items():
        with continue_file(folder / name) as file:
            file.truncate(size)
    save_position(folder, position)
    return position


def save_position(folder: Path, position: Position) -> None:
    """Replace the position's file, whole or not at all."""
    staging = folder / f".{POSITION}"
    with create_file(staging) as file:  # not synced: after a power cut the shard is read again
        file.write(json.dumps(asdict(position)).encode())
    staging.replace(folder / POSITION)


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
    if encoder is not None:
        require_width(vectors.shape[1], encoder)
    return vectors, np.array([row_hash(payload) for payload in payloads], dtype=np.uint64)


def require_width(width: int, encoder: Encoder) -> None:
    """Raise `FitError` unless vectors are as wide as the encoder's."""
    if width != encoder.dimensions:
        raise FitError(f"the vectors are {width} wide, those of {encoder.name} are {encoder.dimensions}")


def row_hash(payload: bytes) -> int:
    """64 bits of a BLAKE2b digest."""
    return int.from_bytes(hashlib.blake2b(payload, digest_size=8).digest(), "little")
