"""Answer log: every answer is written to disk when it arrives, so that a killed run can be resumed without repetition.

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
        items: usable items of the answer; empty without usable items.
        dropped: `(reason, text)` of each unusable item.
        model: name of the model.
        endpoint: host of the endpoint.
        template: hash of the prompt template.
        parameters: parameters of the request.
        created_at: time in UTC, ISO 8601.
        finish_reason: `finish_reason` of the protocol, such as `stop` or `length`.
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
        """Sum of the tokens of request and answer."""
        return self.prompt_tokens + self.completion_tokens

    def build_provenance(self) -> dict[str, Any]:
        """Return the answer's fields for the provenance of a pair, without `items`, `dropped`, `seed` and `stage`."""
        left_out = ("items", "dropped", "seed", "stage")
        return {name: value for name, value in asdict(self).items() if name not in left_out}


class AnswerLog:
    """Log of all answers of a job in a folder. Creating the object reads the log.

    Args:
        folder: folder of the log's files; need not exist.

    Raises:
        JobError: if a line is damaged. An incomplete last line, left by a kill, is ignored.
    """

    def __init__(self, folder: Path) -> None:
        self.journals = {stage: Journal(folder / f"{stage}.jsonl", LoggedAnswer, strict=True) for stage in STAGES}
        self.records: dict[str, list[LoggedAnswer]] = {}
        for journal in self.journals.values():
            for record in journal.read():
                self.records.setdefault(record.key, []).append(record)

    def __iter__(self) -> Iterator[LoggedAnswer]:
        """Iterate over all logged answers, grouped by call."""
        return (record for records in self.records.values() for record in records)

    def add(self, answer: LoggedAnswer) -> None:
        """Append an answer to the log file of its stage, and sync the file to disk."""
        self.journals[answer.stage].append([answer])
        self.records.setdefault(answer.key, []).append(answer)

    def list_answers(self, key: str) -> list[LoggedAnswer]:
        """List the logged answers to a call, in the order of the attempts. The list may be empty."""
        return self.records.get(key, [])

    def find_usable(self, key: str) -> LoggedAnswer | None:
        """Find the first logged answer to a call that has usable items, or return None."""
        return next((record for record in self.list_answers(key) if record.items), None)

    def is_settled(self, key: str, attempts: int) -> bool:
        """Return whether the log has a usable answer to a call, or at least `attempts` unusable answers."""
        return self.find_usable(key) is not None or len(self.list_answers(key)) >= attempts
