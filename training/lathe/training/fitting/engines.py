"""Engines, which encode shards and provide rows to fit on: this process, or workers on other machines."""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import dropwhile, groupby
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import SourceError
from lathe.training.fitting.encoded_shards import Position, read_position, shard_folder, write_shard
from lathe.training.fitting.stacked import SelectedRows
from lathe.training.sources.shards import Shard, open_local_copy, read_shards
from lathe.training.sources.source import Plan, Source
from lathe.transforms.vectors import Vectors


class EncodingRun:
    """Encoding of the shards of a plan.

    Args:
        source: the source of the plan.
        plan: the shards to encode.
        encoder: None for vectors without an encoder.
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
        """Position of each shard, read from its folder."""
        return {shard: read_position(folder) for shard, folder in self.folders.items()}


Report = Callable[[Shard, int], None]
"""Callback that is called with a shard and the number of its rows that are done."""


class FitEngine(Protocol):
    """Interface of what encodes shards and provides the encoded rows to a fit."""

    def encode(self, run: EncodingRun, positions: Mapping[Shard, Position], report: Report) -> dict[str, str]:
        """Encode the unfinished shards of a run into their folders.

        Returns the damaged files found, with the reasons.

        Args:
            run: the shards, their folders and the encoder.
            positions: position of each shard at the start.
            report: called with a shard and its rows done.

        Raises:
            SourceError: for a damaged file, unless the source skips such files.
            FitError: if the vectors' dimensions are not the encoder's.
            EngineError: if the workers cannot do the work.
        """

    def select_rows(self, vectors: Vectors, chosen: NDArray[np.int64]) -> Vectors:
        """Return the rows of encoded vectors at the ascending indices `chosen`, read lazily, to fit a chain on."""


class LocalEngine:
    """Engine that works in this process: file by file, each read in one pass from its first unfinished shard."""

    def encode(self, run: EncodingRun, positions: Mapping[Shard, Position], report: Report) -> dict[str, str]:
        """Encode the unfinished shards of a run in this process. Returns the damaged files that were found, with the
        reasons, if the source skips such files.
        """
        damaged: dict[str, str] = {}
        for file, shards in groupby(run.plan.shards, lambda shard: shard.file):
            left = list(dropwhile(lambda shard: positions[shard].rows == shard.rows, shards))
            try:
                if left:
                    self.encode_file(run, left, report)
            except SourceError as error:
                run.source.record_or_raise(file, error, damaged)
        return damaged

    def encode_file(self, run: EncodingRun, shards: list[Shard], report: Report) -> None:
        """Encode consecutive shards of one file in one pass, and write the vectors of each into its folder of the run.

        Batches that an earlier run wrote are skipped. A remote file is first downloaded to a temporary copy.

        Args:
            run: the folders, the encoder and the source.
            shards: shards of one file, from its first unfinished one on.
            report: called with a shard and its rows done.

        Raises:
            SourceError: if the file cannot be read, or has fewer rows than planned.
            FitError: if the vectors' dimensions are not the encoder's.
            EngineError: if another process holds a shard's lock for too long.
        """
        with open_local_copy(shards[0].file, run.root) as file:
            batches = read_shards(file, shards[0], shards[-1], run.source.field)
            for shard in shards:
                write_shard(shard, batches, run.encoder, run.folders[shard], partial(report, shard))

    def select_rows(self, vectors: Vectors, chosen: NDArray[np.int64]) -> Vectors:
        """Return the chosen rows as a lazy view that reads them when indexed."""
        return SelectedRows(vectors, chosen)


LOCAL = LocalEngine()
"""Engine used if none is named; it has no state."""
