"""Sums over rows of live traffic, held against what a chain was fitted on; they add up, and no row is kept."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transforms.artifact import FitDistribution, row_norms
from transforms.statistics import Subspace

TENTHS = 10
FAR = 1000.0
"""Rows so many times as long as the fitted ones are counted, but kept out of sums that they alone would make."""


@dataclass(frozen=True, eq=False)
class Tally:
    """Sums over some rows; z is a row less the fitted mean, in the fitted σ.

    Attributes:
        requests: that the rows came in.
        rows: how many.
        summed: of these, in the next three.
        shift: Σ z, `(d,)`.
        energy: Σ ‖z‖².
        outside: the part of it that lies outside what the chain keeps.
        odd: rows whose length is none of the fitted ones.
        ranks: Σ p, the percentile of a row's score among held-out rows.
        tenths: `(10,)`, rows by p.
        grouped: Σ s², Σ s n, Σ n² over the requests, of n rows each, with s = Σ p of such a request.
    """

    requests: int
    rows: int
    summed: int
    shift: NDArray[np.float64]
    energy: float
    outside: float
    odd: int
    ranks: float
    tenths: NDArray[np.int64]
    grouped: NDArray[np.float64]

    @classmethod
    def of(cls, reference: FitDistribution, kept: Subspace | None, requests: Sequence[NDArray[np.float32]]) -> "Tally":
        """That of the rows `(n, d)` of some requests, each at least one."""
        rows, counts = np.concatenate(requests), np.array([len(some) for some in requests])
        norms = row_norms(rows)
        near = norms <= FAR * reference.norms[1]
        gaussian = reference.gaussian
        standardised = gaussian.standardize(rows)
        ranks = reference.quantile_ranks(gaussian.score(standardised))
        summed = standardised if near.all() else standardised[near]
        sums = np.add.reduceat(ranks, np.cumsum(counts) - counts)
        return cls(
            len(requests),
            len(rows),
            len(summed),
            summed.sum(axis=0, dtype=np.float64),
            float(np.vecdot(summed, summed).sum(dtype=np.float64)),
            0.0 if kept is None else float(kept.energy_outside(summed).sum()),
            int(reference.outlier_norms(norms).sum()),
            float(ranks.sum()),
            np.bincount(np.minimum((ranks * TENTHS).astype(int), TENTHS - 1), minlength=TENTHS),
            np.array([sums @ sums, sums @ counts, counts @ counts], np.float64),
        )

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    @property
    def out_of_domain(self) -> float:
        """The mean percentile of the rows' scores among held-out rows: .5 is as fitted, 1 is farther than all."""
        return self.ranks / self.rows

    @property
    def noise(self) -> float | None:
        """The standard error of `out_of_domain`, rows of one request taken for alike; None for a single request."""
        if self.requests < 2:
            return None
        squares, products, counts = self.grouped.tolist()
        mean = self.out_of_domain
        spread = max(squares - 2 * mean * products + mean * mean * counts, 0.0)
        return float(np.sqrt(spread * self.requests / (self.requests - 1))) / self.rows

    def figures(self, reference: FitDistribution) -> dict[str, Any]:
        """What `/chains/{name}/drift` says of it; see docs/drift.md."""
        return {
            "rows": self.rows,
            "requests": self.requests,
            **self.of_mean(reference),
            "outside": {"fitted": reference.outside, "live": self.share_outside(reference)},
            "odd_norms": self.odd / self.rows,
            "out_of_domain": self.out_of_domain,
            "noise": self.noise,
            "tenths": (self.tenths / self.rows).tolist(),
        }

    def of_mean(self, reference: FitDistribution) -> dict[str, Any]:
        """The live mean against the fitted one, and how far chance moves the mean of so many rows."""
        gaussian = reference.gaussian
        if not self.summed:
            norms = {"fitted": gaussian.mean_norm, "live": None}
            return {"mean_cosine": None, "mean_norm": norms, "mean_noise": None}
        shift = self.shift / self.summed
        live = gaussian.mean + float(gaussian.spread) * shift
        norm, variance = float(np.linalg.norm(live)), max(self.energy / self.summed - float(shift @ shift), 0.0)
        apart = norm * gaussian.mean_norm
        return {
            "mean_cosine": float(live @ gaussian.mean) / apart if apart else None,
            "mean_norm": {"fitted": gaussian.mean_norm, "live": norm},
            "mean_noise": float(gaussian.spread) * float(np.sqrt(variance / self.summed)),
        }

    def share_outside(self, reference: FitDistribution) -> float | None:
        """The share of the squared distance from the fitted mean that the chain leaves out."""
        return self.outside / self.energy if reference.outside is not None and self.energy else None
