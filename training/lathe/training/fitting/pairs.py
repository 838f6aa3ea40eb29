"""Pairs of a query and a relevant document, from a file to vectors: some to fit on, others to certify with."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lathe.training.encoder.text_encoder import TextEncoder, encode_queries
from lathe.training.errors import FitError, SourceError
from lathe.training.fitting.encoded_shards import hash_row
from lathe.training.fitting.encoding import EncodedSource
from lathe.training.fitting.out_of_domain import OutOfDomainTexts
from lathe.training.fitting.requests import CLICK_FIELDS, CLICKS_REFUSED, Pairs, find_relevance_field, parse_relevance
from lathe.training.measures import cut_in_two
from lathe.training.sources.shards import BATCH_ROWS
from lathe.training.sources.source import open_source, split_field
from lathe.transforms.base import QueryPairs
from lathe.transforms.progress import Progress
from lathe.transforms.vectors import FloatArray

FIELD_NAMES = (("query", "document"), ("anchor", "positive"))
"""Fields of a file of pairs that names none; the second are those of `lathe synthesize`."""

TEST_SHARE = 0.2
"""Share of the queries that is held out to certify with, unless other pairs are given for that."""

MIN_TEST_QUERIES = 30
"""Minimum number of queries to certify with: the interval of a mean needs some."""

MAX_HALVES = 100
"""Maximum number of out-of-domain texts of each corpus that are cut in two."""

MAX_DOCUMENTS = 20_000
"""Maximum number of documents that queries search: relevant ones, and rows of the source evenly spaced."""


@dataclass(frozen=True)
class PairTexts:
    """Texts of queries with the documents that are relevant to them.

    Attributes:
        documents: texts of the relevant documents by query; queries are distinct in lower case and single spaces.
        repeated: number of pairs that repeat others.
        irrelevant: number of pairs that were left out because their document was judged not relevant.
        identical: number of pairs that were left out because query and document are one text.
    """

    documents: dict[str, list[str]]
    repeated: int
    irrelevant: int = 0
    identical: int = 0

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """All pairs of a query and a relevant document, as tuples."""
        return [(query, text) for query, texts in self.documents.items() for text in texts]

    def list_relevant(self, find_row: Callable[[str], int]) -> NDArray[np.int64]:
        """Return the row of the query and the row of the document for each pair, `(p, 2)`.

        Args:
            find_row: returns the row of a document. Documents with the same row count once.
        """
        rows = ((query, find_row(text)) for query, texts in enumerate(self.documents.values()) for text in texts)
        return np.array(sorted(set(rows)), np.int64).reshape(-1, 2)

    @property
    def notes(self) -> list[str]:
        """Sentences on the pairs that were left out."""
        notes = []
        if self.repeated:
            notes.append(f"{self.repeated:,} pairs repeat others and count once.")
        if self.irrelevant:
            notes.append(f"{self.irrelevant:,} pairs are judged not relevant and were left out.")
        if self.identical:
            notes.append(f"{self.identical:,} pairs have one text as query and document and were left out.")
        return notes

    def select(self, queries: Sequence[str]) -> "PairTexts":
        """Return the pairs of the given queries, without counts of pairs that were left out."""
        return PairTexts({query: self.documents[query] for query in queries}, 0)

    def check_disjoint(self, test: "PairTexts") -> None:
        """Check that none of the test queries is among these queries.

        Raises:
            FitError: if some are.
        """
        queries = {_normalize_query(query) for query in self.documents}
        if shared := [query for query in test.documents if _normalize_query(query) in queries]:
            raise FitError(
                f"{len(shared)} queries of the test pairs are among the pairs to fit on, such as {shared[0][:60]!r}: "
                "their scores would measure memorization (data leakage); leave them out of one of the two"
            )


@dataclass(frozen=True)
class EncodedPairs:
    """Vectors of pairs of a query and a relevant document.

    Attributes:
        fit: pairs that steps learn from; None if there are none.
        test: pairs to certify with, of other queries, over the same documents.
        out_of_domain: halves of out-of-domain texts by corpus: the first half as query, the second as document.
        warnings: what was left out, for the certificate.
    """

    fit: QueryPairs | None
    test: QueryPairs
    out_of_domain: dict[str, QueryPairs]
    warnings: list[str]


def read_pairs(pairs: Pairs) -> PairTexts:
    """Read pairs of a query and a document from a file or a request, and return the relevant documents of each query.

    Pairs with a blank text are left out, and those whose document is the query's own text or is judged not relevant,
    see `parse_relevance`.

    Args:
        pairs: the pairs of a request, or a source of texts with two fields, `FILE#query,document`; without names those
            of `FIELD_NAMES`. A further field, one of `RELEVANCE_FIELDS`, says how relevant the document is.

    Raises:
        FitError: if not two fields are named, a judgement cannot be read, the rows are a log of clicks, or no row holds
            a relevant pair.
        SourceError: if the file cannot be read, or has other fields.
    """
    if not isinstance(pairs, str):
        return gather_pairs((pair.query, pair.document, pair.relevance) for pair in pairs)
    path, fields = split_field(pairs)
    names = tuple(name.strip() for name in fields.split(",")) if fields else None
    if names is not None and len(names) != 2:
        raise FitError(f"pairs have two fields, as in {path}#query,document, not {fields!r}")

    texts = gather_pairs(_read_rows(path, *_find_fields(path, FIELD_NAMES if names is None else (names,))))
    if not texts.documents:
        raise FitError(" ".join([f"the file of pairs {path} holds none that can be used.", *texts.notes]).rstrip("."))
    return texts


def gather_pairs(pairs: Iterable[tuple[str, str, float]]) -> PairTexts:
    """Group triples of a query, a document and its grade by query, and return the relevant documents of each query.

    Pairs that repeat others, of grade 0, or whose document is the query's own text are left out and counted. Pairs with
    a blank text are left out. Queries that are equal in lower case with single spaces are one, in the first spelling.
    """
    by_query: dict[str, tuple[str, dict[str, None]]] = {}
    count, irrelevant, identical = 0, 0, 0
    for query, document, relevance in pairs:
        if not query.strip() or not document.strip():
            continue
        if relevance <= 0:
            irrelevant += 1
            continue
        normalized = _normalize_query(query)
        if normalized == _normalize_query(document):
            identical += 1
            continue
        count += 1
        by_query.setdefault(normalized, (query, {}))[1][document] = None
    texts = {query: list(answers) for query, answers in by_query.values()}
    return PairTexts(texts, count - sum(map(len, texts.values())), irrelevant, identical)


def _find_fields(path: str, candidates: Sequence[tuple[str, ...]]) -> tuple[str, str]:
    """Return the names of the query field and the document field: the first candidates that the file's first row has.

    Raises:
        FitError: if the rows are a log of clicks. A document is clicked because it was shown near the top, by the
            ranking that is to be improved (Joachims et al., arXiv 1608.04468). Measured by such clicks, that ranking
            wins, and learning from them repeats it.
        SourceError: if it has the fields of no candidate.
    """
    for number, (query, document) in enumerate(candidates, 1):
        try:
            batch = next(open_source(f"{path}#{query}").raw_batches(1))
        except SourceError:
            if number == len(candidates):
                raise
            continue
        row = batch.records[0] if batch.records else {}
        if clicks := [name for name in CLICK_FIELDS if name in row]:
            raise FitError(f"{path} is a log of clicks: its rows have a {clicks[0]}. {CLICKS_REFUSED}")
        if document in row:
            return query, document
    raise SourceError(f"{batch.describe_row(0)}: no field {document!r}; it has {', '.join(row) or query}")


def _read_rows(path: str, query: str, document: str) -> Iterator[tuple[str, str, float]]:
    """Yield query, document and grade of each row of a file.

    The grade is 1 if rows have no field of relevance.

    Raises:
        FitError: if a judgement cannot be read, or some rows have one and others none.
        SourceError: if the file cannot be read, or a row has no text in one of the two fields.
    """
    judged_by: str | None = None
    first = True
    for batch in open_source(f"{path}#{query}").raw_batches(BATCH_ROWS):
        for index, row in enumerate(batch.records):
            place = batch.describe_row(index)
            for name in (query, document):
                if not isinstance(row.get(name), str):
                    raise SourceError(f"{place}: {name!r} is {row.get(name)!r:.60}, and no text")
            try:
                field = find_relevance_field(row.keys() - {query, document})
                grade = 1.0 if field is None else parse_relevance(row[field], field)
            except ValueError as error:
                raise FitError(f"{place}: {error}") from None
            if first:
                judged_by, first = field, False
            # Where some rows are judged, one without a judgement could mean relevant or not.
            if field != judged_by:
                raise FitError(f"{place}: it is judged by {field}, and rows before it by {judged_by}: judge all alike")
            yield row[query], row[document], grade


def _normalize_query(text: str) -> str:
    return " ".join(text.lower().split())


def find_own_texts(queries: Sequence[str], documents: Sequence[str]) -> NDArray[np.int64]:
    """Find documents that are the same text as a query, apart from case and spaces.

    Duplicates, questions among questions and threads of posts have such documents. They are left out of results,
    because every encoder finds them first.

    Returns:
        The row of the query and the row of the document for each match, `(e, 2)`.
    """
    rows: dict[str, list[int]] = {}
    for row, document in enumerate(documents):
        rows.setdefault(_normalize_query(document), []).append(row)
    matches = [(query, row) for query, text in enumerate(queries) for row in rows.get(_normalize_query(text), ())]
    return np.array(matches, np.int64).reshape(-1, 2)


def list_own_text_notes(excluded: Iterable[NDArray[np.int64]]) -> list[str]:
    """Return a list with one sentence on how many queries are documents themselves, empty if none is.

    Args:
        excluded: the result of `find_own_texts` for each part of the queries.
    """
    count = sum(len(np.unique(matches[:, 0])) for matches in excluded)
    return [f"{count:,} queries are documents too; their own text is left out of their results."] if count else []


def split_pairs(pairs: PairTexts, seed: int) -> tuple[PairTexts, PairTexts]:
    """Split pairs at random by query into the pairs to fit on and the pairs to certify with.

    The pairs to certify with have a share of `TEST_SHARE` of the queries.

    Raises:
        FitError: if fewer than `MIN_TEST_QUERIES` queries would be left to certify with.
    """
    queries = list(pairs.documents)
    held_out = int(len(queries) * TEST_SHARE)
    if held_out < MIN_TEST_QUERIES:
        raise FitError(
            f"the pairs have {len(queries)} different queries: a fifth of them certifies the chain, and that must be "
            f"at least {MIN_TEST_QUERIES}; give more, or test pairs of their own"
        )
    # By query: pairs of one query in both parts would be data leakage.
    order = np.random.default_rng(seed).permutation(len(queries))
    test, fit = ([queries[i] for i in np.sort(part)] for part in (order[:held_out], order[held_out:]))
    return pairs.select(fit), pairs.select(test)


def divide_pairs(fit: PairTexts | None, test: PairTexts | None, seed: int) -> tuple[PairTexts | None, PairTexts]:
    """Return the pairs to fit on, and the pairs to certify with.

    If only pairs to fit on are given, the pairs to certify with are split off. If only test pairs are given, the first
    part is None.

    Args:
        fit: pairs to fit on, or None.
        test: pairs to certify with, or None; at least one of the two is given.
        seed: seed of the split.

    Raises:
        FitError: for fewer than `MIN_TEST_QUERIES` queries to certify with, or if one of them is among those to fit on.
    """
    if test is None:
        assert fit is not None
        return split_pairs(fit, seed)
    if len(test.documents) < MIN_TEST_QUERIES:
        raise FitError(f"the test pairs have {len(test.documents)} queries, at least {MIN_TEST_QUERIES} are needed")
    if fit is not None:
        fit.check_disjoint(test)
    return fit, test


def encode_pairs(
    pairs: Pairs | None,
    test_pairs: Pairs | None,
    encoder: TextEncoder | None,
    encoded: EncodedSource,
    out_of_domain: OutOfDomainTexts,
    seed: int,
    on_progress: Progress,
) -> EncodedPairs | None:
    """Read pairs of a query and a document, and return the vectors of the pairs to fit on and of those to certify with.

    Returns None if the request names no pairs. Queries get the encoder's prompt `query` if it has one. A document that
    is a row of the source is not encoded again, and other rows of the source are searched too, so that relevant
    documents have rivals.

    Args:
        pairs: pairs to fit on; without test pairs a part of them certifies the chain.
        test_pairs: pairs to certify with.
        encoder: encoder of the source.
        encoded: the source as vectors.
        out_of_domain: corpora, the halves of whose texts search each other.
        seed: seed of the split.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        FitError: without an encoder, for too few pairs, or for test queries among those to fit on.
        SourceError: if a file cannot be read.
    """
    if pairs is None and test_pairs is None:
        return None
    if encoder is None:
        raise FitError("pairs of query and document are texts: name the encoder of the vectors")
    on_progress(0.0, "encoding queries and documents of pairs")
    given = [None if source is None else read_pairs(source) for source in (pairs, test_pairs)]
    fit, test = divide_pairs(given[0], given[1], seed)

    # Both parts search the same documents, so that their scores compare.
    parts = [part for part in (fit, test) if part is not None]
    relevant = [text for part in parts for texts in part.documents.values() for text in texts]
    document_rows, documents = _gather_documents(relevant, encoder, encoded)
    encoded_parts = [
        QueryPairs(
            encode_queries(encoder, list(part.documents)),
            documents,
            part.list_relevant(lambda text: document_rows[hash_row(text.encode())]),
            _find_own_rows(part.documents, document_rows),
        )
        for part in parts
    ]

    notes = [note for part in given if part is not None for note in part.notes]
    notes += list_own_text_notes(part.excluded for part in encoded_parts)
    return EncodedPairs(
        encoded_parts[0] if fit is not None else None,
        encoded_parts[-1],
        encode_all_halves(out_of_domain, encoder),
        [note.rstrip(".") for note in notes],
    )


def _find_own_rows(queries: Iterable[str], document_rows: Mapping[int, int]) -> NDArray[np.int64]:
    """Return the row of the query and the row of the document, `(e, 2)`, where both are exactly the same text.

    Args:
        queries: texts of the queries in order.
        document_rows: row of each document by the hash of its text. Rows of the source are known by their hashes alone,
            so case and spaces count.
    """
    hashes = enumerate(hash_row(query.encode()) for query in queries)
    matches = [(row, document_rows[text_hash]) for row, text_hash in hashes if text_hash in document_rows]
    return np.array(matches, np.int64).reshape(-1, 2)


def _gather_documents(
    texts: list[str], encoder: TextEncoder, encoded: EncodedSource
) -> tuple[dict[int, int], FloatArray]:
    """Gather the vectors of the documents that queries search.

    These are the relevant texts, and other rows of the source, evenly spaced, up to `MAX_DOCUMENTS`. Vectors of
    relevant texts are taken from the source's rows where it has them, and encoded otherwise.

    Returns:
        The row of each document by the hash of its text, and the vectors `(m, d)`.
    """
    texts_by_hash = {hash_row(text.encode()): text for text in texts}
    hashes = np.array(list(texts_by_hash), np.uint64)

    # A binary search among the sorted hashes of the source finds the texts that are rows of it.
    order = np.argsort(encoded.hashes, kind="stable")
    rows = order[np.searchsorted(encoded.hashes[order], hashes).clip(max=len(order) - 1)]
    in_source = encoded.hashes[rows] == hashes
    to_encode = [text for text, known in zip(texts_by_hash.values(), in_source, strict=True) if not known]

    # Equal rows count once: two copies of a document would share its rank.
    _, first = np.unique(encoded.hashes, return_index=True)
    others = np.setdiff1d(first, rows[in_source])
    count = min(len(others), max(0, MAX_DOCUMENTS - len(texts_by_hash)))
    distractors = np.sort(others)[np.linspace(0, len(others) - 1, count).astype(int)]

    parts = [
        np.array(encoded.vectors[rows[in_source]]),
        *([encoder.encode(to_encode).vectors] if to_encode else []),
        np.array(encoded.vectors[distractors]),
    ]
    ordered = [*hashes[in_source].tolist(), *hashes[~in_source].tolist(), *encoded.hashes[distractors].tolist()]
    return {row_hash: row for row, row_hash in enumerate(ordered)}, np.concatenate(parts)


def encode_all_halves(corpora: OutOfDomainTexts, encoder: TextEncoder) -> dict[str, QueryPairs]:
    """Cut texts of each out-of-domain corpus in two, and return the vectors of the halves by corpus.

    First halves are queries, and second halves their relevant documents. Corpora with too few texts that are long
    enough are left out, see `encode_halves`.
    """
    halves = {name: encode_halves(corpora.read(name), encoder) for name in corpora.sources}
    return {name: pairs for name, pairs in halves.items() if pairs is not None}


def encode_halves(texts: list[str], encoder: TextEncoder) -> QueryPairs | None:
    """Cut at most `MAX_HALVES` texts in two, and return the vectors of the halves.

    First halves are queries, and second halves their relevant documents. Returns None if fewer than `MIN_TEST_QUERIES`
    texts are long enough.
    """
    long_enough = [cut for text in texts if (cut := cut_in_two(text)) is not None]
    if len(long_enough) < MIN_TEST_QUERIES:
        return None
    chosen = np.linspace(0, len(long_enough) - 1, min(MAX_HALVES, len(long_enough))).astype(int)
    chosen_cuts = [long_enough[i] for i in chosen]
    queries = encode_queries(encoder, [first for first, _ in chosen_cuts])
    documents = encoder.encode([second for _, second in chosen_cuts]).vectors
    return QueryPairs(queries, documents, np.column_stack([np.arange(len(chosen_cuts))] * 2))
