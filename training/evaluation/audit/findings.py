"""All that an audit found, of vectors and of scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from training.evaluation.audit.profile import Profile, RandomControl, profile, random_controls
from training.evaluation.audit.record import Audit
from training.evaluation.grid import Grid
from training.evaluation.run import Results


@dataclass(frozen=True)
class AuditFindings:
    """What an audit found; what needs the ladder's scores is empty without them.

    Attributes:
        encoders: the vectors of each.
        random_controls: the random direction on each.
        profile: where R2 stands out.
    """

    encoders: Mapping[str, Audit]
    random_controls: Sequence[RandomControl]
    profile: Profile


def find_audit(results: Results) -> AuditFindings | None:
    """What was found; None where no audit was asked for."""
    audits = {one.member.name: one.audit for one in results.encoders if one.audit is not None}
    if not audits:
        return None
    grid = Grid(results)
    return AuditFindings(audits, random_controls(grid), profile(grid))
