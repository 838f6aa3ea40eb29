"""Is the sample large enough to tell, and if not how many more texts would do."""

from dataclasses import dataclass

from training.advice.debiasing import Debiasing
from training.advice.recommendation import Recommendation
from training.advice.sample import HELDOUT_MOST, HELDOUT_SHARE, HELDOUT_WANTED, Sample
from transforms.certificate import FEW_ROWS_PER_DIMENSION

LEAST = 100
"""Distinct rows: of fewer nothing is recommended."""
TOLD = 0.5
"""Points of mean reciprocal rank that a sample should tell from nothing."""


@dataclass(frozen=True)
class Shortage:
    """Something the sample is too small for.

    Attributes:
        what: in a sentence.
        more: distinct rows that would do besides those there; None where more would not help.
    """

    what: str
    more: int | None


def too_few(rows: int) -> Shortage | None:
    """Whether there is too little to recommend anything."""
    if rows >= LEAST:
        return None
    return Shortage(f"{rows} distinct rows are too few to recommend anything; {LEAST} are the least", LEAST - rows)


def shortages(sample: Sample, debiasing: Debiasing, best: Recommendation) -> list[Shortage]:
    """What the sample cannot tell."""
    rows, found = len(sample.drawn), []
    wanted = FEW_ROWS_PER_DIMENSION * best.dimensions
    if best.reducer and best.reducer != "truncation" and len(sample.fit) < wanted:
        total = rows_for(wanted)
        found.append(
            Shortage(
                f"a fit of {best.dimensions} dimensions wants {wanted:,} rows, {len(sample.fit):,} are there to fit on",
                max(0, total - rows),
            )
        )
    trial = debiasing.trial("R2")
    if trial.gain is None or trial.gain.low is None or trial.gain.high is None or sample.halves is None:
        return found
    reach = (trial.gain.high - trial.gain.low) / 2
    if trial.gain.sign == 0 and reach > TOLD:
        cut = len(sample.halves) / len(sample.heldout)
        heldout = int(len(sample.heldout) * (reach / TOLD) ** 2 / cut) + 1
        found.append(
            Shortage(
                f"whether debiasing gains or loses less than {reach:.1f} points cannot be told with "
                f"{len(sample.halves):,} texts cut in two",
                rows_held_out(heldout) - rows if heldout <= HELDOUT_MOST else None,
            )
        )
    return found


def rows_held_out(heldout: int) -> int:
    """Rows of which so many are held out; the inverse of `heldout_rows`."""
    return 2 * heldout if heldout <= HELDOUT_WANTED else int(heldout / HELDOUT_SHARE)


def rows_for(fit: int) -> int:
    """Rows of which so many are left to fit on."""
    if fit <= HELDOUT_WANTED:
        return 2 * fit
    return max(fit + HELDOUT_WANTED, min(int(fit / (1 - HELDOUT_SHARE)) + 1, fit + HELDOUT_MOST))
