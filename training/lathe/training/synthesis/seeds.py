"""Seeds of a synthesis: questions with answers, and perhaps the context that they were taken from."""

from dataclasses import dataclass
from typing import Any

from lathe.training.datasets.records import Record, name_places, read_file_records, shorten_value
from lathe.training.digests import digest
from lathe.training.errors import JobError
from lathe.training.synthesis.job import SeedSettings


@dataclass(frozen=True)
class Seed:
    """Question with its answer.

    Attributes:
        place: row that the seed comes from, for messages.
        question: the question.
        answer: the answer.
        context: context of the question; "" if there is none.
    """

    place: str
    question: str
    answer: str
    context: str = ""

    @property
    def key(self) -> str:
        """Digest of question, answer and context, 16 hexadecimal digits."""
        return digest(self.question, self.answer, self.context)[:16]

    @property
    def text(self) -> str:
        """Question, answer and, if there is one, context, joined by newlines."""
        return "\n".join(filter(None, (self.question, self.answer, self.context)))


def read_seeds(settings: SeedSettings) -> list[Seed]:
    """Read the seeds (questions with answers and context) from a file of JSON lines. Returns the distinct ones, in the
    order of the file.

    Raises:
        JobError: if the file is missing or has no rows, or a row has no question or answer, or a field that is not a
            string.
        DataSetError: if the file cannot be read or is not JSON lines.
    """
    name = settings.jsonl.name
    if not settings.jsonl.is_file():
        raise JobError(f"there is no file {settings.jsonl}")

    distinct: dict[str, Seed] = {}
    lacking: dict[str, list[str]] = {"question": [], "answer": []}
    for record in read_file_records(settings.jsonl):
        texts = {part: _read_text_field(record, getattr(settings, part)) for part in ("question", "answer", "context")}
        missing = next((part for part in lacking if not texts[part]), None)
        if missing:
            lacking[missing].append(record.place)
        else:
            seed = Seed(record.place, **texts)
            distinct.setdefault(seed.key, seed)

    for part, places in lacking.items():
        if places:
            field = getattr(settings, part)
            raise JobError(
                f"no {field!r} at {name_places(places)}: every seed needs a question and an answer; "
                f"seeds.{part} names the field"
            )

    if not distinct:
        raise JobError(f"{name} has no rows: there is nothing to start from")

    return list(distinct.values())


def _read_text_field(record: Record, field: str) -> str:
    """Return a row's text in a field, stripped, or "" if the field is missing or null.

    Raises:
        JobError: if the field is not a string.
    """
    value: Any = record.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise JobError(f"{record.place}: {field!r} must be a text, not {shorten_value(value)}")
    return value.strip()
