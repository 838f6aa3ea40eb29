"""Tables of the papers' statistics."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from lathe.training.evaluation.report import build_raw_score_table, build_score_table
from lathe.training.reporting.tables import Table
from lathe.training.reporting.text import (
    format_fraction,
    format_half_width,
    format_interval,
    format_percent,
)
from research.fitted_methods.evaluation import FittedResults
from research.paper_findings.findings import Findings
from research.paper_findings.retention import RIVAL, Retention

MAX_EFFECTS = 50
"""Maximum number of large effects in the table. All are in the JSON."""


def build_tables(results: FittedResults, findings: Findings) -> dict[str, Table]:
    """Build every table for which there are findings, by title."""
    found = {
        "Raw vectors: mean score × 100 by type of task": build_raw_score_table(results),
        "Differences to raw vectors, in points": build_difference_table(results, findings),
        "By family of tasks: paired t": _build_family_table(findings),
        "By encoder, method and family of tasks": _build_cell_table(findings),
        "Gain and ‖μ‖ over encoders": _build_norm_table(findings),
        "Mean t of R2 by ‖μ‖": Table.from_records(findings.norm_bins, {"encoders": "d"}, "+.2f"),
        "Large effects (more than .1 and 2 %) by encoder": _build_effect_summary_table(findings, "encoder"),
        "Large effects by task": _build_effect_summary_table(findings, "task"),
        "The largest effects": _build_effect_table(findings),
        "Share of the score kept, per cent": build_retention_table(findings.retentions),
        "By type of task, and ahead of PCA, points of retention": build_type_table(findings.retentions),
        "Retention in other languages less that in English": _build_language_table(findings),
        "Every score × 100": build_score_table(results),
    }
    return {title: table for title, table in found.items() if table}


def build_difference_table(results: FittedResults, findings: Findings) -> Table:
    """Build the table of differences to raw vectors in points: encoders by methods, and a last row for all if several.

    Encoders without differences are left out.
    """
    rows: list[dict[str, Any]] = []
    for result in results.encoders:
        cells = {cell.label: cell for cell in findings.cells if cell.encoder == result.member.name}
        if cells:
            tasks = max(cell.tasks for cell in cells.values())
            differences = {label: cells[label].difference if label in cells else None for label in findings.labels}
            rows.append({"encoder": result.member.name, "‖μ‖": result.mean_norm, "tasks": tasks} | differences)
    if len(rows) > 1:
        overall = {label: findings.overall.get(label) for label in findings.labels}
        rows.append({"encoder": "all", "‖μ‖": "", "tasks": ""} | overall)
    return Table.from_records(rows, {"‖μ‖": ".2f", "tasks": "d"}, format_half_width)


def _build_family_table(findings: Findings) -> Table:
    """Build the table of mean t, wins, ties and losses, with a row for each method and family of tasks.

    Further columns leave out one family of encoders each.
    """
    return Table.from_records(
        {"method": row.label, "family": row.family, "encoders": row.all.encoders}
        | {"mean t": f"{row.all.mean_t:+.2f}", "W/T/L": f"{row.all.wins}/{row.all.ties}/{row.all.losses}"}
        | {
            f"without {name}": f"{one.mean_t:+.2f}; {one.wins}/{one.ties}/{one.losses}"
            for name, one in row.without.items()
        }
        for row in findings.families
    )


def _build_cell_table(findings: Findings) -> Table:
    return Table.from_records(
        (
            {"encoder": cell.encoder, "method": cell.label, "family": family, "tasks": test.n}
            | {"difference": test.mean, "t": test.t, "p": test.p, "σ_cell": test.sigma_cell}
            for cell in findings.cells
            for family, test in cell.families.items()
        ),
        {"difference": "+.2f", "t": "+.2f", "p": ".3f", "σ_cell": "+.2f"},
    )


def _build_norm_table(findings: Findings) -> Table:
    return Table.from_records(
        (
            {"method": label, "what": what, "encoders": one.n, "r": one.pearson, "ρ": one.spearman}
            for label, correlations in findings.norm_correlations.items()
            for what, one in correlations.items()
            if one is not None
        ),
        {"r": format_interval, "ρ": format_interval},
    )


def _build_effect_table(findings: Findings) -> Table:
    return Table.from_records(
        (
            {"method": effect.label, "encoder": effect.encoder, "task": effect.task}
            | {"raw": effect.control, "difference": effect.difference}
            for effect in findings.large_effects[:MAX_EFFECTS]
        ),
        {"raw": ".3f", "difference": "+.3f"},
    )


def _build_effect_summary_table(findings: Findings, by: Literal["encoder", "task"]) -> Table:
    """Build the table of large effects by method and encoder, or task: count, mean and largest, upward and downward.

    Large effects are differences of more than 0.1, of scores from 0 to 1, and more than 2 % of the raw score, as in
    Tables 8 and 9 of the mean-bias paper.
    """
    groups: dict[tuple[str, str], list[float]] = {}
    for effect in findings.large_effects:
        groups.setdefault((effect.label, getattr(effect, by)), []).append(effect.difference)
    rows = []
    for (label, name), differences in sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]))):
        row: dict[str, Any] = {"method": label, by: name}
        for way, sign in (("up", 1), ("down", -1)):
            some = [difference for difference in differences if sign * difference > 0]
            mean, largest = (float(np.mean(some)), max(some, key=abs)) if some else (None, None)
            row |= {way: len(some), f"mean {way}": mean, f"most {way}": largest}
        rows.append(row)
    return Table.from_records(rows, {"up": "d", "down": "d"}, "+.3f")


def _build_language_table(findings: Findings) -> Table:
    """Build the table of retention in other languages minus that in English, a column for each language.

    Each encoder, reducer, size and data set has a row.
    """
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in findings.cross_lingual:
        key = {"encoder": one.encoder, "reducer": one.label, "size": str(one.size), "data set": one.task}
        rows.setdefault(tuple(key.values()), key)[one.language] = one.against_english
    return Table.from_records(rows.values(), default="+.3f")


def build_retention_table(retentions: Sequence[Retention]) -> Table:
    """Build the table of the share of the score that reductions retain.

    Each reducer has a row, each share of the dimensions a column.
    """
    rows: dict[str, dict[str, Any]] = {}
    shares = dict.fromkeys(
        format_fraction(s) for s in sorted({retention.share for retention in retentions}, reverse=True)
    )
    for retention in retentions:
        row = rows.setdefault(retention.label, {"reducer": retention.label, **shares})
        row[format_fraction(retention.share)] = retention.mean

    return Table.from_records(rows.values(), default=format_percent)


def build_type_table(retentions: Sequence[Retention]) -> Table:
    """Build the table of the retained share of the score by type of task, and of its difference to PCA in points.

    Each reducer and share of the dimensions has a row, each type of task a column.
    """
    kinds = dict.fromkeys(kind for retention in retentions for kind in retention.types)
    return Table.from_records(
        {"reducer": retention.label, "dimensions": format_fraction(retention.share)}
        | kinds
        | {kind: _format_retention(retention, kind) for kind in retention.types}
        for retention in retentions
    )


def _format_retention(retention: Retention, kind: str) -> str:
    share, ahead = format_percent(retention.types[kind]), retention.ahead.get(kind)
    return share if ahead is None or retention.label == RIVAL else f"{share}; {100 * ahead.value:+.1f}"
