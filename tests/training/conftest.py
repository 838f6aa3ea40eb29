"""Encoders for tests, and small data sets of every task."""

import hashlib
import sysconfig
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lathe.training.encoder.encoder import Encoder, Encoding
from lathe.training.encoder.spec import DEFAULT_ENCODER, EncoderSpec
from lathe.training.fitting.out_of_domain import cached_texts_path
from lathe.training.sources.readers import extract_paragraphs, read_docstrings
from lathe.training.sources.source import open_source

ROWS = 10
NUMBERS = range(ROWS)
CLASSES = [{"text": f"text {row} is {row % 2 * 30}", "label": ["east", "west"][row % 2]} for row in range(20)]
PAIRS = [{"anchor": f"Frage {n}", "positive": f"answer {n}"} for n in NUMBERS]
SENTENCES = [{"sentence1": f"pair {n} is 0", "sentence2": f"pair {n} is {2 * n}"} for n in NUMBERS]
GRADED = [
    {
        "text": f"long text {n}",
        "human_summaries": ["by a person 0"],
        "machine_summaries": [f"text {n} by machine {m}" for m in range(4)],
        "relevance": [4, 3.5, 2, 1],
    }
    for n in NUMBERS
]
FILES = {
    "retrieval": {
        "corpus.jsonl": [{"_id": f"d{n}", "title": f"T{n}", "text": f"document {n}"} for n in range(30)],
        "queries.jsonl": [{"_id": f"q{n}", "text": f"query {n}"} for n in NUMBERS],
    },
    "reranking": {
        "test.jsonl": [{"query": f"query {n}", "positive": [f"good {n}"], "negative": ["bad 30"]} for n in NUMBERS]
    },
    "classification": {"train.jsonl": CLASSES, "test.jsonl": CLASSES[:ROWS]},
    "clustering": {"test.jsonl": CLASSES[:ROWS]},
    "sts": {"test.jsonl": [row | {"score": 5 - n / 2} for n, row in enumerate(SENTENCES)]},
    "pair_classification": {"test.jsonl": [row | {"label": int(n < 5)} for n, row in enumerate(SENTENCES)]},
    "pairs": {"test.jsonl": PAIRS},
    "translations": {"test.jsonl": PAIRS},
    "summarization": {"test.jsonl": GRADED},
}
"""By task, ten rows to evaluate; who knows the last number of every text can tell what belongs together."""


class Stopped(Exception):
    """Raised by an encoder that stops a run."""


class HashingEncoder:
    """Encoder whose vectors are hashes of the texts: fast, and without meaning."""

    name, dimensions, fingerprint, device = "hashing", 16, "0" * 32, "cpu"
    vectors_key = fingerprint
    prompts: Mapping[str, str] = {}
    default_prompt_name: str | None = None
    routed = False

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "dimensions": self.dimensions, "fingerprint": self.fingerprint}

    def encode(self, texts: list[str], **options: Any) -> Encoding:
        digests = b"".join(hashlib.sha256(text.encode()).digest() for text in texts)
        rows = np.frombuffer(digests, np.uint16).reshape(-1, self.dimensions).astype(np.float32) - 2**15
        return Encoding(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.ones(len(texts), np.int64))


class CountingEncoder:
    """Wrapper of an encoder that records every text and can raise `Stopped` before a call."""

    def __init__(self, real: Encoder | HashingEncoder, stop_before_call: int | None = None) -> None:
        self.real = real
        self.name, self.dimensions, self.fingerprint = real.name, real.dimensions, real.fingerprint
        self.vectors_key = real.fingerprint
        self.prompts: Mapping[str, str] = {}
        self.default_prompt_name: str | None = None
        self.device = real.device
        self.stop_before_call = stop_before_call
        self.calls = 0
        self.texts: list[str] = []

    def describe(self) -> dict[str, Any]:
        return self.real.describe()

    def encode(self, texts: list[str], **options: Any) -> Encoding:
        if self.calls == self.stop_before_call:
            raise Stopped
        self.calls += 1
        self.texts.extend(texts)
        return self.real.encode(texts, **options)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Run torch on one thread: threads that wait for one another make a busy machine four times slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def brief_encoder() -> Encoder:
    """Return an encoder of half the layers that reads 16 tokens, so that texts take a tenth of the time."""
    return Encoder(replace(DEFAULT_ENCODER, name="brief", layer=3, max_length=16))


@pytest.fixture(scope="session")
def workspace(out_of_domain_texts):
    """Return one workspace folder for all fits, whose 100 out-of-domain texts are read once."""
    return out_of_domain_texts.parent


@pytest.fixture
def new_workspace(tmp_path, out_of_domain_texts):
    """Return a workspace folder with nothing in it but the 100 out-of-domain texts."""
    folder = tmp_path / "vectors" / "out_of_domain"
    folder.mkdir(parents=True)
    texts = cached_texts_path(open_source("pydoc:"), out_of_domain_texts)
    (folder / texts.name).write_bytes(texts.read_bytes())
    return folder.parent


@pytest.fixture(scope="session")
def paragraphs():
    """Return 700 distinct real English texts, of over 12 words each: docstrings of the standard library."""
    library = Path(sysconfig.get_paths()["stdlib"])
    names = ("argparse", "statistics", "_pydecimal", "difflib", "subprocess", "pathlib", "typing", "turtle", "mailbox")
    found = extract_paragraphs(text for name in names for text in read_docstrings(library / f"{name}.py"))
    return [text for text in found if len(text.split()) > 12][:700]


@pytest.fixture(scope="session")
def undrawn():
    """Return a context manager in which figures are saved as empty SVG, since drawing takes long."""
    from matplotlib.figure import Figure

    @contextmanager
    def empty_pictures():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Figure, "savefig", lambda _figure, text, **_options: text.write("<svg></svg>"))
            yield

    return empty_pictures


@pytest.fixture
def counting(encoder):
    """Return a factory of `CountingEncoder` around the real encoder."""
    return lambda stop_before_call=None: CountingEncoder(encoder, stop_before_call)


@pytest.fixture
def counting_hashes():
    """Return a factory of `CountingEncoder` around a `HashingEncoder`, which takes no time."""
    return lambda: CountingEncoder(HashingEncoder())


@pytest.fixture
def stopped():
    """Return the exception that a stopping encoder raises."""
    return Stopped


@pytest.fixture
def tiny(tiny_model) -> EncoderSpec:
    """Return the spec of `tiny_model`."""
    return EncoderSpec(name="tiny", model=str(tiny_model), dtype="float32")


@pytest.fixture
def data_set_of(tmp_path, write_data_set):
    """Return a function that writes a data set of the given task and returns its folder."""

    def build(task):
        meta = {"task": "pairs", "language": "de-en"} if task == "translations" else {"task": task}
        judged = {"test": [(f"q{n}", f"d{n}", 1) for n in NUMBERS]} if task == "retrieval" else None
        return write_data_set(tmp_path / task, meta, FILES[task], judged)

    return build
