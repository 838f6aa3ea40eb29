"""What the texts of a data set are like: *FinMTEB*, Table 9.

- A sentence ends at `.`, `!` or `?` before a space, at `。`, `！` or `？`, and at the end of a line. Abbreviations end
  one as well: the rule is simple, and the same for both suites.
- A word is a run of letters and digits, with apostrophes and hyphens inside, or a number such as 1,250.5; in Chinese
  and Japanese each character.
- The syllables of an English word are its groups of vowels (a, e, i, o, u, y), without a silent e at the end, and at
  least one. Of other languages, and of words with anything but English letters, none are counted.
- The type-token ratio is that of runs of 100 words, averaged: of whole texts it falls with their length. Fewer than
  100 words are one run.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")
CHARACTER = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
WORD = re.compile(rf"\d+(?:[.,]\d+)*|[{CHARACTER}]|[^\W_{CHARACTER}]+(?:['’-][^\W_{CHARACTER}]+)*")
ENGLISH_WORD = re.compile(r"[a-z]+$")
VOWELS = re.compile(r"[aeiouy]+")
SILENT_E = re.compile(r"[^aeiouyl]e$|[aeiouy]le$")
"""The e of `rate` and of `whole`, but not that of `table`."""
RUN_WORDS = 100
ENGLISH = "en"

CountTokens = Callable[[Sequence[str]], Sequence[int]]
Parse = Callable[[Sequence[str]], float | None]


@dataclass(frozen=True)
class Characteristics:
    """Means over the texts of a data set, or over the data sets of a suite; None where it cannot be told.

    Attributes:
        texts: that were looked at.
        words_per_sentence: mean length of a sentence.
        characters_per_word: the paper's token length.
        tokens_per_text: of the encoder's tokenizer, without special tokens, before any cutting.
        syllables_per_word: of English.
        type_token_ratio: distinct words over words, of runs of 100.
        dependency_distance: words between a word and its head, where a parser is installed.
    """

    texts: int
    words_per_sentence: float | None = None
    characters_per_word: float | None = None
    tokens_per_text: float | None = None
    syllables_per_word: float | None = None
    type_token_ratio: float | None = None
    dependency_distance: float | None = None


MEASURES = tuple(field.name for field in fields(Characteristics) if field.name != "texts")


def characteristics(
    texts: Sequence[str], language: str, count_tokens: CountTokens | None = None, parse: Parse | None = None
) -> Characteristics:
    """What texts are like.

    Args:
        texts: at least one.
        language: of them, two letters.
        count_tokens: an encoder's tokenizer; None where it has none.
        parse: the mean dependency distance of texts; None where no parser is installed.
    """
    sentences = [words for text in texts for words in sentences_of(text)]
    words = [word for sentence in sentences for word in sentence]
    syllables = [count for count in map(syllables_of, words) if count] if language == ENGLISH else []
    return Characteristics(
        texts=len(texts),
        words_per_sentence=mean([len(sentence) for sentence in sentences]),
        characters_per_word=mean([len(word) for word in words]),
        tokens_per_text=None if count_tokens is None else mean(count_tokens(texts)),
        syllables_per_word=mean(syllables),
        type_token_ratio=type_token_ratio(words),
        dependency_distance=None if parse is None or language != ENGLISH else parse(texts),
    )


def sentences_of(text: str) -> Iterator[list[str]]:
    """The words of each sentence; what has no word is none."""
    for sentence in SENTENCE_END.split(text):
        if words := WORD.findall(sentence):
            yield words


def syllables_of(word: str) -> int:
    """Syllables of an English word; 0 for what is no such word."""
    lower = word.lower()
    if not ENGLISH_WORD.match(lower):
        return 0
    silent = bool(SILENT_E.search(lower))
    return max(1, len(VOWELS.findall(lower)) - silent)


def type_token_ratio(words: Sequence[str]) -> float | None:
    """Distinct words over words, in lower case; the mean of runs of 100."""
    lower = [word.lower() for word in words]
    starts = range(0, max(1, len(lower) - RUN_WORDS + 1), RUN_WORDS)
    runs = [lower[start : start + RUN_WORDS] for start in starts]
    return mean([len(set(run)) / len(run) for run in runs if run])


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return float(np.mean(values)) if len(values) else None


def averaged(some: Sequence[Characteristics]) -> Characteristics:
    """A suite's: the mean over its data sets, each counting once, of those where a measure is known."""
    known = {name: [value for one in some if (value := getattr(one, name)) is not None] for name in MEASURES}
    return Characteristics(sum(one.texts for one in some), **{name: mean(values) for name, values in known.items()})
