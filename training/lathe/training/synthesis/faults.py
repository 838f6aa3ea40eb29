"""Faults of a text that a model wrote, as far as they show without understanding it."""

import re
import unicodedata
from functools import lru_cache

from lathe.training.synthesis.job import StageSettings
from lathe.training.synthesis.near_duplicates import shingles, words

REFUSAL = re.compile(
    r"\W*(i(['’]m| am) (sorry|unable|not able)|sorry,|i (cannot|can['’]t|can not|won['’]t|will not|must decline)"
    r"|as an ai\b|unfortunately, i\b|i apologi[sz]e|抱歉|对不起|很抱歉|我无法|我不能|申し訳)",
    re.IGNORECASE,
)
"""Beginnings of a refusal, in English, Chinese and Japanese."""
BLANK = re.compile(
    r"\[(insert|your|company|client|name|date|amount|year)\b[^\]]{0,60}\]|\{\{[^}]{0,60}\}\}|lorem ipsum", re.IGNORECASE
)
"""Placeholders that were left open, such as "[insert name]"."""
MIN_SCRIPT_SHARE = 0.8
"""Minimum share of letters in scripts of the seed; names and formulas bring letters of others."""
MIN_REPETITIVE_WORDS, MIN_DISTINCT_SHARE = 60, 0.5
"""Minimum number of words, and minimum share of distinct three-word runs: a long text below it is repetitive."""
JAPANESE = {"HIRAGANA", "KATAKANA"}
"""Scripts of which Japanese uses both, besides CJK."""


def is_refusal(text: str) -> bool:
    """Return whether a text begins like a model's refusal."""
    return REFUSAL.match(text) is not None


def find_fault(text: str, settings: StageSettings, sample: str) -> str | None:
    """Return the first fault of a generated text as a short reason, such as "too long". A text without a fault gives
    None.

    Args:
        text: the text.
        settings: limits of its length.
        sample: another text in the expected language; "" skips the check of the script.
    """
    if not text:
        return "empty"
    if is_refusal(text):
        return "refused"
    if len(text) < settings.min_characters:
        return "too short"
    if len(text) > settings.max_characters:
        return "too long"
    if is_another_script(text, sample):
        return "another script"
    if BLANK.search(text):
        return "blanks left open"
    if _is_repetitive(text):
        return "repeats itself"

    return None


def _is_repetitive(text: str) -> bool:
    """Return whether a long text repeats itself: few of its three-word runs are distinct."""
    spoken = words(text)
    return len(spoken) >= MIN_REPETITIVE_WORDS and len(shingles(text)) < MIN_DISTINCT_SHARE * (len(spoken) - 2)


def is_another_script(text: str, sample: str) -> bool:
    """Return whether too many letters of a text are of scripts, such as Cyrillic, that the sample text lacks. The
    result is False if either has no letters.

    A sample with Japanese kana allows both kana and CJK.
    """
    allowed = set(_list_scripts(sample))
    if allowed & JAPANESE:
        allowed |= JAPANESE | {"CJK"}
    scripts = _list_scripts(text)
    return bool(allowed and scripts) and sum(script in allowed for script in scripts) < MIN_SCRIPT_SHARE * len(scripts)


def _list_scripts(text: str) -> list[str]:
    return [_name_script(character) for character in text if character.isalpha()]


@lru_cache(maxsize=4096)
def _name_script(letter: str) -> str:
    """Return the script of a letter, such as LATIN, CYRILLIC or CJK.

    It is the first word of the letter's Unicode name. The result is cached.
    """
    return unicodedata.name(letter, "").partition(" ")[0]
