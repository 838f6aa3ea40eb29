"""What the tests of several packages share."""

import gzip
import os
import re
import shutil
import socket
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest
import torch

from training.encoders import Encoder, locate
from training.spec import DEFAULT_ENCODER, DEFAULT_MODEL

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 10
HEADER = "query-id\tcorpus-id\tscore\n"


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    """The real default encoder, from its offline package."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # importing torch and transformers warns of their own affairs
        return Encoder(DEFAULT_ENCODER)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """A folder with a random BERT of one narrow layer that reads with MiniLM's tokenizer."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import AutoTokenizer, BertConfig, BertModel

    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = AutoTokenizer.from_pretrained(locate(DEFAULT_MODEL))
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


def write(folder, meta=None, files=None, qrels=None):
    """A data set folder: META.json, files by their names, judgements by split."""
    folder.mkdir(parents=True, exist_ok=True)
    if meta is not None:
        (folder / "META.json").write_bytes(meta if isinstance(meta, bytes) else orjson.dumps(meta))
    for name, rows in (files or {}).items():
        payload = b"".join((row if isinstance(row, bytes) else orjson.dumps(row)) + b"\n" for row in rows)
        (folder / name).write_bytes(gzip.compress(payload) if name.endswith(".gz") else payload)
    for split, rows in (qrels or {}).items():
        (folder / "qrels").mkdir(exist_ok=True)
        lines = [row if isinstance(row, str) else "\t".join(map(str, row)) for row in rows]
        (folder / "qrels" / f"{split}.tsv").write_text(HEADER + "".join(f"{line}\n" for line in lines))
    return folder


@pytest.fixture(scope="session")
def write_data_set():
    """A writer of data set folders."""
    return write


@pytest.fixture(scope="module")
def start_nginx(tmp_path_factory) -> Iterator[Callable[..., int]]:
    """Starts a real nginx with the configuration as shipped, but for addresses and what a test replaces; its port."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    assert program, "nginx is missing: apt-get install nginx, or `make test` for the tests that take no services"
    running = []

    def start(api: list[int], index: int, replaced: dict[str, str] | None = None) -> int:
        folder = tmp_path_factory.mktemp("nginx")
        port = find_free_port()
        write_configuration(folder, port, api, index, replaced or {})
        root = ["-g", "user root;"] if os.geteuid() == 0 else []  # else its workers could not enter the folder
        words = [program, "-e", "stderr", "-c", str(folder / "nginx.conf"), *root]
        tried = subprocess.run([*words, "-t"], capture_output=True, text=True)
        assert tried.returncode == 0, tried.stderr
        words[-1:] = [words[-1] + " daemon off;"] if root else [words[-1], "-g", "daemon off;"]
        running.append(subprocess.Popen(words, stdout=subprocess.DEVNULL))
        await_port(port)
        return port

    yield start
    for process in running:
        process.terminate()
        process.wait(START_SECONDS)


def write_configuration(folder: Path, port: int, api: list[int], index: int, replaced: dict[str, str]) -> None:
    """The shipped files, with 127.0.0.1 in place of names, and a folder in place of /tmp."""
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


def find_free_port() -> int:
    """A port of the loopback that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return bound.getsockname()[1]


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """Finds ports that nobody has."""
    return find_free_port


def await_port(port: int) -> None:
    """Wait until somebody listens there."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, f"nothing listens on {port}"
            time.sleep(0.02)
