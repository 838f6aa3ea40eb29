"""Hard-negative mining: documents that an auxiliary encoder finds near a query, and that do not answer it."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from datasets import Dataset
from numpy.typing import NDArray
from sentence_transformers.util import mine_hard_negatives

from lathe.training.errors import JobError
from lathe.training.finetuning.candidates import Candidates
from lathe.training.finetuning.evaluators import preserve_random_state
from lathe.training.finetuning.extras import NegativeSettings
from lathe.training.finetuning.reference import ReferenceVectors
from lathe.training.settings import Prompts
from lathe.transforms.progress import Progress

BLOCK_SCORES = 50_000_000
"""Maximum number of query–document scores in memory at once: 200 MB."""


@dataclass(frozen=True)
class MiningResult:
    """Mining result of one query: texts with their scores, cosines by the auxiliary encoder.

    Attributes:
        query: the query.
        positives: known answers and their scores.
        negatives: hard negatives and their scores, best first; fewer than asked for if there are not enough.
    """

    query: str
    positives: dict[str, float]
    negatives: dict[str, float]


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


def count_negatives_per_query(candidates: Candidates, settings: NegativeSettings, name: str) -> int:
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
) -> list[MiningResult]:
    """Mine hard negatives: for each query, documents with high scores that are not known to answer it.
    Return each query with the scores of its positives and its negatives, of which it may get fewer than `count`.

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
            output_scores=True,
            faiss_batch_size=max(1, BLOCK_SCORES // len(documents)),
            verbose=False,
        )

    return _group_by_query(candidates, auxiliary, triplets)


def _list_answers(candidates: Candidates) -> Iterator[tuple[str, str]]:
    """Yield a pair (query, document) for each document known to answer a query.
    The documents of a query are sorted by normalized text.
    """
    for words, query in candidates.queries.items():
        for answer in sorted(candidates.answers[words]):
            yield query, candidates.documents[answer]


def _group_by_query(candidates: Candidates, auxiliary: AuxiliaryEncoder, triplets: Dataset) -> list[MiningResult]:
    """Group the mined (query, positive, negative) triplets by query.
    Return one result for each query, with the scores of its known answers and of its negatives.

    Triplets are dropped if their negative is a positive that the target's test holds (`candidates.test_positives`). A
    query without negatives gets a result too.
    """
    # Such a text may be a positive, which the job allows, but as a negative it would be pushed away.
    tested = {candidates.documents[words] for words in candidates.test_positives}
    negatives: dict[str, dict[str, float]] = {query: {} for query in candidates.queries.values()}
    for row in triplets:
        if row["negative"] not in tested:
            negatives[row["query"]][row["negative"]] = row["scores"][1]

    positives: dict[str, dict[str, float]] = {query: {} for query in negatives}
    answered = list(_list_answers(candidates))
    queries = auxiliary.encode_query([query for query, _ in answered])
    scores = auxiliary.similarity_pairwise(queries, auxiliary.encode_document([text for _, text in answered]))

    for (query, text), score in zip(answered, scores.tolist(), strict=True):
        positives[query][text] = score

    return [MiningResult(query, positives[query], negatives[query]) for query in negatives]
