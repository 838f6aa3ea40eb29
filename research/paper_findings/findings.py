"""All statistics of an evaluation, computed from its scores, and their summary in sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lathe.training.comparison import Interval
from lathe.training.reporting.page import render_sentences
from research.fitted_methods.evaluation import FittedResults
from research.paper_findings import comparison, reductions
from research.paper_findings.comparison import Cell, FamilyRow, LargeEffect
from research.paper_findings.grid import Grid
from research.paper_findings.reductions import CrossLingual
from research.paper_findings.retention import Retention, compute_retentions
from research.paper_findings.statistics import Correlation


@dataclass(frozen=True)
class Findings:
    """Statistics of one evaluation.

    Parts whose methods were not requested are empty.

    Attributes:
        labels: labels of the methods that are compared with raw vectors.
        cells: comparison of each method on each encoder.
        overall: mean difference of each method over all encoders, in points.
        families: summary of each method by family of tasks.
        norm_correlations: correlation of each method's gain with ‖μ‖.
        norm_bins: mean t of R2 by interval of ‖μ‖.
        head_to_head: counts of encoders on which R2's t is above or below R1's.
        large_effects: large changes of a score, by any method.
        retentions: share of the score that reducers and nested chains retain.
        intrinsic: correlation of each intrinsic measure with the mean score.
        cross_lingual: retention in other languages compared with English.
    """

    labels: Sequence[str]
    cells: Sequence[Cell]
    overall: Mapping[str, Interval]
    families: Sequence[FamilyRow]
    norm_correlations: Mapping[str, Mapping[str, Correlation | None]]
    norm_bins: Sequence[Mapping[str, float | int | str | None]]
    head_to_head: Mapping[str, Mapping[str, int]]
    large_effects: Sequence[LargeEffect]
    retentions: Sequence[Retention]
    intrinsic: Mapping[str, Correlation]
    cross_lingual: Sequence[CrossLingual]


def compute_findings(results: FittedResults) -> Findings:
    """Compute what a report says about scores: differences from the raw vectors, their intervals and correlations.

    What needs methods, languages or sizes that were not evaluated is empty.
    """
    grid = Grid(results)
    labels = grid.labels("ladder", "chain")
    cells = comparison.compare_with_raw(grid, labels)
    return Findings(
        labels=labels,
        cells=cells,
        overall=comparison.average_differences(grid, labels),
        families=comparison.summarize_families(grid, cells),
        norm_correlations={label: comparison.correlate_gain_with_norm(grid, cells, label) for label in labels},
        norm_bins=comparison.average_by_norm(grid, cells, "R2") if "R2" in labels else [],
        head_to_head=comparison.count_head_to_head(cells, "R2", "R1"),
        large_effects=comparison.list_large_effects(grid, labels),
        retentions=compute_retentions(grid),
        intrinsic=reductions.correlate_intrinsic(grid),
        cross_lingual=reductions.compare_languages(grid),
    )


TEMPLATE = Path(__file__).with_name("summary.txt.j2")
"""Template of the sentences."""


def summarize(findings: Findings) -> list[str]:
    """Return all sentences about the findings of an evaluation, in reading order."""
    return render_sentences(TEMPLATE, vars(findings))
