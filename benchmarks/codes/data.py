"""Texts of the corpora and search tasks of the benchmark, and their vectors by encoder, cached on disk."""

import argparse
import gzip
import hashlib
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from benchmarks.held_out import require_not_held_out
from benchmarks.report import parser
from benchmarks.starters import print_progress
from lathe.training.datasets.folder import FolderDataSet
from lathe.training.datasets.records import Search, Warnings
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_MODEL, EncoderSpec
from lathe.training.encoder.text_encoder import NO_PROMPT
from lathe.training.sources.source import open_source

Vectors = NDArray[np.float32]

CORPORA = {
    "wikipedia": ("general/wikisplit_sentences", "general/clinc_wiki_sentences"),
    "earnings calls": ("finance/earnings_call_sentences",),
}
"""Data sets of sentences, by the name of the corpus that they make together."""

MANY_KINDS = "100,000 sentences of many kinds"
"""Name of the corpus that is sampled from all data sets of English text in `MANY_KINDS_FOLDERS`."""
MANY_KINDS_TEXTS = 100_000
MANY_KINDS_FOLDERS = ("finance/", "general/")
TEXT_FIELDS = ("text", "title", "sentence1", "sentence2", "anchor", "positive", "query", "negative", "sentence")
"""Fields of the data sets' JSON lines that hold texts."""
MIN_CHARACTERS, MAX_CHARACTERS, UNCUT_CHARACTERS = 20, 160, 200
"""Lengths of a sentence, and of a text up to which it is not cut into sentences."""
SENTENCE_END = re.compile(r'(?<=[.!?])\s+(?=[A-Z"“(])|\n+')

TASKS = ("finance/fiqa_qa", "general/cranfield", "general/cacm", "general/cisi", "code/spider_sql")
"""Search tasks with judged documents."""

SEARCHES = ("finance/fiqa_qa", "general/trec_qa", "code/nl2bash")
"""Search tasks whose documents are cut into halves: one to fit on, the other to search."""
MAX_QUERIES = 1000
"""Maximum number of queries of such a search."""

PROMPT_EOL = 'This sentence: "'
"""Prompt of the decoders (arXiv 2307.16645); `PROMPT_END` follows the text."""
PROMPT_END = '" means in one word: "'


def make_data_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that all benchmarks of codes share: data sets, encoders, folder for vectors."""
    options = parser(description)
    options.add_argument("--data", type=Path, required=True, help="folder with finance/, general/ and code/")
    options.add_argument("--encoders", type=Path, help="folder with further encoders")
    options.add_argument("--encoder", action="append", default=[], metavar="NAME", help="only these")
    options.add_argument("--work", type=Path, default=Path("build/codes"), help="folder for the vectors")
    return options


@dataclass(frozen=True)
class HalvedSearch:
    """A search whose documents are cut into two halves at random.

    Attributes:
        fitted: vectors of the half to fit on, `(n, d)`.
        searched: vectors of the half that is searched, `(m, d)`.
        queries: vectors of queries, `(a, d)`.
        gains: grades of the relevant rows of `searched` for each query; empty if no document is judged.
    """

    fitted: Vectors
    searched: Vectors
    queries: Vectors
    gains: list[dict[int, int]]


@dataclass(frozen=True)
class NamedEncoder:
    """An encoder of the benchmark.

    Attributes:
        spec: its model and settings.
        query, document: prompts put before queries and documents; neighbours are searched among queries.
        suffix: text put after every text.
        rows: maximum number of texts of a corpus.
        with_tasks: whether it is measured on search tasks.
        documents: maximum number of documents of a search.
        searches: searches that it is measured on.
    """

    spec: EncoderSpec
    query: str = ""
    document: str = ""
    suffix: str = ""
    rows: int = 1_000_000
    with_tasks: bool = True
    documents: int = 4000
    searches: tuple[str, ...] = SEARCHES

    @property
    def name(self) -> str:
        """Name in tables."""
        return self.spec.name


def list_encoders(folder: Path | None, wanted: list[str]) -> list[NamedEncoder]:
    """Return MiniLM and those of the folder's encoders that are wanted.

    Args:
        folder: folder with further encoders; None for none.
        wanted: names; if empty, all encoders that are in the folder.
    """
    encoders = [NamedEncoder(EncoderSpec("MiniLM", DEFAULT_MODEL))]
    if folder is not None:
        encoders += [
            NamedEncoder(EncoderSpec("e5-small", str(folder / "e5-small")), "query: ", "passage: ", rows=12_000),
            NamedEncoder(
                EncoderSpec("WordLlama", str(folder / "wordllama")),
                documents=1_000_000,
                searches=(*SEARCHES, MANY_KINDS),
            ),
        ]
        # Decoders take a second for ten texts, so they have one search of short texts.
        encoders += [
            NamedEncoder(
                EncoderSpec(name, str(folder / model), max_length=128, dtype="bfloat16"),
                PROMPT_EOL,
                PROMPT_EOL,
                PROMPT_END,
                rows=4500,
                with_tasks=False,
                documents=2000,
                searches=SEARCHES[1:2],
            )
            for name, model in (("SmolLM2", "smollm2-135m"), ("Gemma 3", "gemma3-270m"))
        ]
    present = [
        candidate
        for candidate in encoders
        if not candidate.spec.model.startswith("/") or Path(candidate.spec.model).is_dir()
    ]
    return [encoder for encoder in present if not wanted or encoder.name in wanted]


class EncodedData:
    """The vectors of corpora and tasks by one encoder.

    Texts are encoded once, and their vectors stored in the work folder.

    Args:
        data: folder of the data sets.
        work: folder for the vectors.
        encoder: the encoder, loaded when a text is not in the folder yet.
    """

    def __init__(self, data: Path, work: Path, encoder: NamedEncoder) -> None:
        self.data = data
        self.work = work
        self.encoder = encoder
        self._model: Encoder | None = None

    def corpus(self, name: str) -> Vectors:
        """Return the vectors of the distinct texts of a corpus, `(n, d)`, as queries of the encoder."""
        every = read_corpus_texts(self.data, name)
        chosen = np.random.default_rng(0).permutation(len(every))[: self.encoder.rows]
        return self.encoded(name, [every[i] for i in np.sort(chosen)], self.encoder.query)

    def task(self, path: str) -> tuple[Search, Vectors, Vectors]:
        """Return a search task, the vectors of its documents, and those of its judged queries, in their order."""
        require_not_held_out([path])
        contents = FolderDataSet(path, "retrieval", self.data / path).read_test(Warnings())
        assert isinstance(contents, Search)
        queries = [contents.queries[key] for key in contents.relevant]
        return (
            contents,
            self.encoded(f"{path} documents", list_document_texts(contents), self.encoder.document),
            self.encoded(f"{path} queries", queries, self.encoder.query),
        )

    def halve(self, path: str) -> HalvedSearch:
        """Return a search task, its documents sampled and cut into halves, with the queries of all its splits.

        Codes do not learn from queries. Only queries with a relevant document in the searched half take part. The
        documents of `MANY_KINDS` are not judged, and its queries are some of its sentences.
        """
        random_order = np.random.default_rng(0)
        if path == MANY_KINDS:
            rows = self.encoded(path, sample_many_kinds(self.data, MANY_KINDS_TEXTS), self.encoder.document)
            half = (len(rows) - MAX_QUERIES) // 2
            return HalvedSearch(rows[:half], rows[half:-MAX_QUERIES], rows[-MAX_QUERIES:], [])

        contents = FolderDataSet(path, "retrieval", self.data / path)
        texts = {
            str(row["_id"]): f"{row.get('title') or ''} {row['text']}".strip() for row in contents.read_rows("corpus")
        }
        chosen = random_order.permutation(sorted(texts))[: self.encoder.documents].tolist()
        vectors = self.encoded(path, [texts[key] for key in chosen], self.encoder.document)
        half = len(chosen) // 2
        places = {key: place for place, key in enumerate(chosen[half:])}

        gains: dict[str, dict[int, int]] = defaultdict(dict)
        for split in contents.list_splits():
            for _, query, document, grade in contents.read_judgements(split):
                if grade > 0 and document in places:
                    gains[query][places[document]] = grade
        asking = random_order.permutation(sorted(gains))[:MAX_QUERIES].tolist()
        questions = {str(row["_id"]): str(row["text"]) for row in contents.read_rows("queries")}
        queries = self.encoded(f"{path} queries", [questions[key] for key in asking], self.encoder.query)
        return HalvedSearch(vectors[:half], vectors[half:], queries, [gains[key] for key in asking])

    def encoded(self, name: str, texts: list[str], prompt: str) -> Vectors:
        """Return the unit vectors of texts `(n, d)`, read from the work folder or encoded."""
        full = [f"{prompt}{text}{self.encoder.suffix}" for text in texts]
        key = hashlib.sha256("\x00".join([self.encoder.name, *full]).encode(errors="replace")).hexdigest()[:24]
        path = self.work / f"{self.encoder.name}-{key}.npy"
        if not path.exists():
            print_progress(0, f"{self.encoder.name}: encoding {len(texts):,} texts of {name}")
            if self._model is None:
                self._model = Encoder(self.encoder.spec)
            self.work.mkdir(parents=True, exist_ok=True)
            np.save(path, self._model.encode(full, prompt_name=NO_PROMPT).vectors)
        return np.asarray(np.load(path), np.float32)


def read_corpus_texts(data: Path, name: str) -> list[str]:
    """Return the distinct texts of a corpus of `CORPORA`, in the order of its data sets in the folder `data`."""
    require_not_held_out(list(CORPORA[name]))
    texts: dict[str, None] = {}
    for path in CORPORA[name]:
        (file,) = (data / path).glob("sentences.jsonl*")
        for batch in open_source(str(file)).batches():
            texts |= dict.fromkeys(str(value) for value in batch.values if str(value).strip())
    return list(texts)


def sample_many_kinds(data: Path, count: int) -> list[str]:
    """Sample distinct sentences from the English data sets of `MANY_KINDS_FOLDERS` in the folder `data`.

    Texts of more than `UNCUT_CHARACTERS` are cut into sentences. Sentences that differ in upper and lower case only
    count once. Data sets that are set aside are among them, because nothing is chosen by this corpus.
    """
    index = orjson.loads((data / "INDEX.json").read_bytes())
    paths = sorted(entry["name"] for entry in index if entry["language"] == "en")
    texts: dict[str, str] = {}
    for path in (path for path in paths if path.startswith(MANY_KINDS_FOLDERS)):
        for file in sorted((data / path).rglob("*.jsonl*")):
            for text in _list_sentences(file):
                texts.setdefault(text.lower(), text)
    sentences = sorted(texts.values())
    random.Random(0).shuffle(sentences)
    return sentences[:count]


def _list_sentences(file: Path) -> Iterator[str]:
    """Yield the sentences of the text fields of a JSON-lines file, white space normalized and long ones cut."""
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
        rows = [orjson.loads(line) for line in lines]
    for text in (text for row in rows for field in TEXT_FIELDS for text in _list_strings(row.get(field))):
        for part in SENTENCE_END.split(text) if len(text) > UNCUT_CHARACTERS else [text]:
            sentence = " ".join(part.split())
            if MIN_CHARACTERS <= len(sentence) <= MAX_CHARACTERS:
                yield sentence


def _list_strings(value: Any) -> Iterator[str]:
    """Yield the strings in a field, which may be one, a list of them, or something else."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from (string for string in value if isinstance(string, str))


def list_document_texts(contents: Search) -> list[str]:
    """Return the documents of a search task as they are encoded: title and text, in the corpus's order."""
    return [f"{title} {text}".strip() for title, text in contents.corpus.values()]
