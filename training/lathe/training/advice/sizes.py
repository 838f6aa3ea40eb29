"""Comparison of reducers at several numbers of dimensions, against the vectors that they reduce."""

import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lathe.training.advice.debiasing import GEOMETRY_ROWS, rank_halves
from lathe.training.advice.sample import Sample
from lathe.training.evaluation.methods import GEOPRES, TRUNCATION, UNCENTRED_PCA
from lathe.training.evaluation.statistics import Interval, mean_interval
from lathe.transforms.chain import Chain, parse_steps
from lathe.transforms.errors import TransformError
from lathe.transforms.progress import Progress, no_progress, part_of
from lathe.transforms.quality import local_spearman, recall_of_anchors
from lathe.transforms.vectors import FloatArray

SHARES = (1 / 2, 1 / 3, 1 / 4, 1 / 6, 1 / 8, 1 / 12, 1 / 16)
"""Compared shares of the dimensions; each number of dimensions is rounded to a multiple of `MULTIPLE`."""
MULTIPLE = 8
"""Divisor of every compared number of dimensions; hardware handles multiples of 8 best."""
REDUCERS = {
    "nested GeoPres": f"{GEOPRES},nested=true",
    "PCA": UNCENTRED_PCA,
    "truncation": TRUNCATION,
}
"""Steps of each compared reducer; each is fitted once, at the largest number of dimensions, and then cut."""
FITTED = {"nested GeoPres": 0.9, "PCA": 0.95, "truncation": 1.0}
"""Progress fractions once each reducer is fitted and measured, by the time that they take."""
NEIGHBOURS, OVERSAMPLING = 10, 4
"""Number of neighbours in recall@10, and factor of candidates that are rescored."""
GEMM_QUERIES, GEMM_ROWS, GEMM_TIMES = 256, 20_000, 7
"""Queries, vectors and repetitions of the timed matrix product."""


@dataclass(frozen=True)
class SizeTrial:
    """Measurements of a reducer at one number of dimensions, on the held-out rows.

    Measures compare with the vectors before the reduction, which are debiased if that is recommended.

    Attributes:
        reducer: key of `REDUCERS`; empty for full dimensions.
        dimensions: output dimensions.
        local_spearman: see `lathe.transforms.local_spearman`.
        recall_at_10: recall@10 of the neighbours before the reduction.
        rescored_4x: recall@10 if 40 candidates are rescored with the vectors before the reduction, with an interval.
        retrieval: mean reciprocal rank of split-half retrieval, in (0, 1]; None without text halves.
        loss: difference of 100·`retrieval` to full dimensions, paired by text; negative if MRR is lost.
        bytes: bytes of a vector in float32.
        gemm_ms: milliseconds for the similarities of 256 queries with 20,000 vectors.
    """

    reducer: str
    dimensions: int
    local_spearman: float
    recall_at_10: float
    rescored_4x: Interval
    retrieval: float | None
    loss: Interval | None
    bytes: int
    gemm_ms: float


@dataclass(frozen=True)
class SizeComparison:
    """Measurements of all reducers at all compared numbers of dimensions.

    Attributes:
        full: measurements at full dimensions.
        trials: measurements of each reducer, from the largest to the smallest number of dimensions.
        problems: reasons why reducers could not be fitted, by name.
        rows: number of held-out rows whose neighbours are searched among each other.
    """

    full: SizeTrial
    trials: list[SizeTrial]
    problems: dict[str, str]
    rows: int

    def trial(self, reducer: str, dimensions: int) -> SizeTrial:
        """Return the measurements of a reducer at a number of dimensions.

        Raises:
            StopIteration: if there are none.
        """
        return next(
            measured for measured in self.trials if (measured.reducer, measured.dimensions) == (reducer, dimensions)
        )


def list_sizes(dimensions: int) -> list[int]:
    """List the reduced numbers of dimensions to compare, largest first.
    They are fixed shares of `dimensions`, rounded to multiples of `MULTIPLE`.
    """
    rounded = {round(dimensions * share / MULTIPLE) * MULTIPLE for share in SHARES}
    return sorted((size for size in rounded if 0 < size < dimensions), reverse=True)


class SizeMeasurer:
    """Measurement of reductions against the vectors they start from, which are the debiased held-out rows.

    Construction fits the debiasing steps, measures full dimensions, and times the matrix products.

    Args:
        sample: vectors to fit and to measure on.
        debiasing: steps that precede every reducer.

    Attributes:
        chain: the fitted debiasing steps.
        before: held-out rows after them, `(n, d)`.
        ranks: reciprocal ranks of split-half retrieval after them, `(m,)`; None without text halves.
        full: measurements at full dimensions.
    """

    def __init__(self, sample: Sample, debiasing: str) -> None:
        self.sample = sample
        self.debiasing = debiasing
        self.widths = list_sizes(sample.dimensions)
        self.seconds = _time_gemm([sample.dimensions, *self.widths])
        self.heldout = sample.heldout[:GEOMETRY_ROWS]
        self.chain = Chain(parse_steps(debiasing)).fit(sample.fit)
        self.before: FloatArray = self.chain.floats(self.heldout)
        self.ranks = None if sample.halves is None else rank_halves(self.chain, sample.halves)
        self.full = self.measure_vectors("", self.before, self.ranks)

    def compare(self, on_progress: Progress) -> SizeComparison:
        """Fit every reducer once at the largest compared size, and measure it at that and all smaller sizes.
        A reducer that cannot be fitted is noted in the result's `problems`.

        Args:
            on_progress: called with progress in [0, 1] and a message.
        """
        trials, problems = [], {}
        done = 0.0
        for name, steps in REDUCERS.items() if self.widths else ():
            fitting = part_of(on_progress, done, FITTED[name])
            done = FITTED[name]
            fitting(0.0, f"fitting {name} and measuring it at {len(self.widths)} sizes")

            try:
                # One fit at the largest size serves all smaller ones: every reducer here is nested.
                chain = self.fit_chain(f"{self.debiasing},{steps.format(k=self.widths[0])}", fitting)
            except TransformError as error:
                problems[name] = str(error)
                continue

            trials += [self.measure(name, chain, size) for size in self.widths]

        return SizeComparison(self.full, trials, problems, len(self.heldout))

    def fit_chain(self, steps: str, on_progress: Progress = no_progress) -> Chain:
        """Fit a new chain with these steps on the sample's rows to fit on.

        Args:
            steps: steps as `lathe fit --steps` takes them.
            on_progress: called with progress in [0, 1] and a message.

        Raises:
            TransformError: if the steps cannot be fitted on these rows.
        """
        return Chain(parse_steps(steps)).fit(self.sample.fit, on_progress=on_progress)

    def measure(self, reducer: str, chain: Chain, size: int) -> SizeTrial:
        """Measure a fitted chain, cut to its first `size` output dimensions, on the held-out rows.
        The trial has preserved neighbours, split-half retrieval, bytes and time.

        Args:
            reducer: name in the result.
            chain: the fitted chain.
            size: number of dimensions.
        """
        cut = self.sample.halves
        ranks = None if cut is None else rank_halves(chain, cut, size)
        return self.measure_vectors(reducer, chain.floats(self.heldout, size), ranks)

    def measure_vectors(self, reducer: str, after: FloatArray, ranks: NDArray[np.float64] | None) -> SizeTrial:
        """Measure how well reduced held-out rows preserve the neighbours of the unreduced ones in `before`.
        The trial also has the loss in split-half MRR, and bytes and time at the reduced size.

        The time of a matrix product is looked up in `seconds`.

        Args:
            reducer: name in the result.
            after: reduced held-out rows, `(n, k)`; k is a compared number of dimensions or the full one.
            ranks: reciprocal ranks of split-half retrieval after the reduction, `(m,)`, or None.
        """
        width = int(after.shape[1])
        return SizeTrial(
            reducer=reducer,
            dimensions=width,
            local_spearman=local_spearman(self.before, after),
            recall_at_10=float(recall_of_anchors(self.before, after, NEIGHBOURS).mean()),
            rescored_4x=mean_interval(recall_of_anchors(self.before, after, NEIGHBOURS, OVERSAMPLING)),
            retrieval=None if ranks is None else float(ranks.mean()),
            loss=None if ranks is None or self.ranks is None else mean_interval(100 * (ranks - self.ranks)),
            bytes=4 * width,
            gemm_ms=1000 * self.seconds[width],
        )


def _time_gemm(widths: list[int]) -> dict[int, float]:
    """Time the product of 256 by 20,000 random float32 vectors for each number of dimensions.
    Return the shortest time of several in seconds, by number of dimensions.

    Measurements of all numbers of dimensions alternate, since other processes may use the machine.
    """
    sample = np.random.default_rng(0).standard_normal((GEMM_ROWS, max(widths)), np.float32)
    # Contiguous, because a view of wider rows would be read at their stride.
    rows = {width: torch.from_numpy(np.ascontiguousarray(sample[:, :width])) for width in widths}
    times: dict[int, list[float]] = {width: [] for width in widths}

    for _ in range(GEMM_TIMES):
        for width, vectors in rows.items():
            begun = time.perf_counter()
            torch.mm(vectors[:GEMM_QUERIES], vectors.T)
            times[width].append(time.perf_counter() - begun)

    return {width: min(seconds) for width, seconds in times.items()}
