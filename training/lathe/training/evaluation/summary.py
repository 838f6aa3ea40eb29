"""Summary of an evaluation's findings in sentences."""

from pathlib import Path

from lathe.training.evaluation.findings import Findings
from lathe.training.reporting.sentences import render_sentences

TEMPLATE = Path(__file__).with_name("summary.txt.j2")
"""Template of the sentences."""


def summarize(findings: Findings) -> list[str]:
    """Return all sentences about the findings of an evaluation, in reading order."""
    return render_sentences(TEMPLATE, vars(findings))
