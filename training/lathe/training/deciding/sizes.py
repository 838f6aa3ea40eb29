"""Comparison of reducers at several numbers of dimensions, against the vectors that they reduce."""

from dataclasses import dataclass

from lathe.training.comparison import Interval, mean_interval
from lathe.training.deciding.debiasing import GEOMETRY_ROWS
from lathe.training.deciding.sample import Sample
from lathe.training.measures import rank_halves
from lathe.transforms.chain import Chain, parse_steps
from lathe.transforms.errors import TransformError
from lathe.transforms.progress import Progress, part_of
from lathe.transforms.quality import local_spearman, recall_per_row

SHARES = (1 / 2, 1 / 3, 1 / 4, 1 / 6, 1 / 8, 1 / 12, 1 / 16)
"""Compared shares of the dimensions; each number of dimensions is rounded to a multiple of `MULTIPLE`."""
MULTIPLE = 8
"""Divisor of every compared number of dimensions; hardware handles multiples of 8 best."""
REDUCERS = {
    "nested GeoPres": "geopres:{k},nested=true",
    "PCA": "pca:{k},center=none",
    "truncation": "truncation:{k}",
}
"""Steps of each compared reducer; each is fitted once, at the largest number of dimensions, and then cut."""
FITTED = {"nested GeoPres": 0.9, "PCA": 0.95, "truncation": 1.0}
"""Progress fractions once each reducer is fitted and measured, by the time that they take."""
NEIGHBOURS, OVERSAMPLING = 10, 4
"""Number of neighbours in recall@10, and factor of candidates that are rescored."""


@dataclass(frozen=True)
class ReducerTrial:
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
    """

    reducer: str
    dimensions: int
    local_spearman: float
    recall_at_10: float
    rescored_4x: Interval
    retrieval: float | None
    loss: Interval | None


@dataclass(frozen=True)
class ReducerComparison:
    """Measurements of all reducers at all compared numbers of dimensions.

    Attributes:
        full: measurements at full dimensions.
        trials: measurements of each reducer, from the largest to the smallest number of dimensions.
        problems: reasons why reducers could not be fitted, by name.
        rows: number of held-out rows whose neighbours are searched among each other.
    """

    full: ReducerTrial
    trials: list[ReducerTrial]
    problems: dict[str, str]
    rows: int


def list_dimensions(dimensions: int) -> list[int]:
    """Return the reduced numbers of dimensions to compare, from the largest.

    They are fixed shares of `dimensions`, rounded to multiples of `MULTIPLE`.
    """
    rounded = {round(dimensions * share / MULTIPLE) * MULTIPLE for share in SHARES}
    return sorted((reduced for reduced in rounded if 0 < reduced < dimensions), reverse=True)


def compare_reducers(sample: Sample, debiasing: str, on_progress: Progress) -> ReducerComparison:
    """Fit every reducer after the debiasing steps, and measure it at several numbers of dimensions.

    The reduced held-out rows are compared with the debiased ones. Reducers that cannot be fitted are named in the
    result.

    Args:
        sample: vectors to fit and to measure on.
        debiasing: steps that precede every reducer.
        on_progress: called with progress in [0, 1] and a message.
    """
    heldout = sample.heldout[:GEOMETRY_ROWS]
    debiased = Chain(parse_steps(debiasing)).fit(sample.fit)
    before = debiased.floats(heldout)
    full_ranks = None if sample.halves is None else rank_halves(debiased, sample.halves)

    def measure(reducer: str, chain: Chain, size: int | None) -> ReducerTrial:
        after = chain.floats(heldout, size)
        retrieval, loss = None, None
        if sample.halves is not None and full_ranks is not None:
            ranks = rank_halves(chain, sample.halves, dimensions=size)
            retrieval, loss = float(ranks.mean()), mean_interval(100 * (ranks - full_ranks))
        return ReducerTrial(
            reducer=reducer,
            dimensions=int(after.shape[1]),
            local_spearman=local_spearman(before, after),
            recall_at_10=float(recall_per_row(before, after, NEIGHBOURS).mean()),
            rescored_4x=mean_interval(recall_per_row(before, after, NEIGHBOURS, OVERSAMPLING)),
            retrieval=retrieval,
            loss=loss,
        )

    sizes = list_dimensions(sample.dimensions)
    trials, problems = [], {}
    done = 0.0
    for name, steps in REDUCERS.items() if sizes else ():
        fitting = part_of(on_progress, done, FITTED[name])
        done = FITTED[name]
        fitting(0.0, f"fitting {name}")
        try:
            # One fit at the largest size serves all smaller ones: every reducer here is nested.
            reduction = parse_steps(f"{debiasing},{steps.format(k=sizes[0])}")
            chain = Chain(reduction).fit(sample.fit, on_progress=part_of(fitting, 0.0, 0.7))
        except TransformError as error:
            problems[name] = str(error)
            continue
        fitting(0.7, f"measuring {name} at {len(sizes)} sizes")
        trials += [measure(name, chain, size) for size in sizes]

    return ReducerComparison(measure("", debiased, None), trials, problems, len(heldout))
