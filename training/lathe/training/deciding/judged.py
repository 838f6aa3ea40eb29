"""Judged searches: documents, and queries that are divided into those to learn from, to choose by and to report on."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lathe.training.deciding.adapt_request import AdaptRequest
from lathe.training.encoder.text_encoder import TextEncoder, encode_queries, with_document_prompt
from lathe.training.errors import FitError
from lathe.training.fitting.encoded_shards import hash_row
from lathe.training.fitting.pairs import (
    MAX_DOCUMENTS,
    MIN_TEST_QUERIES,
    PairTexts,
    find_own_texts,
    list_own_text_notes,
    read_pairs,
)
from lathe.training.fitting.split import split_heldout
from lathe.training.sources.row_sample import sample_rows
from lathe.training.sources.source import open_source
from lathe.transforms.base import QueryPairs
from lathe.transforms.learned.query_adapter import MIN_QUERIES
from lathe.transforms.progress import Progress
from lathe.transforms.quality.metrics import normalized_rows
from lathe.transforms.vectors import FloatArray

HELD_OUT_SHARE = 0.2
"""Share of the queries to choose by, and again of those to report on."""

ALL_QUERIES = math.ceil(MIN_QUERIES / (1 - 2 * HELD_OUT_SHARE))
"""Number of judged queries of which enough are left to learn from, for a map of queries and for training."""


@dataclass(frozen=True)
class JudgedSearches:
    """Texts of judged searches.

    Attributes:
        documents: distinct documents that the queries search: all relevant ones, and further rows of the source, up to
            `MAX_DOCUMENTS`.
        learn: queries to learn from, with their relevant documents.
        choose: queries by which a change is chosen.
        report: queries on which the gain is reported.
        crossed: whether the last two also change their roles, so that every query chooses once and reports once.
        rows: number of rows of the source, which may be more than are searched here.
        notes: sentences on what was left out.
        fit_rows, heldout_rows: rows of the documents that a chain is fitted on, and of those that it is certified on,
            ascending.
        excluded: for the queries of `learn`, `choose` and `report`, the row of a query and the row of the document that
            is its own text, `(e, 2)` each.
    """

    documents: list[str]
    learn: PairTexts
    choose: PairTexts
    report: PairTexts
    crossed: bool
    rows: int
    notes: tuple[str, ...]
    fit_rows: NDArray[np.int64]
    heldout_rows: NDArray[np.int64]
    excluded: tuple[NDArray[np.int64], ...]

    @property
    def reported(self) -> dict[str, list[str]]:
        """Queries on which the gain is reported, each with its relevant documents.

        With `crossed`, the queries to choose by are among them.
        """
        return {**self.report.documents, **(self.choose.documents if self.crossed else {})}

    def count_queries(self) -> dict[str, int]:
        """Return the numbers of queries to learn from, to choose by and to report on.

        The keys are `learn`, `choose` and `report`. With `crossed`, queries both choose and report, and count in both.
        """
        counts = {part: len(getattr(self, part).documents) for part in ("learn", "choose", "report")}
        if self.crossed:
            counts["choose"] = counts["report"] = counts["choose"] + counts["report"]
        return counts

    @property
    def shortage(self) -> str | None:
        """Sentence on how many queries are missing to choose by or to report on, or None if there are enough."""
        counts = {"choose by": len(self.choose.documents), "report on": len(self.report.documents)}
        short = [f"{count} to {what}" for what, count in counts.items() if count < MIN_TEST_QUERIES]
        if not short:
            return None
        judged = sum(len(part.documents) for part in (self.learn, self.choose, self.report))
        return (
            f"{judged} different judged queries leave {' and '.join(short)}, and {MIN_TEST_QUERIES} are needed: fewer "
            f"cannot tell a gain from chance. From {round(MIN_TEST_QUERIES / HELD_OUT_SHARE)} queries on, debiasing is "
            f"tried, and from {ALL_QUERIES} on, a map of queries and training too"
        )


@dataclass(frozen=True)
class JudgedVectors:
    """Unit vectors of judged searches by one encoder.

    The queries of all three parts search the same documents. The fields are named as in `JudgedSearches`.
    """

    learn: QueryPairs
    choose: QueryPairs
    report: QueryPairs
    crossed: bool

    @property
    def reported(self) -> QueryPairs:
        """Queries on which the gain is reported, with their relevant documents.

        With `crossed`, the queries to choose by are among them.
        """
        return self.report.append(self.choose) if self.crossed else self.report

    @property
    def documents(self) -> FloatArray:
        """Vectors of the documents, `(m, d)`."""
        return self.learn.documents


def read_searches(request: AdaptRequest) -> JudgedSearches:
    """Read the documents and judged queries of a request, and divide the queries at random into three parts.

    The parts are to learn from, to choose by and to report on. A fifth of the queries is to choose by. The request's
    test pairs are to report on. Without them, another fifth is to report on, and the two fifths are also used the other
    way round (`crossed`).

    Raises:
        FitError: if the source holds vectors, pairs are malformed or none, test queries are among the others, or there
            are too few documents.
        SourceError: if a file cannot be read.
    """
    judged = read_pairs(request.pairs)
    test = None if request.test_pairs is None else read_pairs(request.test_pairs)
    if test is not None:
        judged.check_disjoint(test)

    queries = list(judged.documents)
    order = np.random.default_rng(request.seed).permutation(len(queries))
    held_out = int(len(queries) * HELD_OUT_SHARE)
    reported = 0 if test is not None else held_out
    report, choose, learn = (
        judged.select([queries[i] for i in np.sort(part)])
        for part in (order[:reported], order[reported : reported + held_out], order[reported + held_out :])
    )

    parts = (learn, choose, test or report)
    relevant = dict.fromkeys(text for part in parts for answers in part.documents.values() for text in answers)
    texts, rows = _read_documents(request)
    others = [text for text in texts if text not in relevant]
    # Relevant documents all stay: without one, its query could not be scored.
    documents = [*relevant, *others[: max(0, MAX_DOCUMENTS - len(relevant))]]

    notes = judged.notes + ([] if test is None else test.notes)
    # A query that is a document itself would find its own text first, with any encoder.
    excluded = [find_own_texts(list(part.documents), documents) for part in parts]
    notes += list_own_text_notes(excluded)
    if rows > len(documents):
        notes.append(f"The queries search {len(documents):,} of {rows:,} documents; among all, figures are lower.")
    hashes = np.array([hash_row(text.encode()) for text in documents], np.uint64)
    split = split_heldout(hashes, request.seed)
    return JudgedSearches(documents, *parts, test is None, rows, tuple(notes), *split, tuple(excluded))


def _read_documents(request: AdaptRequest) -> tuple[list[str], int]:
    """Return at most `MAX_DOCUMENTS` distinct documents of the request's source, and the number of rows of the source.

    Rows of a file are sampled at random. Of texts in the request, the first ones are taken.
    """
    if request.source.texts is not None:
        texts = [text for text in dict.fromkeys(request.source.texts) if text.strip()]
        return texts[:MAX_DOCUMENTS], len(request.source.texts)
    sampled = sample_rows(open_source(request.source.location), MAX_DOCUMENTS, request.seed)
    if sampled.vectors is not None:
        raise FitError("the source holds vectors, and queries are texts: name a source of texts")
    return sampled.texts, sampled.rows


def encode_searches(searches: JudgedSearches, encoder: TextEncoder, on_progress: Progress) -> JudgedVectors:
    """Encode the documents and queries of judged searches as unit vectors.

    Documents get the encoder's prompt for documents, queries the prompt for queries.

    Args:
        searches: the texts.
        encoder: encoder of queries and documents.
        on_progress: called with progress in [0, 1] and a message.
    """
    total = len(searches.documents)

    def show(done: int) -> None:
        on_progress(done / total, f"{encoder.name}: {done:,} of {total:,} documents encoded")

    show(0)
    vectors = with_document_prompt(encoder).encode(searches.documents, on_batch=show).vectors
    documents = normalized_rows(vectors, np.float32).numpy()
    on_progress(1.0, f"{encoder.name}: encoding queries")
    positions = {text: position for position, text in enumerate(searches.documents)}
    learn, choose, report = (
        QueryPairs(
            normalized_rows(encode_queries(encoder, list(part.documents)), np.float32).numpy(),
            documents,
            part.list_relevant(positions.__getitem__),
            excluded,
        )
        for part, excluded in zip((searches.learn, searches.choose, searches.report), searches.excluded, strict=True)
    )
    return JudgedVectors(learn, choose, report, searches.crossed)
