"""Evidence beside a decision: the mean direction, what debiasing does, and what fewer dimensions keep."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from lathe.training.advice.debiasing import DebiasingComparison, compare_debiasing
from lathe.training.advice.matryoshka import MIN_COORDINATE_ROWS, Matryoshka, compare_first_coordinates
from lathe.training.advice.sample import Sample
from lathe.training.advice.sample_size import Shortage, check_row_count, list_shortages
from lathe.training.advice.sizes import SizeComparison, compare_sizes
from lathe.training.comparison import cosine_similarity
from lathe.transforms.progress import Progress, part_of
from lathe.transforms.quality import Diagnostics, diagnose
from lathe.transforms.statistics import unit_rows
from lathe.transforms.vectors import FloatArray, row_blocks

DEBIASED = 0.2
"""Progress fraction once the debiasing methods are compared; the reducers take the rest of the time."""


@dataclass(frozen=True)
class Evidence:
    """Measurements of held-out rows that no place decides.

    Attributes:
        cut: number of held-out texts that are long enough to be cut in two.
        diagnosis: diagnostics of the held-out rows; see `lathe.transforms.diagnose`.
        mean_agreement: cosine between the mean unit vectors of the held-out rows and of the rows to fit on; None if one
            of these means is zero.
        debiasing: comparison of debiasing methods; None with too few rows.
        matryoshka: test of the first coordinates against random ones; None with too few rows.
        sizes: comparison of reducers; None with too few rows.
        shortages: questions for which the sample is too small.
        problems: methods that could not be fitted, as sentences.
    """

    cut: int
    diagnosis: Diagnostics
    mean_agreement: float | None
    debiasing: DebiasingComparison | None = None
    matryoshka: Matryoshka | None = None
    sizes: SizeComparison | None = None
    shortages: list[Shortage] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def measure_evidence(sample: Sample, seed: int, on_progress: Progress) -> Evidence:
    """Measure the mean direction of a sample, and compare debiasing methods and reducers on it.
    With too few rows, the result has the diagnosis and a shortage alone.

    Args:
        sample: vectors to fit and to measure on.
        seed: seed of the random coordinates.
        on_progress: called with progress in [0, 1] and a message.
    """
    on_progress(0.0, "trying what debiasing does")
    diagnosis, agreement = diagnose(sample.heldout), cosine_of_means(sample.fit, sample.heldout)
    if shortage := check_row_count(len(sample.row_sample)):
        return Evidence(sample.cut, diagnosis, agreement, shortages=[shortage])

    debiasing = compare_debiasing(sample)
    sizes = compare_sizes(sample, debiasing.trial(debiasing.chosen).steps, part_of(on_progress, DEBIASED, 1.0))
    has_enough_rows = len(sample.heldout) >= MIN_COORDINATE_ROWS
    return Evidence(
        cut=sample.cut,
        diagnosis=diagnosis,
        mean_agreement=agreement,
        debiasing=debiasing,
        matryoshka=compare_first_coordinates(sample.heldout, seed) if has_enough_rows else None,
        sizes=sizes,
        shortages=list_shortages(sample, debiasing),
        problems=list(_list_problems(debiasing, sizes)),
    )


def cosine_of_means(fit: FloatArray, heldout: FloatArray) -> float | None:
    """Return the cosine between the mean unit vectors of rows `(n, d)` and `(m, d)`, None if a mean is zero."""
    return cosine_similarity(_unit_mean(fit), _unit_mean(heldout))


def _unit_mean(vectors: FloatArray) -> NDArray[np.float64]:
    # Block by block: the unit rows of all in float64 would take twice the memory of the vectors.
    sums = [unit_rows(torch.from_numpy(block.astype(np.float64))).sum(0).numpy() for block in row_blocks(vectors)]
    return np.asarray(np.sum(sums, axis=0) / len(vectors))


def _list_problems(debiasing: DebiasingComparison, sizes: SizeComparison) -> Iterator[str]:
    problems = {trial.method: trial.problem for trial in debiasing.trials if trial.problem is not None} | sizes.problems
    for name, problem in problems.items():
        yield f"{name} could not be fitted: {problem}."
