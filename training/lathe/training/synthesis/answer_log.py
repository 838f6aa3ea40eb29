"""Answer log: every answer on disk the moment it arrives, so that a killed run asks nothing twice.

answers/
├── personas.jsonl    a line for each answer, usable or not, with its provenance
├── queries.jsonl
├── filter.jsonl
└── documents.jsonl
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lathe.training.journal import Journal
from lathe.training.synthesis.job import STAGES, StageName


@dataclass(frozen=True)
class LoggedAnswer:
    """Answer of a language model with its provenance: one line of the answer log.

    Attributes:
        key: key of the call.
        stage: stage of the call.
        seed: key of the seed that the call comes from.
        attempt: number of the attempt, from 1.
        items: usable items of the answer; empty if it has none.
        dropped: reason and text of each unusable item.
        model: model that was asked.
        endpoint: host of the endpoint.
        template: hash of the prompt template.
        parameters: parameters of the request.
        created_at: time in UTC, ISO 8601.
        finish_reason: why the answer ended, in the protocol's words.
        prompt_tokens: tokens of the request.
        completion_tokens: tokens of the answer.
        counted: whether the endpoint counted the tokens; else they are estimated from lengths.
        seconds: time from the first request to the answer, with waiting and retries.
    """

    key: str
    stage: StageName
    seed: str
    attempt: int
    items: list[str]
    dropped: Sequence[Sequence[str]]
    model: str
    endpoint: str
    template: str
    parameters: dict[str, Any]
    created_at: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    counted: bool
    seconds: float

    @property
    def tokens(self) -> int:
        """Number of tokens of request and answer together."""
        return self.prompt_tokens + self.completion_tokens

    def build_provenance(self) -> dict[str, Any]:
        """Return the answer's fields for the provenance of a pair, without items, dropped texts, seed and stage."""
        left_out = ("items", "dropped", "seed", "stage")
        return {name: value for name, value in asdict(self).items() if name not in left_out}


class AnswerLog:
    """Log of all answers in a folder, read when the object is created.

    Args:
        folder: folder of the files; need not exist.

    Raises:
        JobError: if a line is damaged; an incomplete last line, left by a kill, is ignored.
    """

    def __init__(self, folder: Path) -> None:
        self.journals = {stage: Journal(folder / f"{stage}.jsonl", LoggedAnswer, strict=True) for stage in STAGES}
        self.records: dict[str, list[LoggedAnswer]] = {}
        for journal in self.journals.values():
            for record in journal.read():
                self.records.setdefault(record.key, []).append(record)

    def __iter__(self) -> Iterator[LoggedAnswer]:
        """Iterate over all logged answers, call by call."""
        return (record for records in self.records.values() for record in records)

    def add(self, answer: LoggedAnswer) -> None:
        """Append an answer to the file of its stage, and sync it to disk."""
        self.journals[answer.stage].append([answer])
        self.records.setdefault(answer.key, []).append(answer)

    def list_answers(self, key: str) -> list[LoggedAnswer]:
        """Return all logged answers to a call, in order, or an empty list."""
        return self.records.get(key, [])

    def find_usable(self, key: str) -> LoggedAnswer | None:
        """Return the first logged answer to a call that has usable items, or None if there is none."""
        return next((record for record in self.list_answers(key) if record.items), None)

    def is_settled(self, key: str, attempts: int) -> bool:
        """Return whether a call has a usable answer in the log, or at least `attempts` unusable ones."""
        return self.find_usable(key) is not None or len(self.list_answers(key)) >= attempts
