"""What is wrong with a text that a model wrote, by what can be seen without understanding it."""

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

from training.synthesis.job import StageSettings
from training.synthesis.near import shingles, words

REFUSAL = re.compile(
    r"\W*(i(['’]m| am) (sorry|unable|not able)|sorry,|i (cannot|can['’]t|can not|won['’]t|will not|must decline)"
    r"|as an ai\b|unfortunately, i\b|i apologi[sz]e|抱歉|对不起|很抱歉|我无法|我不能|申し訳)",
    re.IGNORECASE,
)
BLANK = re.compile(
    r"\[(insert|your|company|client|name|date|amount|year)\b[^\]]{0,60}\]|\{\{[^}]{0,60}\}\}|lorem ipsum", re.IGNORECASE
)
SAME_SCRIPT = 0.8
"""Of the letters that must be of scripts its seed is written in; names and formulas bring others."""
LOOP_WORDS, LOOP_SHARE = 60, 0.5
"""A text of so many words, of whose three-word runs less than this are different ones, goes round in circles."""
JAPANESE = {"HIRAGANA", "KATAKANA"}


def is_refusal(text: str) -> bool:
    """Whether a model says that it will not."""
    return REFUSAL.match(text) is not None


def fault_of(text: str, settings: StageSettings, sample: str) -> str | None:
    """What is wrong with a text, in a few words that can be counted; None if nothing is.

    Args:
        text: the text.
        settings: how long it may be.
        sample: another text in the language it should be in.
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
    if is_loop(text):
        return "repeats itself"
    return None


def is_loop(text: str) -> bool:
    """Whether a long text says the same again and again."""
    spoken = words(text)
    return len(spoken) >= LOOP_WORDS and len(shingles(text)) < LOOP_SHARE * (len(spoken) - 2)


def is_another_script(text: str, sample: str) -> bool:
    """Whether too many letters are of scripts that do not occur in a sample."""
    allowed = set(scripts(sample))
    if allowed & JAPANESE:
        allowed |= JAPANESE | {"CJK"}
    found = scripts(text)
    return bool(allowed and found) and sum(one in allowed for one in found) < SAME_SCRIPT * len(found)


def scripts(text: str) -> list[str]:
    """The script of each letter."""
    return [script(letter) for letter in letters(text)]


def letters(text: str) -> Iterable[str]:
    """The letters of a text."""
    return (character for character in text if character.isalpha())


@lru_cache(maxsize=4096)
def script(letter: str) -> str:
    """The script of a letter, as Unicode names it: LATIN, CYRILLIC, CJK."""
    return unicodedata.name(letter, "").partition(" ")[0]
