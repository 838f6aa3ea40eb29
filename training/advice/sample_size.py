"""Sample-size checks: which questions the sample is too small to answer, and how many more rows would be enough."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from training.advice.debiasing import Debiasing
from training.advice.recommendation import ROWS_LEAST, Recommendation
from training.advice.sample import HALVES_LEAST, HELDOUT_MOST, HELDOUT_SHARE, HELDOUT_WANTED, Sample
from training.advice.split_half import WORDS_LEAST
from transforms.quality import MIN_ROWS_PER_DIMENSION

LEAST = 100
"""Minimum number of distinct rows for a recommendation."""
TOLD = 0.5
"""Half-width of the interval of R2's gain that a large enough sample reaches, in points (100·MRR)."""


@dataclass(frozen=True)
class Shortage:
    """Question for which the sample is too small.

    Attributes:
        what: the question, as a sentence without a full stop.
        more: number of additional distinct rows that would be enough; None if more rows would not help.
        instead: remark for the case that more rows would not help.
    """

    what: str
    more: int | None
    instead: str = "not even the most rows that are held out would tell"


def too_few(rows: int) -> Shortage | None:
    """Return a shortage if there are fewer than `LEAST` distinct rows, else None."""
    if rows >= LEAST:
        return None
    return Shortage(f"{rows} distinct rows are too few to recommend anything; {LEAST} are the least", LEAST - rows)


def shortages(sample: Sample, debiasing: Debiasing, best: Recommendation) -> list[Shortage]:
    """List what the sample is too small for: to compare debiasing methods, to compare dimensions, or to fit `best`."""
    return [*of_debiasing(sample, debiasing), *of_size(sample), *of_fit(sample, best)]


def of_debiasing(sample: Sample, debiasing: Debiasing) -> Iterator[Shortage]:
    """Yield a shortage if split-half retrieval is impossible, or if R2's gain is neither significant nor precise.

    Precise means an interval of at most ± `TOLD` points. Nothing is yielded for vectors without texts, since more rows
    would not help.
    """
    if sample.halves is None and not sample.drawn.texts:
        return  # of vectors no number of rows would tell
    if sample.halves is None:
        yield of_cutting(sample)
        return
    gain = debiasing.trial("R2").gain
    if gain is None or gain.low is None or gain.high is None or gain.sign != 0:
        return
    reach = (gain.high - gain.low) / 2
    if reach > TOLD:
        heldout = int(len(sample.heldout) * (reach / TOLD) ** 2) + 1
        yield Shortage(
            f"whether debiasing gains or loses less than {reach:.1f} points cannot be told with {sample.cut:,} texts "
            "cut in two",
            rows_held_out(heldout) - len(sample.drawn) if heldout <= HELDOUT_MOST else None,
        )


def of_cutting(sample: Sample) -> Shortage:
    """Build the shortage of texts that can be cut in two, with the rows needed if the share of such texts stays."""
    told = "whether debiasing helps cannot be told"
    if sample.cut == 0:
        return Shortage(
            f"{told}: none of the held-out texts has the {2 * WORDS_LEAST} words to be cut in two",
            None,
            "longer texts would tell, more of these would not",
        )
    heldout = math.ceil(HALVES_LEAST * len(sample.heldout) / sample.cut)
    return Shortage(
        f"{told}: {sample.cut} held-out texts have the {2 * WORDS_LEAST} words to be cut in two",
        rows_held_out(heldout) - len(sample.drawn) if heldout <= HELDOUT_MOST else None,
    )


def of_size(sample: Sample) -> Iterator[Shortage]:
    """Yield a shortage if fewer than `ROWS_LEAST` rows are held out, too few to measure what a reduction preserves."""
    if len(sample.heldout) < ROWS_LEAST:
        yield Shortage(
            f"what a size keeps cannot be told among {len(sample.heldout):,} held-out rows",
            rows_held_out(ROWS_LEAST) - len(sample.drawn),
        )


def of_fit(sample: Sample, best: Recommendation) -> Iterator[Shortage]:
    """Yield a shortage if the recommended reducer has under `MIN_ROWS_PER_DIMENSION` rows per dimension to fit on."""
    wanted = MIN_ROWS_PER_DIMENSION * best.dimensions
    if best.reducer not in ("", "truncation") and len(sample.fit) < wanted:
        yield Shortage(
            f"a fit of {best.dimensions} dimensions wants {wanted:,} rows, {len(sample.fit):,} are there to fit on",
            rows_for(wanted) - len(sample.drawn),
        )


def rows_held_out(heldout: int) -> int:
    """Return the number of distinct rows of which `heldout` are held out: the inverse of `heldout_rows`."""
    return 2 * heldout if heldout <= HELDOUT_WANTED else int(heldout / HELDOUT_SHARE)


def rows_for(fit: int) -> int:
    """Return the number of distinct rows of which at least `fit` are left to fit on after holding out."""
    if fit <= HELDOUT_WANTED:
        return 2 * fit
    return max(fit + HELDOUT_WANTED, min(int(fit / (1 - HELDOUT_SHARE)) + 1, fit + HELDOUT_MOST))
