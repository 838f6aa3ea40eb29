"""Detection of data leakage: texts that match a text of a test set must not be trained on.

Two texts match if they are equal (ignoring case and punctuation), are near duplicates, or share a long run of words
(by default 13 words, as for GPT-3: Brown et al. 2020, Appendix C).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lathe.training.datasets.data_set import read_test_texts
from lathe.training.datasets.records import Record, normalize_text, read_file_records
from lathe.training.errors import DataSetError, EvaluationError, JobError
from lathe.training.evaluation.suites import open_folder_suite
from lathe.training.synthesis.job import HeldOutSettings
from lathe.training.synthesis.near_duplicates import NearDuplicates, split_shingles, split_words


@dataclass(frozen=True)
class Match:
    """Match of a text with a text of a test set.

    Attributes:
        test_set: name of the test set.
        test_text: matching text of the test set.
        how: description of the match: equal, nearly equal, or the shared words.
    """

    test_set: str
    test_text: str
    how: str


class HeldOutIndex:
    """Index of the texts of test sets, which finds other texts that match a text of a test set.

    Args:
        sets: texts by name of the test set.
        similarity: minimum Jaccard similarity of near duplicates.
        shared_words: minimum length in words of a common run that is a match.

    Attributes:
        counts: number of texts by test set.
        texts: `(test set, text)` by normalized text.
    """

    def __init__(self, sets: dict[str, list[str]], similarity: float, shared_words: int) -> None:
        self.similarity, self.shared_words = similarity, shared_words
        self.counts = {name: len(texts) for name, texts in sets.items()}
        self.texts: dict[str, tuple[str, str]] = {}
        for name, texts in sets.items():
            for text in texts:
                self.texts.setdefault(normalize_text(text), (name, text))

    @cached_property
    def near(self) -> NearDuplicates:
        """Index that finds near duplicates of the texts, built at the first access."""
        index = NearDuplicates(self.similarity)
        for _, text in self.texts.values():
            index.add(text)
        return index

    def find_matches(self, texts: Sequence[str]) -> dict[int, Match]:
        """Find the texts that equal, nearly duplicate or overlap a text of a test set, as matches by position.

        Positions of texts without a match are missing in the result.
        """
        if not self.texts:
            return {}

        # Positions of texts by run of words. Runs are only looked up for texts without another match.
        runs: dict[str, list[int]] = {}
        matches = {position: match for position, text in enumerate(texts) if (match := self._find_match(text))}
        for position, text in enumerate(texts):
            if position not in matches and len(split_words(text)) >= self.shared_words:
                for run in split_shingles(text, self.shared_words):
                    runs.setdefault(run, []).append(position)

        for name, test_text in self.texts.values() if runs else ():
            for run in split_shingles(test_text, self.shared_words) & runs.keys():
                for position in runs[run]:
                    matches.setdefault(position, Match(name, test_text, f"{self.shared_words} words in a row: {run}"))

        return matches

    def _find_match(self, text: str) -> Match | None:
        """Find the test text that a text equals or nearly duplicates. Return None without such a test text."""
        same = self.texts.get(normalize_text(text))
        if same is not None:
            return Match(*same, "the same text")

        closest = self.near.find_closest(text)
        if closest is None:
            return None

        test_text, similarity = closest
        test_set = self.texts[normalize_text(test_text)][0]
        return Match(test_set, test_text, f"nearly the same text, similarity {similarity:.2f}")


def read_held_out_texts(settings: Sequence[HeldOutSettings], similarity: float, shared_words: int) -> HeldOutIndex:
    """Read the texts of a job's test sets into an index. Raise `JobError` if a test set cannot be read or is empty.

    Test sets with the same name are merged. An unreadable test set is refused, because texts could not be checked
    against it.

    Args:
        settings: the test sets.
        similarity: minimum Jaccard similarity of near duplicates.
        shared_words: minimum length in words of a common run that is a match.

    Raises:
        JobError: if a test set is missing, cannot be read or holds no text.
    """
    sets: dict[str, list[str]] = {}
    for test_set in settings:
        try:
            for name, texts in (
                _read_folder_of_sets(test_set.path)
                if test_set.folder
                else [_read_file_set(test_set.path, test_set.fields)]
            ):
                sets.setdefault(name, []).extend(texts)
        except EvaluationError as error:
            raise JobError(f"the test set {test_set.path.name} cannot be read: {error}") from error

    return HeldOutIndex(sets, similarity, shared_words)


def _read_folder_of_sets(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield name and test texts of every data set in a folder. Raise an error if a data set cannot be read.

    Raises:
        DataSetError: if the folder is missing, or a data set cannot be read.
        EvaluationError: if the folder holds no data set.
    """
    if not folder.is_dir():
        raise DataSetError(f"there is no folder {folder}")

    suite = open_folder_suite(str(folder), folder)
    for name, problem in suite.problems.items():
        raise DataSetError(f"{name}: {problem}")

    for entry in suite.entries:
        try:
            yield entry.name, list(read_test_texts(entry.build_data_set()))
        except DataSetError as error:
            raise DataSetError(f"{entry.name}: {error}") from error


def _read_file_set(path: Path, fields: Sequence[str]) -> tuple[str, list[str]]:
    """Read nonblank strings in fields of a JSON lines file as a test set `(file name, texts)`. Raise without a text.

    The name ends before the first dot. The texts are all strings that are not blank, including the strings in lists.
    Without `fields`, all fields of a row are read.

    Raises:
        DataSetError: if the file is missing or cannot be read, a row lacks a field, or there is no text.
    """
    if not path.is_file():
        raise DataSetError(f"there is no file {path}")
    texts = [text for record in read_file_records(path) for text in _extract_texts(record, fields)]
    if not texts:
        raise DataSetError("it holds no text")
    return path.name.partition(".")[0], texts


def _extract_texts(record: Record, fields: Sequence[str]) -> Iterator[str]:
    """Yield the nonblank strings in the given fields of a row, or in all fields. A missing field raises.

    Strings in lists are included.

    Raises:
        DataSetError: if the row lacks a field.
    """
    for field in fields or record.fields:
        if field not in record.fields:
            raise DataSetError(f"{record.place}: no field {field!r}; it has {', '.join(record.fields)}")
        value = record[field]
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and text.strip():
                yield text
