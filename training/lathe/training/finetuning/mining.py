"""Hard-negative mining: documents that an auxiliary encoder finds near a query but that do not answer it.

find_candidates     queries of the training pairs, documents of the data set, and known answers of each query
AuxiliaryEncoder    cached vectors of these texts, for the library's `mine_hard_negatives`
mine_negatives      documents with high scores, without known answers and texts of the target's test
mine_sources        all of this for each source of a job
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

from lathe.training.datasets.data_set import DataSet, find_pairs
from lathe.training.datasets.pairs import Pair
from lathe.training.datasets.records import normalize_text
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
    """Documents that may become hard negatives, the queries to mine for, and the known answers.

    Texts that differ only in case or punctuation are one text, identified by its normalized form.

    Attributes:
        documents: documents by normalized text, in the spelling of the first occurrence.
        queries: queries by normalized text, in the spelling of the first occurrence.
        answers: for each normalized query, the normalized documents that answer it, and the query itself if it is a
            document.
        test_positives: normalized positives of training pairs that are also texts of the target's test, which the job
            allows as positives, but which must not be negatives.
    """

    documents: dict[str, str]
    queries: dict[str, str]
    answers: dict[str, set[str]]
    test_positives: set[str]


def find_candidates(
    data: DataSet, source: SourceSettings, pairs: Sequence[Pair], forbidden: Collection[str]
) -> Candidates:
    """Collect a data set's documents, the queries of pairs, and each query's answers. Test texts are left out.

    Positives of all splits count as answers, not only the positives of the training pairs. Texts of the target's test
    are left out, unless they are positives of training pairs. Answers that the corpus lacks are added to the documents.

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
    positives = _index_by_normalized_text(pair.positive for pair in judged)
    all_documents = _index_by_normalized_text(_read_documents(data, source, judged))
    documents = {key: text for key, text in all_documents.items() if key not in forbidden}
    queries = _index_by_normalized_text(pair.anchor for pair in pairs)
    trained_positives = {normalize_text(pair.positive) for pair in pairs}
    answers: dict[str, set[str]] = {query: {query} & documents.keys() for query in queries}

    for pair in judged:
        query, positive = normalize_text(pair.anchor), normalize_text(pair.positive)
        if query in queries and (positive in trained_positives or positive not in forbidden):
            answers[query].add(positive)

    answer_texts = {
        key: positives[key] for answering in answers.values() for key in sorted(answering) if key in positives
    }
    return Candidates(
        documents=documents | {key: text for key, text in answer_texts.items() if key not in documents},
        queries=queries,
        answers=answers,
        test_positives=trained_positives & set(forbidden),
    )


def _index_by_normalized_text(texts: Iterable[str]) -> dict[str, str]:
    """Map each normalized text to the first text with that normalized form."""
    first_spellings: dict[str, str] = {}
    for text in texts:
        first_spellings.setdefault(normalize_text(text), text)
    return first_spellings


def _read_pairs_of_all_splits(data: DataSet, source: SourceSettings) -> Iterator[Pair]:
    """Yield the pairs of every split of a data set. Splits without a positive pair are skipped."""
    for split in data.list_splits():
        try:
            yield from find_pairs(data, source.model_copy(update={"split": split})).pairs
        except DataSetError:  # a split that is not trained on may lack positives
            continue


def _read_documents(data: DataSet, source: SourceSettings, judged: Iterable[Pair]) -> Iterator[str]:
    """Yield the documents that negatives are mined from: the corpus file, else a retrieval corpus, else all positives.

    The positives are of the `judged` pairs.

    Raises:
        DataSetError: if the file cannot be read.
    """
    if source.corpus is not None:
        yield from _read_texts(source.corpus)
        return
    corpus = data.layout.read_corpus(data)
    yield from (pair.positive for pair in judged) if corpus is None else corpus


def _read_texts(corpus: Path) -> Iterator[str]:
    """Yield the texts of a file or folder. Blank texts are skipped, and vectors raise.

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
    """Mine hard negatives for sources that ask for them, and replace negatives in the builder. Raise without a source.

    A source without the setting is mined if none of its pairs has negatives.

    Args:
        builder: mixture under construction; its pairs are replaced in place.
        settings: settings of the mining.
        encoder: the auxiliary encoder.
        cache: folder for the encoder's vectors of queries and documents, see `ReferenceVectors`.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        JobError: if a source has fewer documents than needed, no source is to be mined, or a vector is zero or not
            finite.
        DataSetError: if a corpus cannot be read.
    """
    names = [name for name in builder.pairs if _is_mined(builder.sources[name], builder.pairs[name])]
    if not names:
        raise JobError("no source is to be mined: set negatives: mined for one, or leave out the section negatives")

    auxiliary = AuxiliaryEncoder(ReferenceVectors(encoder, cache), settings.prompts)
    for number, name in enumerate(names):

        def report_source(fraction: float, sentence: str, number: int = number, name: str = name) -> None:
            on_progress((number + fraction) / len(names), f"mining {name}: {sentence}")

        pairs = builder.pairs[name]
        candidates = find_candidates(builder.data[name], builder.sources[name], pairs, builder.forbidden)
        count = _count_negatives_per_query(candidates, settings, name)
        negatives: dict[str, list[str]] = {}
        if count:
            auxiliary.encode(candidates, report_source)
            negatives = mine_negatives(candidates, auxiliary, settings, count, builder.settings.seed)

        # Pairs whose anchors differ only in case or punctuation share the negatives of one query.
        builder.set_negatives(name, [tuple(negatives.get(normalize_text(pair.anchor), ())) for pair in pairs])


def _is_mined(source: SourceSettings, pairs: Sequence[Pair]) -> bool:
    """Return whether to mine hard negatives for a source: as it is set, or else if none of its pairs has any."""
    if source.negatives is not None:
        return source.negatives == "mined"
    return not any(pair.negatives for pair in pairs)


class AuxiliaryEncoder:
    """Adapter of an encoder with cached vectors to the model interface of the library's `mine_hard_negatives`.

    Args:
        reference: cached vectors of the encoder.
        prompts: prompts put before queries and documents.
    """

    device = torch.device("cpu")
    """Device of the scores; `mine_hard_negatives` reads it."""

    def __init__(self, reference: ReferenceVectors, prompts: Prompts) -> None:
        self.reference, self.prompts = reference, prompts

    def encode(self, candidates: Candidates, on_progress: Progress) -> None:
        """Encode the queries and documents of the candidates, with their prompts, into the cache on disk.

        Texts whose vectors are cached are not encoded again.
        """
        queries = [self.prompts.anchor + text for text in candidates.queries.values()]
        documents = [self.prompts.positive + text for text in candidates.documents.values()]
        self.reference.encode([*queries, *documents], on_progress)

    def encode_query(self, texts: Sequence[str], **_: Any) -> NDArray[Any]:
        """Return the unit vectors of queries, `(n, d)`. Vectors that are not cached are computed and cached."""
        return self.reference.vectors([self.prompts.anchor + text for text in texts])

    def encode_document(self, texts: Sequence[str], **_: Any) -> NDArray[Any]:
        """Return the unit vectors of documents, `(n, d)`. Vectors that are not cached are computed and cached."""
        return self.reference.vectors([self.prompts.positive + text for text in texts])

    def similarity(self, queries: Any, documents: Any) -> torch.Tensor:
        """Compute the cosines of all queries with all documents, `(n, m)`."""
        return torch.as_tensor(queries) @ torch.as_tensor(documents).T

    def similarity_pairwise(self, queries: Any, documents: Any) -> torch.Tensor:
        """Compute the cosine of each query with the document in the same row, `(n,)`."""
        return (torch.as_tensor(queries) * torch.as_tensor(documents)).sum(dim=1)


def _count_negatives_per_query(candidates: Candidates, settings: NegativeSettings, name: str) -> int:
    """Return the number of hard negatives to mine for each query. Too few documents raise, unless `allow_fewer` is set.

    The number is `num_negatives`. With `allow_fewer` and too few documents, it is the number that the documents allow,
    which may be 0. `range_min` documents that are skipped are not counted.

    Raises:
        JobError: if there are too few documents and `allow_fewer` is not set.
    """
    available = max(0, len(candidates.documents) - 1 - settings.range_min)
    if available >= settings.num_negatives or settings.allow_fewer:
        return min(available, settings.num_negatives)

    skipped = f", {settings.range_min} skipped documents" if settings.range_min else ""
    raise JobError(
        f"{name} has {len(candidates.documents):,} distinct documents, too few for a positive{skipped} and "
        f"{settings.num_negatives} negatives. Lower num_negatives, allow fewer negatives with allow_fewer: true, name "
        "a corpus for the source, or mine none for it with negatives: none"
    )


def mine_negatives(
    candidates: Candidates, auxiliary: AuxiliaryEncoder, settings: NegativeSettings, count: int, seed: int
) -> dict[str, list[str]]:
    """Mine at most `count` hard negatives of each query: documents with high scores that are not known answers.

    The library's `mine_hard_negatives` does the work, with its messages hidden. Texts that equal a known answer except
    for case and punctuation are not negatives, nor are texts of the target's test.

    Args:
        candidates: queries, documents and known answers.
        auxiliary: adapter with the vectors of these texts, best cached by `AuxiliaryEncoder.encode` before.
        settings: ranges, scores and margins.
        count: number of negatives of each query, at least one.
        seed: seed of random sampling.

    Returns:
        The negatives by normalized query, at most `count` for each, best first.

    Raises:
        JobError: if a vector is zero or not finite.
    """
    answers = [
        (query, candidates.documents[answer])
        for key, query in candidates.queries.items()
        for answer in sorted(candidates.answers[key])
    ]
    rows = Dataset.from_dict({"query": [query for query, _ in answers], "positive": [text for _, text in answers]})
    documents = list(candidates.documents.values())

    with preserve_random_state():
        random.seed(seed)
        triplets = mine_hard_negatives(
            rows,
            cast(Any, auxiliary),  # it has all methods that the library calls
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

    # A text of the target's test may be a positive if the job allows it, but must not be a negative.
    test_texts = {candidates.documents[key] for key in candidates.test_positives}
    negatives: dict[str, list[str]] = {}
    for row in triplets:
        mined = negatives.setdefault(normalize_text(row["query"]), [])
        # A query with several positives has a row for each of them and each of its negatives.
        if row["negative"] not in test_texts and row["negative"] not in mined:
            mined.append(row["negative"])

    return negatives
