"""Parsing of answers into items, however they are wrapped: JSON, JSON in a fence or in prose, a list, plain text."""

import json
import re
from collections.abc import Iterator
from typing import Any

from lathe.training.synthesis.near_duplicates import words

THOUGHT = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)
"""Reasoning that a model writes before its answer."""
FENCE = re.compile(r"```[\w-]*\s*\n(.*?)\n?\s*```", re.DOTALL)
"""Code fence anywhere in a text, with its content."""
WHOLE_FENCE = re.compile(r"```[\w-]*\s*\n(.*)\n\s*```", re.DOTALL)
"""Code fence that is a whole text, with its content."""
LISTED = re.compile(r"^\s*(?:[-*•]|\(?\d{1,2}[.)])\s+(.+?)\s*$", re.MULTILINE)
"""Line of a bulleted or numbered list, with its item."""
PREAMBLE = re.compile(r"(sure|certainly|of course|here (is|are)|okay|below is)\b[^\n]{0,200}:\s*\n+", re.IGNORECASE)
"""Opening sentence that announces the answer, up to a colon and a line break."""
VERDICT = re.compile(r"\W*(yes|no|true|false)\b", re.IGNORECASE)
"""Beginning of a text that says yes or no."""
ANNOUNCEMENT = re.compile(
    r".*:|(sure|certainly|of course|okay)\b[^\n]*\bhere (is|are|['’]s)\b[^\n]*",
    re.IGNORECASE | re.DOTALL,
)
"""Paragraph that only announces what follows: "I'll write three new questions:"."""
LABEL = re.compile(r"[\s*\"'“]*(the \w+ )?(question|query|q|persona)\b( is)?[\s*#]*\d*[\s*]*:[\s*\"'“]*", re.IGNORECASE)
"""Label before an item, such as "**Question 1:**", "Q:" or "The second question is:"."""
CODE = re.compile(r"```|[{}]|\":")
"""Mark of JSON or code, of which no part is prose."""
SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”’)]*(?=\s|\Z)|(?<=[。！？])")
"""End of a sentence, with the quotation marks and brackets that close it."""
MIN_WORDS = 5
"""Minimum number of words of a paragraph that is taken as a description or a question."""
TRIES = 50
"""Maximum number of brackets in a text that are tried as the start of JSON."""


def remove_thoughts(text: str) -> str:
    """Return an answer without a reasoning model's thoughts, also if only their closing tag is there."""
    said = THOUGHT.sub("", text)
    return said.rpartition("</think>")[2].strip()


def _find_json_values(text: str) -> Iterator[Any]:
    """Yield each JSON list or object in a text, outermost only, in order; other text between them is skipped.

    At most `TRIES` brackets are tried.
    """
    decoder, place = json.JSONDecoder(), 0
    for _ in range(TRIES):
        begin = min((found for found in (text.find("[", place), text.find("{", place)) if found >= 0), default=-1)
        if begin < 0:
            return
        try:
            value, place = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):  # prose, or brackets without end
            place = begin + 1
        else:
            yield value


def _unwrap_items(value: Any) -> list[Any]:
    if isinstance(value, dict) and len(value) == 1 and isinstance(only := next(iter(value.values())), list):
        return list(only)
    return list(value) if isinstance(value, list) else [value]


def parse_personas(text: str) -> list[str]:
    """Return "persona. task" for each JSON object that has both; of an answer without JSON, what `_split_prose` finds.

    An empty list if there is neither.
    """
    for value in _find_json_values(text):
        found = [item for item in _unwrap_items(value) if isinstance(item, dict)]
        parts = [[_clean_text(item.get(name)) for name in ("persona", "task")] for item in found]
        if whole := [f"{persona.rstrip('.')}. {task}" for persona, task in parts if persona and task]:
            return whole
    return _split_prose(text)


def parse_queries(text: str) -> list[str]:
    """Return the texts of a JSON list of strings or one-text objects, else what `_split_prose` finds.

    Of an answer without JSON and list, only the questions are returned if it asks some.
    """
    for value in _find_json_values(text):
        items = [_extract_only_text(item) for item in _unwrap_items(value)]
        if found := [item for item in items if item]:
            return found
    prose = _split_prose(text)
    if LISTED.search(text):
        return prose
    return [sentence for item in prose for sentence in _split_sentences(item) if _is_question(sentence)] or prose


def _split_prose(text: str) -> list[str]:
    """Return the items of a bulleted or numbered list, else the paragraphs of at least `MIN_WORDS` words.

    Quotation marks and labels of an item are removed, as are sentences that announce the answer, and items with JSON
    or code. An answer that begins as a JSON list has no paragraphs.
    """
    items = LISTED.findall(text)
    if not items and not text.startswith("["):
        paragraphs = re.split(r"\n\s*\n", PREAMBLE.sub("", text, count=1))
        items = [paragraph.strip() for paragraph in paragraphs if len(words(paragraph)) >= MIN_WORDS]
        items = [item for item in items if not ANNOUNCEMENT.fullmatch(item)]
    return [_clean_text(_remove_label(item).strip().strip("\"'“”*")) for item in items if not CODE.search(item)]


def _split_sentences(text: str) -> list[str]:
    pieces = [piece for line in text.splitlines() for piece in _cut_at_sentence_ends(line)]
    return [_remove_label(piece).strip().strip("\"'“”*") for piece in pieces]


def _cut_at_sentence_ends(text: str) -> list[str]:
    """Split a text after each end of a sentence; the pieces joined give the text.

    The last piece is what follows the last end: empty, or an unfinished sentence.
    """
    ends = [match.end() for match in SENTENCE_END.finditer(text)]
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def _remove_label(text: str) -> str:
    match = LABEL.match(text)
    return text[match.end() :] if match else text


def _is_question(sentence: str) -> bool:
    return sentence.endswith(("?", "？")) and len(words(sentence)) >= MIN_WORDS


def remove_unfinished_item(items: list[str]) -> list[str]:
    """Return the items of an answer that was cut off, without the last one, which is unfinished."""
    return items[:-1]


def remove_unfinished_sentence(items: list[str]) -> list[str]:
    """Return passages that were cut off, each up to its last finished sentence, and those without one left out."""
    return [text for item in items if (text := "".join(_cut_at_sentence_ends(item)[:-1]))]


def parse_verdict(text: str) -> list[str]:
    """Return ["yes"] or ["no"], from JSON or from the beginning of the text; an empty list if neither is found."""
    for value in _find_json_values(text):
        items = [
            _find_verdict(item)
            for one in _unwrap_items(value)
            for item in (one.values() if isinstance(one, dict) else [one])
        ]
        if found := [item for item in items if item]:
            return found[:1]
    said = _find_verdict(text)
    return [said] if said else []


def parse_document(text: str) -> list[str]:
    """Return the passage as a list of one, without a code fence, an announcing sentence, or JSON around it.

    The list is empty if the JSON does not hold exactly one text.
    """
    if whole := WHOLE_FENCE.fullmatch(text):
        text = whole[1].strip()
    if text.startswith("{"):
        for value in _find_json_values(text):
            return [item for item in [_extract_only_text(value)] if item]
    return [PREAMBLE.sub("", text, count=1).strip()] if PREAMBLE.match(text) else [text]


def _find_verdict(value: Any) -> str | None:
    """Return "yes" or "no" for a bool or a string that begins with yes, no, true or false; None for other values."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    found = VERDICT.match(value) if isinstance(value, str) else None
    return None if found is None else "yes" if found[1].lower() in ("yes", "true") else "no"


def _extract_only_text(item: Any) -> str:
    """Return a string, or the only string in an object's values, stripped; "" for other values."""
    if isinstance(item, dict):
        texts = [value for value in item.values() if isinstance(value, str)]
        item = texts[0] if len(texts) == 1 else None
    return _clean_text(item)


def _clean_text(value: Any) -> str:
    """Return a string stripped, with unpaired surrogates replaced by "?"; "" for other values."""
    return value.encode("utf-8", "replace").decode().strip() if isinstance(value, str) else ""
