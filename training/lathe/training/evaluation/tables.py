"""Tables of an evaluation."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from lathe.training.evaluation.findings import Findings
from lathe.training.evaluation.grid import Grid, find_task_family
from lathe.training.evaluation.methods import CONTROL
from lathe.training.evaluation.reduction import RIVAL, Retention
from lathe.training.evaluation.run import EncoderResult, Results
from lathe.training.reporting.tables import Table
from lathe.training.reporting.text import (
    format_fraction,
    format_half_width,
    format_interval,
    format_number,
    format_percent,
)

MAX_EFFECTS = 50
"""Maximum number of large effects in the table; all are in the JSON."""


def build_tables(results: Results, findings: Findings) -> dict[str, Table]:
    """Build every table for which there are findings; return tables by title."""
    tables = {
        "Raw vectors: mean score × 100 by type of task": build_raw_score_table(results),
        "Differences to raw vectors, in points": build_difference_table(results, findings),
        "By family of tasks: paired t": _build_family_table(findings),
        "By encoder, method and family of tasks": _build_cell_table(findings),
        "Gain and ‖μ‖ over encoders": _build_norm_table(findings),
        "Mean t of R2 by ‖μ‖": Table.from_records(findings.norm_bins, {"encoders": "d"}, "+.2f"),
        "Large effects (more than .1 and 2 %) by encoder": _build_effect_summary_table(findings, "encoder"),
        "Large effects by task": _build_effect_summary_table(findings, "task"),
        "The largest effects": _build_effect_table(findings),
        "Share of the score kept, per cent": build_retention_table(findings),
        "By type of task, and ahead of PCA, points of retention": _build_type_table(findings),
        "Retention in other languages less that in English": _build_language_table(findings),
        "Every score × 100": _build_score_table(results),
    }
    return {title: table for title, table in tables.items() if table}


def build_raw_score_table(results: Results) -> Table:
    """Build the table of the raw vectors' ‖μ‖ and mean score by type, over the tasks that all encoders completed."""
    grid = Grid(results)
    tasks = grid.common_tasks({name: [] for name in grid.encoders})
    types = {
        f"{kind} ({len(positions)})": [tasks[position] for position in positions]
        for kind, positions in grid.group_by_type(tasks).items()
    }
    return Table.from_records(
        (
            {"encoder": name, "‖μ‖": _format_norm(result)}
            | {column: _mean_score(grid, name, some) for column, some in ({"mean": tasks} | types).items()}
            for name, result in grid.encoders.items()
        ),
        default=".2f",
    )


def _format_norm(result: EncoderResult) -> str:
    published = result.member.published_mean_norm
    ours = format_number(result.mean_norm, ".3f")
    return ours if published is None else f"{ours} (published {published:.3f})"


def _mean_score(grid: Grid, encoder: str, tasks: Sequence[str]) -> float | None:
    """Return the mean raw score × 100 over tasks; None without tasks."""
    return 100 * float(np.mean(grid.control_scores(encoder, tasks))) if tasks else None


def build_difference_table(results: Results, findings: Findings) -> Table:
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


def build_retention_table(findings: Findings) -> Table:
    """Build the table of the retained share of the score: a row per reducer, a column per share of the dimensions."""
    rows: dict[str, dict[str, Any]] = {}
    shares = dict.fromkeys(format_fraction(s) for s in sorted({one.share for one in findings.retentions}, reverse=True))
    for one in findings.retentions:
        row = rows.setdefault(one.label, {"reducer": one.label, **shares})
        row[format_fraction(one.share)] = one.mean
    return Table.from_records(rows.values(), default=format_percent)


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


def _build_type_table(findings: Findings) -> Table:
    """Build the table of the retained share, with its difference to that of PCA in points.

    Each reducer and share of the dimensions has a row, each type of task a column.
    """
    kinds = dict.fromkeys(kind for one in findings.retentions for kind in one.types)
    return Table.from_records(
        {"reducer": one.label, "dimensions": format_fraction(one.share)}
        | kinds
        | {kind: _format_retention(one, kind) for kind in one.types}
        for one in findings.retentions
    )


def _format_retention(one: Retention, kind: str) -> str:
    share, ahead = format_percent(one.types[kind]), one.ahead.get(kind)
    return share if ahead is None or one.label == RIVAL else f"{share}; {100 * ahead.value:+.1f}"


def _build_language_table(findings: Findings) -> Table:
    """Build the table of retention in other languages minus that in English, a column for each language.

    Each encoder, reducer, size and data set has a row.
    """
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in findings.cross_lingual:
        key = {"encoder": one.encoder, "reducer": one.label, "size": str(one.size), "data set": one.task}
        rows.setdefault(tuple(key.values()), key)[one.language] = one.against_english
    return Table.from_records(rows.values(), default="+.3f")


def _build_score_table(results: Results) -> Table:
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    columns = dict.fromkeys(row["method"] for row in build_score_records(results))
    for one in build_score_records(results):
        key = {name: one[name] for name in ("task", "type", "encoder")}
        row = rows.setdefault(tuple(key.values()), key | columns)
        row[one["method"]] = None if one["score"] is None else 100 * one["score"]
    return Table.from_records((rows[key] for key in sorted(rows)), default=".2f")


def build_score_records(results: Results, metrics: bool = False) -> list[dict[str, Any]]:
    """Return a dict for each score with names, raw score, difference and retention, sorted by encoder and task.

    Args:
        results: results of an evaluation.
        metrics: whether to add all metrics of mteb.
    """
    grid = Grid(results)
    rows = []
    for score in results.scores:
        result, task = grid.encoders[score.encoder], grid.tasks.get(score.task)
        method = result.methods.get(score.method)
        control = grid.values.get((result.member.name, CONTROL, score.task))
        both = None if score.score is None or control is None else (score.score, control)
        rows.append(
            {
                "task": score.task,
                "type": task.type if task else "",
                "family": find_task_family(task.type) if task else "",
                "language": task.language if task else "",
                "metric": task.main_score if task else "",
                "encoder": result.member.name,
                "mean_norm": result.mean_norm,
                "method": score.method,
                "group": method.group if method else "",
                "label": method.label if method else "",
                "size": method.size if method else None,
                "score": score.score,
                "control": control,
                "difference_points": None if both is None else 100 * (both[0] - both[1]),
                "retention": both[0] / both[1] if both and both[1] else None,
                "seconds": score.seconds,
                "error": score.error,
            }
            | ({"metrics": score.metrics} if metrics else {})
        )
    return sorted(rows, key=lambda row: (row["encoder"], row["task"]))


def list_problems(results: Results) -> Iterator[str]:
    """Yield a line for each problem: unusable encoders, tasks and methods, left-out rows, failed scores.

    Scores of a task that failed with the same error share a line.
    """
    yield from (f"an encoder was left out: {problem}" for problem in results.problems)
    for task in results.tasks:
        if task.error:
            yield f"{task.task} was not evaluated: {task.error}"
        yield from (f"{task.task}: {warning}" for warning in task.warnings)
    for result in results.encoders:
        yield from (f"{result.member.name}: {name} was not compared: {why}" for name, why in result.problems.items())
    failed: dict[tuple[str, str], list[str]] = {}
    for score in results.scores:
        if score.error:
            failed.setdefault((score.task, score.error), []).append(f"{score.encoder} with {score.method}")
    for (name, error), cells in failed.items():
        more = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
        yield f"{name} on {cells[0]}{more} failed: {error}"
