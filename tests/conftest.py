"""Fixtures shared by the tests of several packages.

Fixtures import what they need themselves: tests of transforms run where only their requirements are installed.
"""

import gc
import gzip
import json
import os
import random
import re
import shutil
import subprocess
import sysconfig
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.embeddings_server import EmbeddingsServer
from tests.helpers import accepts_connections, eventually, find_free_port

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 10
os.environ.setdefault("LATHE_JOB_NICE", "0")  # tests wait for jobs, beside other tests that keep the cores busy
HEADER = "query-id\tcorpus-id\tscore\n"


def pytest_collection_finish() -> None:
    """Keep modules and collected tests, which stay to the end, out of all later garbage collections."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def encoder() -> Any:
    """Return the real default encoder, from its offline package."""
    from lathe.training.encoder.encoder import Encoder
    from lathe.training.encoder.spec import DEFAULT_ENCODER

    with warnings.catch_warnings():
        warnings.simplefilter("default")  # importing torch and transformers warns of their own affairs
        return Encoder(DEFAULT_ENCODER)


@pytest.fixture(scope="session")
def out_of_domain_texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder `vectors/out_of_domain` that caches texts of the built-in corpora, as fits leave it.

    There are 100 texts where a fit takes a thousand, which would be encoded for each new encoder of the tests.
    """
    from lathe.training.fitting.out_of_domain import cached_texts_path
    from lathe.training.sources.readers import extract_paragraphs, read_docstrings
    from lathe.training.sources.source import open_source

    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "vectors" / "out_of_domain"
    folder.mkdir(parents=True, exist_ok=True)
    library = Path(sysconfig.get_paths()["stdlib"])
    texts = extract_paragraphs(
        text for name in ("inspect", "tarfile", "doctest") for text in read_docstrings(library / f"{name}.py")
    )
    for name in ("pydoc:", "pydoc:topics"):
        path = cached_texts_path(open_source(name), folder)
        staging = path.with_suffix(f".{os.getpid()}")  # other processes of the tests write the same file
        staging.write_text(json.dumps(texts[:100]))
        staging.replace(path)
    return folder


@pytest.fixture(scope="session")
def fill_home(
    out_of_domain_texts: Path, encoder: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Path], None]:
    """Return a function that gives a new state folder `out_of_domain_texts`, with their vectors by the default encoder.

    Each folder has its own copy of the stored vectors, since tests count what is added to them.
    """
    from lathe.training.encoder.opening import StoredEncoder
    from lathe.training.encoder.spec import StoreSettings
    from lathe.training.encoder.vector_database import VectorDatabase
    from lathe.training.fitting.out_of_domain import cached_texts_path
    from lathe.training.sources.source import open_source

    texts = json.loads(cached_texts_path(open_source("pydoc:"), out_of_domain_texts).read_bytes())
    stored = tmp_path_factory.mktemp("encoded")
    database = VectorDatabase(StoreSettings(stored))
    StoredEncoder(encoder, database).encode(texts)
    database.close()

    def fill(home: Path) -> None:
        (home / "vectors").mkdir(parents=True)
        (home / "vectors" / "out_of_domain").symlink_to(out_of_domain_texts)
        shutil.copytree(stored, home / "encoded")

    return fill


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """Return a folder with a random one-layer BERT that uses MiniLM's tokenizer."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import AutoTokenizer, BertConfig, BertModel

    from lathe.training.encoder.loading import locate_model
    from lathe.training.encoder.spec import DEFAULT_MODEL

    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = AutoTokenizer.from_pretrained(locate_model(DEFAULT_MODEL))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder / "bert")
    tokenizer.save_pretrained(folder / "bert")
    transformer = Transformer(str(folder / "bert"), max_seq_length=32)
    SentenceTransformer(modules=[transformer, Pooling(16), Normalize()]).save(str(folder / "model"))
    return folder / "model"


@pytest.fixture(scope="session")
def fragile_model(tiny_model, tmp_path_factory) -> Path:
    """Return a folder with the tiny model, whose embedding of the word `volcano` overflows in float16."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("fragile") / "model"
    shutil.copytree(tiny_model, folder)
    weights = load_file(folder / "model.safetensors")
    volcano = json.loads((folder / "tokenizer.json").read_bytes())["model"]["vocab"]["volcano"]
    weights["embeddings.word_embeddings.weight"][volcano] *= 1e8
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def chatty_model(tiny_model, tmp_path_factory) -> Path:
    """Return a folder with the tiny model, whose tokenizer has a chat template of seven words."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    folder = tmp_path_factory.mktemp("chatty")
    shutil.copytree(tiny_model.parent / "bert", folder / "bert")
    template = (
        "[CLS] {% for m in messages %}assistant of the great company says {{ m['content'] }} end [SEP]{% endfor %}"
    )
    (folder / "bert" / "chat_template.jinja").write_text(template)
    transformer = Transformer(str(folder / "bert"), max_seq_length=32)
    SentenceTransformer(modules=[transformer, Pooling(16), Normalize()]).save(str(folder / "model"))
    return folder / "model"


def write(folder, meta=None, files=None, qrels=None):
    """Write a data set folder (META.json, files by name, judgements by split) and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    if meta is not None:
        (folder / "META.json").write_bytes(meta if isinstance(meta, bytes) else json.dumps(meta).encode())
    for name, rows in (files or {}).items():
        payload = b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)
        (folder / name).write_bytes(gzip.compress(payload) if name.endswith(".gz") else payload)
    for split, rows in (qrels or {}).items():
        (folder / "qrels").mkdir(exist_ok=True)
        lines = [row if isinstance(row, str) else "\t".join(map(str, row)) for row in rows]
        (folder / "qrels" / f"{split}.tsv").write_text(HEADER + "".join(f"{line}\n" for line in lines))
    return folder


@pytest.fixture(scope="session")
def write_data_set():
    """Return the writer of data set folders."""
    return write


@pytest.fixture(scope="session")
def write_suite(write_data_set):
    """Return a function that writes a suite: a folder per data set, with its task and splits."""

    def write(root, sets):
        for name, (task, splits) in sets.items():
            files = {f"{split}.jsonl": rows for split, rows in splits.items()}
            write_data_set(root / name, {"task": task}, files)
        return root

    return write


class InProcess:
    """Scores in this process. `Workers` starts one that has to import mteb too, which takes seconds."""

    def run(self, jobs):
        for index, (work, arguments) in enumerate(jobs):
            yield index, work(*arguments)


@pytest.fixture(scope="module")
def scoring_here() -> Iterator[None]:
    """Let evaluations score in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lathe.training.evaluation.run.Workers", lambda _processes: nullcontext(InProcess()))
        yield


@pytest.fixture(scope="module")
def run_nginx(tmp_path_factory) -> Iterator[Callable[..., int]]:
    """Return a function that starts nginx with a configuration for a folder and a port, and returns the port."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    assert program, "nginx is missing: apt-get install nginx, or `make test` for the tests that take no services"
    running = []

    def start(write: Callable[[Path, int], None]) -> int:
        folder = tmp_path_factory.mktemp("nginx")
        port = find_free_port()
        write(folder, port)
        root = ["-g", "user root;"] if os.geteuid() == 0 else []  # else its workers could not enter the folder
        words = [program, "-e", "stderr", "-c", str(folder / "nginx.conf"), *root]
        tried = subprocess.run([*words, "-t"], capture_output=True, text=True)
        assert tried.returncode == 0, tried.stderr
        words[-1:] = [words[-1] + " daemon off;"] if root else [words[-1], "-g", "daemon off;"]
        running.append(subprocess.Popen(words, stdout=subprocess.DEVNULL))
        eventually(lambda: accepts_connections(port), START_SECONDS)
        return port

    yield start
    for process in running:
        process.terminate()
        process.wait(START_SECONDS)


@pytest.fixture(scope="module")
def start_nginx(run_nginx) -> Callable[..., int]:
    """Return a function that starts nginx with the shipped configuration, with replacements, and returns its port."""

    def start(api: list[int], index: int, replaced: dict[str, str] | None = None) -> int:
        return run_nginx(lambda folder, port: write_configuration(folder, port, api, index, replaced or {}))

    return start


def write_configuration(folder: Path, port: int, api: list[int], index: int, replaced: dict[str, str]) -> None:
    """Write the shipped nginx files with 127.0.0.1 in place of host names and `folder` in place of /tmp."""
    main = (ROOT / "docker/nginx/nginx.conf").read_text()
    for old, new in {"listen 8080;": f"listen 127.0.0.1:{port};", " /tmp/": f" {folder}/", **replaced}.items():
        assert old in main, f"{old} is not in nginx.conf"
        main = main.replace(old, new)
    upstreams = re.sub(r"^resolver .*;$", "", (ROOT / "docker/nginx/upstreams.conf").read_text(), flags=re.MULTILINE)
    for name, ports in {"api": api, "index": [index]}.items():
        upstreams, found = re.subn(
            rf"^ *server {name}:8080 resolve( .*)?;$",
            lambda line, ports=ports: "\n".join(f"server 127.0.0.1:{port}{line[1] or ''};" for port in ports),
            upstreams,
            flags=re.MULTILINE,
        )
        assert found == 1, f"upstreams.conf has no server {name}:8080"
    (folder / "nginx.conf").write_text(main)
    (folder / "upstreams.conf").write_text(upstreams)


WORDS = (
    "bond credit ledger margin audit coupon reserve dividend covenant invoice tariff quota merger hedge pension escrow "
    "futures swap equity yield default lender auditor issuer trustee broker custodian index basket tranche maturity "
    "liquidity solvency capital leverage exposure premium claim deductible actuary treaty cession retention ceding"
).split()


class ChatServer(ThreadingHTTPServer):
    """A chat-completions endpoint that answers the same prompt with the same text.

    A test may set `script(server, body)` to answer instead: with a text, or with a status, headers and bytes or parts.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), ChatHandler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.reset()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def reset(self):
        self.bodies, self.headers, self.times, self.script = [], [], [], None

    @property
    def prompts(self):
        """Prompts received, without probes."""
        asked = (body["messages"][0]["content"] for body in self.bodies)
        return [prompt for prompt in asked if prompt != "Say yes."]

    def handle_error(self, request, client_address):
        """Ignore client disconnects."""


class ChatHandler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server = self.server
        server.bodies.append(body)
        server.headers.append({name.lower(): value for name, value in self.headers.items()})
        server.times.append(time.monotonic())
        said = server.script(server, body) if server.script else None
        if not isinstance(said, tuple):
            text = said if isinstance(said, str) else imagined(body["messages"][0]["content"])
            said = (200, {}, completion(text))
        status, headers, payload = said
        self.send_response(status)
        if isinstance(payload, bytes):
            headers, payload = {"content-length": len(payload)} | headers, [payload]
        for name, value in ({"content-type": "application/json"} | headers).items():
            self.send_header(name, str(value))
        self.end_headers()
        for part in payload:
            self.wfile.write(part)

    def log_message(self, *_):
        pass


def completion(text, finish_reason="stop", **usage):
    """Return a chat completion as JSON."""
    counts = {"prompt_tokens": 50, "completion_tokens": 20} | usage
    message = {"role": "assistant", "content": text}
    return json.dumps({"choices": [{"message": message, "finish_reason": finish_reason}], "usage": counts}).encode()


def imagined(prompt):
    """Return a plausible model answer to one of the shipped prompts."""
    chance = random.Random(prompt)

    def some(count):
        return " ".join(chance.choice(WORDS) for _ in range(count))

    if found := re.search(r"JSON list of (\d+) objects", prompt):
        return json.dumps([{"persona": f"A {some(4)} officer", "task": f"Checks the {some(6)}."}] * int(found[1]))
    if found := re.search(r"JSON list of (\d+) strings", prompt):
        listed = json.dumps(
            [f"What did the {some(8)} report of {chance.randint(1900, 2020)} say?" for _ in range(int(found[1]))]
        )
        return f"Here they are:\n```json\n{listed}\n```"
    if "yes or no" in prompt or prompt == "Say yes.":
        return "Yes."
    return f"The {some(30)}. In {chance.randint(1900, 2020)} the {some(40)}."


@pytest.fixture(scope="session")
def running_chat_server() -> Iterator[ChatServer]:
    """Start one chat server for all tests."""
    with ChatServer() as server:
        yield server
        server.shutdown()


@pytest.fixture
def chat_server(running_chat_server) -> ChatServer:
    """Return the chat server with its recorded requests cleared."""
    running_chat_server.reset()
    return running_chat_server


@pytest.fixture(scope="session")
def running_embeddings_server() -> Iterator[EmbeddingsServer]:
    """Start one embeddings API for all tests."""
    with EmbeddingsServer() as server:
        yield server
        server.shutdown()


@pytest.fixture
def embeddings_server(running_embeddings_server) -> EmbeddingsServer:
    """Return the embeddings API with its recorded requests cleared."""
    running_embeddings_server.reset()
    return running_embeddings_server


@pytest.fixture(scope="session")
def chat_completion():
    """Return the function that builds a chat completion."""
    return completion


@pytest.fixture
def synthesis_job(tmp_path, chat_server):
    """Return a function that writes a synthesis job and its seeds for the chat server, and returns the job's path."""

    def build(seeds=4, **given):
        rows = [
            {"question": f"What is a {word}?", "answer": f"A {word} is a thing of finance."} for word in WORDS[:seeds]
        ]
        (tmp_path / "seeds.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        limits = {"backoff": 0.01, "concurrency": 4} | given.pop("limits", {})
        endpoint = {"base_url": chat_server.url, "model": "tester", "timeout": 5} | given.pop("endpoint", {})
        wanted = {"endpoint": endpoint, "seeds": {"jsonl": "seeds.jsonl"}, "queries": 2, "limits": limits}
        path = tmp_path / "job.yaml"
        path.write_text(json.dumps(wanted | given))  # JSON is YAML
        return path

    return build
