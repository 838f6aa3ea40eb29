"""Calls of the four stages, and the parsing of an answer into usable items and rejected texts.

Answers may be JSON, JSON in a code fence or in prose, a bulleted list, or plain text. Items are checked for faults that
rules can find, such as a refusal or too great a length.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lathe.training.synthesis.chat import ChatAnswer
from lathe.training.synthesis.job import StageName, StageSettings
from lathe.training.synthesis.near_duplicates import split_shingles, split_words
from lathe.training.workspace import digest

THOUGHT = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)
"""Reasoning that a model writes before its answer."""
WHOLE_FENCE = re.compile(r"```[\w-]*\s*\n(.*)\n\s*```", re.DOTALL)
"""Code fence around a whole text; group 1 is the content."""
LISTED = re.compile(r"^\s*(?:[-*•]|\(?\d{1,2}[.)])\s+(.+?)\s*$", re.MULTILINE)
"""Line of a bulleted or numbered list; group 1 is the item."""
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
"""Characters that occur in JSON or code, but not in prose."""
SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”’)]*(?=\s|\Z)|(?<=[。！？])")
"""End of a sentence, with closing quotation marks and brackets."""
MIN_WORDS = 5
"""Minimum number of words of a paragraph that is accepted as a persona or a question."""
TRIES = 50
"""Maximum number of brackets in a text that are tried as the start of JSON."""


def remove_thoughts(text: str) -> str:
    """Remove the thoughts of a reasoning model from an answer, and strip it.

    Thoughts are all between `<think>` and `</think>`, or up to `</think>` without an opening tag.
    """
    answer = THOUGHT.sub("", text)
    return answer.rpartition("</think>")[2].strip()


def _find_json_values(text: str) -> Iterator[Any]:
    """Find the JSON lists and objects in a text, and yield their parsed values in order.

    Values within another value are not yielded separately. Other text is skipped. At most `TRIES` brackets are tried as
    the start of a value.
    """
    decoder, position = json.JSONDecoder(), 0
    for _ in range(TRIES):
        begin = min(
            (bracket for bracket in (text.find("[", position), text.find("{", position)) if bracket >= 0), default=-1
        )
        if begin < 0:
            return

        try:
            value, position = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):  # prose, or brackets without end
            position = begin + 1
        else:
            yield value


def _unwrap_items(value: Any) -> list[Any]:
    """Return the items of a JSON list, or of a list that is the only value of an object, else `[value]`."""
    if isinstance(value, dict) and len(value) == 1 and isinstance(only := next(iter(value.values())), list):
        return list(only)
    return list(value) if isinstance(value, list) else [value]


def parse_personas(text: str) -> list[str]:
    """Parse a model's answer into personas "persona. task", from JSON objects, else list items or paragraphs.

    The JSON objects have the fields `persona` and `task`. The result may be empty.
    """
    for value in _find_json_values(text):
        objects = [item for item in _unwrap_items(value) if isinstance(item, dict)]
        parts = [[_clean_text(item.get(name)) for name in ("persona", "task")] for item in objects]
        if personas := [f"{persona.rstrip('.')}. {task}" for persona, task in parts if persona and task]:
            return personas
    return _split_prose(text)


def parse_queries(text: str) -> list[str]:
    """Parse a model's answer into queries: the items of a JSON list, of a bulleted list, questions, or paragraphs.

    The first of these that the answer has is used. An item of a JSON list may be a string, or an object with a single
    string. The result may be empty.
    """
    for value in _find_json_values(text):
        items = [_extract_only_text(item) for item in _unwrap_items(value)]
        if queries := [item for item in items if item]:
            return queries

    prose = _split_prose(text)
    if LISTED.search(text):
        return prose

    sentences = [sentence for item in prose for sentence in _split_sentences(item)]
    return [text for text in sentences if text.endswith(("?", "？")) and len(split_words(text)) >= MIN_WORDS] or prose


def _split_prose(text: str) -> list[str]:
    """Split a text into the items of a bulleted or numbered list, else into paragraphs of at least `MIN_WORDS` words.

    Items with JSON or code, and paragraphs that only announce the answer, are left out. Labels and quotation marks
    around an item are removed. A text that begins like a JSON list has no paragraphs.
    """
    items = LISTED.findall(text)
    if not items and not text.startswith("["):
        paragraphs = re.split(r"\n\s*\n", PREAMBLE.sub("", text, count=1))
        items = [paragraph.strip() for paragraph in paragraphs if len(split_words(paragraph)) >= MIN_WORDS]
        items = [item for item in items if not ANNOUNCEMENT.fullmatch(item)]
    return [_clean_text(_remove_label(item).strip().strip("\"'“”*")) for item in items if not CODE.search(item)]


def _split_sentences(text: str) -> list[str]:
    """Split the lines of a text into sentences, without labels such as "Q:" and without quotation marks around them."""
    pieces = [piece for line in text.splitlines() for piece in _cut_at_sentence_ends(line)]
    return [_remove_label(piece).strip().strip("\"'“”*") for piece in pieces]


def _cut_at_sentence_ends(text: str) -> list[str]:
    """Split a text after each end of a sentence. The pieces joined give the text.

    The last piece is the text after the last end of a sentence: empty, or an unfinished sentence.
    """
    ends = [match.end() for match in SENTENCE_END.finditer(text)]
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def _remove_label(text: str) -> str:
    match = LABEL.match(text)
    return text[match.end() :] if match else text


def _remove_unfinished_item(items: list[str]) -> list[str]:
    """Return the items of an answer that was cut off without the last item, which may be unfinished."""
    return items[:-1]


def _remove_unfinished_sentence(items: list[str]) -> list[str]:
    """Cut the passages of an answer that was cut off after the last finished sentence.

    Passages without a finished sentence are left out.
    """
    return [text for item in items if (text := "".join(_cut_at_sentence_ends(item)[:-1]))]


def parse_verdict(text: str) -> list[str]:
    """Parse a model's answer into `["yes"]`, `["no"]` or `[]`, from JSON or from the beginning of the text.

    Also `true` and `false` are accepted. The list is empty if the answer is neither yes nor no.
    """
    for value in _find_json_values(text):
        items = [
            _find_verdict(item)
            for wrapped in _unwrap_items(value)
            for item in (wrapped.values() if isinstance(wrapped, dict) else [wrapped])
        ]
        if verdicts := [item for item in items if item]:
            return verdicts[:1]

    verdict = _find_verdict(text)
    return [verdict] if verdict else []


def parse_document(text: str) -> list[str]:
    """Parse a model's answer into a list with one passage, without code fence, announcement or JSON, or into [].

    The list is empty if the answer is a JSON object that does not hold exactly one string.
    """
    if fenced := WHOLE_FENCE.fullmatch(text):
        text = fenced[1].strip()
    if text.startswith("{"):
        for value in _find_json_values(text):
            return [item for item in [_extract_only_text(value)] if item]
    return [PREAMBLE.sub("", text, count=1).strip()] if PREAMBLE.match(text) else [text]


def _find_verdict(value: Any) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    match = VERDICT.match(value) if isinstance(value, str) else None
    if match is None:
        return None
    return "yes" if match[1].lower() in ("yes", "true") else "no"


def _extract_only_text(item: Any) -> str:
    """Return a string, or the only string among the values of an object, stripped. Return "" for other values."""
    if isinstance(item, dict):
        texts = [value for value in item.values() if isinstance(value, str)]
        item = texts[0] if len(texts) == 1 else None
    return _clean_text(item)


def _clean_text(value: Any) -> str:
    """Strip a string, and replace unpaired surrogates by "?". Return "" for other values."""
    return value.encode("utf-8", "replace").decode().strip() if isinstance(value, str) else ""


REFUSAL = re.compile(
    r"\W*(i(['’]m| am) (sorry|unable|not able)|sorry,|i (cannot|can['’]t|can not|won['’]t|will not|must decline)"
    r"|as an ai\b|unfortunately, i\b|i apologi[sz]e|抱歉|对不起|很抱歉|我无法|我不能|申し訳)",
    re.IGNORECASE,
)
"""Beginnings of a refusal, in English, Chinese and Japanese."""
BLANK = re.compile(
    r"\[(insert|your|company|client|name|date|amount|year)\b[^\]]{0,60}\]|\{\{[^}]{0,60}\}\}|lorem ipsum", re.IGNORECASE
)
"""Placeholders that the model did not fill in, such as "[insert name]"."""
MIN_SCRIPT_SHARE = 0.8
"""Minimum share of letters in scripts of the sample; names and formulas may have letters of other scripts."""
MIN_REPETITIVE_WORDS, MIN_DISTINCT_SHARE = 60, 0.5
"""Minimum number of words of a repetitive text, and minimum share of distinct three-word runs of any other text."""
JAPANESE = {"HIRAGANA", "KATAKANA"}
"""Scripts that Japanese texts mix with CJK characters."""


def is_refusal(text: str) -> bool:
    """Return whether a text begins like the refusal of a language model, in English, Chinese or Japanese."""
    return REFUSAL.match(text) is not None


def find_fault(text: str, settings: StageSettings, sample: str) -> str | None:
    """Find the first fault of a generated text, as a short reason such as "too long". Return None without a fault.

    Checked are: empty, refused, too short, too long, another script than the sample, placeholders left open,
    repetitive.

    Args:
        text: the text.
        settings: settings of the stage, with limits of the length.
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
    spoken = split_words(text)
    return len(spoken) >= MIN_REPETITIVE_WORDS and len(split_shingles(text)) < MIN_DISTINCT_SHARE * (len(spoken) - 2)


def is_another_script(text: str, sample: str) -> bool:
    """Return whether too few letters of a text are in scripts of the sample. False if either has no letters.

    At least `MIN_SCRIPT_SHARE` of the letters must be. A sample with Japanese kana allows both kana and CJK.
    """
    allowed = {_name_script(character) for character in sample if character.isalpha()}
    if allowed & JAPANESE:
        allowed |= JAPANESE | {"CJK"}
    # A share of the letters decides, because names and formulas bring letters of other scripts.
    scripts = [_name_script(character) for character in text if character.isalpha()]
    return bool(allowed and scripts) and sum(script in allowed for script in scripts) < MIN_SCRIPT_SHARE * len(scripts)


@lru_cache(maxsize=4096)
def _name_script(letter: str) -> str:
    return unicodedata.name(letter, "").partition(" ")[0]


PARSERS: Mapping[StageName, Callable[[str], list[str]]] = {
    "personas": parse_personas,
    "queries": parse_queries,
    "filter": parse_verdict,
    "documents": parse_document,
}
"""Function that parses an answer into items, by stage."""
FINISHED_PARTS: Mapping[StageName, Callable[[list[str]], list[str]]] = {
    "personas": _remove_unfinished_item,
    "queries": _remove_unfinished_item,
    "filter": list,
    "documents": _remove_unfinished_sentence,
}
"""Function that removes unfinished text from the items of an answer that was cut off, by stage."""
CUT_OFF, CONTENT_FILTER = "length", "content_filter"
"""Finish reasons of the protocol for an incomplete answer: too many tokens, and a content filter."""


@dataclass(frozen=True)
class Call:
    """A request to a language model that a stage of the synthesis needs.

    Attributes:
        stage: stage of the synthesis.
        prompt: filled-in prompt.
        model: name of the model.
        parameters: parameters of the request.
        template: hash of the prompt template.
        seed: key of the seed that the call comes from.
        count: maximum number of items to keep.
        sample: text in the seed's language, to check the script of the answer.
    """

    stage: StageName
    prompt: str
    model: str
    parameters: dict[str, Any]
    template: str
    seed: str
    count: int
    sample: str

    @property
    def key(self) -> str:
        """Digest of stage, model, parameters and prompt, as 32 hexadecimal digits."""
        return digest(self.stage, self.model, self.parameters, self.prompt)[:32]


def parse_answer(answer: ChatAnswer, call: Call, settings: StageSettings) -> tuple[list[str], list[tuple[str, str]]]:
    """Parse a model's answer into usable items, at most `call.count`, and rejected texts with reasons.

    Items with a fault are rejected, see `find_fault`. A refusal, an empty answer, or an answer without items is
    rejected as a whole. If an answer was cut off, only finished items, or finished sentences of a passage, are used. A
    yes or no in the stage `filter` is used even if a content filter ended the answer.

    Args:
        answer: the answer; thoughts of a reasoning model are removed.
        call: the call that was answered.
        settings: settings of the stage, with limits of the length.

    Returns:
        The usable items, and a list of `(reason, text)` for what cannot be used.
    """
    text = remove_thoughts(answer.text)
    parsed = list(dict.fromkeys(PARSERS[call.stage](text)))
    # A yes or no of the filter is used however the answer ended.
    if answer.finish_reason == CONTENT_FILTER and not (call.stage == "filter" and parsed):
        return [], [("refused", text)]

    if answer.finish_reason == CUT_OFF:
        parsed = FINISHED_PARTS[call.stage](parsed)
        if not parsed:
            return [], [("cut off", text)]

    if not text:
        return [], [("empty", text)]
    if is_refusal(text):
        return [], [("refused", text)]

    faults = [find_fault(item, settings, "" if call.stage == "filter" else call.sample) for item in parsed]
    items = [item for item, fault in zip(parsed, faults, strict=True) if fault is None][: call.count]
    dropped = [(fault, item) for item, fault in zip(parsed, faults, strict=True) if fault is not None]

    return items, dropped or ([] if items else [("not as asked", text)])
