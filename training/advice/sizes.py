"""How small can vectors be: reducers at every size, against the vectors they start from."""

import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from training.advice.debiasing import GEOMETRY_ROWS, ranks_behind
from training.advice.sample import Sample
from training.evaluation.statistics import Interval, mean_interval
from transforms.arrays import FloatArray
from transforms.chain import Chain
from transforms.errors import TransformError
from transforms.metrics import local_spearman, recall_of_anchors
from transforms.steps import parse_steps
from transforms.transform import Progress

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
        recall_at_10_rescored_4x: of them among forty candidates.
        retrieval: mean reciprocal rank of halves of texts; None where none can be cut.
        loss: of that to the full width, in points, paired by text.
        bytes: of a vector in float32.
        gemm_ms: for all similarities of 256 queries to 20,000 vectors.
    """

    reducer: str
    dimensions: int
    local_spearman: float
    recall_at_10: float
    recall_at_10_rescored_4x: float
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
    """

    full: SizeTrial
    trials: list[SizeTrial]
    problems: dict[str, str]

    def trial(self, reducer: str, dimensions: int) -> SizeTrial:
        """Of a reducer at a size."""
        return next(one for one in self.trials if (one.reducer, one.dimensions) == (reducer, dimensions))


def sizes_of(dimensions: int) -> list[int]:
    """The sizes that are tried, the largest first."""
    found = {round(dimensions * share / MULTIPLE) * MULTIPLE for share in SHARES}
    return sorted((size for size in found if 0 < size < dimensions), reverse=True)


def try_sizes(sample: Sample, debiasing: str, on_progress: Progress) -> Sizes:
    """Every reducer at every size, fitted after the steps of a debiasing method.

    Args:
        sample: what to fit and to measure on.
        debiasing: its steps.
        on_progress: told a fraction and a sentence.
    """
    before = Chain(parse_steps(debiasing)).fit(sample.fit)
    widths = sizes_of(sample.dimensions)
    seconds = gemm_seconds([sample.dimensions, *widths])
    curve = Curve(sample, before, seconds)
    trials, problems = [], {}
    for done, (name, steps) in enumerate(REDUCERS.items() if widths else ()):
        on_progress(done / len(REDUCERS), f"fitting {name} and measuring it at {len(widths)} sizes")
        try:
            chain = Chain(parse_steps(f"{debiasing},{steps.format(k=widths[0])}")).fit(sample.fit)
        except TransformError as error:
            problems[name] = str(error)
            continue
        trials += [curve.measure(name, chain, size) for size in widths]
    return Sizes(curve.full, trials, problems)


class Curve:
    """Measures chains against the vectors they start from.

    Args:
        sample: what to measure on.
        before: what comes before every reducer.
        seconds: of a GEMM at each width.
    """

    def __init__(self, sample: Sample, before: Chain, seconds: dict[int, float]) -> None:
        self.sample = sample
        self.seconds = seconds
        self.heldout = sample.heldout[:GEOMETRY_ROWS]
        self.before: FloatArray = before.floats(self.heldout)
        self.ranks = None if sample.halves is None else ranks_behind(before, sample.halves)
        self.full = self.row("", self.before, self.ranks)

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
            recall_at_10_rescored_4x=float(recall_of_anchors(self.before, after, NEIGHBOURS, OVERSAMPLING).mean()),
            retrieval=None if ranks is None else float(ranks.mean()),
            loss=None if ranks is None or self.ranks is None else mean_interval(100 * (ranks - self.ranks)),
            bytes=4 * width,
            gemm_ms=1000 * self.seconds[width],
        )


def gemm_seconds(widths: list[int]) -> dict[int, float]:
    """Median seconds for the similarities of 256 vectors to 20,000, by width; the widths in turns."""
    drawn = np.random.default_rng(0).standard_normal((GEMM_ROWS, max(widths))).astype(np.float32)
    rows = {width: torch.from_numpy(np.ascontiguousarray(drawn[:, :width])) for width in widths}
    found: dict[int, list[float]] = {width: [] for width in widths}
    for _ in range(GEMM_TIMES):
        for width, vectors in rows.items():
            begun = time.perf_counter()
            torch.mm(vectors[:GEMM_QUERIES], vectors.T)
            found[width].append(time.perf_counter() - begun)
    return {width: float(np.median(seconds)) for width, seconds in found.items()}
