"""Judged searches for which probabilities are learnt and measured, and their vectors by several encoders."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.codes.data import PROMPT_END, PROMPT_EOL, EncodedData, NamedEncoder, Vectors
from lathe.training.datasets.folder import FolderDataSet
from lathe.training.encoder.spec import DEFAULT_MODEL, EncoderSpec

CHOSEN_ON = ("code/mbpp", "code/python_docs_api", "code/spider_sql", "finance/fiqa_qa", "finance/fnxl_xbrl_tags",
             "general/covid_faq", "general/cranfield")  # fmt: skip
"""Data sets by whose figures the features and settings were chosen. All others are only reported."""

SET_ASIDE = ("code/cosqa", "code/nl2bash", "finance/tatqa", "general/quora_pairs", "general/trec_qa")
"""Data sets by whose figures nothing was chosen."""

MULTILINGUAL = tuple(f"multilingual/tatoeba_{language}_en" for language in ("de", "es", "zh"))
"""Sentences and their translations: the sentence in the other language is the query."""

DECODER_SETS = (*(name for name in CHOSEN_ON if name not in ("code/spider_sql", "general/cranfield")), *SET_ASIDE)
"""Data sets that decoders are measured on."""

SIZES = {"WordLlama": (3000, 700), "SmolLM2": (300, 150), "Gemma 3": (300, 150)}
"""Maximum numbers of documents and queries by encoder: what an encoder of its speed can encode in some minutes."""

OTHER_SIZES = (800, 300)
"""Maximum numbers of documents and queries for all other encoders."""

FAMILIES = {"MiniLM layer 3": "MiniLM"}
"""Encoder that another one is a part of: both are left out together."""


@dataclass(frozen=True)
class Texts:
    """Texts of a search with judged queries.

    Attributes:
        name: path of the data set below the data folder.
        documents: distinct texts.
        queries: distinct texts, none of which is a document.
        relevant: rows of the relevant documents of each query; at least one.
    """

    name: str
    documents: list[str]
    queries: list[str]
    relevant: list[list[int]]


@dataclass(frozen=True)
class JudgedSearch:
    """A search with its unit vectors by one encoder.

    Attributes:
        name: path of the data set below the data folder.
        encoder: name of the encoder.
        documents: `(n, d)`.
        queries: `(q, d)`.
        relevant: whether a document is relevant to a query, `(q, n)`.
    """

    name: str
    encoder: str
    documents: Vectors
    queries: Vectors
    relevant: NDArray[np.bool_]


def list_encoders(folder: Path) -> dict[str, NamedEncoder]:
    """Return the encoders that are measured, by name, with those of `folder` that are there."""
    minilm = EncoderSpec("MiniLM", DEFAULT_MODEL, max_length=64, dtype="bfloat16")
    e5 = EncoderSpec("e5-small", str(folder / "e5-small"), max_length=64, dtype="bfloat16")
    encoders = [
        NamedEncoder(EncoderSpec("WordLlama", str(folder / "wordllama"))),
        NamedEncoder(minilm),
        NamedEncoder(replace(minilm, name="MiniLM layer 3", layer=3, pooling="mean")),
        NamedEncoder(e5, "query: ", "passage: "),
        *(
            NamedEncoder(EncoderSpec(name, str(folder / model), dtype="bfloat16"), PROMPT_EOL, PROMPT_EOL, PROMPT_END)
            for name, model in (("SmolLM2", "smollm2-135m"), ("Gemma 3", "gemma3-270m"))
        ),
    ]
    return {
        encoder.name: encoder
        for encoder in encoders
        if not encoder.spec.model.startswith("/") or Path(encoder.spec.model).is_dir()
    }


def encode_search(data: EncodedData, texts: Texts) -> JudgedSearch:
    """Encode a search, or read its vectors from the work folder. Decoders read only the start of long texts."""
    cut = MAX_DECODER_CHARACTERS if data.encoder.suffix else None
    relevant = np.zeros((len(texts.queries), len(texts.documents)), bool)
    for row, documents in enumerate(texts.relevant):
        relevant[row, documents] = True
    return JudgedSearch(
        texts.name,
        data.encoder.name,
        data.encoded(f"{texts.name} documents", [text[:cut] for text in texts.documents], data.encoder.document),
        data.encoded(f"{texts.name} queries", [text[:cut] for text in texts.queries], data.encoder.query),
        relevant,
    )


MAX_DECODER_CHARACTERS = 120
"""Number of characters that decoders read of a text: they take ten times as long as the others."""


def read_texts(folder: Path, name: str, max_documents: int, max_queries: int, max_words: float = np.inf) -> Texts:
    """Read a data set, and sample queries, their relevant documents and then other documents.

    Equal documents are one, as otherwise only one of them would be judged relevant. A query that is also a document
    would find itself first, and is left out. So is a query of more than `max_words` words.
    """
    data = folder / name
    read = _read_retrieval if (data / "qrels").is_dir() else _read_pairs
    judged: dict[str, set[str]] = defaultdict(set)
    documents: dict[str, str] = {}
    for query, text in read(data, name):
        documents.setdefault(_normalize(text), text)
        if query:
            judged[query].add(_normalize(text))
    known = sorted(query for query in judged if _normalize(query) not in documents)
    queries = [query for query in known if len(query.split()) <= max_words]

    order = np.random.default_rng(0)
    chosen = order.permutation(np.array(queries, object))[:max_queries].tolist()
    needed = sorted({document for query in chosen for document in judged[query]})
    others = sorted(documents.keys() - set(needed))
    kept = (needed + order.permutation(np.array(others, object)).tolist())[: max(max_documents, len(needed))]
    rows = {document: row for row, document in enumerate(kept)}
    relevant = [sorted(rows[document] for document in judged[query]) for query in chosen]
    return Texts(name, [documents[document] for document in kept], chosen, relevant)


def _read_retrieval(folder: Path, name: str) -> Iterator[tuple[str, str]]:
    """Yield the judged pairs of query and relevant document, and documents with an empty query."""
    data = FolderDataSet(name, "retrieval", folder)
    texts = {
        str(row["_id"]): f"{row.get('title') or ''} {row.get('text') or ''}".strip() for row in data.read_rows("corpus")
    }
    queries = {str(row["_id"]): str(row["text"]).strip() for row in data.read_rows("queries")}
    yield from (("", text) for text in texts.values() if text)
    for split in data.list_splits():
        for _, query, document, grade in data.read_judgements(split):
            if grade > 0 and texts.get(document) and queries.get(query):
                yield queries[query], texts[document]


def _read_pairs(folder: Path, name: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs of two texts that belong together, and the second text of all other pairs with an empty query."""
    data = FolderDataSet(name, "pairs", folder)
    for split in sorted(path.name.partition(".")[0] for path in folder.glob("*.jsonl*")):
        for row in data.read_rows(split):
            query, document = ("sentence1", "sentence2") if "label" in row.fields else ("anchor", "positive")
            yield (str(row[query]).strip() if row.fields.get("label", 1) else ""), str(row[document]).strip()


def _normalize(text: str) -> str:
    return " ".join(text.lower().split())
