"""Summary of a comparison in sentences: what holds, and what so few data cannot tell."""

import re
from pathlib import Path

from lathe.training.reporting.page import render_sentences
from research.domains.comparison import Comparison
from research.domains.ranking import LEVEL, MAX_EXACT
from research.domains.samples import SAMPLE_EXAMPLES, SAMPLES

TEMPLATE = Path(__file__).with_name("summary.txt.j2")
"""Template of the sentences."""


def summarize_comparison(comparison: Comparison) -> list[str]:
    """Return a comparison as sentences: common types and languages, rankings, variance, tests, texts, cosines."""
    more = {
        "LEVEL": LEVEL,
        "MAX_EXACT": MAX_EXACT,
        "SAMPLES": SAMPLES,
        "SAMPLE_EXAMPLES": SAMPLE_EXAMPLES,
        "languages": [_list_languages(comparison, side) for side in (0, 1)],
        "tests_by_encoders": {len(one.encoders): one for one in comparison.rankings if one.rho is not None},
    }
    return render_sentences(TEMPLATE, vars(comparison) | more)


def _list_languages(comparison: Comparison, side: int) -> list[str]:
    """Return the sorted languages of a suite's data sets.

    A code for several, such as `de-en` or `de,en`, is split.
    """
    named = {part for one in comparison.texts if one.suite == side for part in re.split("[-,]", one.language)}
    return sorted(named - {""})
