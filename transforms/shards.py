"""Moments of a memmap by several processes, each with its own rows and one thread.

A process is `python -m transforms.shards` with its task as JSON; it answers with the moments as
safetensors. So nothing is pickled, and a caller needs no `if __name__ == "__main__"`.
"""

import json
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from transforms.arrays import Vectors, require_matrix, row_blocks
from transforms.errors import InputError
from transforms.moments import Moments, Precision, centred_moments

ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
REFUSED = 3
"""Exit status of a process whose rows cannot be used."""


@dataclass(frozen=True)
class Shard:
    """Some rows of a file of numbers.

    Attributes:
        file: its path.
        dtype: as NumPy writes it.
        offset: in bytes, where the first row of the whole begins.
        width: d.
        start: the first row of this shard.
        stop: the row after its last.
        block_rows: rows held at once.
        precision: of `Moments`.
    """

    file: str
    dtype: str
    offset: int
    width: int
    start: int
    stop: int
    block_rows: int
    precision: Precision

    def moments(self) -> Moments:
        """The moments of these rows.

        Raises:
            InputError: for NaN or inf, naming the row of the whole.
        """
        shape = (self.stop, self.width)
        rows = np.memmap(self.file, self.dtype, "r", self.offset, shape)[self.start :]
        moments, first = Moments(self.precision), self.start
        for block in row_blocks(rows, self.block_rows):
            moments.merge(centred_moments(block, self.precision, first))
            first += len(block)
        return moments


def shard_moments(vectors: Vectors, block_rows: int, precision: Precision, processes: int) -> Iterator[Moments]:
    """Moments of the parts of a memmap, computed at the same time.

    Raises:
        InputError: for NaN, inf, or vectors that are no memmap in row order.
    """
    require_matrix(vectors)
    n, width = vectors.shape
    if n == 0:
        return
    file, offset, dtype = place_of(vectors)
    bounds = np.linspace(0, n, min(processes, n) + 1).astype(int).tolist()
    shards = [
        Shard(file, dtype, offset, width, start, stop, block_rows, precision)
        for start, stop in zip(bounds[:-1], bounds[1:], strict=True)
    ]
    environment = os.environ | ONE_THREAD | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "transforms.shards", json.dumps(asdict(shard))],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for shard in shards
    ]
    try:
        for process in running:
            payload, said = process.communicate()
            if process.returncode == REFUSED:
                raise InputError(said.decode().strip())
            if process.returncode != 0:
                raise OSError(f"a process that computes moments failed: {said.decode().strip().splitlines()[-1:]}")
            yield Moments.from_bytes(payload)
    finally:
        for process in running:
            process.kill()
            process.communicate()  # waits, and closes the pipes


def place_of(vectors: Any) -> tuple[str, int, str]:
    """The file of a memmap, where in it the rows begin, and their dtype.

    Raises:
        InputError: if it is no memmap in row order.
    """
    root = vectors
    while isinstance(root, np.memmap) and not isinstance(root.base, mmap.mmap):
        root = root.base
    if not isinstance(root, np.memmap) or not vectors.flags.c_contiguous or root.filename is None:
        raise InputError("several processes read a memmap in row order; save the vectors as .npy and open that")
    into = vectors.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return os.fspath(root.filename), int(root.offset + into), vectors.dtype.str


def main() -> None:
    """Answer one task."""
    try:
        payload = Shard(**json.loads(sys.argv[1])).moments().to_bytes()
    except InputError as error:
        sys.stderr.write(str(error))
        sys.exit(REFUSED)
    sys.stdout.buffer.write(payload)


if __name__ == "__main__":
    main()
