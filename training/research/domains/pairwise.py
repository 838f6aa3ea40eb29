"""Which encoder is better in a type of task: paired t-tests over its data sets (*FinMTEB*, Table 14)."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from training.evaluation.statistics import PairedTest, paired_test
from training.research.domains.blocks import Block

ALL_PAIRS_MOST = 3
"""Encoders that are all tested against one another; of more, the best against each other one."""
TASKS_LEAST = 2


@dataclass(frozen=True)
class EncoderTest:
    """One encoder against another on the data sets of a type.

    Attributes:
        suite: its place, 0 or 1.
        type: of the tasks.
        encoder: the one.
        other: it is compared with.
        means: mean scores of both.
        test: of the one less the other, in points.
    """

    suite: int
    type: str
    encoder: str
    other: str
    means: tuple[float, float]
    test: PairedTest


def encoder_tests(suite: int, block: Block) -> Iterator[EncoderTest]:
    """Every two of at most three encoders, the better one first; of more, the best against each other one."""
    if len(block.tasks) < TASKS_LEAST:
        return
    ranked = sorted(block.means.items(), key=lambda item: -item[1])
    pairs = combinations(ranked, 2) if len(ranked) <= ALL_PAIRS_MOST else ((ranked[0], one) for one in ranked[1:])
    for (one, mean), (other, other_mean) in pairs:
        rows = (block.scores[block.encoders.index(name)] for name in (one, other))
        yield EncoderTest(suite, block.type, one, other, (mean, other_mean), paired_test(*rows))
