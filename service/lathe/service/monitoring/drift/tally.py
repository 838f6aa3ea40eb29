"""Sums over rows of live traffic relative to the rows a chain was fitted on.

Sums of different rows can be added. They contain no row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.transforms.artifact import FitDistribution, vector_norms
from lathe.transforms.statistics import Subspace

TENTHS = 10
"""Number of bins of the histogram of percentiles."""
FAR = 1000.0
"""Multiple of the fitted rows' norms beyond which rows are counted but left out of sums that they would dominate."""


@dataclass(frozen=True, eq=False)
class Tally:
    """Sums over some rows of live traffic.

    In them z is a row minus the fitted mean, divided by the fitted σ.

    Attributes:
        requests: number of requests that the rows came in.
        rows: number of rows.
        summed: number of rows in `shift`, `energy` and `outside`.
        shift: Σ z, `(d,)`.
        energy: Σ ‖z‖².
        outside: part of `energy` outside the subspace that the chain retains.
        outliers: number of rows with a norm outside the fitted range.
        clipped: Σ c, where c is the share of a row's values beyond the range of the chain's codes; NaN without a range.
        ranks: Σ p, where p is the percentile of a row's score among held-out rows, in [0, 1].
        tenths: `(10,)`, histogram of p.
        request_sums: Σ s², Σ s n, Σ n² over the requests, of n rows each, with s = Σ p of a request.
    """

    requests: int
    rows: int
    summed: int
    shift: NDArray[np.float64]
    energy: float
    outside: float
    outliers: int
    clipped: float
    ranks: float
    tenths: NDArray[np.int64]
    request_sums: NDArray[np.float64]

    @classmethod
    def from_requests(
        cls,
        reference: FitDistribution,
        kept: Subspace | None,
        requests: Sequence[NDArray[np.float32]],
        measure_clipped: Callable[[NDArray[np.float32]], float | None] = lambda _: None,
    ) -> "Tally":
        """Sum up the rows of requests relative to the rows that the chain was fitted on. Return the sums.

        Rows with norms beyond `FAR` times the fitted ones are counted, but left out of `shift`, `energy` and `outside`.

        Args:
            reference: distribution of the rows the chain was fitted on.
            kept: subspace that the chain retains; None if it is unknown, which gives `outside` 0.
            requests: rows `(n, d)` of each request, at least one each.
            measure_clipped: returns the share of the values of rows `(n, d)` beyond the range of the chain's codes,
                None if there is no such range.
        """
        rows, counts = np.concatenate(requests), np.array([len(request_rows) for request_rows in requests])
        norms = vector_norms(rows)
        # One row with a huge norm would otherwise decide the mean of all.
        near = norms <= FAR * reference.norms[1]

        gaussian = reference.gaussian
        standardised = gaussian.standardize(rows)
        ranks = reference.quantile_ranks(gaussian.score(standardised))
        summed = standardised if near.all() else standardised[near]

        sums = np.add.reduceat(ranks, np.cumsum(counts) - counts)  # Σ p of each request, `(requests,)`
        clipped = measure_clipped(rows)
        return cls(
            len(requests),
            len(rows),
            len(summed),
            summed.sum(axis=0, dtype=np.float64),
            float(np.vecdot(summed, summed).sum(dtype=np.float64)),
            0.0 if kept is None else float(kept.energy_outside(summed).sum()),
            int(reference.outlier_norms(norms).sum()),
            np.nan if clipped is None else clipped * len(rows),
            float(ranks.sum()),
            np.bincount(np.minimum((ranks * TENTHS).astype(int), TENTHS - 1), minlength=TENTHS),
            np.array([sums @ sums, sums @ counts, counts @ counts], np.float64),
        )

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    @property
    def out_of_domain(self) -> float:
        """Mean percentile of the rows' scores among held-out rows.

        0.5 is as fitted, 1 is farther than all.
        """
        return self.ranks / self.rows

    @property
    def standard_error(self) -> float | None:
        """Standard error of `out_of_domain`, with the rows of a request as one cluster. None for one request."""
        if self.requests < 2:
            return None
        # Rows of a request are alike, so requests are the independent units: Σ (s − mean n)² over them, expanded.
        squares, products, counts = self.request_sums.tolist()
        mean = self.out_of_domain
        spread = max(squares - 2 * mean * products + mean * mean * counts, 0.0)
        return float(np.sqrt(spread * self.requests / (self.requests - 1))) / self.rows

    def to_json(self, reference: FitDistribution) -> dict[str, Any]:
        """Return the drift figures that follow from these sums, as JSON for `/chains/{name}/drift`.

        docs/drift.md explains them.
        """
        return {
            "rows": self.rows,
            "requests": self.requests,
            **self._compare_means(reference),
            "outside": {"fitted": reference.outside, "live": self._compute_outside_share(reference)},
            "odd_norms": self.outliers / self.rows,
            "clipped": None if np.isnan(self.clipped) else self.clipped / self.rows,
            "out_of_domain": self.out_of_domain,
            "noise": self.standard_error,
            "tenths": (self.tenths / self.rows).tolist(),
        }

    def _compare_means(self, reference: FitDistribution) -> dict[str, Any]:
        """Compare the mean of live rows with that of fitted rows. Return cosine, norms and standard error.

        The keys are `mean_cosine`, `mean_norm` (`fitted` and `live`) and `mean_noise`, the standard error of the mean
        of so many rows. The figures are None if all rows were too far to be summed.
        """
        gaussian = reference.gaussian
        if not self.summed:
            norms = {"fitted": gaussian.mean_norm, "live": None}
            return {"mean_cosine": None, "mean_norm": norms, "mean_noise": None}
        shift = self.shift / self.summed
        live = gaussian.mean + float(gaussian.spread) * shift
        norm, variance = float(np.linalg.norm(live)), max(self.energy / self.summed - float(shift @ shift), 0.0)
        norm_product = norm * gaussian.mean_norm
        return {
            "mean_cosine": float(live @ gaussian.mean) / norm_product if norm_product else None,
            "mean_norm": {"fitted": gaussian.mean_norm, "live": norm},
            "mean_noise": float(gaussian.spread) * float(np.sqrt(variance / self.summed)),
        }

    def _compute_outside_share(self, reference: FitDistribution) -> float | None:
        return self.outside / self.energy if reference.outside is not None and self.energy else None
