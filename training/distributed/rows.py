"""Rows to fit on whose moments workers take, each of some blocks, from the files that the rows lie in."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.distributed.worker import Block
from training.fitting.rows import Rows
from training.fitting.stacked import Part, Stacked
from transforms.chain import Chain, serialize_chain
from transforms.statistics import Moments
from transforms.vectors import BLOCK_ROWS, Vectors

BlockMoments = Callable[[Iterator[Block], bytes | None, bool], Iterator[Moments]]
"""Takes the moments of blocks, in their order, behind a serialize_chain chain and at unit length if so asked."""


class SharedRows(Rows):
    """Some rows of encoded vectors: read here by whoever asks for rows, by workers where moments are asked for.

    The blocks are those of one pass here, and are merged in their order: the moments are the same to the last bit,
    as long as the workers compute with as many threads.

    Args:
        vectors: as `encode_source` gives them, in files.
        chosen: the rows' numbers, ascending.
        moments: has workers take them.
        chain: fitted, that they are behind; None for the rows as they are.
    """

    def __init__(
        self, vectors: Vectors, chosen: NDArray[np.int64], moments: BlockMoments, chain: Chain | None = None
    ) -> None:
        super().__init__(vectors, chosen)
        self.moments, self.chain = moments, chain
        if chain is not None:
            self.shape = (len(chosen), chain.dimensions_after(vectors.shape[1]))

    def __getitem__(self, rows: Any, /) -> Any:
        """Those of the chosen rows."""
        found = super().__getitem__(rows)
        return found if self.chain is None else self.chain.transform(found)

    def view_through(self, chain: Chain) -> "SharedRows":
        """The same rows after a fitted chain."""
        return SharedRows(self.vectors, self.chosen, self.moments, chain if self.chain is None else self.chain + chain)

    def block_moments(self, unit: bool) -> Iterator[Moments]:
        """The moments of every `BLOCK_ROWS` rows, in order; of the rows at unit length if so asked."""
        return self.moments(self.blocks(), None if self.chain is None else serialize_chain(self.chain), unit)

    def blocks(self) -> Iterator[Block]:
        """The rows in blocks, each with the files that hold it."""
        files = files_of(self.vectors)
        for start in range(0, len(self.chosen), BLOCK_ROWS):
            rows = self.chosen[start : start + BLOCK_ROWS]
            first, last = np.searchsorted(files.ends, rows[[0, -1]], side="right").tolist()
            before = int(files.ends[first]) - files.parts[first].rows
            yield Block(files.parts[first : last + 1], files.shape[1], rows - before, start)


def files_of(vectors: Any) -> Stacked:
    """Encoded vectors as the files they lie in."""
    if isinstance(vectors, Stacked):
        return vectors
    return Stacked([Part(Path(vectors.filename), vectors.shape[0])], vectors.shape[1])
