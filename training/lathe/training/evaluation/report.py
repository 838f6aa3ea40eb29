"""Report of an evaluation: JSON with everything, CSV with the scores, an HTML page, and plain text for the terminal."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lathe.training.evaluation.comparison import Comparison, Grid
from lathe.training.evaluation.decision import Decision, count_units, decide, describe_comparison
from lathe.training.evaluation.methods import CONTROL
from lathe.training.evaluation.run import EvaluationResults
from lathe.training.evaluation.worker import TaskDescription
from lathe.training.reporting.figures import create_panels, draw_figures, plot_intervals
from lathe.training.reporting.page import Section, describe_environment, format_text, render_page, write_files
from lathe.training.reporting.tables import Table
from lathe.training.reporting.text import format_count, format_half_width

JSON, CSV, HTML = "evaluation.json", "scores.csv", "report.html"
"""File names of the report."""
DIFFERENCES = "Differences in points, with 95 % intervals"
"""Title of the figure."""
MAX_COMPARISONS = 40
"""Maximum number of comparisons in the figure. All are in the table."""


def write_report(results: EvaluationResults) -> tuple[Decision, list[Path]]:
    """Decide which system is better, write JSON, CSV and HTML to the output folder, and return decision and paths.

    Existing files are replaced atomically. The files are evaluation.json, scores.csv and report.html.
    """
    decision = decide(results)
    answer, *sentences = decision.to_sentences()
    section = Section(
        title=answer,
        sentences=sentences,
        figures=draw_figures({DIFFERENCES: plot_differences}, decision),
        tables=build_tables(results, decision),
        problems=list(list_problems(results)),
    )
    page = render_page(
        [section],
        about=f"Evaluation of {results.request.suite.title}: {describe_evaluation(results)}",
        files=f"{JSON} and {CSV}",
        reference=results.request.suite.reference,
    )
    scores = Table.from_records(build_score_records(results)).to_csv()

    return decision, write_files(results.request.out, {JSON: build_json(results, decision), CSV: scores, HTML: page})


def plot_differences(decision: Decision) -> Any:
    """Plot at most `MAX_COMPARISONS` score differences with intervals. Returns None without comparisons."""
    comparisons = decision.comparisons[:MAX_COMPARISONS]
    if not comparisons:
        return None

    figure, (axis,) = create_panels(1, size=(2.5 + 0.6 * len(comparisons), 4))
    plot_intervals(
        axis, range(len(comparisons)), [comparison.verdict.difference for comparison in comparisons], "", "o"
    )
    axis.axhline(0, color="grey", linewidth=0.8)
    names = [f"{comparison.name} –\n{comparison.baseline_name}" for comparison in comparisons]
    axis.set_xticks(range(len(comparisons)), names, rotation=60, ha="right", fontsize=8)
    axis.set_xlim(-0.7, len(comparisons) - 0.3)
    axis.set_ylabel("difference, points")

    return figure


def describe_evaluation(results: EvaluationResults) -> str:
    """Write a sentence with the number of data sets, the row limit, the number of encoders, and mteb's version."""
    request = results.request
    usable = [task for task in results.tasks if task.error is None]
    rows = "all rows" if request.limit is None else f"at most {request.limit:,} rows of each"
    data = f"{len(usable)} of {len(results.tasks)} data sets, {rows}"
    encoders = format_count(len(results.encoders), "encoder")
    return f"{data}; {encoders}; metrics of mteb {version('mteb')}; intervals of 95 %."


def build_json(results: EvaluationResults, decision: Decision) -> dict[str, Any]:
    """Convert an evaluation to a dict that orjson can serialize: decision, results, sentences and comparisons.

    For the keys of the results see `describe_results`.
    """
    return {
        "decision": decision.to_fields(),
        **describe_results(results),
        "sentences": decision.to_sentences(),
        "comparisons": [
            {
                "baseline": comparison.baseline,
                "compared": comparison.compared,
                "sentence": describe_comparison(comparison),
                "verdicts": [asdict(verdict) | {"outcome": verdict.outcome} for verdict in comparison.verdicts],
            }
            for comparison in decision.comparisons
        ],
    }


def describe_results(results: EvaluationResults) -> dict[str, Any]:
    """Convert the results of an evaluation to a dict: suite, row limit, environment, tasks, encoders and all scores.

    The texts of the tasks, and the values of single queries, texts or pairs are left out.
    """
    request = results.request
    return {
        "suite": request.suite.title,
        "reference": request.suite.reference,
        "limit": request.limit,
        **describe_environment("lathe-training", "mteb", "torch", "scikit-learn", "numpy"),
        "tasks": [{name: value for name, value in asdict(task).items() if name != "asked"} for task in results.tasks],
        "encoders": [asdict(result.member) | {"problems": result.problems} for result in results.encoders],
        "scores": build_score_records(results, metrics=True),
    }


def format_report(results: EvaluationResults, decision: Decision) -> str:
    """Format an evaluation as plain text: two tables, sentences, problems, and the decision last.

    Empty tables are left out. The sentences are about the comparisons that the decision does not repeat.
    """
    answer, *sentences = decision.to_sentences()
    tables = {
        "Mean score of the raw vectors × 100, by type of task (number of tasks)": build_raw_score_table(results),
        "Differences in points, with half the 95 % interval": build_difference_table(decision.comparisons),
    }
    sections = [
        Section("", sentences, tables={title: table for title, table in tables.items() if table}),
        Section("", problems=list(list_problems(results))),
        Section("", [answer]),
    ]

    return "\n\n".join(text for section in sections if (text := format_text(section)))


def build_tables(results: EvaluationResults, decision: Decision) -> dict[str, Table]:
    """Build the tables of the report, by title. Tables without rows are left out."""
    tables = {
        "Differences in points, with half the 95 % interval": build_difference_table(decision.comparisons),
        "Differences on each data set": build_difference_table(decision.comparisons, by_data_set=True),
        "Raw vectors: mean score × 100 by type of task": build_raw_score_table(results),
        "Every score × 100": build_score_table(results),
    }
    return {title: table for title, table in tables.items() if table}


def build_difference_table(comparisons: Sequence[Comparison], by_data_set: bool = False) -> Table:
    """Build the table of comparisons, with a row for each comparison or, with `by_data_set`, for each data set.

    The columns are both systems, encoder, metric, scores × 100, difference with its interval, number of units, and
    outcome. With `by_data_set`, comparisons on a single data set are left out.
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


def build_raw_score_table(results: EvaluationResults) -> Table:
    """Build the table of mean scores × 100 of raw vectors by encoder, on tasks that all encoders completed.

    The means are over all tasks and by type of task. The table is empty without such tasks.
    """
    grid = Grid(results)
    # Means over different tasks could not be compared.
    tasks = [task for task in grid.tasks if all((name, CONTROL, task) in grid.values for name in grid.encoders)]
    if not tasks:
        return Table.from_records(())

    columns = {"mean": list(range(len(tasks)))}
    columns |= {f"{kind} ({len(chosen)})": chosen for kind, chosen in grid.group_by_type(tasks).items()}
    rows = []
    for name in grid.encoders:
        scores = 100 * grid.control_scores(name, tasks)
        rows.append({"encoder": name} | {column: float(scores[chosen].mean()) for column, chosen in columns.items()})

    return Table.from_records(rows, default=".2f")


def build_score_table(results: EvaluationResults) -> Table:
    """Build the table of all scores × 100, with a row for a data set and an encoder, and a column for a method."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    records = build_score_records(results)
    columns = dict.fromkeys(record["method"] for record in records)
    for record in records:
        key = {name: record[name] for name in ("task", "type", "encoder")}
        row = rows.setdefault(tuple(key.values()), key | columns)
        row[record["method"]] = None if record["score"] is None else 100 * record["score"]
    return Table.from_records((rows[key] for key in sorted(rows)), default=".2f")


def build_score_records(results: EvaluationResults, metrics: bool = False) -> list[dict[str, Any]]:
    """Build a flat dict for each score, sorted by encoder and task, with the difference to raw vectors in points.

    Keys include task, encoder, method, score, control (the score of the raw vectors), difference and error. With
    `metrics`, the dicts also have all metrics of mteb. Missing values are None.
    """
    grid = Grid(results)
    rows = []
    for score in results.scores:
        task = grid.tasks.get(score.task, TaskDescription(score.task, ""))
        control = grid.values.get((score.encoder, CONTROL, score.task))
        difference = None if score.score is None or control is None else 100 * (score.score - control)
        rows.append(
            {
                "task": score.task,
                "type": task.type,
                "language": task.language,
                "metric": task.main_score,
                "encoder": score.encoder,
                "method": score.method,
                "group": grid.encoders[score.encoder].methods[score.method].group,
                "score": score.score,
                "control": control,
                "difference_points": difference,
                "seconds": score.seconds,
                "error": score.error,
            }
            | ({"metrics": score.metrics} if metrics else {})
        )

    return sorted(rows, key=lambda row: (row["encoder"], row["task"]))


def list_problems(results: EvaluationResults) -> Iterator[str]:
    """Yield sentences on unusable encoders and tasks, left-out rows, unsuited methods, and failed scores.

    Failed scores of a task with the same error share a sentence.
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
