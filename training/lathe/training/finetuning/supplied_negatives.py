"""Removal of false negatives from the hard negatives that rows supply."""

from collections.abc import Collection
from dataclasses import replace

from lathe.training.datasets.overlap import normalize_text
from lathe.training.datasets.pairs import Pair

ANSWERS = "negative that answers its query elsewhere, or is the query"
"""Reason for leaving out a negative that is a positive of its anchor in some pair, or the anchor itself."""
TESTED = "negative of the target's test"
"""Reason for leaving out a negative that is a text of the target's test."""


def remove_false_negatives(pairs: list[Pair], forbidden: Collection[str]) -> tuple[list[Pair], dict[str, int]]:
    """Remove false negatives from the pairs; return the pairs, and the number of negatives removed for each reason.

    A negative is false if, ignoring case and punctuation, it is a positive of the same anchor in any pair, the anchor
    itself, or a text of the target's test. No pair is removed.

    Args:
        pairs: pairs with their supplied negatives.
        forbidden: normalized texts of the target's test.
    """
    answers: dict[str, set[str]] = {}
    for pair in pairs:
        if pair.negatives:
            answers.setdefault(normalize_text(pair.anchor), {normalize_text(pair.anchor)})
    for pair in pairs if answers else ():
        if (known := answers.get(normalize_text(pair.anchor))) is not None:
            known.add(normalize_text(pair.positive))
    counts = {ANSWERS: 0, TESTED: 0}
    found = []
    for pair in pairs:
        kept = []
        for text in pair.negatives:
            words = normalize_text(text)
            why = ANSWERS if words in answers[normalize_text(pair.anchor)] else TESTED if words in forbidden else None
            if why:
                counts[why] += 1
            else:
                kept.append(text)
        found.append(replace(pair, negatives=tuple(kept)) if len(kept) < len(pair.negatives) else pair)
    return found, {why: count for why, count in counts.items() if count}
