"""One of the two versions of a shadow: its outputs, and what was wrong with them."""

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.registry import LoadedChain

UNIT_TOLERANCE = 1e-3
"""How far from 1 a length may be where unit vectors are promised; float32 is right to 1e-6."""


class Side:
    """A version as it would be served, at its full size.

    Attributes:
        not_finite: rows so far whose outputs held NaN or infinity.
        off_norm: rows whose outputs should have had length 1 and had not.
        failed: rows it could not be applied to.
        error: why, the last time.
    """

    def __init__(self, loaded: LoadedChain) -> None:
        self.loaded = loaded
        self.folded = loaded.fold(None, True)
        self.gives_units = loaded.normalizes(True) and loaded.chain.quantizer is None
        self.not_finite = self.off_norm = self.failed = 0
        self.error: str | None = None

    def apply(self, rows: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """Outputs `(n, k)` of rows `(n, d)`; None where it fails."""
        try:
            return np.asarray(self.folded.floats(rows))
        except Exception as error:  # whatever a candidate does wrong is what a shadow is there to find
            self.error = f"{type(error).__name__}: {error}"[:300]
            return None

    def try_on(self, rows: NDArray[np.float32]) -> float | None:
        """Apply it to live rows and look at what comes out; milliseconds for 1,000 rows, None where it failed."""
        begun = time.perf_counter()
        outputs = self.apply(rows)
        took = time.perf_counter() - begun
        if outputs is None:
            self.failed += len(rows)
            return None
        finite = np.isfinite(outputs).all(axis=1)
        self.not_finite += int((~finite).sum())
        if self.gives_units:
            lengths = np.linalg.norm(outputs[finite], axis=1)
            self.off_norm += int((np.abs(lengths - 1) > UNIT_TOLERANCE).sum())
        return 1e6 * took / len(rows)

    @property
    def troubled(self) -> int:
        """Rows that gave no number or nothing at all."""
        return self.failed + self.not_finite

    def problems(self) -> dict[str, Any]:
        """The counts as JSON."""
        counts = {"not_finite": self.not_finite, "off_norm": self.off_norm, "failed": self.failed}
        return counts | {"error": self.error}
