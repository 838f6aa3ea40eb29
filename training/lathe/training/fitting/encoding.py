"""Encoding of a source to vectors on disk, shard by shard. An encoding that was killed is resumed.

An engine encodes shards and provides rows to fit on, in this process or by workers on other machines.
"""

import hashlib
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import dropwhile, groupby
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import FitError, SourceError
from lathe.training.fitting.encoded_shards import (
    HASHES,
    VECTORS,
    Position,
    check_encoder_dimensions,
    read_position,
    shard_folder,
    write_shard,
)
from lathe.training.fitting.stacked import SelectedRows, StackedVectors, VectorFile
from lathe.training.sources.shards import Shard, display_path, open_local_copy, read_shards
from lathe.training.sources.source import Plan, Source
from lathe.transforms.files import make_root
from lathe.transforms.progress import Progress
from lathe.transforms.vectors import Vectors


class EncodingRun:
    """The shards to encode in one run, with the encoder and a folder for each shard.

    Args:
        source: the source of the plan.
        plan: the shards to encode.
        encoder: encoder of the texts; None for vectors without an encoder.
        root: folder for the shards' folders.

    Attributes:
        folders: folder of each shard.
        total: number of rows of all shards.
    """

    def __init__(self, source: Source, plan: Plan, encoder: TextEncoder | None, root: Path) -> None:
        self.source, self.plan, self.encoder, self.root = source, plan, encoder, root
        self.folders = {shard: shard_folder(root, shard, source.field, encoder) for shard in plan.shards}
        self.total = sum(shard.rows for shard in plan.shards)

    @property
    def positions(self) -> dict[Shard, Position]:
        """Progress of encoding each shard, read from the shards' folders at every access."""
        return {shard: read_position(folder) for shard, folder in self.folders.items()}


Report = Callable[[Shard, int], None]
"""Function that is called with a shard and the number of rows of the shard that are done."""


class FitEngine(Protocol):
    """Interface of an engine that encodes shards and provides the encoded rows to fit a chain of transforms on."""

    def encode(self, run: EncodingRun, positions: Mapping[Shard, Position], report: Report) -> dict[str, str]:
        """Encode the unfinished shards of a run into their folders, and return the reasons why files are damaged.

        The reasons are by file name. A damaged file is an error unless the source skips damaged files.

        Args:
            run: the shards, their folders and the encoder.
            positions: position of each shard at the start.
            report: called with a shard and the number of its rows that are done.

        Raises:
            SourceError: for a damaged file, unless the source skips damaged files.
            FitError: if the vectors do not have the encoder's dimensions.
            EngineError: if the workers cannot do the work.
        """

    def select_rows(self, vectors: Vectors, chosen: NDArray[np.int64]) -> Vectors:
        """Return a lazy view of the encoded rows at the ascending indices `chosen`, to fit a chain on."""


class _LocalEngine:
    """Engine that encodes in this process. A file is read once, from the first unfinished shard on."""

    def encode(self, run: EncodingRun, positions: Mapping[Shard, Position], report: Report) -> dict[str, str]:
        damaged: dict[str, str] = {}
        for file, shards in groupby(run.plan.shards, lambda shard: shard.file):
            # The file is read in one pass from the first unfinished shard on; later finished shards are skipped.
            unfinished = list(dropwhile(lambda shard: positions[shard].rows == shard.rows, shards))
            if not unfinished:
                continue
            try:
                with open_local_copy(file, run.root) as path:
                    batches = read_shards(path, unfinished[0], unfinished[-1], run.source.field)
                    for shard in unfinished:
                        write_shard(shard, batches, run.encoder, run.folders[shard], partial(report, shard))
            except SourceError as error:
                run.source.record_or_raise(file, error, damaged)
        return damaged

    def select_rows(self, vectors: Vectors, chosen: NDArray[np.int64]) -> Vectors:
        return SelectedRows(vectors, chosen)


LOCAL = _LocalEngine()
"""Default engine. It has no state."""


@dataclass(frozen=True)
class EncodedSource:
    """Vectors of the rows of a source.

    Attributes:
        vectors: vectors `(n, d)` float32 on disk, in the source's order, without blank texts.
        hashes: 64-bit hash of each text or vector `(n,)`. Equal rows have equal hashes.
        blank: number of blank texts that were left out.
        left_out: reasons why damaged files were left out, by file name.
        empty: names of files without rows.
    """

    vectors: Vectors
    hashes: NDArray[np.uint64]
    blank: int
    left_out: Mapping[str, str] = field(default_factory=dict)
    empty: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of the hashes of all rows, in hexadecimal. Texts cannot be recovered from it."""
        return hashlib.sha256(np.ascontiguousarray(self.hashes).data).hexdigest()


def encode_source(
    source: Source,
    encoder: TextEncoder | None,
    folder: Path,
    on_progress: Progress,
    engine: FitEngine = LOCAL,
    free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
) -> EncodedSource:
    """Encode a source's texts, or copy its vectors, into files in `folder`, resuming earlier runs. A full disk raises.

    The result has the memory-mapped vectors. Unfinished shards are resumed after the last complete batch. Finished
    shards of unchanged files are reused, even if other files were added, changed or removed. If a file is damaged and
    the source skips damaged files, the source is encoded without that file. Memory holds one batch.

    Args:
        source: source of texts or vectors, with the setting whether damaged files are skipped.
        encoder: needed for texts; for vectors, the encoder of the vectors, or None.
        folder: folder for the shards' folders; created if missing.
        on_progress: called with progress in [0, 1] and a message with rows done, rate and time left.
        engine: encodes the shards.
        free_bytes: returns the free bytes on the disk of a folder.

    Raises:
        SourceError: if the source is empty, cannot be read, or a file has fewer rows than planned.
        FitError: for texts without an encoder, vectors without the encoder's dimensions, or a disk without enough space
            for all vectors.
        EngineError: if the engine's workers cannot do the work.
    """
    if source.detect_kind() is None and encoder is None:
        raise FitError(f"the source {display_path(source.written)!r} holds texts: name an encoder for them")
    damaged: dict[str, str] = {}
    while True:
        run = EncodingRun(source, source.plan(damaged), encoder, folder)
        if not (newly_damaged := _encode_run(run, engine, on_progress, free_bytes)):
            return _open_encoded_source(run)
        damaged |= newly_damaged  # planned again, because other files may have been compared with the damaged file


def _encode_run(
    run: EncodingRun, engine: FitEngine, on_progress: Progress, free_bytes: Callable[[Path], int]
) -> dict[str, str]:
    """Encode a run's unfinished shards, and return reasons of damaged files, {} if none. Too little disk space raises.

    Returns the reasons why files are damaged, by file name. A damaged file is an error unless the source skips damaged
    files.

    Raises:
        FitError: if the vectors do not have the encoder's dimensions, or the disk has too little space for all vectors.
        SourceError: for a damaged file, unless the source skips damaged files.
        EngineError: if the engine's workers cannot do the work.
    """
    make_root(run.root)
    positions = run.positions
    rows = {shard: position.rows for shard, position in positions.items()}
    begun, rows_before = time.monotonic(), sum(rows.values())
    source_width = run.plan.shards[0].width
    width = source_width if run.encoder is None else run.encoder.dimensions
    if run.encoder is not None and source_width is not None:
        check_encoder_dimensions(source_width, run.encoder)
    _check_space(free_bytes(run.root), run.total - rows_before, width or 0)
    done = rows_before

    def report(shard: Shard, rows_done: int) -> None:
        nonlocal done
        # An engine may report a shard again with fewer rows, and progress must not decrease.
        done += max(rows_done - rows[shard], 0)
        rows[shard] = max(rows_done, rows[shard])
        on_progress(done / run.total, format_progress(done, run.total, done - rows_before, time.monotonic() - begun))

    return engine.encode(run, positions, report)


def _open_encoded_source(run: EncodingRun) -> EncodedSource:
    """Memory-map the vectors of an encoded source, and open its row hashes. Raise `SourceError` without vectors.

    Row hashes are read into memory if there are several shards.
    """
    stored = [(run.folders[shard], position) for shard, position in run.positions.items() if position.kept]
    if not stored:
        raise SourceError(f"the source {display_path(run.source.written)!r} holds only blank texts")
    width = stored[0][1].width
    if len(stored) == 1:  # no file to look up for each row
        ((folder, position),) = stored
        vectors: Vectors = np.memmap(folder / VECTORS, np.float32, "r", shape=(position.kept, width))
        hashes: NDArray[np.uint64] = np.memmap(folder / HASHES, np.uint64, "r", shape=(position.kept,))
    else:
        vectors = StackedVectors([VectorFile(folder / VECTORS, position.kept) for folder, position in stored], width)
        hashes = np.concatenate([np.fromfile(folder / HASHES, np.uint64, position.kept) for folder, position in stored])
    rows = vectors.shape[0]
    return EncodedSource(vectors, hashes, run.total - rows, run.plan.left_out, tuple(run.plan.empty))


def _check_space(free_bytes: int, rows: int, dimensions: int) -> None:
    needed_bytes = rows * (dimensions * 4 + 8)
    if needed_bytes > free_bytes:
        raise FitError(
            f"{rows:,} vectors of {dimensions} dimensions take {needed_bytes / 1e9:.1f} GB, and the disk has "
            f"{free_bytes / 1e9:.1f} GB left: free some, or set LATHE_HOME to another disk"
        )


def format_progress(rows_done: int, total_rows: int, rows_done_now: int, seconds: float) -> str:
    """Format a progress message such as "500 of 1,000 rows encoded, 50 a second, 10 s left".

    Args:
        rows_done: number of encoded rows, including rows of earlier runs.
        total_rows: number of rows to encode.
        rows_done_now: number of rows encoded in this run, from which the rate is computed.
        seconds: duration of this run.
    """
    rate = rows_done_now / seconds if seconds > 0 else 0.0
    time_left = f", {(total_rows - rows_done) / rate:.0f} s left" if rate > 0 and rows_done < total_rows else ""
    return f"{rows_done:,} of {total_rows:,} rows encoded, {rate:,.0f} a second{time_left}"
