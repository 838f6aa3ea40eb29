"""The four stages: calls, and how an answer is read into usable items and rejected ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lathe.training.synthesis.answer_parsing import (
    find_fault,
    is_refusal,
    parse_document,
    parse_personas,
    parse_queries,
    parse_verdict,
    remove_thoughts,
    remove_unfinished_item,
    remove_unfinished_sentence,
)
from lathe.training.synthesis.chat import ChatAnswer
from lathe.training.synthesis.job import StageName, StageSettings
from lathe.training.workspace import digest

PARSERS: Mapping[StageName, Callable[[str], list[str]]] = {
    "personas": parse_personas,
    "queries": parse_queries,
    "filter": parse_verdict,
    "documents": parse_document,
}
"""Function that parses an answer into items, by stage."""
FINISHED_PARTS: Mapping[StageName, Callable[[list[str]], list[str]]] = {
    "personas": remove_unfinished_item,
    "queries": remove_unfinished_item,
    "filter": list,
    "documents": remove_unfinished_sentence,
}
"""Function that removes what is unfinished from the items of an answer that was cut off, by stage."""
CUT_OFF, CONTENT_FILTER = "length", "content_filter"
"""Finish reasons of the protocol that leave no whole answer."""


@dataclass(frozen=True)
class Call:
    """Request to a language model that a stage of the synthesis needs, before it is sent.

    Attributes:
        stage: stage that asks.
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
        """Digest of stage, model, parameters and prompt, on which the answer depends, as 32 hexadecimal digits."""
        return digest(self.stage, self.model, self.parameters, self.prompt)[:32]


def parse_answer(answer: ChatAnswer, call: Call, settings: StageSettings) -> tuple[list[str], list[tuple[str, str]]]:
    """Parse a model's answer to a call into usable items and rejected texts.

    The thoughts of a reasoning model are removed first. An answer that was refused, is empty, or not as asked gives no
    items and one reason. Of an answer that was cut off, the finished items count, and the finished sentences of a
    passage. A filter's yes or no always counts.

    Args:
        answer: the answer.
        call: the call that it answers.
        settings: settings of the stage, with limits of length.

    Returns:
        The distinct usable items, at most `call.count`, and a list of (reason, text) for what cannot be used.
    """
    text = remove_thoughts(answer.text)
    parsed = list(dict.fromkeys(PARSERS[call.stage](text)))
    # A filter's yes or no counts however the answer ended.
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
