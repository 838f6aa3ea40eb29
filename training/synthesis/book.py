"""Every answer on disk the moment it comes, so that a killed run asks nothing twice.

answers/
├── personas.jsonl    a line for each answer, good or not, with where it comes from
├── queries.jsonl
├── filter.jsonl
└── documents.jsonl
"""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from training.errors import JobError
from training.synthesis.job import STAGES, StageName
from transforms.files import sync_folder


@dataclass(frozen=True)
class Record:
    """An answer and its provenance.

    Attributes:
        key: of the call.
        stage: of the call.
        seed: it comes from, by its key.
        attempt: from 1 on.
        items: that can be used; none where the answer cannot.
        dropped: reasons and texts that cannot.
        model: asked.
        endpoint: its host.
        template: hash of the prompt's template.
        parameters: of the request.
        created_at: in UTC.
        finish_reason: why the answer ends.
        prompt_tokens: of the request.
        completion_tokens: of the answer.
        counted: whether the endpoint counted them.
        seconds: the answer took.
    """

    key: str
    stage: StageName
    seed: str
    attempt: int
    items: list[str]
    dropped: list[list[str]]
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
        """All of them."""
        return self.prompt_tokens + self.completion_tokens

    def provenance(self) -> dict[str, Any]:
        """What is said of it beside a pair."""
        left_out = ("items", "dropped", "seed", "stage")
        return {name: value for name, value in asdict(self).items() if name not in left_out}


class Book:
    """The answers of a folder.

    Args:
        folder: for the files; need not be there.

    Raises:
        JobError: for a damaged line; the last one, which a kill may have cut off, is left out.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records: dict[str, list[Record]] = {}
        for stage in STAGES:
            for record in read_records(folder / f"{stage}.jsonl"):
                self.records.setdefault(record.key, []).append(record)

    def __iter__(self) -> Iterator[Record]:
        return (record for records in self.records.values() for record in records)

    def add(self, record: Record) -> None:
        """Write an answer down; it is on the disk when this returns."""
        path = self.folder / f"{record.stage}.jsonl"
        is_new = not path.exists()
        if is_new:
            self.folder.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(orjson.dumps(record) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_folder(self.folder)
        self.records.setdefault(record.key, []).append(record)

    def attempts(self, key: str) -> list[Record]:
        """All answers to a call."""
        return self.records.get(key, [])

    def good(self, key: str) -> Record | None:
        """The answer to a call that can be used."""
        return next((record for record in self.attempts(key) if record.items), None)

    def is_settled(self, key: str, attempts: int) -> bool:
        """Whether a call has a good answer, or as many bad ones as there may be."""
        return self.good(key) is not None or len(self.attempts(key)) >= attempts


def read_records(path: Path) -> list[Record]:
    """The answers in a file, of which a torn end is cut away so that the next line begins a line.

    Raises:
        JobError: for a damaged line elsewhere.
    """
    if not path.is_file():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    found = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            found.append(Record(**orjson.loads(line)))
        except (orjson.JSONDecodeError, TypeError) as error:
            raise JobError(f"{path.name} line {number} is damaged; remove it, and it is asked again") from error
    return found
