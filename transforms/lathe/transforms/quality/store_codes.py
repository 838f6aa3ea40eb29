"""Quantizers that vector stores apply to what they are given, computed without the stores.

A store keeps its own codes of the vectors next to them, and searches through these. How far a chain of transforms helps
it is measured by them: in certificates, and in the advice on a place.
"""

from typing import Any

import numpy as np

from lathe.transforms.codes.lloyd_max import build_normal_quantizer
from lathe.transforms.quality.metrics import search_recall_per_row
from lathe.transforms.statistics import draw_rotation
from lathe.transforms.vectors import FloatArray


def measure_store_recall(before: FloatArray, after: FloatArray) -> dict[str, float]:
    """Measure recall@10 of searches through three common quantizers of stores, for rows that a chain maps.

    The ten nearest are the ten by the cosine of `before`, of at least 12 rows.

    Args:
        before: rows before the chain, `(n, d)`.
        after: the same rows after it, `(n, k)`.

    Returns:
        Recall@10 by quantizer: the signs of all coordinates, 8 bits on one scale for all coordinates, and TurboQuant of
        2 bits a coordinate.
    """
    turboquant = TurboQuantizer(after, 2, scaled=False)
    signs = np.where(after > 0, np.float32(1), np.float32(-1))
    stored = {
        "signs": (signs, signs),
        "int8_one_scale": (after, round_between(after, float(after.min()), float(after.max()), 255)),
        "turboquant_2_bits": (turboquant.rotate(after), turboquant.encode(after)),
    }
    return {
        name: float(search_recall_per_row(before, queries, documents).mean())
        for name, (queries, documents) in stored.items()
    }


def round_between(vectors: FloatArray, low: Any, high: Any, steps: int) -> FloatArray:
    """Clip coordinates of vectors `(n, d)` to [`low`, `high`], and round them to `steps` equal steps of it.

    The result is floats. The bounds are numbers, or arrays `(d,)` with one for each coordinate.
    """
    # A coordinate that never varies would divide by zero.
    scale = np.maximum((high - low) / steps, np.float32(1e-12))
    return np.asarray(np.round((np.clip(vectors, low, high) - low) / scale) * scale + low, np.float32)


class TurboQuantizer:
    """Quantizer of TurboQuant (arXiv:2504.19874, its code for the mean squared error).

    Args:
        rows: vectors `(n, d)` whose rotated coordinates are centred and scaled, if they are.
        bits: bits of a coordinate. 1.5 are one bit for each of 1.5·d coordinates, of which zeros are rotated too.
        scaled: whether each rotated coordinate is centred and scaled to unit variance before it is rounded.
    """

    def __init__(self, rows: FloatArray, bits: float, scaled: bool) -> None:
        dimensions = rows.shape[1] * 3 // 2 if bits == 1.5 else rows.shape[1]
        self._padding = ((0, 0), (0, dimensions - rows.shape[1]))
        self._rotation = draw_rotation(dimensions, np.random.default_rng(0)).astype(np.float32)
        self._quantizer = build_normal_quantizer(int(bits))
        coordinates = self._normalize(rows)[0]
        self._mean = coordinates.mean(axis=0) if scaled else np.float32(0)
        self._deviation = np.maximum(coordinates.std(axis=0), np.float32(1e-12)) if scaled else np.float32(1)

    def rotate(self, vectors: FloatArray) -> FloatArray:
        """Return vectors `(n, d)` in the rotated coordinates."""
        return np.asarray(np.pad(vectors, self._padding) @ self._rotation, np.float32)

    def _normalize(self, vectors: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the rotated vectors, scaled to norm √d, and their norms `(n, 1)`."""
        lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
        # Rotated coordinates of a unit vector are nearly normal, with variance 1/d.
        return self.rotate(vectors / lengths) * np.sqrt(len(self._rotation), dtype=np.float32), lengths

    def encode(self, vectors: FloatArray) -> FloatArray:
        """Encode vectors `(n, d)`, and return the decoded ones in the rotated coordinates, at their own lengths."""
        coordinates, lengths = self._normalize(vectors)
        cells = np.searchsorted(self._quantizer.thresholds, (coordinates - self._mean) / self._deviation)
        decoded = self._quantizer.levels[cells].astype(np.float32) * self._deviation + self._mean
        # The factor of each vector restores its length, which rounding shortens.
        restored = decoded / np.linalg.norm(decoded, axis=1, keepdims=True) * lengths
        return np.asarray(restored, np.float32)
