"""Pairs that share texts with the target: what is measured there must not have been trained on."""

import re
from collections.abc import Iterator

from training.errors import JobError
from training.evaluation.layouts import READERS, Search
from training.evaluation.records import Warnings
from training.finetuning.datasets import FolderDataSet
from training.finetuning.job import SourceSettings
from training.finetuning.positives import Pair, find_pairs

NAMED_SOURCES = 5
BETWEEN_WORDS = re.compile(r"[\W_]+")


def normalized(text: str) -> str:
    """A text without what does not make it another one: case, spaces and punctuation."""
    return BETWEEN_WORDS.sub(" ", text.casefold()).strip() or text.strip()


def test_texts(target: FolderDataSet) -> set[str]:
    """Every text of a data set's test: inputs, queries and documents, normalized; none where it has no test.

    Raises:
        DataSetError: if it cannot be read.
    """
    return {normalized(text) for text in tested_texts(target)} if "test" in target.splits() else set()


def training_texts(target: FolderDataSet, settings: SourceSettings | None = None) -> set[str]:
    """Every text of its training pairs, normalized; none where it has no training split.

    Raises:
        DataSetError: if it cannot be read.
    """
    if "train" not in target.splits():
        return set()
    wanted = (settings or SourceSettings(folder=target.folder)).model_copy(update={"split": "train"})
    return {normalized(text) for pair in find_pairs(target, wanted).pairs for text in pair.parts}


def test_queries(target: FolderDataSet) -> set[str] | None:
    """The queries of a search's test, normalized, whose documents are rightly known; None of any other task.

    Raises:
        DataSetError: if it cannot be read.
    """
    data = READERS[target.task](target.folder, Warnings())
    return {normalized(text) for text in data.queries.values()} if isinstance(data, Search) else None


def tested_texts(target: FolderDataSet) -> Iterator[str]:
    """The texts of a data set's test as they stand; documents with their title and without."""
    data = READERS[target.task](target.folder, Warnings())
    if isinstance(data, Search):
        yield from data.queries.values()
        for title, text in data.corpus.values():
            yield from dict.fromkeys((text, f"{title} {text}".strip()))
        return
    for name, values in data.splits["test"].items():
        for value in values if name not in ("label", "score", "relevance") else ():
            yield from [value] if isinstance(value, str) else value


def shared_places(pairs: list[Pair], forbidden: set[str]) -> set[int]:
    """Places of the pairs that have one of the texts."""
    return {place for place, pair in enumerate(pairs) if any(normalized(text) in forbidden for text in pair.parts)}


def refuse_shared(shared: dict[str, int], target: str) -> None:
    """Raise `JobError` if any source shares texts with the target."""
    if not shared:
        return
    named = ", ".join(f"{name} ({count:,} pairs)" for name, count in list(shared.items())[:NAMED_SOURCES])
    more = f" and {len(shared) - NAMED_SOURCES} more" if len(shared) > NAMED_SOURCES else ""
    raise JobError(
        f"sources share texts with the test set of {target}: {named}{more}. What is measured there would be known "
        "already; leave those pairs out with overlap: drop, or say overlap: allow"
    )
