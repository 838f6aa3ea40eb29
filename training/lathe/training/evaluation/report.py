"""Report of an evaluation.

It consists of JSON with everything, CSV with the scores, an HTML page, and plain text for the terminal.
"""

from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lathe.training.evaluation.comparison import Comparison
from lathe.training.evaluation.decision import Findings, compute_findings, describe_comparison, summarize
from lathe.training.evaluation.run import Results
from lathe.training.evaluation.tables import (
    build_difference_table,
    build_raw_score_table,
    build_score_records,
    build_tables,
    list_problems,
)
from lathe.training.reporting.figures import draw_figures, new_panels, plot_intervals
from lathe.training.reporting.page import Section, describe_environment, format_text, render_page, write_files
from lathe.training.reporting.tables import Table
from lathe.training.reporting.text import format_count

JSON, CSV, HTML = "evaluation.json", "scores.csv", "report.html"
"""File names of the report."""
DIFFERENCES = "Differences in points, with 95 % intervals"
"""Title of the figure."""
MAX_COMPARISONS = 40
"""Maximum number of comparisons in the figure. All are in the table."""


def write_report(results: Results) -> tuple[Findings, list[Path]]:
    """Compute the findings of an evaluation, and write evaluation.json, scores.csv and report.html.
    They are written to its output folder. Return the findings and the paths of the files.

    The page's heading is the answer. Existing files are replaced atomically.

    Returns:
        the findings, and the paths of the files.
    """
    findings = compute_findings(results)
    answer, *sentences = summarize(findings)
    section = Section(
        title=answer,
        sentences=sentences,
        figures=draw_figures({DIFFERENCES: plot_differences}, findings),
        tables=build_tables(results, findings),
        problems=list(list_problems(results)),
    )
    page = render_page(
        [section],
        about=f"Evaluation of {results.request.suite.title}: {describe_evaluation(results)}",
        files=f"{JSON} and {CSV}",
        reference=results.request.suite.reference,
    )
    scores = Table.from_records(build_score_records(results)).to_csv()

    return findings, write_files(results.request.out, {JSON: as_json(results, findings), CSV: scores, HTML: page})


def plot_differences(findings: Findings) -> Any:
    """Plot the score difference of each comparison with its interval.
    Return the matplotlib figure, or None without comparisons.
    """
    comparisons = findings.comparisons[:MAX_COMPARISONS]
    if not comparisons:
        return None

    figure, (axis,) = new_panels(1, size=(2.5 + 0.6 * len(comparisons), 4))
    plot_intervals(
        axis, range(len(comparisons)), [comparison.verdict.difference for comparison in comparisons], "", "o"
    )
    axis.axhline(0, color="grey", linewidth=0.8)
    names = [f"{comparison.name} –\n{comparison.baseline_name}" for comparison in comparisons]
    axis.set_xticks(range(len(comparisons)), names, rotation=60, ha="right", fontsize=8)
    axis.set_xlim(-0.7, len(comparisons) - 0.3)
    axis.set_ylabel("difference, points")

    return figure


def describe_evaluation(results: Results) -> str:
    """Return a sentence with the number of data sets, their row limit, the number of encoders, and mteb's version."""
    request = results.request
    usable = [task for task in results.tasks if task.error is None]
    rows = "all rows" if request.limit is None else f"at most {request.limit:,} rows of each"
    data = f"{len(usable)} of {len(results.tasks)} data sets, {rows}"
    encoders = format_count(len(results.encoders), "encoder")
    return f"{data}; {encoders}; metrics of mteb {version('mteb')}; intervals of 95 %."


def as_json(results: Results, findings: Findings) -> dict[str, Any]:
    """Convert results and findings to a dict that orjson can serialize.
    It has decision, request, environment, tasks, encoders, scores, sentences and comparisons.
    """
    return {
        "decision": findings.decision.to_fields(),
        **describe_results(results),
        "sentences": summarize(findings),
        "comparisons": [_describe(comparison) for comparison in findings.comparisons],
    }


def describe_results(results: Results) -> dict[str, Any]:
    """Convert the results without findings to a dict: request, environment, tasks, encoders and all scores.

    The values of units are in the results log only.
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


def _describe(comparison: Comparison) -> dict[str, Any]:
    verdicts = [comparison.between, *comparison.within] if comparison.between else comparison.within
    return {
        "baseline": comparison.baseline,
        "compared": comparison.compared,
        "sentence": describe_comparison(comparison),
        "verdicts": [asdict(verdict) | {"outcome": verdict.outcome} for verdict in verdicts],
    }


def format_report(results: Results, findings: Findings) -> str:
    """Format an evaluation as plain text for a terminal: sentences, main tables, problems, and the decision last."""
    answer, *sentences = summarize(findings)
    tables = {
        "Mean score of the raw vectors × 100, by type of task (number of tasks)": build_raw_score_table(results),
        "Differences in points, with half the 95 % interval": build_difference_table(findings.comparisons),
    }
    sections = [
        Section("", sentences, tables={title: table for title, table in tables.items() if table}),
        Section("", problems=list(list_problems(results))),
        Section("", [answer]),
    ]

    return "\n\n".join(text for section in sections if (text := format_text(section)))
