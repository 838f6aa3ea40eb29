"""An answer as items, however it was wrapped: JSON, JSON in a fence or in prose, a numbered list, plain text."""

import json
import re
from collections.abc import Iterator
from typing import Any

THOUGHT = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)
FENCE = re.compile(r"```[\w-]*\s*\n(.*?)\n?\s*```", re.DOTALL)
WHOLE_FENCE = re.compile(r"```[\w-]*\s*\n(.*)\n\s*```", re.DOTALL)
LISTED = re.compile(r"^\s*(?:[-*•]|\(?\d{1,2}[.)])\s+(.+?)\s*$", re.MULTILINE)
PREAMBLE = re.compile(r"(sure|certainly|of course|here (is|are)|okay|below is)\b[^\n]{0,200}:\s*\n+", re.IGNORECASE)
VERDICT = re.compile(r"\W*(yes|no|true|false)\b", re.IGNORECASE)
TRIES = 50
"""Brackets of a text that are tried as the beginning of JSON."""


def without_thought(text: str) -> str:
    """What a reasoning model says in the end; where its opening tag is missing, what follows the closing one."""
    said = THOUGHT.sub("", text)
    return said.rpartition("</think>")[2].strip()


def json_values(text: str) -> Iterator[Any]:
    """Every list and object that begins at a bracket of a text, the outermost first."""
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


def inner(value: Any) -> list[Any]:
    """The items of a list, of an object that holds nothing but one, or of a single object."""
    if isinstance(value, dict) and len(value) == 1 and isinstance(only := next(iter(value.values())), list):
        return list(only)
    return list(value) if isinstance(value, list) else [value]


def read_personas(text: str) -> list[str]:
    """Objects with `persona` and `task`, each as one text."""
    for value in json_values(text):
        found = [item for item in inner(value) if isinstance(item, dict)]
        parts = [[tidy(item.get(name)) for name in ("persona", "task")] for item in found]
        if whole := [f"{persona.rstrip('.')}. {task}" for persona, task in parts if persona and task]:
            return whole
    return []


def read_queries(text: str) -> list[str]:
    """Texts of a JSON list, or of objects with one text each; else the items of a numbered or dotted list."""
    for value in json_values(text):
        items = [only_text(item) for item in inner(value)]
        if found := [item for item in items if item]:
            return found
    return [tidy(item.strip("\"'“”")) for item in LISTED.findall(text)]


def read_verdict(text: str) -> list[str]:
    """`yes` or `no`."""
    for value in json_values(text):
        items = [
            verdict_of(item) for one in inner(value) for item in (one.values() if isinstance(one, dict) else [one])
        ]
        if found := [item for item in items if item]:
            return found[:1]
    said = verdict_of(text)
    return [said] if said else []


def read_document(text: str) -> list[str]:
    """The passage, without fence, without the sentence that announces it, out of JSON that holds nothing else."""
    if whole := WHOLE_FENCE.fullmatch(text):
        text = whole[1].strip()
    if text.startswith("{"):
        for value in json_values(text):
            return [item for item in [only_text(value)] if item]
    return [PREAMBLE.sub("", text, count=1).strip()] if PREAMBLE.match(text) else [text]


def verdict_of(value: Any) -> str | None:
    """A word or a truth value as yes or no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    found = VERDICT.match(value) if isinstance(value, str) else None
    return None if found is None else "yes" if found[1].lower() in ("yes", "true") else "no"


def only_text(item: Any) -> str:
    """A text, or the only one of an object; empty for anything else."""
    if isinstance(item, dict):
        texts = [value for value in item.values() if isinstance(value, str)]
        item = texts[0] if len(texts) == 1 else None
    return tidy(item)


def tidy(value: Any) -> str:
    """A text without spaces around it, and without halves of characters; empty for anything else."""
    return value.encode("utf-8", "replace").decode().strip() if isinstance(value, str) else ""
