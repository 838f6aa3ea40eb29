"""Tables of an evaluation."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lathe.training.evaluation.comparison import Comparison, Grid
from lathe.training.evaluation.decision import Findings, count_units
from lathe.training.evaluation.methods import CONTROL
from lathe.training.evaluation.run import Results
from lathe.training.reporting.tables import Table
from lathe.training.reporting.text import format_half_width


def build_tables(results: Results, findings: Findings) -> dict[str, Table]:
    """Build every table for which results and findings have data, and return them by title."""
    tables = {
        "Differences in points, with half the 95 % interval": build_difference_table(findings.comparisons),
        "Differences on each data set": build_difference_table(findings.comparisons, by_data_set=True),
        "Raw vectors: mean score × 100 by type of task": build_raw_score_table(results),
        "Every score × 100": build_score_table(results),
    }
    return {title: table for title, table in tables.items() if table}


def build_difference_table(comparisons: Sequence[Comparison], by_data_set: bool = False) -> Table:
    """Build the table of comparisons, one row each.
    A row has both systems, encoder, metric, both scores × 100, the difference with its interval, the number of queries,
    texts or pairs, and the outcome.

    Args:
        comparisons: comparisons of an evaluation.
        by_data_set: whether each data set of a comparison has a row, instead of all together. Comparisons on one data
            set are then left out.
    """
    return Table.from_records(
        (
            {"compared": comparison.name}
            | ({"on": verdict.data_set} if by_data_set else {})
            | {"with": comparison.baseline_name, "encoder": comparison.compared.encoder, "metric": verdict.metric}
            | {"before": verdict.scores[0], "after": verdict.scores[1], "difference": verdict.difference}
            | {"over": count_units(verdict.units, verdict.unit) if verdict.units else None, "it is": verdict.outcome}
            for comparison in comparisons
            for verdict in (comparison.within if by_data_set else [comparison.verdict])
            if not by_data_set or comparison.between is not None
        ),
        {"before": ".2f", "after": ".2f", "difference": format_half_width},
    )


def build_raw_score_table(results: Results) -> Table:
    """Build the table of the raw vectors' mean score × 100, over all tasks and by type, one row for each encoder.
    Only tasks that all encoders completed count.
    """
    grid = Grid(results)
    tasks = grid.tasks_of_raw_vectors()
    if not tasks:
        return Table.from_records(())

    types = {
        f"{kind} ({len(positions)})": [tasks[position] for position in positions]
        for kind, positions in grid.group_by_type(tasks).items()
    }
    return Table.from_records(
        (
            {"encoder": name}
            | {
                column: 100 * float(np.mean(grid.control_scores(name, column_tasks)))
                for column, column_tasks in ({"mean": tasks} | types).items()
            }
            for name in grid.encoders
        ),
        default=".2f",
    )


def build_score_table(results: Results) -> Table:
    """Build the table of all scores × 100, with a row for each data set and encoder and a column for each method."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    columns = dict.fromkeys(row["method"] for row in build_score_records(results))
    for record in build_score_records(results):
        key = {name: record[name] for name in ("task", "type", "encoder")}
        row = rows.setdefault(tuple(key.values()), key | columns)
        row[record["method"]] = None if record["score"] is None else 100 * record["score"]
    return Table.from_records((rows[key] for key in sorted(rows)), default=".2f")


def build_score_records(results: Results, metrics: bool = False) -> list[dict[str, Any]]:
    """Convert the scores to one flat dict each, sorted by encoder and task.
    Keys include task, encoder, method, score, control (the raw vectors' score), difference in points and error.

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
        difference = None if score.score is None or control is None else 100 * (score.score - control)
        rows.append(
            {
                "task": score.task,
                "type": task.type if task else "",
                "language": task.language if task else "",
                "metric": task.main_score if task else "",
                "encoder": result.member.name,
                "method": score.method,
                "group": method.group if method else "",
                "score": score.score,
                "control": control,
                "difference_points": difference,
                "seconds": score.seconds,
                "error": score.error,
            }
            | ({"metrics": score.metrics} if metrics else {})
        )

    return sorted(rows, key=lambda row: (row["encoder"], row["task"]))


def list_problems(results: Results) -> Iterator[str]:
    """Yield a line for each problem of an evaluation.
    Problems are unusable encoders, tasks and methods, left-out rows, and failed scores.

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
