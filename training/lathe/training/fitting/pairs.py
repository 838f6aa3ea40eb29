"""Pairs of a query and a relevant document: read as texts, split into fit pairs and test pairs, encoded as vectors.

read           read_pairs, group_pairs         file or request → `PairTexts`: the relevant documents of each query
split          ensure_test_pairs, split_pairs  pairs to fit on, and test pairs with other queries to certify with
self-matches   find_self_matches               documents that are the query's own text; left out of search results
encode         read_and_encode_pairs           all of this for a fit → `EncodedPairs`: vectors of queries and documents
halves         encode_halves                   out-of-domain pairs: the halves of a text as query and relevant document

The queries of fit pairs and test pairs search the same pool of documents: the relevant documents, and rows of the
source as distractors.
"""

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
"""Field names of queries and documents that are tried if none are given; `lathe synthesize` writes the second pair."""

TEST_SHARE = 0.2
"""Share of the queries that is held out to certify with, unless test pairs are given."""

MIN_TEST_QUERIES = 30
"""Minimum number of queries to certify with. With fewer, the 95 % interval of a mean is too wide."""

MAX_HALVED_TEXTS = 100
"""Maximum number of texts of an out-of-domain corpus that are cut in two."""

POOL_SIZE = 20_000
"""Number of documents that queries search: distractors are added to the relevant documents up to this number."""


@dataclass(frozen=True)
class PairTexts:
    """Texts of queries and of the documents that are relevant to the queries.

    Attributes:
        by_query: texts of the relevant documents by query. Queries are distinct in lower case with single spaces.
        repeated: number of pairs that were left out because they repeat other pairs.
        irrelevant: number of pairs that were left out because their document was judged not relevant.
        identical: number of pairs that were left out because query and document are the same text.
    """

    by_query: dict[str, list[str]]
    repeated: int
    irrelevant: int = 0
    identical: int = 0

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """All pairs `(query, relevant document)` of texts."""
        return [(query, text) for query, texts in self.by_query.items() for text in texts]

    def list_relevant_rows(self, find_row: Callable[[str], int]) -> NDArray[np.int64]:
        """List the pairs as row numbers `(row of the query, row of the document)`, an ascending array `(p, 2)`.

        Pairs of a query with documents in the same row are listed once.

        Args:
            find_row: returns the row of a document's text.
        """
        rows = ((query, find_row(text)) for query, texts in enumerate(self.by_query.values()) for text in texts)
        return np.array(sorted(set(rows)), np.int64).reshape(-1, 2)

    @property
    def notes(self) -> list[str]:
        """Sentences that say how many pairs were left out, and why. Empty if no pair was."""
        notes = []
        if self.repeated:
            notes.append(f"{self.repeated:,} pairs repeat others and count once.")
        if self.irrelevant:
            notes.append(f"{self.irrelevant:,} pairs are judged not relevant and were left out.")
        if self.identical:
            notes.append(f"{self.identical:,} pairs have one text as query and document and were left out.")
        return notes

    def select(self, queries: Sequence[str]) -> "PairTexts":
        """Return the pairs of the given queries. All counts of left-out pairs are 0 in the result."""
        return PairTexts({query: self.by_query[query] for query in queries}, 0)

    def check_disjoint(self, test: "PairTexts") -> None:
        """Raise `FitError` if a query of the test pairs is also a query of these pairs, apart from case and spaces."""
        queries = {_normalize_text(query) for query in self.by_query}
        if shared := [query for query in test.by_query if _normalize_text(query) in queries]:
            raise FitError(
                f"{len(shared)} queries of the test pairs are among the pairs to fit on, such as {shared[0][:60]!r}: "
                "their scores would measure memorization (data leakage); remove them from either file"
            )


@dataclass(frozen=True)
class EncodedPairs:
    """Vectors of the fit pairs, of the test pairs and of out-of-domain pairs.

    Attributes:
        fit: pairs that steps are fitted on; None if only test pairs were given.
        test: pairs to certify with. They have other queries than `fit`, and the same documents.
        out_of_domain: pairs of the halves of out-of-domain texts, by corpus: the first half is the query, and the
            second half is the relevant document.
        warnings: sentences for the certificate on what was left out.
    """

    fit: QueryPairs | None
    test: QueryPairs
    out_of_domain: dict[str, QueryPairs]
    warnings: list[str]


def read_pairs(pairs: Pairs) -> PairTexts:
    """Read pairs of query and document, and group them by query. Logs of clicks and files without a usable pair raise.

    Pairs with a blank text, with a document that is the query's own text, or with a document that was judged not
    relevant are left out.

    Args:
        pairs: the pairs of a request, or the source `FILE#query,document` with the names of two fields. Without names,
            the fields of `FIELD_NAMES` are tried. A further field, one of `RELEVANCE_FIELDS`, says how relevant
            the document is, see `parse_relevance`.

    Raises:
        FitError: if the number of named fields is not two, a relevance judgement cannot be parsed, the rows are a log
            of clicks, or no row of the file holds a relevant pair.
        SourceError: if the file cannot be read, or lacks one of the fields.
    """
    if not isinstance(pairs, str):
        return group_pairs((pair.query, pair.document, pair.relevance) for pair in pairs)
    path, fields = split_field(pairs)
    names = tuple(name.strip() for name in fields.split(",")) if fields else None
    if names is not None and len(names) != 2:
        raise FitError(f"{fields!r} does not name the two fields of pairs: write them as in {path}#query,document")

    texts = group_pairs(_read_judged_rows(path, *_find_field_names(path, (names,) if names else FIELD_NAMES)))
    if not texts.by_query:
        raise FitError(" ".join([f"the file of pairs {path} holds no pair to use.", *texts.notes]).rstrip("."))
    return texts


def group_pairs(pairs: Iterable[tuple[str, str, float]]) -> PairTexts:
    """Group `(query, document, relevance)` by query, without irrelevant, identical, repeated and blank pairs.

    Left out and counted are pairs that repeat other pairs, pairs with a relevance of 0 or less, and pairs whose
    document is the query's own text. Pairs with a blank text are left out and not counted. Queries that are equal in
    lower case with single spaces count as the same query, in the spelling of the first.
    """
    by_query: dict[str, tuple[str, dict[str, None]]] = {}
    count, irrelevant, identical = 0, 0, 0
    for query, document, relevance in pairs:
        if not query.strip() or not document.strip():
            continue
        if relevance <= 0:
            irrelevant += 1
            continue
        normalized = _normalize_text(query)
        if normalized == _normalize_text(document):
            identical += 1
            continue
        count += 1
        by_query.setdefault(normalized, (query, {}))[1][document] = None
    texts = {query: list(answers) for query, answers in by_query.values()}
    return PairTexts(texts, count - sum(map(len, texts.values())), irrelevant, identical)


def _find_field_names(path: str, candidates: Sequence[tuple[str, ...]]) -> tuple[str, str]:
    """Find the first candidate `(query field, document field)` that a file's first row has. Refuse logs of clicks.

    Raises:
        FitError: if the rows are a log of clicks. A document is clicked because the ranking that is to be improved
            showed the document near the top (Joachims et al., arXiv 1608.04468). Measured by such clicks, that ranking
            wins, and learning from the clicks repeats it.
        SourceError: if the file cannot be read, or the first row lacks a field of every candidate.
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


def _read_judged_rows(path: str, query: str, document: str) -> Iterator[tuple[str, str, float]]:
    """Yield `(query, document, relevance)` of each row, relevance 1 without judgement. A malformed judgement raises.

    Args:
        path: the file.
        query: name of the query field.
        document: name of the document field.

    Raises:
        FitError: if a relevance judgement cannot be parsed, or rows differ in the field that holds the judgement.
        SourceError: if the file cannot be read, or the query or the document of a row is not a string.
    """
    judged_by: str | None = None
    first = True
    for batch in open_source(f"{path}#{query}").raw_batches(BATCH_ROWS):
        for index, row in enumerate(batch.records):
            place = batch.describe_row(index)
            for name in (query, document):
                if not isinstance(row.get(name), str):
                    raise SourceError(f"{place}: {name!r} is {row.get(name)!r:.60}; it must be a string")
            try:
                field = find_relevance_field(row.keys() - {query, document})
                grade = 1.0 if field is None else parse_relevance(row[field], field)
            except ValueError as error:
                raise FitError(f"{place}: {error}") from None
            if first:
                judged_by, first = field, False
            # Where some rows are judged, one without a judgement could mean relevant or not.
            if field != judged_by:
                raise FitError(f"{place}: relevance is in {field}, and in {judged_by} before: use the same in all rows")
            yield row[query], row[document], grade


def _normalize_text(text: str) -> str:
    return " ".join(text.lower().split())


def split_pairs(pairs: PairTexts, seed: int) -> tuple[PairTexts, PairTexts]:
    """Split pairs at random by query into `(fit, test)`. Raise `FitError` if the test pairs have too few queries.

    The test pairs have a share of `TEST_SHARE` of the queries, and need at least `MIN_TEST_QUERIES`.
    """
    queries = list(pairs.by_query)
    held_out = int(len(queries) * TEST_SHARE)
    if held_out < MIN_TEST_QUERIES:
        raise FitError(
            f"the pairs have {len(queries)} different queries: a fifth of them certifies the chain, which takes at "
            f"least {MIN_TEST_QUERIES} queries; give more pairs, or give test pairs"
        )
    # By query: pairs of one query in both parts would be data leakage.
    order = np.random.default_rng(seed).permutation(len(queries))
    test, fit = ([queries[i] for i in np.sort(part)] for part in (order[:held_out], order[held_out:]))
    return pairs.select(fit), pairs.select(test)


def ensure_test_pairs(fit: PairTexts | None, test: PairTexts | None, seed: int) -> tuple[PairTexts | None, PairTexts]:
    """Return `(fit, test)` with test pairs split off if there are none. Few or shared ones raise `FitError`.

    Given test pairs need at least `MIN_TEST_QUERIES` queries, and no query of the fit pairs. Test pairs are split off
    the fit pairs at random by query, see `split_pairs`.

    Args:
        fit: pairs to fit on; None if there are only test pairs.
        test: pairs to certify with, or None. `fit` and `test` are not both None.
        seed: seed of the split.
    """
    if test is None:
        assert fit is not None
        return split_pairs(fit, seed)
    if len(test.by_query) < MIN_TEST_QUERIES:
        raise FitError(f"the test pairs have {len(test.by_query)} different queries; give at least {MIN_TEST_QUERIES}")
    if fit is not None:
        fit.check_disjoint(test)
    return fit, test


def find_self_matches(queries: Sequence[str], documents: Sequence[str]) -> NDArray[np.int64]:
    """Find documents that are a query's own text, ignoring case and spaces, as rows of query and document `(e, 2)`.

    Data sets of duplicate questions have such self-matches, because the queries are documents too. They are left out of
    search results, because every encoder finds them first.
    """
    rows: dict[str, list[int]] = {}
    for row, document in enumerate(documents):
        rows.setdefault(_normalize_text(document), []).append(row)
    matches = [(query, row) for query, text in enumerate(queries) for row in rows.get(_normalize_text(text), ())]
    return np.array(matches, np.int64).reshape(-1, 2)


def list_self_match_notes(excluded: Iterable[NDArray[np.int64]]) -> list[str]:
    """Return a list with one sentence that says how many queries have self-matches, or an empty list if none has.

    Args:
        excluded: results of `find_self_matches` for disjoint sets of queries.
    """
    count = sum(len(np.unique(matches[:, 0])) for matches in excluded)
    return [f"{count:,} queries are documents too; a query's own text is left out of its results."] if count else []


def read_and_encode_pairs(
    pairs: Pairs | None,
    test_pairs: Pairs | None,
    encoder: TextEncoder | None,
    encoded: EncodedSource,
    out_of_domain: OutOfDomainTexts,
    seed: int,
    on_progress: Progress,
) -> EncodedPairs | None:
    """Read, split and encode a fit's pairs and out-of-domain halves, None without pairs. Too few queries raise.

    Without test pairs, a part of the pairs becomes the test pairs. Documents that are rows of the source are not
    encoded again, and other rows of the source are searched as distractors.

    Args:
        pairs: pairs to fit on.
        test_pairs: pairs to certify with.
        encoder: encoder of the source. Its prompt for queries, if there is one, is put before the queries.
        encoded: the source as vectors.
        out_of_domain: out-of-domain corpora, whose texts are cut in two.
        seed: seed of the split.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        FitError: without an encoder, for too few queries, or if a test query is also a query of the fit pairs.
        SourceError: if a file cannot be read.
    """
    if pairs is None and test_pairs is None:
        return None
    if encoder is None:
        raise FitError("pairs of query and document are texts, and the source has no encoder: name one")
    on_progress(0.0, "encoding queries and documents of pairs")
    given = [None if source is None else read_pairs(source) for source in (pairs, test_pairs)]
    fit, test = ensure_test_pairs(given[0], given[1], seed)

    # Both parts search the same documents, so that their scores compare.
    parts = [part for part in (fit, test) if part is not None]
    relevant = [text for part in parts for texts in part.by_query.values() for text in texts]
    document_rows, documents = _build_document_pool(relevant, encoder, encoded)
    encoded_parts = [
        QueryPairs(
            encode_queries(encoder, list(part.by_query)),
            documents,
            part.list_relevant_rows(lambda text: document_rows[hash_row(text.encode())]),
            _find_exact_self_matches(part.by_query, document_rows),
        )
        for part in parts
    ]

    notes = [note for part in given if part is not None for note in part.notes]
    notes += list_self_match_notes(part.excluded for part in encoded_parts)
    return EncodedPairs(
        encoded_parts[0] if fit is not None else None,
        encoded_parts[-1],
        encode_halves_by_corpus(out_of_domain, encoder),
        [note.rstrip(".") for note in notes],
    )


def _find_exact_self_matches(queries: Iterable[str], document_rows: Mapping[int, int]) -> NDArray[np.int64]:
    """Find documents that are exactly a query's text, by hash, as rows of query and document `(e, 2)`.

    Unlike `find_self_matches`, this tells apart texts that differ in case or spaces, because only the hashes of the
    source's rows are known.

    Args:
        queries: texts of the queries in order.
        document_rows: row of every document by the hash of its text.
    """
    hashes = enumerate(hash_row(query.encode()) for query in queries)
    matches = [(row, document_rows[text_hash]) for row, text_hash in hashes if text_hash in document_rows]
    return np.array(matches, np.int64).reshape(-1, 2)


def _build_document_pool(
    texts: list[str], encoder: TextEncoder, encoded: EncodedSource
) -> tuple[dict[int, int], FloatArray]:
    """Build the pool of documents that queries search: all relevant texts, and rows of the source as distractors.

    The distractors are evenly spaced distinct rows, up to `POOL_SIZE` documents in all. Relevant texts
    that are rows of the source have vectors already; the other relevant texts are encoded.

    Args:
        texts: relevant documents of all queries.
        encoder: encoder of the source.
        encoded: the source as vectors.

    Returns:
        The row of every document by the hash of its text, and the vectors `(m, d)`.
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
    count = min(len(others), max(0, POOL_SIZE - len(texts_by_hash)))
    distractors = np.sort(others)[np.linspace(0, len(others) - 1, count).astype(int)]

    parts = [
        np.array(encoded.vectors[rows[in_source]]),
        *([encoder.encode(to_encode).vectors] if to_encode else []),
        np.array(encoded.vectors[distractors]),
    ]
    ordered = [*hashes[in_source].tolist(), *hashes[~in_source].tolist(), *encoded.hashes[distractors].tolist()]
    return {row_hash: row for row, row_hash in enumerate(ordered)}, np.concatenate(parts)


def encode_halves_by_corpus(corpora: OutOfDomainTexts, encoder: TextEncoder) -> dict[str, QueryPairs]:
    """Cut texts of every out-of-domain corpus in two, and encode the halves as queries and relevant documents.

    The result has the vectors by name of the corpus. Corpora for which `encode_halves` returns None are left out.
    """
    halves = {name: encode_halves(corpora.read(name), encoder) for name in corpora.sources}
    return {name: pairs for name, pairs in halves.items() if pairs is not None}


def encode_halves(texts: list[str], encoder: TextEncoder) -> QueryPairs | None:
    """Cut texts in two, and encode first halves as queries, second halves as documents. Returns None for few texts.

    The second half of a text is the only relevant document of the first half. At least `MIN_TEST_QUERIES` texts must be
    long enough, and at most `MAX_HALVED_TEXTS` texts are encoded.
    """
    long_enough = [cut for text in texts if (cut := cut_in_two(text)) is not None]
    if len(long_enough) < MIN_TEST_QUERIES:
        return None
    chosen = np.linspace(0, len(long_enough) - 1, min(MAX_HALVED_TEXTS, len(long_enough))).astype(int)
    chosen_cuts = [long_enough[i] for i in chosen]
    queries = encode_queries(encoder, [first for first, _ in chosen_cuts])
    documents = encoder.encode([second for _, second in chosen_cuts]).vectors
    return QueryPairs(queries, documents, np.column_stack([np.arange(len(chosen_cuts))] * 2))
