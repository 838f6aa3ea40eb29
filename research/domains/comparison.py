"""Results of comparing two suites."""

from collections.abc import Sequence
from dataclasses import dataclass

from research.domains.characteristics import Characteristics
from research.domains.pairwise import EncoderTest
from research.domains.ranking import RankCorrelation
from research.domains.similarity import SimilarityMap
from research.domains.variance import OneWay, TwoWay


@dataclass(frozen=True)
class DataSetTexts:
    """Measured properties of the texts of one data set.

    Attributes:
        suite: index of the suite, 0 or 1.
        name: name of the data set.
        language: language codes, as in the suite.
        characteristics: mean lengths and vocabulary measures of the texts.
    """

    suite: int
    name: str
    language: str
    characteristics: Characteristics


@dataclass(frozen=True)
class Comparison:
    """Results of comparing two suites.

    Attributes:
        titles: titles of the two suites, made different if they were equal.
        data_sets: number of evaluated data sets in each suite.
        encoders: names of the encoders evaluated on both suites.
        types: task types with scores, for each suite.
        rankings: rank correlation for each common task type, then, if there are several, for their mean.
        two_ways: two-way analysis of variance for each common task type.
        one_ways: one-way analysis of variance for each task type of each suite.
        tests: paired t-tests of encoders, by suite and task type.
        texts: properties of the texts of each data set that could be read.
        suite_texts: means over the data sets of each suite; None for a suite without readable texts.
        tokenizer: name of the encoder whose tokenizer counted the tokens; None if no tokenizer was found.
        similarity: cosines between data sets; None without a dense encoder or with fewer than 2 data sets that have
            vectors.
        shared: names of the data sets that are in both suites.
        problems: what was left out and why, one line each.
    """

    titles: tuple[str, str]
    data_sets: tuple[int, int]
    encoders: tuple[str, ...]
    types: tuple[tuple[str, ...], tuple[str, ...]]
    rankings: Sequence[RankCorrelation]
    two_ways: Sequence[TwoWay]
    one_ways: Sequence[OneWay]
    tests: Sequence[EncoderTest]
    texts: Sequence[DataSetTexts]
    suite_texts: tuple[Characteristics | None, Characteristics | None]
    tokenizer: str | None
    similarity: SimilarityMap | None
    shared: tuple[str, ...]
    problems: Sequence[str]
