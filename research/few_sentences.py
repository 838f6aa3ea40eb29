"""Loss of R1 and R2 if their mean is estimated from few sentences, as in the mean-bias paper."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lathe.training.comparison import Array, Interval
from lathe.training.errors import EvaluationError
from lathe.training.reporting.figures import create_panels, draw_figures, plot_intervals, use_plain_tick_labels
from lathe.training.reporting.text import format_points
from lathe.transforms import Chain
from lathe.transforms.vectors import FloatArray
from research.fitted_methods.evaluation import FittedRequest
from research.fitted_methods.methods import FittableMethod
from research.paper_findings.grid import Grid
from research.paper_findings.statistics import bootstrap

MEAN_DRAWS = 3
"""Number of random samples for each number of sentences that a mean is estimated from."""


@dataclass(frozen=True)
class SampledMethod(FittableMethod):
    """Method that is fitted on a random sample of the sentences.

    Attributes:
        sentences: number of sentences to fit on.
        draw: seed of the sample.
    """

    sentences: int = 0
    draw: int = 0

    @property
    def sample(self) -> tuple[int | None, int]:
        """Number of sentences to fit on, and the seed that draws them.

        A part of the key.
        """
        return self.sentences, self.draw

    def fit(self, rows: FloatArray) -> Chain:
        """Fit a new chain on the sample of the rows.

        Raises:
            EvaluationError: if there are fewer rows than the sample takes.
        """
        if self.sentences > len(rows):
            raise EvaluationError(f"{self.name}: the corpus has {len(rows):,} sentences to fit on")
        drawn = np.random.default_rng(self.draw).permutation(len(rows))[: self.sentences]
        return super().fit(np.asarray(rows[drawn]))


def list_mean_estimation_methods(counts: Iterable[int]) -> list[FittableMethod]:
    """List R1 and R2 fitted on so many sentences, three random samples each, to measure the error of the mean."""
    return [
        SampledMethod(f"{label}, draw {draw}", "means", label=label, steps=steps, sentences=count, draw=draw)
        for count in counts
        for label, steps in ((f"R1 of {count}", "r1"), (f"R2 of {count}", "r2"))
        for draw in range(MEAN_DRAWS)
    ]


@dataclass(frozen=True)
class FewSentences(FittedRequest):
    """Request for an evaluation that also measures R1 and R2 with means of few sentences.

    Attributes:
        sentences: numbers of sentences from which the means are estimated.
    """

    sentences: Sequence[int] = ()

    def methods(self, dimensions: int) -> list[FittableMethod]:
        """List all methods to evaluate on an encoder with `dimensions` dimensions.

        The control is the first.
        """
        return [*super().methods(dimensions), *list_mean_estimation_methods(dict.fromkeys(self.sentences))]

    @property
    def needs_corpus(self) -> bool:
        """Whether methods are fitted on the sentences of the corpus."""
        return bool(self.sentences) or super().needs_corpus


@dataclass(frozen=True)
class EstimationRow:
    """Loss of R1 and R2 if their mean is estimated from few sentences, over all encoders and tasks, in points.

    Attributes:
        sentences: number of sentences that the mean was estimated from.
        r1: R1's score with this mean minus its score with the mean of all sentences.
        r2: the same difference for R2.
        r1_error: mean absolute difference between these scores of R1.
        r2_error: the same for R2.
        r2_ahead: R2's score minus R1's, both with this mean.
    """

    sentences: int
    r1: Interval
    r2: Interval
    r1_error: Interval
    r2_error: Interval
    r2_ahead: Interval


def compare_estimated_means(grid: Grid) -> list[EstimationRow]:
    """Compare R1 and R2 with means of few sentences to those with all, one row for each number of sentences.

    A number is left out unless all encoders have both methods with it and with all sentences. The bootstrap resamples
    tasks.
    """
    counts = {m.sentences for e in grid.encoders.values() for m in e.methods.values() if isinstance(m, SampledMethod)}
    found = []
    for count in sorted(counts):
        methods = {e: [m for label in _estimation_labels(count) for m in grid.methods(e, label)] for e in grid.encoders}
        tasks = grid.common_tasks(methods)
        if tasks and all({m.label for m in some} == set(_estimation_labels(count)) for some in methods.values()):
            intervals = {name: bootstrap(rows) for name, rows in _estimation_values(grid, count, tasks).items()}
            found.append(EstimationRow(count, **intervals))
    return found


def _estimation_labels(count: int) -> tuple[str, ...]:
    """Return the labels of the four methods that are compared at a number of sentences."""
    return f"R1 of {count}", f"R2 of {count}", "R1", "R2"


def _estimation_values(grid: Grid, count: int, tasks: Sequence[str]) -> dict[str, Array]:
    """Return the values of an `EstimationRow` in points, by field, each `(tasks, encoders)`."""
    columns: dict[str, list[Array]] = {"r1": [], "r2": [], "r1_error": [], "r2_error": [], "r2_ahead": []}
    for encoder in grid.encoders:
        means = {}
        for name in ("R1", "R2"):
            best = grid.scores(encoder, name, tasks)
            draws = grid.methods(encoder, f"{name} of {count}")
            each = np.stack([grid.scores(encoder, method.name, tasks) for method in draws])
            means[name] = each.mean(axis=0)
            columns[name.lower()].append(100 * (means[name] - best))
            columns[f"{name.lower()}_error"].append(100 * np.abs(each - best).mean(axis=0))
        columns["r2_ahead"].append(100 * (means["R2"] - means["R1"]))
    return {name: np.stack(some, axis=1) for name, some in columns.items()}


def summarize_estimation(rows: Sequence[EstimationRow]) -> list[str]:
    """Return a sentence for each number of sentences on the errors of R1 and R2, and on which of them is better."""
    verdicts = {1: "R2 is better", -1: "R1 is better", 0: "neither is better beyond the interval"}
    return [
        f"With means of {row.sentences:,} sentences, a score of R1 lies {row.r1_error.value:.2f} points and one of R2 "
        f"{row.r2_error.value:.2f} from what all sentences give; R2 less R1 is {format_points(row.r2_ahead)}: "
        f"{verdicts[row.r2_ahead.sign]}."
        for row in rows
    ]


def draw_estimation(rows: Sequence[EstimationRow]) -> dict[str, str]:
    """Draw the errors against the number of sentences, and return SVG text by title, empty without rows."""
    return draw_figures({"Means estimated from few sentences": _plot_errors}, rows)


def _plot_errors(rows: Sequence[EstimationRow]) -> Any:
    if not rows:
        return None
    figure, (axis,) = create_panels(1)
    counts = [row.sentences for row in rows]
    plot_intervals(axis, counts, [row.r1_error for row in rows], label="R1", fmt="o-")
    plot_intervals(axis, counts, [row.r2_error for row in rows], label="R2", fmt="o-")
    axis.set_xscale("log")
    use_plain_tick_labels(axis.xaxis)
    axis.set_xlabel("sentences the mean is estimated from")
    axis.set_ylabel("points from the score with all")
    axis.legend(fontsize=8)
    return figure
