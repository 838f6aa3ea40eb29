"""The four stages: how an answer of each becomes items, and which cannot be used."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from training.digests import digest
from training.synthesis.chat import Answer
from training.synthesis.faults import fault_of, is_refusal
from training.synthesis.job import StageName, StageSettings
from training.synthesis.reading import read_document, read_personas, read_queries, read_verdict, without_thought

READERS: Mapping[StageName, Callable[[str], list[str]]] = {
    "personas": read_personas,
    "queries": read_queries,
    "filter": read_verdict,
    "documents": read_document,
}
CUT = {"length": "cut off", "content_filter": "refused"}
"""Reasons to stop that leave no answer, as the protocol calls them and as we do."""


@dataclass(frozen=True)
class Call:
    """One thing to ask.

    Attributes:
        stage: of the four.
        prompt: filled in.
        model: that is asked.
        parameters: of the request.
        template: its prompt's hash.
        seed: the key of what it comes from.
        count: of items wanted.
        sample: a text in the language of the seed.
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
        """What tells it from others: everything the answer depends on."""
        return digest(self.stage, self.model, self.parameters, self.prompt)[:32]


@dataclass(frozen=True)
class Reading:
    """An answer read.

    Attributes:
        items: that can be used.
        dropped: why others cannot, with their text.
    """

    items: list[str]
    dropped: list[tuple[str, str]]


def read(answer: Answer, call: Call, settings: StageSettings) -> Reading:
    """The items of an answer, at most as many as were wanted; none with a reason where it cannot be used."""
    said = without_thought(answer.text)
    if answer.finish_reason in CUT and not (call.stage == "filter" and read_verdict(said)):  # which says no more
        return Reading([], [(CUT[answer.finish_reason], said)])
    if not said:
        return Reading([], [("empty", said)])
    if is_refusal(said):
        return Reading([], [("refused", said)])
    found = list(dict.fromkeys(READERS[call.stage](said)))
    faults = [fault_of(item, settings, "" if call.stage == "filter" else call.sample) for item in found]
    items = [item for item, fault in zip(found, faults, strict=True) if fault is None][: call.count]
    dropped = [(fault, item) for item, fault in zip(found, faults, strict=True) if fault is not None]
    return Reading(items, dropped or ([] if items else [("not as asked", said)]))
