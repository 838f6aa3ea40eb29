"""How small can vectors be: reducers at every size, against the vectors they start from."""

import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from training.advice.debiasing import GEOMETRY_ROWS, ranks_behind
from training.advice.sample import Sample
from training.evaluation.statistics import Interval, mean_interval
from transforms.chain import Chain, parse_steps
from transforms.errors import TransformError
from transforms.progress import Progress
from transforms.quality import local_spearman, recall_of_anchors
from transforms.vectors import FloatArray

SHARES = (1 / 2, 1 / 3, 1 / 4, 1 / 6, 1 / 8, 1 / 12, 1 / 16)
"""Of the dimensions; the sizes are multiples of 8, as hardware likes them."""
MULTIPLE = 8
REDUCERS = {
    "nested GeoPres": "geopres:{k},nested=true",
    "PCA": "pca:{k},center=none",
    "truncation": "truncation:{k}",
}
"""What is tried; all are fitted once at the largest size and cut."""
NEIGHBOURS, OVERSAMPLING = 10, 4
GEMM_QUERIES, GEMM_ROWS, GEMM_TIMES = 256, 20_000, 7


@dataclass(frozen=True)
class SizeTrial:
    """A reducer at a size, on the held-out rows; against the vectors it starts from, debiased where that is advised.

    Attributes:
        reducer: see `REDUCERS`; empty for the full width.
        dimensions: of its output.
        local_spearman: see `transforms.local_spearman`.
        recall_at_10: of the neighbours before.
        rescored_4x: of them among forty candidates, ranked again by the vectors before.
        retrieval: mean reciprocal rank of halves of texts; None where none can be cut.
        loss: of that to the full width, in points, paired by text.
        bytes: of a vector in float32.
        gemm_ms: for all similarities of 256 queries to 20,000 vectors.
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
class Sizes:
    """The whole curve.

    Attributes:
        full: the full width.
        trials: of all reducers at all sizes.
        problems: reducers that could not be fitted, and why.
        rows: held-out ones whose neighbours were looked for, among themselves.
    """

    full: SizeTrial
    trials: list[SizeTrial]
    problems: dict[str, str]
    rows: int

    def trial(self, reducer: str, dimensions: int) -> SizeTrial:
        """Of a reducer at a size."""
        return next(one for one in self.trials if (one.reducer, one.dimensions) == (reducer, dimensions))


def sizes_of(dimensions: int) -> list[int]:
    """The sizes that are tried, the largest first."""
    found = {round(dimensions * share / MULTIPLE) * MULTIPLE for share in SHARES}
    return sorted((size for size in found if 0 < size < dimensions), reverse=True)


class Curve:
    """What is kept at each size, against the vectors that the reducers start from.

    Args:
        sample: what to fit and to measure on.
        debiasing: the steps that come before every reducer.
    """

    def __init__(self, sample: Sample, debiasing: str) -> None:
        self.sample = sample
        self.debiasing = debiasing
        self.widths = sizes_of(sample.dimensions)
        self.seconds = gemm_seconds([sample.dimensions, *self.widths])
        self.heldout = sample.heldout[:GEOMETRY_ROWS]
        chain = Chain(parse_steps(debiasing)).fit(sample.fit)
        self.before: FloatArray = chain.floats(self.heldout)
        self.ranks = None if sample.halves is None else ranks_behind(chain, sample.halves)
        self.full = self.row("", self.before, self.ranks)

    def sizes(self, on_progress: Progress) -> Sizes:
        """Every reducer at every size.

        Args:
            on_progress: told a fraction and a sentence.
        """
        trials, problems = [], {}
        for done, (name, steps) in enumerate(REDUCERS.items() if self.widths else ()):
            on_progress(done / len(REDUCERS), f"fitting {name} and measuring it at {len(self.widths)} sizes")
            try:
                chain = self.fitted(f"{self.debiasing},{steps.format(k=self.widths[0])}")
            except TransformError as error:
                problems[name] = str(error)
                continue
            trials += [self.measure(name, chain, size) for size in self.widths]
        return Sizes(self.full, trials, problems, len(self.heldout))

    def fitted(self, steps: str) -> Chain:
        """A chain on the rows to fit on.

        Raises:
            TransformError: if the steps do not fit them.
        """
        return Chain(parse_steps(steps)).fit(self.sample.fit)

    def measure(self, reducer: str, chain: Chain, size: int) -> SizeTrial:
        """A chain cut to a size."""
        cut = self.sample.halves
        ranks = None if cut is None else ranks_behind(chain, cut, size)
        return self.row(reducer, chain.floats(self.heldout, size), ranks)

    def row(self, reducer: str, after: FloatArray, ranks: NDArray[np.float64] | None) -> SizeTrial:
        """What is kept by some vectors of the held-out rows."""
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


def gemm_seconds(widths: list[int]) -> dict[int, float]:
    """Least seconds for the similarities of 256 vectors to 20,000, by width; in turns, as others may be busy."""
    drawn = np.random.default_rng(0).standard_normal((GEMM_ROWS, max(widths)), np.float32)
    rows = {width: torch.from_numpy(np.ascontiguousarray(drawn[:, :width])) for width in widths}
    found: dict[int, list[float]] = {width: [] for width in widths}
    for _ in range(GEMM_TIMES):
        for width, vectors in rows.items():
            begun = time.perf_counter()
            torch.mm(vectors[:GEMM_QUERIES], vectors.T)
            found[width].append(time.perf_counter() - begun)
    return {width: min(seconds) for width, seconds in found.items()}
