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
from lathe.training.fitting.requests import (
    CLICK_FIELDS,
    CLICKS_REFUSED,
    Pairs,
    find_relevance_field,
    parse_relevance,
)
from lathe.training.sources.shards import BATCH_ROWS
from lathe.training.sources.source import open_source, split_field
from lathe.training.split_half import cut_in_two
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
        """All pairs of a query and a document."""
        return [(query, text) for query, texts in self.documents.items() for text in texts]

    def list_relevant(self, find_row: Callable[[str], int]) -> NDArray[np.int64]:
        """Return the relevant documents of each query as an array `(p, 2)`: the query's row and the document's row.

        Args:
            find_row: returns the row of a document. Documents in one row are one.
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
        """Return the pairs of some queries."""
        return PairTexts({query: self.documents[query] for query in queries}, 0)


@dataclass(frozen=True)
class EncodedPairs:
    """Vectors of pairs.

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
    """Read pairs of a query and a document from a file, one on each row, or from a request. Returns the relevant
    documents of each query.

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
    path, given = split_field(pairs)
    named = tuple(name.strip() for name in given.split(",")) if given else None
    if named is not None and len(named) != 2:
        raise FitError(f"pairs have two fields, as in {path}#query,document, not {given!r}")

    found = gather_pairs(_read_rows(path, *_find_fields(path, FIELD_NAMES if named is None else (named,))))
    if not found.documents:
        raise FitError(" ".join([f"the file of pairs {path} holds none that can be used.", *found.notes]).rstrip("."))
    return found


def gather_pairs(pairs: Iterable[tuple[str, str, float]]) -> PairTexts:
    """Group pairs of a query, a document and its grade by query.

    Pairs that repeat others, of grade 0, or whose document is the query's own text are left out and counted. Pairs with
    a blank text are left out. Queries that are equal once normalized are one, with the first spelling.
    """
    found: dict[str, tuple[str, dict[str, None]]] = {}
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
        found.setdefault(normalized, (query, {}))[1][document] = None
    texts = {query: list(answers) for query, answers in found.values()}
    return PairTexts(texts, count - sum(map(len, texts.values())), irrelevant, identical)


def _find_fields(path: str, candidates: Sequence[tuple[str, ...]]) -> tuple[str, str]:
    """Return the first candidate names of the fields of query and document that the first row of a file has.

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
            if field != judged_by:
                raise FitError(f"{place}: it is judged by {field}, and rows before it by {judged_by}: judge all alike")
            yield row[query], row[document], grade


def _normalize_query(text: str) -> str:
    """Return a text in lower case with single spaces: queries that differ in nothing else are the same."""
    return " ".join(text.lower().split())


def find_own_texts(queries: Sequence[str], documents: Sequence[str]) -> NDArray[np.int64]:
    """Return the row of a query and the row of a document that is the same text once normalized, for all such pairs,
    `(e, 2)`. Duplicates, questions among questions and threads of posts have them: every encoder finds them first.
    """
    rows: dict[str, list[int]] = {}
    for row, document in enumerate(documents):
        rows.setdefault(_normalize_query(document), []).append(row)
    own = [(query, row) for query, text in enumerate(queries) for row in rows.get(_normalize_query(text), ())]
    return np.array(own, np.int64).reshape(-1, 2)


def list_own_text_notes(excluded: Iterable[NDArray[np.int64]]) -> list[str]:
    """Return a note if some queries are documents themselves, from what `find_own_texts` returned for each part."""
    count = sum(len(np.unique(own[:, 0])) for own in excluded)
    return [f"{count:,} queries are documents too; their own text is left out of their results."] if count else []


def split_pairs(pairs: PairTexts, seed: int) -> tuple[PairTexts, PairTexts]:
    """Split pairs at random by query. Returns the pairs to fit on, and the `TEST_SHARE` of them to certify with.

    Raises:
        FitError: if fewer than `MIN_TEST_QUERIES` queries would be left to certify with.
    """
    queries = list(pairs.documents)
    held = int(len(queries) * TEST_SHARE)
    if held < MIN_TEST_QUERIES:
        raise FitError(
            f"the pairs have {len(queries)} different queries: a fifth of them certifies the chain, and that must be "
            f"at least {MIN_TEST_QUERIES}; give more, or test pairs of their own"
        )
    order = np.random.default_rng(seed).permutation(len(queries))
    test, fit = ([queries[i] for i in np.sort(part)] for part in (order[:held], order[held:]))
    return pairs.select(fit), pairs.select(test)


def require_apart(fit: PairTexts, test: PairTexts) -> None:
    """Check that no query to certify with is among those to fit on. Raises `FitError` otherwise."""
    known = {_normalize_query(query) for query in fit.documents}
    if shared := [query for query in test.documents if _normalize_query(query) in known]:
        raise FitError(
            f"{len(shared)} queries of the test pairs are among the pairs to fit on, such as {shared[0][:60]!r}: they "
            "would measure what was learned by heart; leave them out of one of the two"
        )


def divide_pairs(fit: PairTexts | None, test: PairTexts | None, seed: int) -> tuple[PairTexts | None, PairTexts]:
    """Return the pairs to fit on and those to certify with. If only pairs to fit on are given, `TEST_SHARE` of them is
    split off. If only pairs to certify with are given, the former are None.

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
        require_apart(fit, test)
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
    """Read pairs of query and document, divide them into those to fit on and those to certify with, and encode both.
    Returns None if no pairs are named.

    Queries get the encoder's prompt `query` if it has one. A document that is a row of the source is not encoded again,
    and other rows of the source are searched too, so that relevant documents have rivals.

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
    read = [None if written is None else read_pairs(written) for written in (pairs, test_pairs)]
    fit, test = divide_pairs(read[0], read[1], seed)
    sides = [one for one in (fit, test) if one is not None]
    places, documents = _gather_documents(
        [text for one in sides for answers in one.documents.values() for text in answers], encoder, encoded
    )
    mapped = [
        QueryPairs(
            encode_queries(encoder, list(one.documents)),
            documents,
            one.list_relevant(lambda text: places[hash_row(text.encode())]),
            _find_own_rows(one.documents, places),
        )
        for one in sides
    ]
    notes = [note for one in read if one is not None for note in one.notes]
    notes += list_own_text_notes(one.excluded for one in mapped)
    return EncodedPairs(
        mapped[0] if fit is not None else None,
        mapped[-1],
        encode_all_halves(out_of_domain, encoder),
        [note.rstrip(".") for note in notes],
    )


def _find_own_rows(queries: Iterable[str], places: Mapping[int, int]) -> NDArray[np.int64]:
    """Return the row of each query whose own text is a document, and the row of that document, `(e, 2)`.

    Rows of the source are known by their hashes alone, so the two texts are compared as they are.
    """
    hashes = ((row, hash_row(query.encode())) for row, query in enumerate(queries))
    return np.array([(row, places[key]) for row, key in hashes if key in places], np.int64).reshape(-1, 2)


def _gather_documents(
    texts: list[str], encoder: TextEncoder, encoded: EncodedSource
) -> tuple[dict[int, int], FloatArray]:
    """Return the row of each vector by the hash of its text, and the vectors `(m, d)`. Vectors are taken from the
    source's rows where it has them, and encoded otherwise.

    Further rows of the source, evenly spaced, fill the vectors up to `MAX_DOCUMENTS`.
    """
    wanted = {hash_row(text.encode()): text for text in texts}
    order = np.argsort(encoded.hashes, kind="stable")
    keys = np.array(list(wanted), np.uint64)
    found = np.searchsorted(encoded.hashes[order], keys).clip(max=len(order) - 1)
    rows = order[found]
    there = encoded.hashes[rows] == keys
    lacking = [text for text, known in zip(wanted.values(), there, strict=True) if not known]
    _, first = np.unique(encoded.hashes, return_index=True)
    others = np.setdiff1d(first, rows[there])
    spread = np.linspace(0, len(others) - 1, min(len(others), max(0, MAX_DOCUMENTS - len(wanted)))).astype(int)
    rivals = np.sort(others)[spread]
    parts = [
        np.array(encoded.vectors[rows[there]]),
        *([encoder.encode(lacking).vectors] if lacking else []),
        np.array(encoded.vectors[rivals]),
    ]
    ordered = [*keys[there].tolist(), *keys[~there].tolist(), *encoded.hashes[rivals].tolist()]
    return {key: place for place, key in enumerate(ordered)}, np.concatenate(parts)


def encode_all_halves(corpora: OutOfDomainTexts, encoder: TextEncoder) -> dict[str, QueryPairs]:
    """Cut each corpus's texts in two and return the first halves as queries paired with the second, by corpus.

    Corpora with too few texts that are long enough are left out, see `encode_halves`.
    """
    halves = {name: encode_halves(corpora.read(name), encoder) for name in corpora.sources}
    return {name: pairs for name, pairs in halves.items() if pairs is not None}


def encode_halves(texts: list[str], encoder: TextEncoder) -> QueryPairs | None:
    """Cut up to `MAX_HALVES` texts in two, and return the halves' vectors as queries and documents. The second half of
    a text is the relevant document of the first. The result is None if fewer than `MIN_TEST_QUERIES` texts are long
    enough.
    """
    long_enough = [cut for text in texts if (cut := cut_in_two(text)) is not None]
    if len(long_enough) < MIN_TEST_QUERIES:
        return None
    chosen = np.linspace(0, len(long_enough) - 1, min(MAX_HALVES, len(long_enough))).astype(int)
    cuts = [long_enough[i] for i in chosen]
    queries = encode_queries(encoder, [first for first, _ in cuts])
    documents = encoder.encode([second for _, second in cuts]).vectors
    return QueryPairs(queries, documents, np.column_stack([np.arange(len(cuts))] * 2))
