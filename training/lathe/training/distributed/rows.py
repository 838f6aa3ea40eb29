"""Rows to fit on whose moments the workers compute, each from the files of its blocks."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.training.distributed.worker import Block
from lathe.training.fitting.rows import Rows
from lathe.training.fitting.stacked import Part, Stacked
from lathe.transforms.chain import Chain, serialize_chain
from lathe.transforms.statistics import Moments
from lathe.transforms.vectors import BLOCK_ROWS, Vectors

BlockMoments = Callable[[Iterator[Block], bytes | None, bool], Iterator[Moments]]
"""Function of blocks, a serialized chain or None, and whether to normalize; yields the moments of each block in order.
The chain is applied to the rows first, then they are L2-normalized if asked."""


class SharedRows(Rows):
    """Lazy selection of rows of encoded vectors: rows are read in this process, moments are computed by workers.

    The blocks are those of a single pass in this process and are merged in the same order: the moments are the same to
    the last bit, if the workers compute with as many threads.

    Args:
        vectors: vectors in files, as `encode_source` returns them.
        chosen: indices of the selected rows `(m,)`, ascending.
        moments: computes the moments of blocks on the workers.
        chain: fitted chain applied to the rows; None for the rows as they are.
    """

    def __init__(
        self, vectors: Vectors, chosen: NDArray[np.int64], moments: BlockMoments, chain: Chain | None = None
    ) -> None:
        super().__init__(vectors, chosen)
        self.moments, self.chain = moments, chain
        if chain is not None:
            self.shape = (len(chosen), chain.dimensions_after(vectors.shape[1]))

    def __getitem__(self, rows: Any, /) -> Any:
        """Read the selected rows at these positions, transformed by the chain if there is one."""
        found = super().__getitem__(rows)
        return found if self.chain is None else self.chain.transform(found)

    def view_through(self, chain: Chain) -> "SharedRows":
        """Return a lazy view of these rows, transformed by a further fitted chain."""
        return SharedRows(self.vectors, self.chosen, self.moments, chain if self.chain is None else self.chain + chain)

    def block_moments(self, unit: bool) -> Iterator[Moments]:
        """Yield the moments of each block of rows, in order, computed by workers; L2-normalize rows first if `unit`."""
        return self.moments(self.blocks(), None if self.chain is None else serialize_chain(self.chain), unit)

    def blocks(self) -> Iterator[Block]:
        """Yield the rows in blocks of `BLOCK_ROWS`, each with the files that contain them."""
        files = _as_stacked(self.vectors)
        for start in range(0, len(self.chosen), BLOCK_ROWS):
            rows = self.chosen[start : start + BLOCK_ROWS]
            first, last = np.searchsorted(files.ends, rows[[0, -1]], side="right").tolist()
            before = int(files.ends[first]) - files.parts[first].rows
            yield Block(files.parts[first : last + 1], files.shape[1], rows - before, start)


def _as_stacked(vectors: Any) -> Stacked:
    if isinstance(vectors, Stacked):
        return vectors
    return Stacked([Part(Path(vectors.filename), vectors.shape[0])], vectors.shape[1])
