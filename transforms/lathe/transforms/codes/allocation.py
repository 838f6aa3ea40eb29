"""Allocation of a byte budget to coordinates, and the place of every coordinate's bits within the code.

coordinates by variance     0   1   2   3   4   5   6   7   …
bits                        6   4   4   2   2   1   1   1   …
byte of the code            0   1   1   0   2   2   2   2   …     no coordinate crosses a byte

Because a byte holds whole coordinates, a code is a product quantizer with one table of 256 entries for each byte: the
score of a query is a sum of table entries, and FAISS's scanners of 8-bit product quantizers can search the codes. Where
many coordinates have 5 to 7 bits, whole bytes would waste bits, and coordinates are packed one after the other instead.
"""

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lathe.transforms.codes.lloyd_max import MAX_BITS, compute_distortions

BYTE = 8
"""Number of bits in a byte."""

MAX_EXCESS = 1.02
"""Largest error of a code of whole bytes relative to the best allocation; beyond, coordinates may cross bytes."""


@dataclass(frozen=True, eq=False)
class CodeLayout:
    """Where the bits of the coordinates lie in a code.

    Attributes:
        coordinates: indices of the coordinates that have bits `(m,)`, in descending order of their number of bits;
            where the bits are equal, in descending order of variance.
        bits: number of bits of each of them `(m,)`, from 1 to 8, descending.
        octets: index of the byte that holds the lowest of their bits `(m,)`; the others may reach into the next byte.
        shifts: position of the lowest of their bits within that byte `(m,)`, from 0 to 7.
    """

    coordinates: NDArray[np.int64]
    bits: NDArray[np.int64]
    octets: NDArray[np.int64]
    shifts: NDArray[np.int64]


def allocate_bits(variances: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Divide `total` bits among the coordinates of a code so that the squared quantization error is smallest.

    Each bit goes to the coordinate whose error it reduces most, where b bits leave the variance times the Lloyd–Max
    distortion of b bits (Gersho and Gray, 1992, section 8.3). The distortion is convex in b, so the greedy choice is
    the best one. Coordinates without variance get no bits, and bits that no coordinate needs are left over.

    Args:
        variances: variance of each coordinate `(d,)`, nonnegative.
        total: number of bits to give.

    Returns:
        The number of bits of each coordinate, 0 to 8, as integers `(d,)`.
    """
    gains = -np.diff(compute_distortions())
    bits = np.zeros(len(variances), np.int64)
    # The index breaks ties, so that equal variances get their bits in order on every machine.
    queue = [(-float(variance) * float(gains[0]), i) for i, variance in enumerate(variances) if variance > 0]
    heapq.heapify(queue)

    for _ in range(total):
        if not queue:
            break
        _, i = heapq.heappop(queue)
        bits[i] += 1
        if bits[i] < MAX_BITS:
            heapq.heappush(queue, (-float(variances[i]) * float(gains[bits[i]]), i))

    return bits


def allocate_equal_bits(variances: NDArray[np.float64], total: int, bits: int) -> NDArray[np.int64]:
    """Give `bits` bits to each of the `total // bits` coordinates of largest variance.

    Returns the number of bits of each coordinate `(d,)`, which is 0 for the others and for coordinates without
    variance.
    """
    bits_of_each = np.zeros(len(variances), np.int64)
    # A stable order, so that equal variances give the same bits on every machine.
    best = np.argsort(-variances, kind="stable")[: total // bits]
    bits_of_each[best] = bits
    return np.where(variances > 0, bits_of_each, 0)


def lay_out(bits: NDArray[np.int64], variances: NDArray[np.float64], octets: int) -> CodeLayout:
    """Decide at which byte and bit of a code each coordinate lies, across bytes only if the error falls by over 2 %.

    Coordinates that do not cross from one byte into the next may raise the quantization error by 2 %.

    Args:
        bits: number of bits wanted for each coordinate `(d,)`, 0 to 8; at most 8 times `octets` altogether.
        variances: variance of each coordinate `(d,)`.
        octets: number of bytes of the code.
    """
    whole_bytes = lay_out_in_whole_bytes(bits, variances, octets)
    allocated = np.zeros_like(bits)
    allocated[whole_bytes.coordinates] = whole_bytes.bits
    ideal_error, error = ((variances * compute_distortions()[bit_counts]).sum() for bit_counts in (bits, allocated))
    return whole_bytes if error <= MAX_EXCESS * ideal_error else lay_out_in_sequence(bits, variances)


def lay_out_in_sequence(bits: NDArray[np.int64], variances: NDArray[np.float64]) -> CodeLayout:
    """Lay the bits of the coordinates one after the other.

    Each coordinate gets exactly the bits wanted, and may cross from one byte into the next.

    Args:
        bits: number of bits of each coordinate `(d,)`, 0 to 8.
        variances: variance of each coordinate `(d,)`.
    """
    order = np.lexsort((-variances, -bits))
    order = order[bits[order] > 0]
    # The first bit of each coordinate in a code without gaps.
    starts = np.cumsum(bits[order]) - bits[order]
    return CodeLayout(order, bits[order], starts // BYTE, starts % BYTE)


def lay_out_in_whole_bytes(bits: NDArray[np.int64], variances: NDArray[np.float64], octets: int) -> CodeLayout:
    """Lay the bits of the coordinates in bytes so that no coordinate crosses from one byte into the next.

    The coordinates with the most bits are placed first, each in the first byte with room (first fit, decreasing). One
    that fits nowhere is cut to the largest gap, and its other bits are given to other coordinates. Gaps that remain are
    filled with coordinates that had no bits. Bytes that begin with coordinates of large variance come first, so that a
    prefix of the code is a code of fewer bytes.

    Args:
        bits: number of bits wanted for each coordinate `(d,)`, 0 to 8; at most 8 times `octets` altogether.
        variances: variance of each coordinate `(d,)`.
        octets: number of bytes of the code.
    """
    free_bits = [BYTE] * octets
    placed: list[tuple[int, int, int, int]] = []

    def place(coordinate: int, wanted: int) -> None:
        """Put a coordinate into the first byte that has room for all of its bits, else into the largest gap."""
        # First fit, decreasing: a byte of 6 bits is filled by one of 2 that comes later.
        octet = next((i for i, free in enumerate(free_bits) if free >= wanted), None)
        if octet is None:
            octet = max(range(octets), key=free_bits.__getitem__)
        given_bits = min(wanted, free_bits[octet])
        if given_bits:
            free_bits[octet] -= given_bits
            placed.append((coordinate, given_bits, octet, free_bits[octet]))

    order = np.lexsort((-variances, -bits))
    for coordinate in order[bits[order] > 0].tolist():
        place(coordinate, int(bits[coordinate]))

    for coordinate in order[(bits[order] == 0) & (variances[order] > 0)].tolist():
        if not any(free_bits):
            break
        place(coordinate, 1)

    # A coordinate that was cut has fewer bits than its neighbours; groups of equal bits must be contiguous.
    placed.sort(key=lambda entry: -entry[1])
    columns = np.array(placed, np.int64).reshape(-1, 4).T
    return CodeLayout(*columns)
