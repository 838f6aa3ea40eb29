"""Who encodes the shards of a source and takes the moments of its rows: this process, or workers elsewhere."""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import dropwhile, groupby
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from training.errors import SourceError
from training.fitting.encoded_shards import Position, write_shard
from training.fitting.encoding_run import Run
from training.fitting.rows import Rows
from training.sources.shards import Shard, at_hand, read_shards
from transforms.vectors import Vectors

Report = Callable[[Shard, int], None]
"""Told a shard and how many of its rows are done."""


class Engine(Protocol):
    """Who does the work that shards can share."""

    def encode(self, run: Run, positions: Mapping[Shard, Position], report: Report) -> dict[str, str]:
        """Encode the shards of a run that are not finished; the damaged files found meanwhile, and why.

        Raises:
            SourceError: for a damaged file, unless the source leaves such out.
            FitError: for vectors of another width than the encoder's.
            EngineError: if the workers cannot do it.
        """

    def rows(self, vectors: Vectors, chosen: NDArray[np.int64]) -> Vectors:
        """Some rows of encoded vectors, by their numbers in ascending order, to fit a chain on."""


class LocalEngine:
    """This process: file after file, each read in one go from the first shard that is not finished."""

    def encode(self, run: Run, positions: Mapping[Shard, Position], report: Report) -> dict[str, str]:
        """See `Engine`."""
        damaged: dict[str, str] = {}
        for file, shards in groupby(run.plan.shards, lambda shard: shard.file):
            left = list(dropwhile(lambda shard: positions[shard].rows == shard.rows, shards))
            try:
                if left:
                    self.encode_file(run, left, report)
            except SourceError as error:
                run.source.leave_out(file, error, damaged)
        return damaged

    def encode_file(self, run: Run, shards: list[Shard], report: Report) -> None:
        """Encode consecutive shards of one file."""
        with at_hand(shards[0].file, run.root) as file:
            batches = read_shards(file, shards[0], shards[-1], run.source.field)
            for shard in shards:
                write_shard(shard, batches, run.encoder, run.folders[shard], partial(report, shard))

    def rows(self, vectors: Vectors, chosen: NDArray[np.int64]) -> Vectors:
        """See `Engine`."""
        return Rows(vectors, chosen)


LOCAL = LocalEngine()
