"""Judged searches that a decision is measured on: documents and queries, as texts and as vectors of an encoder."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lathe.training.encoder.text_encoder import Encoding, TextEncoder, encode_queries, with_document_prompt
from lathe.training.errors import FitError
from lathe.training.fitting.encoded_shards import hash_row
from lathe.training.fitting.pairs import POOL_SIZE, PairTexts, find_self_matches, list_self_match_notes
from lathe.training.fitting.requests import RowSource
from lathe.training.fitting.split import split_heldout
from lathe.training.sources.row_sample import sample_rows
from lathe.training.sources.source import open_source
from lathe.transforms.base import QueryPairs
from lathe.transforms.progress import Progress
from lathe.transforms.quality.metrics import normalized_rows
from lathe.transforms.vectors import FloatArray

Rows = NDArray[np.int64]
"""Row numbers, ascending."""


@dataclass(frozen=True)
class JudgedSearches:
    """Texts of judged searches.

    Attributes:
        documents: distinct documents that the queries search: all relevant documents first, then sampled rows of the
            source.
        learn: queries to learn from, with relevant documents.
        measured: queries to measure with, with relevant documents.
        folds: for each fold, the rows of `measured` that choose, and the rows of `measured` that report the gain.
        rows: number of rows of the source that are not blank; `documents` may have fewer.
        notes: sentences on what was left out.
        fit_rows: rows of `documents` that a chain is fitted on.
        heldout_rows: rows of `documents` that a chain is certified on.
        excluded: self-matches of `learn` and of `measured`: rows of a query and of the document with the same text,
            `(e, 2)`.
    """

    documents: list[str]
    learn: PairTexts
    measured: PairTexts
    folds: Sequence[tuple[Rows, Rows]]
    rows: int
    notes: tuple[str, ...]
    fit_rows: Rows
    heldout_rows: Rows
    excluded: tuple[NDArray[np.int64], NDArray[np.int64]]

    @property
    def choose(self) -> Rows:
        """Rows of `measured` that choose in at least one fold."""
        return np.unique(np.concatenate([choose for choose, _ in self.folds]))

    @property
    def report(self) -> Rows:
        """Rows of `measured` that report the gain in at least one fold."""
        return np.unique(np.concatenate([report for _, report in self.folds]))

    @property
    def crossed(self) -> bool:
        """Whether there are several folds, in which every measured query both chooses and reports."""
        return len(self.folds) > 1

    @property
    def reported(self) -> dict[str, list[str]]:
        """Relevant documents by query, for the queries that report the gain."""
        queries = list(self.measured.by_query)
        return {queries[row]: self.measured.by_query[queries[row]] for row in self.report}

    def count_queries(self) -> dict[str, int]:
        """Count the queries to learn from, to choose by and to report on, as a dict `{learn, choose, report}`.

        Queries that choose and report, in different folds, count in both numbers.
        """
        return {"learn": len(self.learn.by_query), "choose": len(self.choose), "report": len(self.report)}


@dataclass(frozen=True)
class EncodedSearches:
    """Unit vectors of judged searches by one encoder.

    Attributes:
        learn: queries to learn from, with all documents; None without such queries.
        measured: queries to measure with, with the same documents.
        tokens: number of tokens of each document, `(m,)`.
    """

    learn: QueryPairs | None
    measured: QueryPairs
    tokens: NDArray[np.int64]

    @property
    def documents(self) -> FloatArray:
        """Vectors of the documents, `(m, d)`."""
        return self.measured.documents


def gather_searches(
    source: RowSource,
    learn: PairTexts,
    measured: PairTexts,
    folds: Sequence[tuple[Rows, Rows]],
    max_documents: int,
    seed: int,
) -> JudgedSearches:
    """Gather relevant documents and sampled rows of a source, to fit on and held out. A source of vectors raises.

    Documents with the same text as a query are recorded as `excluded`.

    Args:
        source: texts of the rows.
        learn: queries to learn from.
        measured: queries to measure with.
        folds: see `JudgedSearches`.
        max_documents: maximum number of documents. All relevant documents are kept even if there are more.
        seed: seed of the sample and of the split.

    Raises:
        FitError: if the source holds vectors, or there are too few documents.
        SourceError: if the source cannot be read.
    """
    # Relevant documents all stay: without one, its query could not be scored.
    relevant = dict.fromkeys(text for part in (learn, measured) for _, text in part.pairs)
    if source.texts is not None:
        texts = [text for text in dict.fromkeys(source.texts) if text.strip()]
        rows = len(source.texts)
    else:
        sampled = sample_rows(open_source(source.location), min(max_documents, POOL_SIZE), seed)
        if sampled.vectors is not None:
            raise FitError(f"the source {source.location!r} holds vectors, and queries search texts: name texts")
        texts, rows = sampled.texts, sampled.rows - sampled.blank
    others = [text for text in texts if text not in relevant]
    documents = [*relevant, *others[: max(0, max_documents - len(relevant))]]

    # A query that is a document itself would find its own text first, with any encoder.
    own_learn, own_measured = (find_self_matches(list(part.by_query), documents) for part in (learn, measured))
    notes = list_self_match_notes((own_learn, own_measured))
    if rows > len(documents):
        notes.append(
            f"Measured among {len(documents):,} of {rows:,} documents. Among all documents, scores are lower, and "
            "differences can be larger."
        )
    split = split_heldout(np.array([hash_row(text.encode()) for text in documents], np.uint64), seed)
    return JudgedSearches(documents, learn, measured, folds, rows, tuple(notes), *split, (own_learn, own_measured))


def encode_searches(searches: JudgedSearches, encoder: TextEncoder, on_progress: Progress) -> EncodedSearches:
    """Encode the documents and queries of judged searches as unit vectors.

    The encoder's prompt for documents is put before documents, and its prompt for queries before queries.

    Args:
        searches: the texts, with at least one query to measure with.
        encoder: encoder of queries and documents.
        on_progress: called with progress in [0, 1] and a message.
    """
    encoding = encode_documents(encoder, searches.documents, on_progress)
    on_progress(1.0, f"{encoder.name}: encoding queries")
    positions = {text: position for position, text in enumerate(searches.documents)}
    learn, measured = (
        QueryPairs(
            encode_unit_queries(encoder, list(part.by_query)),
            encoding.vectors,
            part.list_relevant_rows(positions.__getitem__),
            excluded,
        )
        if part.by_query
        else None
        for part, excluded in zip((searches.learn, searches.measured), searches.excluded, strict=True)
    )
    assert measured is not None  # there are queries to measure with
    return EncodedSearches(learn, measured, encoding.tokens)


def encode_documents(encoder: TextEncoder, documents: Sequence[str], on_progress: Progress) -> Encoding:
    """Encode documents with the encoder's prompt for documents, as unit vectors `(n, d)` with token counts."""

    def show(done: int) -> None:
        on_progress(done / len(documents), f"{encoder.name}: {done:,} of {len(documents):,} documents encoded")

    show(0)
    encoding = with_document_prompt(encoder).encode(documents, on_batch=show)
    return replace(encoding, vectors=normalized_rows(encoding.vectors, np.float32).numpy())


def encode_unit_queries(encoder: TextEncoder, queries: Sequence[str]) -> FloatArray:
    """Encode queries with the encoder's prompt for queries, as unit vectors `(n, d)`."""
    return normalized_rows(encode_queries(encoder, queries), np.float32).numpy()
