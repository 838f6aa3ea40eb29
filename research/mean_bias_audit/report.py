"""Audit as a part of an evaluation's report."""

from lathe.training.evaluation.report import Supplement
from lathe.training.evaluation.run import Results
from lathe.training.reporting.page import Section
from research.mean_bias_audit.findings import compute_audit_findings
from research.mean_bias_audit.plots import draw_audit
from research.mean_bias_audit.summary import summarize_audit
from research.mean_bias_audit.tables import build_audit_tables, build_overview_table

OVERVIEW = "Audit of the encoders' vectors; norms are before they are brought to unit length"
"""Title of the table in the terminal."""


def report_audit(results: Results) -> Supplement:
    """Build the audit's part of an evaluation's report; it has no content and sections if no encoder was audited."""
    findings = compute_audit_findings(results)
    if findings is None:
        return Supplement("audit", None)
    sentences = summarize_audit(findings)
    return Supplement(
        key="audit",
        content=findings,
        page=[Section("Audit", sentences, draw_audit(findings), build_audit_tables(findings))],
        overview=[Section("Audit", sentences, tables={OVERVIEW: build_overview_table(findings)})],
    )
