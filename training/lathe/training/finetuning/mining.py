"""Hard-negative mining: documents that an auxiliary encoder finds near a query, and that do not answer it.

The candidates are the documents of a data set, of which it is known which answer which query.
"""

import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from numpy.typing import NDArray
from sentence_transformers.util import mine_hard_negatives

from lathe.training.datasets.data_set import DataSet, find_pairs, normalize_text
from lathe.training.datasets.pairs import Pair
from lathe.training.encoder.encoder import Encoder
from lathe.training.errors import DataSetError, JobError, SourceError
from lathe.training.finetuning.evaluators import preserve_random_state
from lathe.training.finetuning.extras import NegativeSettings
from lathe.training.finetuning.job import SourceSettings
from lathe.training.finetuning.mixture_builder import MixtureBuilder
from lathe.training.finetuning.reference import ReferenceVectors
from lathe.training.settings import Prompts
from lathe.training.sources.source import open_source
from lathe.transforms.progress import Progress


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


BLOCK_SCORES = 50_000_000
"""Maximum number of query–document scores in memory at once: 200 MB."""


def mine_sources(
    builder: MixtureBuilder, settings: NegativeSettings, encoder: Encoder, cache: Path, on_progress: Progress
) -> None:
    """Mine hard negatives for the sources that want them, and set them on the builder's pairs in place.

    Args:
        builder: mixture under construction; its pairs are replaced in place.
        settings: settings of the mining.
        encoder: the auxiliary encoder.
        cache: folder for its vectors of queries and documents, see `ReferenceVectors`.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        JobError: if a source has fewer documents than needed, no source wants mined negatives, or a vector is zero or
            not finite.
        DataSetError: if a corpus cannot be read.
    """
    names = [name for name in builder.kept if _is_mined(builder.sources[name], builder.kept[name])]
    if not names:
        raise JobError("there is no source to mine: each says negatives: none, or gives its own")

    auxiliary = AuxiliaryEncoder(ReferenceVectors(encoder, cache), settings.prompts)
    for number, name in enumerate(names):

        def report_source(fraction: float, sentence: str, number: int = number, name: str = name) -> None:
            on_progress((number + fraction) / len(names), f"mining {name}: {sentence}")

        pairs = builder.kept[name]
        candidates = find_candidates(builder.data[name], builder.sources[name], pairs, builder.forbidden)
        count = _count_negatives_per_query(candidates, settings, name)
        negatives: dict[str, list[str]] = {}
        if count:
            auxiliary.encode(candidates, report_source)
            negatives = mine_negatives(candidates, auxiliary, settings, count, builder.settings.seed)

        # Pairs whose anchors differ only in case or punctuation share the negatives of one query.
        builder.set_negatives(name, [tuple(negatives.get(normalize_text(pair.anchor), ())) for pair in pairs])


def _is_mined(source: SourceSettings, pairs: Sequence[Pair]) -> bool:
    """Return whether hard negatives are mined for a source.
    Its settings decide, and without any it is mined if no pair has negatives of its own.
    """
    if source.negatives is not None:
        return source.negatives == "mined"
    return not any(pair.negatives for pair in pairs)


class AuxiliaryEncoder:
    """Adapter of a cached encoder to the model interface of the library's `mine_hard_negatives`.

    Args:
        reference: cached vectors of the encoder.
        prompts: prompts put before queries and documents.
    """

    device = torch.device("cpu")
    """Device of the scores; `mine_hard_negatives` reads it."""

    def __init__(self, reference: ReferenceVectors, prompts: Prompts) -> None:
        self.reference, self.prompts = reference, prompts

    def encode(self, candidates: Candidates, on_progress: Progress) -> None:
        """Encode the queries and documents that the cache on disk lacks, each with its prompt.
        The vectors are written to the cache.
        """
        queries = [self.prompts.anchor + text for text in candidates.queries.values()]
        documents = [self.prompts.positive + text for text in candidates.documents.values()]
        self.reference.encode([*queries, *documents], on_progress)

    def encode_query(self, texts: Sequence[str], **_: Any) -> NDArray[Any]:
        """Return the cached unit vectors of queries, `(n, d)`. Queries that were not encoded before raise.

        Errors are those of `ReferenceVectors.vectors`.
        """
        return self.reference.vectors([self.prompts.anchor + text for text in texts])

    def encode_document(self, texts: Sequence[str], **_: Any) -> NDArray[Any]:
        """Return the cached unit vectors of documents, `(n, d)`. Documents that were not encoded before raise.

        Errors are those of `ReferenceVectors.vectors`.
        """
        return self.reference.vectors([self.prompts.positive + text for text in texts])

    def similarity(self, queries: Any, documents: Any) -> torch.Tensor:
        """Return the cosines of all queries with all documents, `(n, m)`."""
        return torch.as_tensor(queries) @ torch.as_tensor(documents).T

    def similarity_pairwise(self, queries: Any, documents: Any) -> torch.Tensor:
        """Return the cosine of each query with the document in the same row, `(n,)`."""
        return (torch.as_tensor(queries) * torch.as_tensor(documents)).sum(dim=1)


def _count_negatives_per_query(candidates: Candidates, settings: NegativeSettings, name: str) -> int:
    """Return how many hard negatives to mine for each query.
    It is `num_negatives`, or with `allow_fewer` as many as there are documents for.

    Raises:
        JobError: if there are too few documents and `allow_fewer` is not set.
    """
    available = max(0, len(candidates.documents) - 1 - settings.range_min)
    if available >= settings.num_negatives or settings.allow_fewer:
        return min(available, settings.num_negatives)

    skipped = f" and {settings.range_min} to be passed over" if settings.range_min else ""
    raise JobError(
        f"{name} has {len(candidates.documents):,} distinct documents: beside a positive there are not "
        f"{settings.num_negatives} negatives{skipped}. Ask for fewer with num_negatives, take what there is with "
        "allow_fewer: true, name a corpus for the source, or mine none for it with negatives: none"
    )


def mine_negatives(
    candidates: Candidates, auxiliary: AuxiliaryEncoder, settings: NegativeSettings, count: int, seed: int
) -> dict[str, list[str]]:
    """Mine hard negatives: for each query, documents with high scores that are not known to answer it.
    Return the negatives, best first, by normalized query. A query may get fewer than `count`.

    The library's `mine_hard_negatives` does the search.

    Known positives of a query are never its negatives, nor are texts equal to one except for case and punctuation, nor
    texts of the target's test, so a query may get fewer than `count`. The vectors must be in the cache of `auxiliary`.
    The library's messages are hidden.

    Args:
        candidates: queries, documents and known answers.
        auxiliary: adapter with the vectors of all of them.
        settings: ranges, scores and margins.
        count: number of negatives of each query, at least one.
        seed: seed of random sampling.

    Raises:
        JobError: if a vector is zero or not finite.
    """
    answered = list(_list_answers(candidates))
    rows = Dataset.from_dict({"query": [query for query, _ in answered], "positive": [text for _, text in answered]})
    documents = list(candidates.documents.values())

    with preserve_random_state():
        random.seed(seed)
        triplets = mine_hard_negatives(
            rows,
            cast(Any, auxiliary),  # it has what the miner calls
            corpus=documents,
            range_min=settings.range_min,
            range_max=settings.range_max,
            max_score=settings.max_score,
            absolute_margin=settings.absolute_margin,
            relative_margin=settings.relative_margin,
            num_negatives=count,
            sampling_strategy=settings.sampling,
            faiss_batch_size=max(1, BLOCK_SCORES // len(documents)),
            verbose=False,
        )

    # Such a text may be a positive, which the job allows, but as a negative it would be pushed away.
    tested = {candidates.documents[words] for words in candidates.test_positives}
    negatives: dict[str, list[str]] = {}
    for row in triplets:
        known = negatives.setdefault(normalize_text(row["query"]), [])
        # A query with several positives has a row for each of them and each of its negatives.
        if row["negative"] not in tested and row["negative"] not in known:
            known.append(row["negative"])

    return negatives


def _list_answers(candidates: Candidates) -> Iterator[tuple[str, str]]:
    """Yield a pair (query, document) for each document known to answer a query.
    The documents of a query are sorted by normalized text.
    """
    for words, query in candidates.queries.items():
        for answer in sorted(candidates.answers[words]):
            yield query, candidates.documents[answer]
