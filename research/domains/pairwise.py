"""Which encoder is better in a type of task: paired t-tests over its data sets (*FinMTEB*, Table 14)."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from research.domains.blocks import Block
from research.paper_findings.statistics import PairedTest, paired_test

MAX_ALL_PAIRS = 3
"""Maximum number of encoders for which all pairs are tested; of more, the best is tested against each of the others."""
MIN_TASKS = 2
"""Minimum number of data sets for a paired test: with one there is no standard error."""


@dataclass(frozen=True)
class EncoderTest:
    """Paired t-test of two encoders on the data sets of one task type in one suite.

    Attributes:
        suite: index of the suite, 0 or 1.
        type: task type, as mteb names it.
        encoder: name of the encoder with the higher mean score.
        other: name of the encoder that it is compared with.
        means: mean scores of `encoder` and `other`, as shares of 1.
        test: test of the scores of `encoder` minus those of `other`, in points (score × 100).
    """

    suite: int
    type: str
    encoder: str
    other: str
    means: tuple[float, float]
    test: PairedTest


def compare_encoders(suite: int, block: Block) -> Iterator[EncoderTest]:
    """Yield a paired t-test for each compared pair of encoders, the better one first.

    The result is None for fewer than 2 data sets. With at most 3 encoders all pairs are tested; with more, the best
    encoder against each of the others.

    Args:
        suite: index of the suite, 0 or 1.
        block: scores of a task type in that suite.
    """
    if len(block.tasks) < MIN_TASKS:
        return
    ranked = sorted(block.means.items(), key=lambda item: -item[1])
    pairs = combinations(ranked, 2) if len(ranked) <= MAX_ALL_PAIRS else ((ranked[0], one) for one in ranked[1:])
    for (one, mean), (other, other_mean) in pairs:
        rows = (block.scores[block.encoders.index(name)] for name in (one, other))
        yield EncoderTest(suite, block.type, one, other, (mean, other_mean), paired_test(*rows))
