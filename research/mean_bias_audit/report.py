"""Output of an audit: JSON with all values, an HTML page, and a table and sentences for the terminal."""

from dataclasses import asdict
from pathlib import Path

from lathe.training.reporting.page import Section, format_text, render_page, write_files
from research.few_sentences import EstimationRow, draw_estimation, summarize_estimation
from research.fitted_methods.evaluation import FittedResults
from research.mean_bias_audit.findings import AuditFindings
from research.mean_bias_audit.plots import draw_audit
from research.mean_bias_audit.summary import summarize_audit
from research.mean_bias_audit.tables import build_audit_tables, build_overview_table
from research.paper_findings.report import describe_evaluation

JSON, HTML = "audit.json", "audit.html"
"""File names of the report."""
OVERVIEW = "Audit of the encoders' vectors; norms are before they are brought to unit length"
"""Title of the table in the terminal."""


def write_audit(results: FittedResults, findings: AuditFindings, estimation: list[EstimationRow]) -> list[Path]:
    """Write `audit.json` and `audit.html` into the evaluation's folder, and return both paths."""
    section = Section(
        "Audit",
        [*summarize_audit(findings), *summarize_estimation(estimation)],
        draw_audit(findings) | draw_estimation(estimation),
        build_audit_tables(findings),
    )
    page = render_page([section], about=describe_evaluation(results), files=JSON)
    content = asdict(findings) | {"estimation": [asdict(row) for row in estimation]}
    return write_files(results.request.out, {JSON: content, HTML: page})


def format_audit(findings: AuditFindings, estimation: list[EstimationRow]) -> str:
    """Format the overview and the sentences of an audit as plain text."""
    sentences = [*summarize_audit(findings), *summarize_estimation(estimation)]
    return format_text(Section("Audit", sentences, tables={OVERVIEW: build_overview_table(findings)}))
