"""What hard negatives of a data set are looked for in, and which of it answers which query."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from training.digests import digest
from training.errors import DataSetError, SourceError
from training.finetuning.datasets import DataSet, FileDataSet
from training.finetuning.job import SourceSettings
from training.finetuning.overlap import normalized
from training.finetuning.positives import Pair, blank, document_text, find_pairs
from training.sources.source import open_source


@dataclass(frozen=True)
class Candidates:
    """Documents and the queries they are mined for. Texts that differ in case or punctuation alone are one.

    Attributes:
        documents: as they first stand, by what they are normalized.
        queries: likewise.
        answers: normalized documents that answer each normalized query, the query itself included.
        barred: normalized documents that are positives and yet texts of the target's test, where the job allows that.
        forbidden: how many documents were left out, being texts of the target's test.
    """

    documents: dict[str, str]
    queries: dict[str, str]
    answers: dict[str, set[str]]
    barred: set[str]
    forbidden: int

    def digest(self) -> str:
        """What tells them from others."""
        answers = [sorted(self.answers[query]) for query in self.queries]
        return digest(list(self.documents.values()), list(self.queries.values()), answers, sorted(self.barred))


def find_candidates(
    data: DataSet, source: SourceSettings, pairs: Sequence[Pair], forbidden: Collection[str]
) -> Candidates:
    """What can be mined for the pairs of a data set.

    Args:
        data: the data set.
        source: what the job says of it.
        pairs: that are trained on.
        forbidden: normalized texts of the target's test, which are never negatives.

    Raises:
        DataSetError: if the corpus cannot be read.
    """
    judged = [*pairs, *judged_pairs(data, source)]
    positives = by_words(pair.positive for pair in judged)
    documents = by_words(texts_of_corpus(data, source, judged))
    kept = {words: text for words, text in documents.items() if words not in forbidden}
    queries = by_words(pair.anchor for pair in pairs)
    trained = {normalized(pair.positive) for pair in pairs}
    answers: dict[str, set[str]] = {query: {query} & kept.keys() for query in queries}
    for pair in judged:
        query, positive = normalized(pair.anchor), normalized(pair.positive)
        if query in queries and (positive in trained or positive not in forbidden):
            answers[query].add(positive)
    known = {words: positives[words] for found in answers.values() for words in sorted(found) if words in positives}
    return Candidates(
        documents=kept | {words: text for words, text in known.items() if words not in kept},
        queries=queries,
        answers=answers,
        barred=trained & set(forbidden),
        forbidden=len(documents) - len(kept),
    )


def by_words(texts: Iterable[str]) -> dict[str, str]:
    """Texts as they first stand, by what they are normalized."""
    found: dict[str, str] = {}
    for text in texts:
        found.setdefault(normalized(text), text)
    return found


def judged_pairs(data: DataSet, source: SourceSettings) -> Iterator[Pair]:
    """Every pair that any split of a data set holds."""
    for split in data.splits():
        try:
            yield from find_pairs(data, source.model_copy(update={"split": split})).pairs
        except DataSetError:  # a split that nothing is trained on may be without a positive
            continue


def texts_of_corpus(data: DataSet, source: SourceSettings, judged: Iterable[Pair]) -> Iterator[str]:
    """The documents: those of the file that the job names, of a search, or all positives.

    Raises:
        DataSetError: if the file cannot be read.
    """
    if source.corpus is not None:
        yield from read_texts(source.corpus)
    elif data.task == "retrieval" and not isinstance(data, FileDataSet):
        yield from (document_text(row) for row in data.rows("corpus") if not blank(row.fields.get("text")))
    else:
        yield from (pair.positive for pair in judged)


def read_texts(corpus: Path) -> Iterator[str]:
    """The texts of a file or folder.

    Raises:
        DataSetError: if it cannot be read, or holds vectors.
    """
    try:
        for batch in open_source(str(corpus)).batches():
            for text in batch.values:
                if not isinstance(text, str):
                    raise DataSetError(f"the corpus {corpus.name} must hold texts, not vectors")
                if text.strip():
                    yield text
    except SourceError as error:
        raise DataSetError(f"the corpus {corpus.name} cannot be read: {error}") from error
