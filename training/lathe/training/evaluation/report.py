"""Report of an evaluation.

It consists of JSON with everything, CSV with the scores, an HTML page, and plain text for the terminal.
"""

from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lathe.training.evaluation.comparison import Comparison
from lathe.training.evaluation.decision import describe_comparison
from lathe.training.evaluation.findings import Findings, compute_findings, summarize
from lathe.training.evaluation.plots import draw_all
from lathe.training.evaluation.run import Results
from lathe.training.evaluation.tables import (
    build_difference_table,
    build_raw_score_table,
    build_retention_table,
    build_score_records,
    build_tables,
    list_problems,
)
from lathe.training.reporting.page import Section, describe_environment, format_text, render_page, write_files
from lathe.training.reporting.tables import Table
from lathe.training.reporting.text import format_count

JSON, CSV, HTML = "evaluation.json", "scores.csv", "report.html"
"""File names of the report."""


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
        figures=draw_all(findings),
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


def describe_evaluation(results: Results) -> str:
    """Return a sentence on what was evaluated.
    It has the number of data sets, row limit, encoders, the corpus that methods were fitted on, and the version of
    mteb.
    """
    request = results.request
    usable = [task for task in results.tasks if task.error is None]
    rows = "all rows" if request.limit is None else f"at most {request.limit:,} rows of each"
    parts = [f"{len(usable)} of {len(results.tasks)} data sets, {rows}", format_count(len(results.encoders), "encoder")]
    if results.corpus_rows:
        parts.append(f"methods fitted on {results.corpus_rows:,} sentences of {Path(request.corpus).name}")
    return "; ".join(parts) + f"; metrics of mteb {version('mteb')}; intervals of 95 %."


def as_json(results: Results, findings: Findings) -> dict[str, Any]:
    """Convert results and findings to a dict that orjson can serialize.
    It has decision, request, environment, tasks, encoders, scores, sentences, comparisons and retentions.
    """
    return {
        "decision": findings.decision.to_fields(),
        **describe_results(results),
        "sentences": summarize(findings),
        "comparisons": [_describe(comparison) for comparison in findings.comparisons],
        "retentions": findings.retentions,
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
        "corpus": {"source": Path(request.corpus).name, "sentences": results.corpus_rows},
        **describe_environment("lathe-training", "mteb", "torch", "scikit-learn", "numpy"),
        "tasks": [{name: value for name, value in asdict(task).items() if name != "asked"} for task in results.tasks],
        "encoders": [
            asdict(result.member)
            | {"mean_norm": result.mean_norm, "intrinsic": result.intrinsic, "problems": result.problems}
            for result in results.encoders
        ],
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
        "Share of the score that is kept, in per cent": build_retention_table(findings.retentions),
    }
    sections = [
        Section("", sentences, tables={title: table for title, table in tables.items() if table}),
        Section("", problems=list(list_problems(results))),
        Section("", [answer]),
    ]

    return "\n\n".join(text for section in sections if (text := format_text(section)))
