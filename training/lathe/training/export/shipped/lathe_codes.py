"""Codes of vectors in a fixed number of bytes, in NumPy.

This file came with `codes.npz`, a chain exported by Lathe.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Codec:
    """Encoder and decoder of a chain's codes, read from `codes.npz`.

    Floats are float32, and codes uint8.
    """

    def __init__(self, path: str | Path) -> None:
        with np.load(path, allow_pickle=False) as file:
            self.arrays: Any = SimpleNamespace(**file)
            self.steps = [(name, file[name]) for name in file if name.startswith("step_")]

        self.learned = hasattr(self.arrays, "centroids")
        # The bits of the coordinates one after the other: whose bit it is, how high it is, and its place in the code.
        a = self.arrays
        self.starts = np.cumsum(a.bits) - a.bits
        self.owners = np.repeat(np.arange(len(a.bits)), a.bits)
        self.ranks = np.arange(len(self.owners)) - self.starts[self.owners]
        self.places = (8 * a.octets + a.shifts)[self.owners] + self.ranks

    def floats(self, vectors: Any) -> NDArray[np.float32]:
        """Apply the steps before the codes to the encoder's vectors `(n, k)`, and return float32 `(n, d)`. Queries are
        compared as these floats. Zero vectors stay zero.
        """
        x = np.asarray(vectors, np.float32)
        zero = ~x.any(axis=1, keepdims=True)
        for name, array in self.steps:
            if name.endswith("normalize"):
                x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), np.finfo(np.float32).tiny)
            else:
                x = x @ array if name.endswith("multiply") else x + array

        return np.where(zero, np.float32(0), x)

    def encode(self, vectors: Any) -> NDArray[np.uint8]:
        """Encode the encoder's vectors `(n, k)`, and return their codes, uint8 `(n, bytes)`. Zero vectors get codes of
        zeros.
        """
        a, x = self.arrays, self.floats(vectors)
        y = (x - a.mean) @ a.encoder.T
        codes = self._nearest_centroids(y) if self.learned else self._cells(y)
        return np.where(x.any(axis=1, keepdims=True), codes, np.uint8(0))

    def _nearest_centroids(self, y: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Encode coordinates `(n, m)` byte by byte, each as the number of its nearest centroid, and return uint8 `(n,
        bytes)`. The coordinates of one byte are compared with that byte's centroids.
        """
        a, codes = self.arrays, np.zeros((len(y), self.arrays.bytes), np.uint8)
        for octet in np.unique(a.octets):
            in_byte = a.octets == octet
            centroids = (a.centroids[in_byte] * a.deviations[in_byte, None]).T
            distances = (centroids**2).sum(axis=1) / 2 - (y[:, in_byte] * a.deviations[in_byte]) @ centroids.T
            # Zeros are the code of the zero vector, so no other row gets 0 in its last byte.
            first = int(octet == a.octets.max())
            codes[:, octet] = distances[:, first:].argmin(axis=1) + first

        return codes

    def _cells(self, y: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Encode coordinates `(n, m)` as cell numbers, and return these packed into uint8 `(n, bytes)`. A cell's number
        counts the thresholds below the coordinate.
        """
        a = self.arrays
        # The thresholds of b bits begin at entry 2^b; a cell's number is that of the thresholds below the value.
        cells = [np.searchsorted(a.thresholds[1 << b : (2 << b) - 1], y[:, i]) for i, b in enumerate(a.bits)]
        stream = np.zeros((len(y), 8 * a.bytes), np.uint8)
        stream[:, self.places] = np.stack(cells, axis=1)[:, self.owners] >> self.ranks & 1
        codes = np.packbits(stream, axis=1, bitorder="little")
        # Zeros are the code of the zero vector; another row with that code moves by a cell in its last coordinate.
        codes[~codes.any(axis=1), a.octets[-1]] = 1 << a.shifts[-1]

        return codes

    def decode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Decode codes `(n, bytes)`, and return the floats `(n, d)` that they stand for. Codes of zeros give zero
        vectors.
        """
        a = self.arrays
        if self.learned:
            values = a.centroids[np.arange(len(a.octets)), codes[:, a.octets]]
        else:
            stream = np.unpackbits(codes, axis=1, bitorder="little")[:, self.places].astype(np.int64) << self.ranks
            values = a.levels[np.add.reduceat(stream, self.starts, axis=1) + (1 << a.bits)]

        residual = values @ a.decoder
        if a.norm:  # the positive f with ‖mean + f·rest‖ = norm
            along, squared_rest = residual @ a.mean, np.maximum(a.norm**2 - (a.mean**2).sum(), 0)
            square = np.maximum((residual**2).sum(axis=1), np.finfo(np.float32).tiny)
            residual *= ((np.sqrt(along**2 + square * squared_rest) - along) / square)[:, None]

        return np.where(codes.any(axis=1, keepdims=True), a.mean + residual, np.float32(0))

    def score(self, queries: Any, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the inner products `(a, n)` of queries with decoded codes. Queries are the encoder's vectors `(a, k)`,
        and codes are `(n, bytes)`.
        """
        return self.floats(queries) @ self.decode(codes).T
