"""Measures of what the texts of a data set are like: *FinMTEB*, Table 9.

- A sentence ends at `.`, `!` or `?` before a space, at `。`, `！` or `？`, and at the end of a line.
  Abbreviations end one as well: the rule is simple, and the same for both suites.
- A word is a run of letters and digits, with apostrophes and hyphens inside, or a number such as 1,250.5; in Chinese
  and Japanese each character.
- The syllables of an English word are its groups of vowels (a, e, i, o, u, y), without a silent e at the end, and at
  least one. Words of other languages, and words with anything but English letters, are not counted.
- The type-token ratio is the mean over runs of 100 words, because the ratio of a whole text falls with its length.
  Fewer than 100 words are one run.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")
"""Pattern of a sentence boundary."""
CHARACTER = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
"""Character class of Japanese kana and of Chinese and Japanese ideographs."""
WORD = re.compile(rf"\d+(?:[.,]\d+)*|[{CHARACTER}]|[^\W_{CHARACTER}]+(?:['’-][^\W_{CHARACTER}]+)*")
"""Pattern of a word."""
ENGLISH_WORD = re.compile(r"[a-z]+$")
"""Pattern of a word of English letters, in lower case."""
VOWELS = re.compile(r"[aeiouy]+")
"""Pattern of a group of vowels, which counts as a syllable."""
SILENT_E = re.compile(r"[^aeiouyl]e$|[aeiouy]le$")
"""Pattern of a silent final e, as in `rate` and `whole`; the e of `table` does not match."""
RUN_WORDS = 100
"""Number of words in a run for the type-token ratio."""
ENGLISH = "en"
"""Language code for which syllables and dependency distances are measured."""

CountTokens = Callable[[Sequence[str]], Sequence[int]]
"""Function that returns the number of tokens of each text."""
Parse = Callable[[Sequence[str]], float | None]
"""Function that returns the mean dependency distance of texts, or None."""


@dataclass(frozen=True)
class Characteristics:
    """Measures of texts, averaged over a data set or a suite's data sets.

    The result is None where a measure is unavailable.

    Attributes:
        texts: number of texts.
        words_per_sentence: mean number of words in a sentence.
        characters_per_word: mean number of characters in a word; the paper's token length.
        tokens_per_text: mean number of tokens by the encoder's tokenizer, without special tokens or truncation.
        syllables_per_word: mean number of syllables in an English word.
        type_token_ratio: distinct words divided by words, averaged over runs of 100 words.
        dependency_distance: mean number of positions between a word and its head, if a parser is installed.
    """

    texts: int
    words_per_sentence: float | None = None
    characters_per_word: float | None = None
    tokens_per_text: float | None = None
    syllables_per_word: float | None = None
    type_token_ratio: float | None = None
    dependency_distance: float | None = None


MEASURES = tuple(field.name for field in fields(Characteristics) if field.name != "texts")
"""Names of all measures, without the number of texts."""


def measure_characteristics(
    texts: Sequence[str], language: str, count_tokens: CountTokens | None = None, parse: Parse | None = None
) -> Characteristics:
    """Compute the measures of texts: means over sentences, words or texts.

    The result is None where there is nothing to average.

    Args:
        texts: at least one text.
        language: language code of the texts, two letters; syllables and dependencies are measured for `en` only.
        count_tokens: counts tokens with an encoder's tokenizer; None if there is no tokenizer.
        parse: returns the mean dependency distance of texts; None if no parser is installed.
    """
    sentences = [words for text in texts for words in split_sentences(text)]
    words = [word for sentence in sentences for word in sentence]
    syllables = [count for count in map(count_syllables, words) if count] if language == ENGLISH else []
    return Characteristics(
        texts=len(texts),
        words_per_sentence=mean([len(sentence) for sentence in sentences]),
        characters_per_word=mean([len(word) for word in words]),
        tokens_per_text=None if count_tokens is None else mean(count_tokens(texts)),
        syllables_per_word=mean(syllables),
        type_token_ratio=type_token_ratio(words),
        dependency_distance=None if parse is None or language != ENGLISH else parse(texts),
    )


def split_sentences(text: str) -> Iterator[list[str]]:
    """Split a text into sentences and yield the words of each.

    Sentences without a word are skipped.
    """
    for sentence in SENTENCE_END.split(text):
        if words := WORD.findall(sentence):
            yield words


def count_syllables(word: str) -> int:
    """Count the syllables of an English word by its groups of vowels, at least 1.

    Returns:
        0 for any other string.
    """
    lower = word.lower()
    if not ENGLISH_WORD.match(lower):
        return 0
    silent = bool(SILENT_E.search(lower))
    return max(1, len(VOWELS.findall(lower)) - silent)


def type_token_ratio(words: Sequence[str]) -> float | None:
    """Return distinct words divided by words, lower-cased, averaged over runs of 100 words.

    The result is None without words. The words after the last whole run are ignored; fewer than 100 words are one run.
    """
    lower = [word.lower() for word in words]
    starts = range(0, max(1, len(lower) - RUN_WORDS + 1), RUN_WORDS)
    runs = [lower[start : start + RUN_WORDS] for start in starts]
    return mean([len(set(run)) / len(run) for run in runs if run])


def mean(values: Sequence[float]) -> float | None:
    """Return the mean of the values.

    The result is None if there are none.
    """
    return float(np.mean(values)) if len(values) else None


def average_characteristics(some: Sequence[Characteristics]) -> Characteristics:
    """Average the measures of a suite's data sets, each with equal weight.

    A measure's mean skips data sets without it. The numbers of texts are added up.
    """
    known = {name: [value for one in some if (value := getattr(one, name)) is not None] for name in MEASURES}
    return Characteristics(sum(one.texts for one in some), **{name: mean(values) for name, values in known.items()})
