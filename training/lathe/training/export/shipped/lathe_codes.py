"""Encoder and decoder of byte codes, in NumPy, for a chain of transforms that Lathe exported to `codes.npz`.

A code of a vector has `bytes` bytes. Vectors are transformed to floats x `(n, d)`, and these to coordinates y `(n, m)`,
one for each number of bits in `bits`. A coordinate is rounded to one of 2^bits levels, whose number is stored in the
code: in byte `octets`, from bit `shifts` on. With learned centroids, all coordinates of a byte are rounded together, to
the nearest of 256 centroids.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Codec:
    """Encoder and decoder of a chain's codes, read from `codes.npz`. Floats are float32, and codes uint8.

    Attributes:
        arrays: arrays of the file by name.
        steps: names and arrays of the operations before the codes, in order.
        learned: whether bytes are numbers of learned centroids.
        owners: coordinate of each bit of a code, all bits of the first coordinate first.
        ranks: rank of each of these bits in the number of the coordinate's level, 0 for the lowest bit.
        places: position of each of these bits in the code.
        starts: index of each coordinate's first bit among these bits.
    """

    def __init__(self, path: str | Path) -> None:
        with np.load(path, allow_pickle=False) as file:
            self.arrays: Any = SimpleNamespace(**file)
            self.steps = [(name, file[name]) for name in file if name.startswith("step_")]

        self.learned = hasattr(self.arrays, "centroids")
        # All bits of the coordinates one after the other: coordinate, rank, and position in the code of each bit.
        a = self.arrays
        self.starts = np.cumsum(a.bits) - a.bits
        self.owners = np.repeat(np.arange(len(a.bits)), a.bits)
        self.ranks = np.arange(len(self.owners)) - self.starts[self.owners]
        self.places = (8 * a.octets + a.shifts)[self.owners] + self.ranks

    def floats(self, vectors: Any) -> NDArray[np.float32]:
        """Apply the steps before the codes to the encoder's vectors `(n, k)`, and return float32 `(n, d)`.

        Queries are compared with codes as these floats. Zero vectors stay zero.
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
        """Encode the encoder's vectors `(n, k)` as codes, uint8 `(n, bytes)`. Zero vectors get codes of zeros."""
        a, x = self.arrays, self.floats(vectors)
        y = (x - a.mean) @ a.encoder.T
        codes = self._adjust_levels(y, self._round(y)) if a.rounds else self._round(y)
        return np.where(x.any(axis=1, keepdims=True), codes, np.uint8(0))

    def _round(self, y: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Round coordinates `(n, m)` to the nearest levels, and return their codes, uint8 `(n, bytes)`."""
        return self._nearest_centroids(y) if self.learned else self._cells(y)

    def _adjust_levels(self, y: NDArray[np.float32], codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Search other levels for coordinates `(n, m)` with a higher cosine of vector and decoded vector.

        `codes` are the codes of the nearest levels. The best codes of each vector are returned, uint8 `(n, bytes)`.
        """
        a, candidate, best = self.arrays, codes, np.full((len(y), 1), -np.inf, np.float32)
        mean, variances = a.encoder @ a.mean, (a.decoder**2).sum(axis=1)
        for _ in range(a.rounds + 1):
            values = self._values(candidate)
            # Inner products of the residual with itself, the mean and the vector; the axes are orthogonal.
            parts = (variances * values * z for z in (values, mean, y + mean))
            square, along, product = (part.sum(axis=1, keepdims=True) for part in parts)
            factor = self._norm_factors(square, along)
            better = (factor * product > best) & candidate.any(axis=1, keepdims=True)
            codes, best = np.where(better, candidate, codes), np.where(better, factor * product, best)
            with np.errstate(divide="ignore", invalid="ignore"):  # zero vectors, which have no cosine
                scaled = (y + mean) * (along + factor * square) / product
                candidate = self._round((scaled - mean) / factor)

        return codes

    def _nearest_centroids(self, y: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Encode coordinates `(n, m)` byte by byte as numbers of the nearest centroids, uint8 `(n, bytes)`.

        The coordinates of a byte are compared with the centroids of this byte. The last byte is never 0, because a code
        of zeros means the zero vector.
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
        """Encode coordinates `(n, m)` as cell numbers, packed into uint8 `(n, bytes)`.

        The number of a cell is the number of thresholds below the coordinate. A code of zeros is changed in the last
        coordinate, because it means the zero vector.
        """
        a = self.arrays
        # The thresholds of b bits begin at entry 2^b.
        cells = [np.searchsorted(a.thresholds[1 << b : (2 << b) - 1], y[:, i]) for i, b in enumerate(a.bits)]
        stream = np.zeros((len(y), 8 * a.bytes), np.uint8)
        stream[:, self.places] = np.stack(cells, axis=1)[:, self.owners] >> self.ranks & 1
        codes = np.packbits(stream, axis=1, bitorder="little")
        # Zeros are the code of the zero vector. Another row with that code moves by a cell in its last coordinate.
        codes[~codes.any(axis=1), a.octets[-1]] = 1 << a.shifts[-1]

        return codes

    def decode(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Decode codes `(n, bytes)` to floats `(n, d)`. Codes of zeros give zero vectors."""
        a = self.arrays
        residual = self._values(codes) @ a.decoder
        if a.norm:
            residual *= self._norm_factors((residual**2).sum(axis=1, keepdims=True), (residual @ a.mean)[:, None])

        return np.where(codes.any(axis=1, keepdims=True), a.mean + residual, np.float32(0))

    def _values(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the level of each coordinate, `(n, m)`, in codes `(n, bytes)`."""
        a = self.arrays
        if self.learned:
            values: NDArray[np.float32] = a.centroids[np.arange(len(a.octets)), codes[:, a.octets]]
            return values

        stream = np.unpackbits(codes, axis=1, bitorder="little")[:, self.places].astype(np.int64) << self.ranks
        values = a.levels[np.add.reduceat(stream, self.starts, axis=1) + (1 << a.bits)]
        return values

    def _norm_factors(self, square: NDArray[np.float32], along: NDArray[np.float32]) -> NDArray[np.float32]:
        """Compute the positive f with ‖mean + f·residual‖ = norm, from ‖residual‖² and ⟨mean, residual⟩."""
        squared_rest = np.maximum(self.arrays.norm**2 - (self.arrays.mean**2).sum(), 0)
        square = np.maximum(square, np.finfo(np.float32).tiny)
        factors: NDArray[np.float32] = (np.sqrt(along**2 + square * squared_rest) - along) / square
        return factors

    def score(self, queries: Any, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Compute the inner products `(a, n)` of queries with decoded codes.

        Queries are the encoder's vectors `(a, k)`, and codes are `(n, bytes)`.
        """
        return self.floats(queries) @ self.decode(codes).T
