"""Report with the papers' statistics: JSON, CSV with the scores, an HTML page, and plain text for the terminal."""

from pathlib import Path
from typing import Any

from lathe.training.evaluation import report
from lathe.training.evaluation.report import CSV, HTML, JSON, build_raw_score_table, build_score_records, list_problems
from lathe.training.reporting.page import Section, format_text, render_page, write_files
from lathe.training.reporting.tables import Table
from research.fitted_methods.evaluation import FittedResults
from research.paper_findings.findings import Findings, compute_findings, summarize
from research.paper_findings.plots import draw_all
from research.paper_findings.tables import (
    build_difference_table,
    build_retention_table,
    build_tables,
)


def write_report(results: FittedResults) -> tuple[Findings, list[Path]]:
    """Compute the findings and write evaluation.json, scores.csv and report.html to the output folder.

    Existing files are replaced atomically.

    Returns:
        the findings, and the paths of the files.
    """
    findings = compute_findings(results)
    section = Section(
        title=f"Evaluation: {results.request.suite.title}",
        sentences=summarize(findings),
        figures=draw_all(results, findings),
        tables=build_tables(results, findings),
        problems=list(list_problems(results)),
    )
    page = render_page(
        [section],
        about=describe_evaluation(results),
        files=f"{JSON} and {CSV}",
        reference=results.request.suite.reference,
    )
    scores = Table.from_records(build_score_records(results)).to_csv()
    return findings, write_files(results.request.out, {JSON: as_json(results, findings), CSV: scores, HTML: page})


def describe_evaluation(results: FittedResults) -> str:
    """Return a sentence on what was evaluated, with the corpus that methods were fitted on."""
    described = report.describe_evaluation(results)
    if not results.corpus_rows:
        return described
    return f"methods fitted on {results.corpus_rows:,} sentences of {Path(results.request.corpus).name}; {described}"


def as_json(results: FittedResults, findings: Findings) -> dict[str, Any]:
    """Return the request, all scores with all metrics, and all statistics as a dict that orjson can serialize."""
    described = report.describe_results(results)
    encoders = [
        fields | {"mean_norm": result.mean_norm, "intrinsic": result.intrinsic}
        for fields, result in zip(described["encoders"], results.encoders, strict=True)
    ]
    return described | {
        "corpus": {"source": Path(results.request.corpus).name, "sentences": results.corpus_rows},
        "encoders": encoders,
        "sentences": summarize(findings),
        "findings": findings,
    }


def format_report(results: FittedResults, findings: Findings) -> str:
    """Format the main tables, sentences and problems as plain text for a terminal."""
    differences = "Differences to raw vectors in points (half the 95 % interval), over tasks complete for all"
    tables = {
        "Mean score of the raw vectors × 100, by type of task (number of tasks)": build_raw_score_table(results),
        differences: build_difference_table(results, findings),
        "Share of the score that is kept, in per cent": build_retention_table(findings.retentions),
    }
    sections = [
        Section("", summarize(findings), tables={title: table for title, table in tables.items() if table}),
        Section("", problems=list(list_problems(results))),
    ]
    return "\n\n".join(text for section in sections if (text := format_text(section)))
