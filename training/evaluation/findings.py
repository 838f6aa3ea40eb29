"""What the scores of an evaluation say: every statistic, ready to be written down."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from training.evaluation import comparison, reduction
from training.evaluation.comparison import Cell, EstimationRow, FamilyRow, LargeEffect
from training.evaluation.grid import Grid
from training.evaluation.reduction import CrossLingual, Retention
from training.evaluation.run import Results
from training.evaluation.statistics import Correlation, Interval


@dataclass(frozen=True)
class Findings:
    """The statistics of one evaluation; parts that were not asked for are empty.

    Attributes:
        labels: of the methods compared with raw vectors.
        cells: each on each encoder.
        overall: each over all encoders, in points.
        families: each by family of tasks.
        norm_correlations: of each with ‖μ‖.
        norm_bins: mean t of R2 by ‖μ‖.
        head_to_head: R2 against R1.
        large_effects: of all methods.
        estimation: R1 and R2 by sentences.
        retentions: of reducers and nested chains.
        intrinsic: measures of geometry against scores.
        cross_lingual: retention against English.
    """

    labels: Sequence[str]
    cells: Sequence[Cell]
    overall: Mapping[str, Interval]
    families: Sequence[FamilyRow]
    norm_correlations: Mapping[str, Mapping[str, Correlation | None]]
    norm_bins: Sequence[Mapping[str, float | int | str | None]]
    head_to_head: Mapping[str, Mapping[str, int]]
    large_effects: Sequence[LargeEffect]
    estimation: Sequence[EstimationRow]
    retentions: Sequence[Retention]
    intrinsic: Mapping[str, Correlation]
    cross_lingual: Sequence[CrossLingual]


def find(results: Results) -> Findings:
    """All statistics that the scores allow."""
    grid = Grid(results)
    labels = grid.labels("ladder", "chain")
    cells = comparison.cells(grid, labels)
    return Findings(
        labels=labels,
        cells=cells,
        overall=comparison.overall(grid, labels),
        families=comparison.family_rows(grid, cells),
        norm_correlations={label: comparison.norm_correlations(grid, cells, label) for label in labels},
        norm_bins=comparison.norm_bins(grid, cells, "R2") if "R2" in labels else [],
        head_to_head=comparison.head_to_head(cells, "R2", "R1"),
        large_effects=comparison.large_effects(grid, labels),
        estimation=comparison.estimation_rows(grid),
        retentions=reduction.retentions(grid),
        intrinsic=reduction.intrinsic_correlations(grid),
        cross_lingual=reduction.cross_lingual(grid),
    )
