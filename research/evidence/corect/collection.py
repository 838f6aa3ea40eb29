"""Corpora whose relevance is controlled, as CoRECT's: ten relevant documents a query, distractors, then random texts.

CoRECT takes them from MS MARCO v2 with up to 100 million passages. Here queries and documents come from six judged data
sets, and random texts come from a file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from benchmarks.codes.data import list_document_texts
from benchmarks.texts import read_texts
from lathe.training.datasets.folder import FolderDataSet
from lathe.training.datasets.records import Search, Warnings
from lathe.training.synthesis.near_duplicates import split_shingles

SETS = tuple(f"general/{name}" for name in ("cacm", "cisi", "cranfield", "dbpedia_mini", "msmarco_mini", "npl"))
"""Data sets whose queries have ten relevant documents or more."""
RELEVANT = 10
"""Relevant documents of a query; queries that have fewer are left out."""
DISTRACTORS = 20
"""Documents of a query that share the most words with it and are not relevant to it; CoRECT takes up to 100."""
MAX_TEXTS = 1_000_000
"""Random texts that are read of the file."""
RUN, MAX_KNOWN = 4, 0.5
"""Consecutive words that are compared, and the share of a random text's runs that may occur in the data sets."""
SEED = 0


@dataclass(frozen=True)
class Query:
    """Query with its judged documents, by their numbers in the collection.

    Attributes:
        text: the query.
        data_set: data set that it comes from.
        relevant: the relevant documents that are counted.
        ignored: other relevant documents, which are not counted and not ranked.
    """

    text: str
    data_set: str
    relevant: tuple[int, ...]
    ignored: tuple[int, ...]


@dataclass(frozen=True)
class Collection:
    """Queries and documents: relevant ones and distractors, which every corpus has, then random texts.

    Attributes:
        queries: the queries.
        documents: relevant documents and distractors.
        sample: texts that random ones are chosen from.
        chosen: positions in the sample of those that are used, in the order in which corpora grow.
    """

    queries: list[Query]
    documents: list[str]
    sample: list[str]
    chosen: list[int]


@dataclass(frozen=True)
class _Found:
    """Query with ids of its documents: the relevant ones that are counted, further relevant ones, and distractors."""

    text: str
    data_set: str
    relevant: list[str]
    further: list[str]
    distractors: list[str]


def build_collection(data: Path, source: str) -> Collection:
    """Build the collection from a folder of data sets and a source of random texts.

    It is the same every time. Random texts that are taken from `SETS` are left out, as they may be relevant.
    """
    texts: dict[str, str] = {}
    found: list[_Found] = []
    known: set[str] = set()
    for path in SETS:
        contents = FolderDataSet(path, "retrieval", data / path).read_test(Warnings())
        assert isinstance(contents, Search)
        documents = list_document_texts(contents)
        texts |= {f"{path} {key}": text for key, text in zip(contents.corpus, documents, strict=True)}
        found += list(choose_documents(path, contents))
        known.update(run for text in (*documents, *contents.queries.values()) for run in split_shingles(text, RUN))
    numbers: dict[str, int] = {}
    for query in found:
        for key in (*query.relevant, *query.distractors):
            numbers.setdefault(key, len(numbers))
    queries = [
        Query(
            query.text,
            query.data_set,
            tuple(numbers[key] for key in query.relevant),
            tuple(numbers[key] for key in query.further if key in numbers),
        )
        for query in found
    ]
    sample = read_texts(source, MAX_TEXTS)
    chosen = [position for position, text in enumerate(sample) if not is_taken_from(text, known)]
    return Collection(queries, [texts[key] for key in numbers], sample, chosen)


def is_taken_from(text: str, known: set[str]) -> bool:
    """Return whether more than `MAX_KNOWN` of a text's runs of words are known."""
    runs = split_shingles(text, RUN)
    return len(runs & known) > MAX_KNOWN * len(runs)


def choose_documents(path: str, contents: Search) -> Iterator[_Found]:
    """Yield the queries of a data set that have enough relevant documents, with the ids of the chosen documents.

    Of the relevant documents, those with the highest grade are chosen, and at random among equals. Distractors are the
    nearest ones by tf–idf, which no encoder decides.

    Args:
        path: the data set, which precedes every id.
        contents: its queries, documents and judgements.
    """
    keys = list(contents.corpus)
    words = TfidfVectorizer(sublinear_tf=True, stop_words="english")
    documents = words.fit_transform(list_document_texts(contents))
    draws = np.random.default_rng(SEED)
    for query, judged in contents.relevant.items():
        grades = {key: grade for key, grade in judged.items() if grade > 0}
        if len(grades) < RELEVANT:
            continue
        shuffled = draws.permutation(sorted(grades)).tolist()
        ranked = sorted(shuffled, key=lambda key: -grades[key])  # a stable sort
        likeness = (documents @ words.transform([contents.queries[query]]).T).toarray().ravel()
        nearest = (keys[row] for row in np.argsort(-likeness, kind="stable") if keys[row] not in grades)
        distractors = [key for key, _ in zip(nearest, range(DISTRACTORS), strict=False)]
        yield _Found(
            contents.queries[query],
            path,
            *([f"{path} {key}" for key in some] for some in (ranked[:RELEVANT], ranked[RELEVANT:], distractors)),
        )
