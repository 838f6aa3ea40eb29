"""Texts that test sets know: what is measured there must not have been trained on.

A text is known if a test set has it (case and punctuation aside), has one nearly like it, or shares so many words in
a row with it (13, as for GPT-3: Brown et al. 2020, Appendix C).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

from training.errors import DataSetError, EvaluationError, JobError
from training.evaluation.records import Record, file_records
from training.evaluation.suites import folder_suite
from training.finetuning.datasets import FolderDataSet
from training.finetuning.job import Task
from training.finetuning.overlap import normalized, tested_texts
from training.synthesis.job import HeldOutSettings
from training.synthesis.near import NearTexts, shingles, words


@dataclass(frozen=True)
class Match:
    """Where a text is known from.

    Attributes:
        test_set: its name.
        theirs: the text there.
        how: the two are alike.
    """

    test_set: str
    theirs: str
    how: str


class HeldOut:
    """The texts of test sets.

    Args:
        sets: texts by the name of their set.
        similarity: from which two texts are nearly the same.
        shared_words: in a row that make a text known.
    """

    def __init__(self, sets: dict[str, list[str]], similarity: float, shared_words: int) -> None:
        self.similarity, self.shared_words = similarity, shared_words
        self.counts = {name: len(texts) for name, texts in sets.items()}
        self.known: dict[str, tuple[str, str]] = {}
        for name, texts in sets.items():
            for text in texts:
                self.known.setdefault(normalized(text), (name, text))

    @cached_property
    def near(self) -> NearTexts:
        """The texts by what they are nearly like."""
        found = NearTexts(self.similarity)
        for _, text in self.known.values():
            found.add(text)
        return found

    def matches(self, texts: Sequence[str]) -> dict[int, Match]:
        """Which of the texts are known, by their place."""
        if not self.known:
            return {}
        runs: dict[str, list[int]] = {}
        found = {place: match for place, text in enumerate(texts) if (match := self.alike(text))}
        for place, text in enumerate(texts):
            if place not in found and len(words(text)) >= self.shared_words:
                for run in shingles(text, self.shared_words):
                    runs.setdefault(run, []).append(place)
        for name, theirs in self.known.values() if runs else ():
            for run in shingles(theirs, self.shared_words) & runs.keys():
                for place in runs[run]:
                    found.setdefault(place, Match(name, theirs, f"{self.shared_words} words in a row: {run}"))
        return found

    def alike(self, text: str) -> Match | None:
        """The test text that is this one, or nearly."""
        same = self.known.get(normalized(text))
        if same is not None:
            return Match(*same, "the same text")
        near = self.near.closest(text)
        if near is None:
            return None
        theirs, similarity = near
        return Match(self.known[normalized(theirs)][0], theirs, f"nearly the same text, {similarity:.2f} alike")


def read_held_out(settings: Sequence[HeldOutSettings], similarity: float, shared_words: int) -> HeldOut:
    """The texts of the test sets that a job names.

    Raises:
        JobError: for one that is not there, cannot be read or holds no text: nobody could say what it knows.
    """
    sets: dict[str, list[str]] = {}
    for one in settings:
        try:
            found = dict(folder_sets(one.folder) if one.folder else file_set(cast(Path, one.jsonl), one.fields))
        except (DataSetError, EvaluationError) as error:
            raise JobError(
                f"the test set {(one.folder or cast(Path, one.jsonl)).name} cannot be read: {error}"
            ) from error
        for name, texts in found.items():
            sets.setdefault(name, []).extend(texts)
    return HeldOut(sets, similarity, shared_words)


def folder_sets(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The tests of a folder of data sets.

    Raises:
        DataSetError: if one cannot be read.
        EvaluationError: if there is none.
    """
    if not folder.is_dir():
        raise DataSetError(f"there is no folder {folder}")
    suite = folder_suite(str(folder), folder)
    for name, problem in suite.problems.items():
        raise DataSetError(f"{name}: {problem}")
    for entry in suite.entries:
        data = FolderDataSet(entry.name, cast(Task, entry.task), Path(entry.place), entry.language)
        try:
            yield entry.name, list(tested_texts(data))
        except DataSetError as error:
            raise DataSetError(f"{entry.name}: {error}") from error


def file_set(path: Path, fields: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The texts of a file of JSON lines.

    Raises:
        DataSetError: if it cannot be read, lacks a field, or holds none.
    """
    if not path.is_file():
        raise DataSetError(f"there is no file {path}")
    found = [text for record in file_records(path) for text in row_texts(record, fields)]
    if not found:
        raise DataSetError("it holds no text")
    yield path.name.partition(".")[0], found


def row_texts(record: Record, fields: Sequence[str]) -> Iterator[str]:
    """The texts of a row, in lists too.

    Raises:
        DataSetError: if it lacks a field.
    """
    for field in fields or record.fields:
        if field not in record.fields:
            raise DataSetError(f"{record.place}: no field {field!r}; it has {', '.join(record.fields)}")
        value = record[field]
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and text.strip():
                yield text
