"""One of the two versions of a shadow, and the problems of its outputs."""

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.service.chains.loaded_chain import LoadedChain

UNIT_TOLERANCE = 1e-3
"""Maximum deviation of a norm from 1 where unit vectors are expected; float32 is exact to 1e-6."""


class ShadowSide:
    """A version as it would be served, with all output dimensions.

    Attributes:
        not_finite: number of rows whose outputs had NaN or infinity.
        off_norm: number of rows whose outputs should have norm 1 and do not.
        failed: number of rows on which the version raised an exception.
        error: the last exception; None if there was none.
    """

    def __init__(self, loaded: LoadedChain) -> None:
        self.loaded = loaded
        self.folded = loaded.fold(None, True)
        self.is_normalized = loaded.is_normalized(True) and loaded.chain.quantizer is None
        self.not_finite = self.off_norm = self.failed = 0
        self.error: str | None = None

    def apply(self, rows: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """Transform rows `(n, d)` to `(n, k)`; if that raises, store the error and return None."""
        try:
            return np.asarray(self.folded.floats(rows))
        except Exception as error:  # any: finding what a candidate does wrong is the purpose of a shadow
            self.error = f"{type(error).__name__}: {error}"[:300]
            return None

    def measure(self, rows: NDArray[np.float32]) -> float | None:
        """Apply the version to rows and return milliseconds per 1,000 rows; None if it failed.

        Rows on which it failed, with NaN or infinity, or with a norm other than the expected 1 are added to the counts.
        """
        begun = time.perf_counter()
        outputs = self.apply(rows)
        took = time.perf_counter() - begun
        if outputs is None:
            self.failed += len(rows)
            return None
        finite = np.isfinite(outputs).all(axis=1)
        self.not_finite += int((~finite).sum())
        if self.is_normalized:
            lengths = np.linalg.norm(outputs[finite], axis=1)
            self.off_norm += int((np.abs(lengths - 1) > UNIT_TOLERANCE).sum())
        return 1e6 * took / len(rows)

    @property
    def bad_rows(self) -> int:
        """Number of rows whose outputs were not finite or are missing."""
        return self.failed + self.not_finite

    def describe_problems(self) -> dict[str, Any]:
        """Return the problem counts and the last error as JSON."""
        counts = {"not_finite": self.not_finite, "off_norm": self.off_norm, "failed": self.failed}
        return counts | {"error": self.error}
