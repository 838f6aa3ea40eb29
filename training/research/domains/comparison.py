"""What was found of two suites."""

from collections.abc import Sequence
from dataclasses import dataclass

from training.research.domains.characteristics import Characteristics
from training.research.domains.pairwise import EncoderTest
from training.research.domains.ranking import RankCorrelation
from training.research.domains.similarity import SimilarityMap
from training.research.domains.variance import OneWay, TwoWay


@dataclass(frozen=True)
class DataSetTexts:
    """The texts of one data set.

    Attributes:
        suite: its place, 0 or 1.
        name: of the data set.
        language: as the suite says.
        characteristics: what its texts are like.
    """

    suite: int
    name: str
    language: str
    characteristics: Characteristics


@dataclass(frozen=True)
class Comparison:
    """Two suites compared.

    Attributes:
        titles: of the suites, different ones.
        data_sets: how many of each were evaluated.
        encoders: that both were evaluated with.
        types: those of each suite that have scores.
        rankings: of each type that both have, then of all.
        two_ways: analyses of variance of each type that both have.
        one_ways: of each type of each suite.
        tests: of encoders, by suite and type.
        texts: of every data set that could be read.
        suite_texts: means over the data sets of each suite; None for one without any.
        tokenizer: the encoder that tokens are counted with.
        similarity: of data sets; None where no encoder is dense or no two have texts.
        shared: data sets that are in both suites.
        problems: what was left out, a line each.
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
