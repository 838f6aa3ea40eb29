"""Findings of a checkup, and the shares of rows that they state."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lathe.training.comparison import Interval

Severity = Literal["fix", "note", "fine"]
"""`fix` for what harms searches, `note` for what a user may want to change, `fine` for what was checked and holds."""

Certainty = Literal["certain", "likely", "possible"]

MAX_IDS = 10
"""Maximum number of rows that a finding names."""


@dataclass(frozen=True)
class Finding:
    """One thing that a checkup found about stored vectors.

    Attributes:
        kind: name of what was checked, such as `copies`.
        severity: whether it must be fixed.
        sentence: what was found, as one sentence or two.
        share: share of the rows or of recall@10 that it concerns, with its 95 % interval; None if it concerns no share.
        certainty: how sure it is.
        ids: ids of up to ten rows, the worst first.
        advice: what to do, with the command if there is one; empty for nothing.
    """

    kind: str
    severity: Severity
    sentence: str
    share: Interval | None = None
    certainty: Certainty = "certain"
    ids: Sequence[str] = ()
    advice: str = ""


def estimate_share(mask: NDArray[np.bool_], rows: int) -> Interval:
    """Return the share of rows with a property, with Wilson's 95 % interval, without bounds if all were checked.

    Args:
        mask: which of the checked rows have it, `(n,)`, with n at least 1; they are drawn at random.
        rows: number of all rows.
    """
    checked, share = len(mask), float(mask.mean())
    if checked >= rows:
        return Interval(share, None, None)
    z = 1.96
    middle = (share + z**2 / (2 * checked)) / (1 + z**2 / checked)
    reach = z / (1 + z**2 / checked) * float(np.sqrt(share * (1 - share) / checked + z**2 / (4 * checked**2)))
    return Interval(share, max(0.0, middle - reach), min(1.0, middle + reach))


def format_share(share: Interval) -> str:
    """Return a share in percent, such as `3.12 % (2.2 to 4.41)`."""
    bounds = "" if share.low is None or share.high is None else f" ({100 * share.low:.3g} to {100 * share.high:.3g})"
    return f"{100 * share.value:.3g} %{bounds}"


def format_recall(recall: Interval) -> str:
    """Return a recall or its loss with its interval, such as `.06 (.04 to .08)`."""
    # The difference of two measured recalls can be less than 0, which is no loss, and bounds can be beyond 0 and 1.
    numbers = [f"{min(max(value, 0.0), 1.0):.2f}".removeprefix("0") for value in (recall.value, *recall.bounds)]
    return numbers[0] if recall.low is None else f"{numbers[0]} ({numbers[1]} to {numbers[2]})"


def name_rows(ids: Sequence[str], mask: NDArray[np.bool_], order: NDArray[np.float64] | None = None) -> list[str]:
    """Return the ids of up to `MAX_IDS` rows of a mask `(n,)`, those with the lowest value of `order` `(n,)` first."""
    rows = np.flatnonzero(mask)
    if order is not None:
        rows = rows[np.argsort(order[rows], kind="stable")]
    return [ids[row] for row in rows[:MAX_IDS]]
