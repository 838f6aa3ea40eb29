"""Combined result of an audit, from vectors and from scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from research.fitted_methods.evaluation import FittedResults
from research.mean_bias_audit.profile import (
    Profile,
    RandomControl,
    measure_random_controls,
    profile_outliers,
)
from research.mean_bias_audit.stored_audit import Audit
from research.paper_findings.grid import Grid


@dataclass(frozen=True)
class AuditFindings:
    """Result of an audit.

    Parts that need scores of debiasing methods are empty without them.

    Attributes:
        encoders: audit of each encoder's vectors, by name.
        random_controls: effect of a random direction on each encoder's scores.
        profile: tasks on which R2's difference is an outlier.
    """

    encoders: Mapping[str, Audit]
    random_controls: Sequence[RandomControl]
    profile: Profile


def compute_audit_findings(results: FittedResults, audits: Mapping[str, Audit]) -> AuditFindings:
    """Combine the audits of encoders, by name, with what the scores of their evaluation say."""
    grid = Grid(results)
    return AuditFindings(audits, measure_random_controls(grid), profile_outliers(grid))
