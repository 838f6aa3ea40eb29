"""Choice of the texts that an audit measures: of the suite, of each language, of the corpus."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from lathe.training.evaluation.worker import TaskDescription

NORM_TEXTS = 200
"""Number of texts of the suite that are encoded without normalization, as in the mean-bias paper (its Appendix C)."""
PROMPT_SENTENCES = 500
"""Maximum number of sentences of the corpus that are encoded under every prompt."""
MIN_LANGUAGE_TEXTS, MAX_LANGUAGE_TEXTS = 50, 2000
"""Minimum and maximum number of texts of a language: with fewer, the mean is due to chance; with more, a prompted
encoder would encode much of the suite a second time."""
ENGLISH = "en"
"""Language that comes first, as in the mean-bias paper."""


@dataclass(frozen=True)
class LanguageTexts:
    """Texts of a suite by language, the same number in each.

    Attributes:
        texts: texts by language, English first as in the mean-bias paper, then in the order of the suite.
        count: number of texts of each language.
        few: languages left out because they have too few texts, with their number of texts.
        unclear: data sets left out because their texts are in several languages, or no language is named.
    """

    texts: dict[str, list[str]]
    count: int
    few: dict[str, int]
    unclear: list[str]


def sample_texts(texts: Sequence[str], count: int) -> list[str]:
    """Sample at most `count` texts, always the same ones, without changing their order."""
    chosen = np.random.default_rng(0).permutation(len(texts))[:count]
    return [texts[position] for position in np.sort(chosen)]


def list_suite_texts(tasks: Iterable[TaskDescription]) -> list[str]:
    """List the distinct texts of the tasks, in order of first use, whatever their prompts."""
    return list(dict.fromkeys(text for task in tasks for _, text in task.asked))


def choose_language_texts(tasks: Sequence[TaskDescription]) -> LanguageTexts:
    """Sample the same number of distinct texts in each language: as many as the language with the fewest has.

    The number is at most `MAX_LANGUAGE_TEXTS`. Languages with fewer than `MIN_LANGUAGE_TEXTS` texts are left out, and
    data sets whose language is unclear.
    """
    clear = [task for task in tasks if is_one_language(task.language)]
    languages = sorted(dict.fromkeys(task.language for task in clear), key=lambda name: name != ENGLISH)
    found = {name: list_suite_texts(task for task in clear if task.language == name) for name in languages}
    enough = {name: texts for name, texts in found.items() if len(texts) >= MIN_LANGUAGE_TEXTS}
    count = min([MAX_LANGUAGE_TEXTS, *map(len, enough.values())]) if enough else 0
    return LanguageTexts(
        texts={name: sample_texts(texts, count) for name, texts in enough.items()},
        count=count,
        few={name: len(texts) for name, texts in found.items() if name not in enough},
        unclear=[task.task for task in tasks if not is_one_language(task.language)],
    )


def is_one_language(code: str) -> bool:
    """Return whether a language code names a single language: not empty, no pair (`de-en`) and no list (`de,en`)."""
    return code != "" and not set(code) & set("-,")
