"""Which texts an audit measures: some of the suite, the same number of each language, some sentences of the corpus."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from training.evaluation.scores import Collected

NORM_TEXTS = 200
"""Texts of the suite that are encoded without normalising, as many as in the mean-bias paper (its Appendix C)."""
PROMPT_SENTENCES = 500
"""Sentences of the corpus that are encoded under every prompt, at most."""
LANGUAGE_LEAST, LANGUAGE_MOST = 50, 2000
"""Texts of a language: fewer have a mean of chance, more cost a prompted encoder a second pass over the suite."""
ENGLISH = "en"


@dataclass(frozen=True)
class LanguageTexts:
    """As many texts of each language of a suite.

    Attributes:
        texts: by language, English first as in the mean-bias paper, then as in the suite.
        count: of each.
        few: languages left out, with the texts they have.
        unclear: data sets left out, whose texts are of several languages or of none that is named.
    """

    texts: dict[str, list[str]]
    count: int
    few: dict[str, int]
    unclear: list[str]


def drawn(texts: Sequence[str], most: int) -> list[str]:
    """At most so many of the texts, the same ones each time, in their order."""
    chosen = np.random.default_rng(0).permutation(len(texts))[:most]
    return [texts[place] for place in np.sort(chosen)]


def suite_texts(tasks: Iterable[Collected]) -> list[str]:
    """The distinct texts that tasks ask for, whatever the prompt."""
    return list(dict.fromkeys(text for task in tasks for _, text in task.asked))


def language_texts(tasks: Sequence[Collected]) -> LanguageTexts:
    """The texts of each language: of all, as many as the language with the fewest has, 50 at least."""
    clear = [task for task in tasks if is_one_language(task.language)]
    languages = sorted(dict.fromkeys(task.language for task in clear), key=lambda name: name != ENGLISH)
    found = {name: suite_texts(task for task in clear if task.language == name) for name in languages}
    enough = {name: texts for name, texts in found.items() if len(texts) >= LANGUAGE_LEAST}
    count = min([LANGUAGE_MOST, *map(len, enough.values())]) if enough else 0
    return LanguageTexts(
        texts={name: drawn(texts, count) for name, texts in enough.items()},
        count=count,
        few={name: len(texts) for name, texts in found.items() if name not in enough},
        unclear=[task.task for task in tasks if not is_one_language(task.language)],
    )


def is_one_language(written: str) -> bool:
    """Whether a suite names one language, neither translations (`de-en`) nor several (`de,en`)."""
    return written != "" and not set(written) & set("-,")
