"""Documents that hard negatives of a data set are mined from, and which documents answer which query."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lathe.training.datasets.data_set import DataSet, find_pairs, normalize_text
from lathe.training.datasets.pairs import Pair
from lathe.training.errors import DataSetError, SourceError
from lathe.training.finetuning.job import SourceSettings
from lathe.training.sources.source import open_source


@dataclass(frozen=True)
class Candidates:
    """Documents, the queries to mine negatives for, and the known answers.

    Texts that differ only in case or punctuation are one text, identified by its normalized form.

    Attributes:
        documents: documents by normalized text, each in the spelling that came first.
        queries: queries by normalized text, each in the spelling that came first.
        answers: for each normalized query, the normalized documents that answer it, and the query itself if it is a
            document.
        test_positives: normalized positives of training pairs that are also texts of the target's test, which the job
            may allow; they are documents, but must not become negatives.
    """

    documents: dict[str, str]
    queries: dict[str, str]
    answers: dict[str, set[str]]
    test_positives: set[str]


def find_candidates(
    data: DataSet, source: SourceSettings, pairs: Sequence[Pair], forbidden: Collection[str]
) -> Candidates:
    """Collect what hard negatives of a data set are mined from.
    The result has the documents, the queries of the training pairs, and the documents known to answer each query.

    Positives of all splits count as answers, not only those of the training pairs. Texts of the target's test are left
    out, unless they are positives of training pairs. Answers that the corpus lacks are added to the documents.

    Args:
        data: the data set.
        source: the job's settings of the data set.
        pairs: training pairs.
        forbidden: normalized texts of the target's test, which are never negatives.

    Raises:
        DataSetError: if the corpus cannot be read.
    """
    # A positive of another split is an answer too, and must not become a negative.
    judged = [*pairs, *_read_pairs_of_all_splits(data, source)]
    positives = _index_by_words(pair.positive for pair in judged)
    documents = _index_by_words(_read_documents(data, source, judged))
    allowed = {words: text for words, text in documents.items() if words not in forbidden}
    queries = _index_by_words(pair.anchor for pair in pairs)
    trained = {normalize_text(pair.positive) for pair in pairs}
    answers: dict[str, set[str]] = {query: {query} & allowed.keys() for query in queries}

    for pair in judged:
        query, positive = normalize_text(pair.anchor), normalize_text(pair.positive)
        if query in queries and (positive in trained or positive not in forbidden):
            answers[query].add(positive)

    known = {
        words: positives[words] for answering in answers.values() for words in sorted(answering) if words in positives
    }
    return Candidates(
        documents=allowed | {words: text for words, text in known.items() if words not in allowed},
        queries=queries,
        answers=answers,
        test_positives=trained & set(forbidden),
    )


def _index_by_words(texts: Iterable[str]) -> dict[str, str]:
    """Return a dict from each normalized text to the text itself.
    Of texts with the same normalized form, the first counts.
    """
    first_spellings: dict[str, str] = {}
    for text in texts:
        first_spellings.setdefault(normalize_text(text), text)
    return first_spellings


def _read_pairs_of_all_splits(data: DataSet, source: SourceSettings) -> Iterator[Pair]:
    """Yield the training pairs of every split of a data set. Splits that raise `DataSetError` are skipped."""
    for split in data.list_splits():
        try:
            yield from find_pairs(data, source.model_copy(update={"split": split})).pairs
        except DataSetError:  # a split that nothing is trained on may be without a positive
            continue


def _read_documents(data: DataSet, source: SourceSettings, judged: Iterable[Pair]) -> Iterator[str]:
    """Yield the documents to mine: texts of the file that the job names, else a retrieval corpus, else all positives.

    Args:
        data: the data set.
        source: the job's settings of the data set; its `corpus` is the file.
        judged: pairs whose positives are the documents if there is neither a file nor a corpus.

    Raises:
        DataSetError: if the file cannot be read.
    """
    if source.corpus is not None:
        yield from _read_texts(source.corpus)
        return
    corpus = data.layout.read_corpus(data)
    yield from (pair.positive for pair in judged) if corpus is None else corpus


def _read_texts(corpus: Path) -> Iterator[str]:
    """Yield the texts of a file or folder, skipping blank ones.

    Raises:
        DataSetError: if the source cannot be read, or holds vectors.
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
