"""Pairs that share texts with the test set of the target: what is measured there must not have been trained on."""

from collections.abc import Iterator

from training.errors import JobError
from training.evaluation.layouts import READERS, Search
from training.evaluation.records import Warnings
from training.finetuning.datasets import FolderDataSet
from training.finetuning.positives import Pair

NAMED_SOURCES = 5


def normalized(text: str) -> str:
    """A text without what does not make it another one: case and spaces."""
    return " ".join(text.casefold().split())


def test_texts(target: FolderDataSet) -> set[str]:
    """Every text of a data set's test: inputs, queries and documents, normalized; none where it has no test.

    Raises:
        DataSetError: if it cannot be read.
    """
    if "test" not in target.splits():
        return set()
    return {normalized(text) for text in tested_texts(target)}


def tested_texts(target: FolderDataSet) -> Iterator[str]:
    """The same, as they stand."""
    data = READERS[target.task](target.folder, Warnings())
    if isinstance(data, Search):
        yield from data.queries.values()
        for title, text in data.corpus.values():
            yield from {text, f"{title} {text}".strip()}
        return
    for name, values in data.splits["test"].items():
        for value in values if name not in ("label", "score", "relevance") else ():
            yield from [value] if isinstance(value, str) else value


def shared_places(pairs: list[Pair], forbidden: set[str]) -> list[int]:
    """Places of the pairs that have a text of the test."""
    return [place for place, pair in enumerate(pairs) if any(normalized(text) in forbidden for text in pair.parts)]


def refuse_shared(shared: dict[str, int], target: str) -> None:
    """Raise `JobError` if any source shares texts with the target's test."""
    if not shared:
        return
    named = ", ".join(f"{name} ({count:,} pairs)" for name, count in list(shared.items())[:NAMED_SOURCES])
    more = f" and {len(shared) - NAMED_SOURCES} more" if len(shared) > NAMED_SOURCES else ""
    raise JobError(
        f"sources share texts with the test set of {target}: {named}{more}. What is measured there would be known "
        "already; leave those pairs out with overlap: drop, or say overlap: allow"
    )
