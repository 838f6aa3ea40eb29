"""Suggestions for misspelt names."""

from collections.abc import Iterable
from difflib import get_close_matches

SIMILARITY = 0.8
"""Ratio of `difflib.SequenceMatcher` from which on two names count as alike; `filters` and `filter` have .92."""
MAX_CHARACTERS = 64
"""Characters up to which an unknown name is compared, since the comparison takes quadratic time."""


def find_similar(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like a misspelt name, or None if no known name is alike.

    Case does not matter, and hyphens count as underscores. Names with the same letters in another order are alike,
    which the ratio does not see in short ones: `prot` and `port` have .75.
    """
    wrong = name[:MAX_CHARACTERS].lower().replace("-", "_")
    spelled = {known_name.lower(): known_name for known_name in known}
    reordered = [known_name for known_name in spelled if sorted(known_name) == sorted(wrong)]
    matches = reordered or get_close_matches(wrong, spelled, n=1, cutoff=SIMILARITY)
    return spelled[matches[0]] if matches else None


def suggest(name: str, known: Iterable[str]) -> str:
    """Return advice for an error message about an unknown name.

    The advice is "did you mean X?" if a known name X is alike, else "there are A, B, C" with all known names.
    """
    names = list(known)
    similar = find_similar(name, names)
    return f"did you mean {similar}?" if similar else f"there are {', '.join(names)}"
