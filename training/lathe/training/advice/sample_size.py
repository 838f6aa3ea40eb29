"""Sample-size checks: questions that the sample is too small to answer, and how many more rows would be enough."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from lathe.training.advice.debiasing import DebiasingComparison
from lathe.training.advice.sample import HELDOUT_SHARE, MAX_HELDOUT, MIN_HALVES, SMALL_HELDOUT, Sample
from lathe.training.split_half import MIN_WORDS

MIN_ROWS = 100
"""Minimum number of distinct rows for evidence."""
MIN_HELDOUT = 500
"""Minimum number of held-out rows to judge a reduction by. With fewer, the forty candidates of a rescored search are so
large a share of all rows that any reduction seems to preserve the neighbours."""
PRECISE_POINTS = 0.5
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


def check_row_count(rows: int) -> Shortage | None:
    """Return a `Shortage` with the number of missing rows if there are fewer than `MIN_ROWS`, else None."""
    if rows >= MIN_ROWS:
        return None
    return Shortage(
        f"{rows} distinct rows are too few to measure debiasing or fewer dimensions; {MIN_ROWS} are the least",
        MIN_ROWS - rows,
    )


def list_shortages(sample: Sample, debiasing: DebiasingComparison) -> list[Shortage]:
    """List the questions that the sample is too small to answer, each with the number of rows that it lacks.
    The questions are whether debiasing helps and what a reduction preserves.
    """
    return [*_check_debiasing(sample, debiasing), *_check_size(sample)]


def _check_debiasing(sample: Sample, debiasing: DebiasingComparison) -> Iterator[Shortage]:
    """Yield a shortage if the sample cannot tell whether debiasing helps.
    Then split-half retrieval is impossible, or the gain of R2 (a debiasing method) is neither significant nor precise.

    Precise means an interval of at most ± `PRECISE_POINTS` points. Nothing is yielded for vectors without texts, since
    more rows would not help.
    """
    if sample.halves is None and not sample.row_sample.texts:
        return  # of vectors no number of rows would tell
    if sample.halves is None:
        yield _check_cutting(sample)
        return

    gain = debiasing.trial("R2").gain
    if gain is None or gain.low is None or gain.high is None or gain.sign != 0:
        return

    reach = (gain.high - gain.low) / 2
    if reach > PRECISE_POINTS:
        # The half-width of an interval falls with the root of the number of rows.
        heldout = int(len(sample.heldout) * (reach / PRECISE_POINTS) ** 2) + 1
        yield Shortage(
            f"whether debiasing gains or loses less than {reach:.1f} points cannot be told with {sample.cut:,} texts "
            "cut in two",
            rows_for_heldout(heldout) - len(sample.row_sample) if heldout <= MAX_HELDOUT else None,
        )


def _check_cutting(sample: Sample) -> Shortage:
    """Build the shortage for too few held-out texts that are long enough to be cut in two.
    It has an estimate of how many more rows would be enough.

    Its `more` assumes that the same share of further texts can be cut; it is None if no text can, or if even
    `MAX_HELDOUT` held-out rows would not be enough.
    """
    question = "whether debiasing helps cannot be told"
    if sample.cut == 0:
        return Shortage(
            f"{question}: none of the held-out texts has the {2 * MIN_WORDS} words to be cut in two",
            None,
            "longer texts would tell, more of these would not",
        )

    # As many of further texts are taken to be long enough as of these.
    heldout = math.ceil(MIN_HALVES * len(sample.heldout) / sample.cut)
    return Shortage(
        f"{question}: {sample.cut} held-out texts have the {2 * MIN_WORDS} words to be cut in two",
        rows_for_heldout(heldout) - len(sample.row_sample) if heldout <= MAX_HELDOUT else None,
    )


def _check_size(sample: Sample) -> Iterator[Shortage]:
    """Yield a shortage if fewer than `MIN_HELDOUT` rows are held out, too few to measure what a reduction preserves."""
    if len(sample.heldout) < MIN_HELDOUT:
        yield Shortage(
            f"what a size keeps cannot be told among {len(sample.heldout):,} held-out rows",
            rows_for_heldout(MIN_HELDOUT) - len(sample.row_sample),
        )


def rows_for_heldout(heldout: int) -> int:
    """Return how many distinct rows a sample must have so that `heldout` of them are held out.
    This is the inverse of `count_heldout`.
    """
    return 2 * heldout if heldout <= SMALL_HELDOUT else int(heldout / HELDOUT_SHARE)
