"""Seeds: questions with their answers, perhaps with what they were taken from."""

from dataclasses import dataclass
from typing import Any

from training.digests import digest
from training.errors import JobError
from training.evaluation.records import NAMED_MOST, Record, file_records, shortened
from training.synthesis.job import SeedSettings


@dataclass(frozen=True)
class Seed:
    """A question with its answer.

    Attributes:
        place: where it stands.
        question: a text.
        answer: a text.
        context: likewise, or empty.
    """

    place: str
    question: str
    answer: str
    context: str = ""

    @property
    def key(self) -> str:
        """What tells it from others, wherever it stands."""
        return digest(self.question, self.answer, self.context)[:16]

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join(filter(None, (self.question, self.answer, self.context)))


def read_seeds(settings: SeedSettings) -> list[Seed]:
    """The distinct seeds of a file, in its order.

    Raises:
        JobError: for a file without rows, rows without a question or an answer, or fields that are no texts.
        DataSetError: if it cannot be read or is no JSON lines.
    """
    name = settings.jsonl.name
    if not settings.jsonl.is_file():
        raise JobError(f"there is no file {settings.jsonl}")
    found: dict[str, Seed] = {}
    lacking: dict[str, list[str]] = {"question": [], "answer": []}
    for record in file_records(settings.jsonl):
        texts = {part: text_in(record, getattr(settings, part)) for part in ("question", "answer", "context")}
        missing = next((part for part in lacking if not texts[part]), None)
        if missing:
            lacking[missing].append(record.place)
        else:
            seed = Seed(record.place, **texts)
            found.setdefault(seed.key, seed)
    for part, places in lacking.items():
        if places:
            more = f" and {len(places) - NAMED_MOST} more" if len(places) > NAMED_MOST else ""
            field = getattr(settings, part)
            raise JobError(
                f"no {field!r} at {', '.join(places[:NAMED_MOST])}{more}: every seed needs a question and an answer; "
                f"seeds.{part} names the field"
            )
    if not found:
        raise JobError(f"{name} has no rows: there is nothing to start from")
    return list(found.values())


def text_in(record: Record, field: str) -> str:
    """The text of a field without the spaces around it; empty where there is none.

    Raises:
        JobError: if it is something else.
    """
    value: Any = record.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise JobError(f"{record.place}: {field!r} must be a text, not {shortened(value)}")
    return value.strip()
