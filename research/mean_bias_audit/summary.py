"""Summary of an audit in sentences."""

from pathlib import Path

from lathe.training.reporting.page import render_sentences
from lathe.transforms.linear import MIN_MEAN_NORM
from research.mean_bias_audit.findings import AuditFindings
from research.mean_bias_audit.means import MAX_RUNS
from research.mean_bias_audit.texts import MIN_LANGUAGE_TEXTS

TEMPLATE = Path(__file__).with_name("summary.txt.j2")
"""Template of the sentences."""
NEAR = 0.99
"""Cosine from which on the mean of a sample counts as having the direction of the mean of all vectors."""
MIN_OUTLIER_TASKS = 6
"""Minimum number of tasks for outliers: of fewer, none can lie two standard deviations from the mean, since the largest
possible distance is (n − 1)/√n."""


def summarize_audit(findings: AuditFindings) -> list[str]:
    """Return all sentences of an audit: on each encoder's vectors, then on random directions and on R2's outliers."""
    limits = {
        "MAX_RUNS": MAX_RUNS,
        "MIN_LANGUAGE_TEXTS": MIN_LANGUAGE_TEXTS,
        "MIN_MEAN_NORM": MIN_MEAN_NORM,
        "MIN_OUTLIER_TASKS": MIN_OUTLIER_TASKS,
        "NEAR": NEAR,
    }
    # What is said of the suite is said once, although every encoder's audit holds it.
    return list(dict.fromkeys(render_sentences(TEMPLATE, vars(findings) | limits)))
