"""Evidence for a decision: the mean direction, what debiasing changes, and what fewer dimensions preserve.

The test for Matryoshka structure is whether the first coordinates preserve more neighbours than random coordinates.
Questions that the sample is too small to answer are listed, with the number of missing rows.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from lathe.training.comparison import Array, Interval, mean_interval
from lathe.training.deciding.debiasing import GEOMETRY_ROWS, DebiasingComparison, compare_debiasing
from lathe.training.deciding.sample import HELDOUT_SHARE, MAX_HELDOUT, MIN_HALVES, SMALL_HELDOUT, Sample
from lathe.training.measures import MIN_WORDS, rank_halves
from lathe.transforms.chain import Chain, parse_steps
from lathe.transforms.errors import TransformError
from lathe.transforms.progress import Progress, part_of
from lathe.transforms.quality import Diagnostics, diagnose, local_spearman, recall_at_k, recall_per_row
from lathe.transforms.statistics import unit_rows
from lathe.transforms.vectors import FloatArray, row_blocks

SIZE_SHARES = (1 / 2, 1 / 3, 1 / 4, 1 / 6, 1 / 8, 1 / 12, 1 / 16)
"""Compared shares of the dimensions; each number of dimensions is rounded to a multiple of `MULTIPLE`."""
MULTIPLE = 8
"""Divisor of every compared number of dimensions; hardware handles multiples of 8 best."""
REDUCERS = {
    "nested GeoPres": "geopres:{k},nested=true",
    "PCA": "pca:{k},center=none",
    "truncation": "truncation:{k}",
}
"""Steps of the compared reducers. A reducer is fitted once, at the largest number of dimensions, and then truncated."""
FITTED = {"nested GeoPres": 0.9, "PCA": 0.95, "truncation": 1.0}
"""Progress fractions once a reducer is fitted and measured, by the time that reducers take."""
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
        loss: difference of 100·`retrieval` to full dimensions, paired by text; negative if MRR is lost; None without
            text halves.
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
    """List the reduced numbers of dimensions to compare, largest first.

    The numbers are the `SIZE_SHARES` of `dimensions`, rounded to multiples of `MULTIPLE`, and smaller than
    `dimensions`.
    """
    rounded = {round(dimensions * share / MULTIPLE) * MULTIPLE for share in SIZE_SHARES}
    return sorted((reduced for reduced in rounded if 0 < reduced < dimensions), reverse=True)


def compare_reducers(sample: Sample, debiasing: str, on_progress: Progress) -> ReducerComparison:
    """Fit every reducer on debiased vectors, and measure it at several numbers of dimensions. Failed fits are listed.

    Reduced held-out rows are compared with debiased held-out rows of full dimensions. Reducers of `REDUCERS` that
    cannot be fitted are in `problems` of the result.

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
            # One fit at the largest number of dimensions serves all others: every reducer here is nested.
            reduction = parse_steps(f"{debiasing},{steps.format(k=sizes[0])}")
            chain = Chain(reduction).fit(sample.fit, on_progress=part_of(fitting, 0.0, 0.7))
        except TransformError as error:
            problems[name] = str(error)
            continue
        fitting(0.7, f"measuring {name} at {len(sizes)} numbers of dimensions")
        trials += [measure(name, chain, size) for size in sizes]

    return ReducerComparison(measure("", debiased, None), trials, problems, len(heldout))


SHARES = (1 / 2, 1 / 4, 1 / 8)
"""Compared prefixes, as shares of the dimensions."""
RESAMPLES = 19
"""Number of random choices of coordinates. The first coordinates exceed all 19 by chance with probability 1/20."""
MAX_ROWS = 1000
"""Maximum number of held-out rows in the comparison of coordinates; neighbours are searched among these rows."""
MIN_COORDINATE_ROWS = 100
"""Minimum number of held-out rows for the comparison of coordinates: with fewer, recall@10 is too noisy."""
MIN_LEAD = 2.0
"""Points of recall@10 by which the first coordinates must exceed the mean of random coordinates, at a quarter of the
dimensions and less. No margin is required at a half, where any coordinates find nearly all neighbours."""
MIN_ROWS = 100
"""Minimum number of distinct rows for evidence."""
MIN_HELDOUT = 500
"""Minimum number of held-out rows to judge a reduction by. With fewer, the forty candidates of a rescored search are so
large a share of all rows that any reduction seems to preserve the neighbours."""
PRECISE_POINTS = 0.5
"""Half-width of the interval of R2's gain that a large enough sample reaches, in points (100·MRR)."""
DEBIASED = 0.2
"""Progress fraction once the debiasing methods are compared; the reducers take the rest of the time."""
MAX_ZERO_NORM = 1e-12
"""Norm of a mean of unit vectors up to which it counts as zero, since it is only rounding error."""


@dataclass(frozen=True)
class Matryoshka:
    """Comparison of the first coordinates of vectors with random coordinates, at several numbers of coordinates.

    Attributes:
        cuts: a dict `{dimensions, first, random, best}` for each number of coordinates, largest first. `dimensions` is
            the number of coordinates. The others are recall@10 in per cent: of the first coordinates, the mean of the
            random choices, and the best of the random choices.
        first_hold_more: whether there are at least two cuts, and none of them fails, see `find_failing_cuts`.
    """

    cuts: list[dict[str, float]]
    first_hold_more: bool


def compare_first_coordinates(vectors: FloatArray, seed: int = 0) -> Matryoshka:
    """Test whether the first coordinates preserve more neighbours (recall@10) than random ones. Needs 11 rows.

    The test is made at a half, a quarter and an eighth of the dimensions, on the first `MAX_ROWS` rows.
    """
    rows, dimensions = vectors[:MAX_ROWS], vectors.shape[1]
    random = np.random.default_rng(seed)
    cuts = []

    for size in dict.fromkeys(int(dimensions * share) for share in SHARES if dimensions * share >= 1):
        first = 100 * recall_at_k(rows, rows[:, :size], NEIGHBOURS)
        # 19 random choices: the first coordinates exceed all of them by chance in one case of 20.
        samples = [np.sort(random.permutation(dimensions)[:size]) for _ in range(RESAMPLES)]
        random_recalls = [100 * recall_at_k(rows, rows[:, coordinates], NEIGHBOURS) for coordinates in samples]
        average, best = float(np.mean(random_recalls)), max(random_recalls)
        cuts.append({"dimensions": size, "first": first, "random": average, "best": best})

    return Matryoshka(cuts, len(cuts) > 1 and not find_failing_cuts(cuts))


def find_failing_cuts(cuts: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """Return the cuts at which the first coordinates do not clearly preserve more neighbours than random coordinates.

    A cut fails if recall@10 of the first coordinates does not exceed the best random choice. Every cut but the first
    also fails if the first coordinates exceed the mean of the random choices by less than `MIN_LEAD`.
    """
    # At the first cut, half of the dimensions, any coordinates find nearly all neighbours: no margin is required.
    return [
        cut
        for position, cut in enumerate(cuts)
        if cut["first"] <= cut["best"] or (position > 0 and cut["first"] - cut["random"] < MIN_LEAD)
    ]


@dataclass(frozen=True)
class Shortage:
    """Question for which the sample is too small.

    Attributes:
        what: the question, as a sentence without a full stop.
        more: number of additional distinct rows that would be enough; None if more rows would not help.
        instead: remark that is shown if `more` is None.
    """

    what: str
    more: int | None
    instead: str = "not even the maximum number of held-out rows would be enough"


def list_shortages(sample: Sample, debiasing: DebiasingComparison) -> Iterator[Shortage]:
    """Yield a `Shortage` if the rows are too few to tell whether debiasing helps or what fewer dimensions preserve.

    Whether debiasing helps is unclear if too few texts can be cut in two, or if the gain of R2, a debiasing method, is
    neither significant nor known to ± `PRECISE_POINTS`. For vectors without texts, this question is left out, because
    more rows would not help. What fewer dimensions preserve is unclear with fewer than `MIN_HELDOUT` held-out rows.
    """
    heldout = len(sample.heldout)

    def count_missing_rows(needed: int) -> int | None:
        return count_rows_for_heldout(needed) - len(sample.row_sample) if needed <= MAX_HELDOUT else None

    if sample.halves is not None:
        gain = debiasing.trial("R2").gain
        reach = gain.reach if gain is not None and gain.sign == 0 else None
        if reach is not None and reach > PRECISE_POINTS:
            yield Shortage(
                f"whether debiasing gains or loses less than {reach:.1f} points cannot be told with {sample.cut:,} "
                "texts cut in two",
                # The half-width of an interval falls with the root of the number of rows.
                count_missing_rows(int(heldout * (reach / PRECISE_POINTS) ** 2) + 1),
            )
    elif sample.row_sample.texts:
        count = f"{sample.cut} held-out texts have" if sample.cut else "none of the held-out texts has"
        what = f"whether debiasing helps cannot be told: {count} the {2 * MIN_WORDS} words to be cut in two"
        if sample.cut:
            # The same share of further texts is assumed to be long enough.
            yield Shortage(what, count_missing_rows(math.ceil(MIN_HALVES * heldout / sample.cut)))
        else:
            yield Shortage(what, None, "longer texts would help, more texts of this length would not")

    if heldout < MIN_HELDOUT:
        what = f"what fewer dimensions preserve cannot be told among {heldout:,} held-out rows"
        yield Shortage(what, count_missing_rows(MIN_HELDOUT))


def count_rows_for_heldout(heldout: int) -> int:
    """Return the number of distinct rows of which `heldout` rows are held out, the inverse of `count_heldout`."""
    return 2 * heldout if heldout <= SMALL_HELDOUT else int(heldout / HELDOUT_SHARE)


@dataclass(frozen=True)
class Evidence:
    """Measurements of held-out rows that do not depend on the database.

    Attributes:
        cut: number of held-out texts that are long enough to be cut in two.
        diagnosis: diagnostics of the held-out rows; see `lathe.transforms.diagnose`.
        mean_agreement: cosine between the mean unit vectors of the held-out rows and of the rows to fit on; None if a
            mean is zero.
        debiasing: comparison of debiasing methods; None with too few rows.
        matryoshka: test of the first coordinates against random coordinates; None with too few rows.
        sizes: comparison of reducers; None with too few rows.
        shortages: questions for which the sample is too small.
        problems: methods that could not be fitted, as sentences.
    """

    cut: int
    diagnosis: Diagnostics
    mean_agreement: float | None
    debiasing: DebiasingComparison | None = None
    matryoshka: Matryoshka | None = None
    sizes: ReducerComparison | None = None
    shortages: list[Shortage] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def measure_evidence(sample: Sample, seed: int, on_progress: Progress) -> Evidence:
    """Measure the mean direction, debiasing, first coordinates and reducers. Few rows give the mean direction alone.

    With fewer than `MIN_ROWS` rows, a `Shortage` says what is missing. The first coordinates are tested with at least
    `MIN_COORDINATE_ROWS` held-out rows.

    Args:
        sample: vectors to fit and to measure on.
        seed: seed of the random coordinates.
        on_progress: called with progress in [0, 1] and a message.
    """
    on_progress(0.0, "trying what debiasing does")
    diagnosis, agreement = diagnose(sample.heldout), compute_cosine_of_means(sample.fit, sample.heldout)
    if (rows := len(sample.row_sample)) < MIN_ROWS:
        what = f"{rows} distinct rows are too few to measure debiasing or fewer dimensions; {MIN_ROWS} are needed"
        return Evidence(sample.cut, diagnosis, agreement, shortages=[Shortage(what, MIN_ROWS - rows)])

    debiasing = compare_debiasing(sample)
    sizes = compare_reducers(sample, debiasing.trial(debiasing.chosen).steps, part_of(on_progress, DEBIASED, 1.0))
    problems = {trial.method: trial.problem for trial in debiasing.trials if trial.problem is not None} | sizes.problems
    has_enough_rows = len(sample.heldout) >= MIN_COORDINATE_ROWS
    return Evidence(
        cut=sample.cut,
        diagnosis=diagnosis,
        mean_agreement=agreement,
        debiasing=debiasing,
        matryoshka=compare_first_coordinates(sample.heldout, seed) if has_enough_rows else None,
        sizes=sizes,
        shortages=list(list_shortages(sample, debiasing)),
        problems=[f"{name} could not be fitted: {problem}." for name, problem in problems.items()],
    )


def compute_cosine_of_means(fit: FloatArray, heldout: FloatArray) -> float | None:
    """Compute the cosine between the mean unit vectors of rows `(n, d)` and `(m, d)`, or None if a mean is zero."""
    return cosine_similarity(_unit_mean(fit), _unit_mean(heldout))


def cosine_similarity(first: Array, second: Array) -> float | None:
    """Compute the cosine between two vectors `(d,)`, or None if the norm of a vector is at most `MAX_ZERO_NORM`."""
    lengths = float(np.linalg.norm(first)), float(np.linalg.norm(second))
    return None if min(lengths) <= MAX_ZERO_NORM else float(first @ second) / (lengths[0] * lengths[1])


def _unit_mean(vectors: FloatArray) -> Array:
    """Scale the rows `(n, d)` to unit length, and return their mean `(d,)` in float64."""
    # Block by block: the unit rows of all in float64 would take twice the memory of the vectors.
    sums = [unit_rows(torch.from_numpy(block.astype(np.float64))).sum(0).numpy() for block in row_blocks(vectors)]
    return np.asarray(np.sum(sums, axis=0) / len(vectors))
