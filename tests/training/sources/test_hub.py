"""Hub data sets as sources: local folders, and a server on this machine with the hub's API."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from lathe.training.errors import AccessError, SourceError
from lathe.training.fitting.encoding import encode_source
from lathe.training.sources.hub import is_hub
from lathe.training.sources.shards import BATCH_ROWS
from lathe.training.sources.source import open_source
from lathe.transforms.progress import no_progress
from tests.helpers import find_free_port

ROWS = BATCH_ROWS + 40
TOKEN = "hf_nobody_may_read_this"
SHA = "a1" * 20
CARD = """---
configs:
- config_name: en
  data_files:
  - {split: train, path: en/train-*.parquet}
  - {split: test, path: en/test.parquet}
- config_name: vectors
  data_files:
  - {split: train, path: vectors/*.parquet}
---
Texts of nobody.
"""


def text(split, file, row):
    return f"Row {row} of {split}, file {file}."


def vectors(file):
    return np.random.default_rng(file).standard_normal((ROWS, 5)).astype(np.float32)


def write_set(folder):
    """Write a data set of two configurations: texts in two splits, and vectors."""
    (folder / "en").mkdir(parents=True)
    (folder / "vectors").mkdir()
    (folder / "README.md").write_text(CARD)
    for name, split, file in (("train-0", "train", 0), ("train-1", "train", 1), ("test", "test", 0)):
        table = pyarrow.table({"text": [text(split, file, row) for row in range(ROWS)], "number": range(ROWS)})
        pyarrow.parquet.write_table(table, folder / "en" / f"{name}.parquet")
    for file in range(2):
        table = pyarrow.table({"embedding": vectors(file).tolist(), "text": ["a", None] * (ROWS // 2)})
        pyarrow.parquet.write_table(table, folder / "vectors" / f"{file}.parquet", row_group_size=300)
    return folder


@pytest.fixture(scope="module")
def data_set(tmp_path_factory):
    return write_set(tmp_path_factory.mktemp("sets") / "news")


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    """Let no test of this process reach the hub. The library has read its address and `HF_HUB_OFFLINE` already."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def rows_of(written):
    return [row for batch in open_source(written).batches() for row in batch.values]


def test_a_split_of_a_hub_data_set_is_a_source_of_texts(data_set, counting_hashes, tmp_path):
    """Its vectors equal those of its files opened as a local source."""
    source = open_source(f"hf:{data_set}/en:train")
    assert (source.name, source.kind(), source.count()) == ("news/en:train", "texts", 2 * ROWS)
    assert [source.format_file_name(file) for file in source.files] == ["00000-of-00002", "00001-of-00002"]
    expected = [text("train", file, row) for file in range(2) for row in range(ROWS)]
    assert rows_of(source.written) == expected
    assert next(source.batches(3)).records[1] == {"text": expected[1], "number": 1}
    encoder = counting_hashes()
    encoded = encode_source(source, encoder, tmp_path / "work", no_progress)
    assert encoder.texts == expected
    files = encode_source(
        open_source(f"{data_set}/en/train-0.parquet"), counting_hashes(), tmp_path / "file", no_progress
    )
    np.testing.assert_array_equal(encoded.vectors[:ROWS], files.vectors)


def test_a_column_of_lists_of_a_hub_data_set_is_a_source_of_vectors(data_set, tmp_path):
    source = open_source(f"hf:{data_set}/vectors#embedding")
    assert (source.kind(), source.detect_kind(), source.count()) == ("vectors", 5, 2 * ROWS)
    encoded = encode_source(source, None, tmp_path / "work", no_progress)
    np.testing.assert_array_equal(np.asarray(encoded.vectors), np.concatenate([vectors(0), vectors(1)]))
    assert len(list((tmp_path / "work").rglob("vectors.f32"))) == 4  # two of each file: a full batch, and the rest


def test_local_data_sets_of_csv_and_text_lines_are_read_and_a_changed_file_is_a_new_one(tmp_path, counting_hashes):
    folder = tmp_path / "pairs"
    folder.mkdir()
    (folder / "train.csv").write_text("text,label\none,1\ntwo,0\n")
    before = open_source(f"hf:{folder}")
    assert rows_of(f"hf:{folder}") == ["one", "two"]
    (folder / "train.csv").write_text("text,label\none,1\ntwo,0\nthree,0\n")
    after = open_source(f"hf:{folder}")
    assert before.location == after.location and before.files != after.files
    assert rows_of(f"hf:{folder}") == ["one", "two", "three"]
    (folder / "train.csv").rename(folder / "train.txt")
    assert rows_of(f"hf:{folder}:train") == ["text,label", "one,1", "two,0", "three,0"]


REFUSED = {
    "": "news has several configurations; it has en, vectors. Name one as hf:DATASET/CONFIG:SPLIT",
    "/fr": "news has no configuration 'fr'; it has en, vectors",
    "/en": "news/en has several splits; it has train, test",
    "/en:dev": "news/en:dev has no split 'dev'; it has train, test",
    "/en:train#body": "news/en:train/00000-of-00002 has no column 'body'; it has text, number",
    "/en:train#number": "row 1: 0, neither a text nor a vector",
    "/vectors:train": "row 2: null in a source that began with texts",
    "/fr/x/y": "there is no folder .* with a data set",
    ":a:b": "is not a data set of the hub: write hf:DATASET/CONFIG:SPLIT#FIELD",
}


def test_an_unknown_configuration_split_or_column_is_refused_and_the_known_ones_are_listed(data_set):
    for rest, reason in REFUSED.items():
        with pytest.raises(SourceError, match=re.escape(reason).replace(r"\.\*", ".*")):
            rows_of(f"hf:{data_set}{rest}")


def test_data_set_scripts_and_other_formats_are_refused(tmp_path):
    (tmp_path / "script").mkdir()
    (tmp_path / "script" / "script.py").write_text("raise AssertionError")
    with pytest.raises(SourceError, match="script cannot be read: Dataset scripts are no longer supported"):
        open_source(f"hf:{tmp_path}/script")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a.xml").write_text("<a/>")
    with pytest.raises(SourceError, match="has files of the format xml; allowed are arrow, csv, json, parquet, text"):
        open_source(f"hf:{tmp_path}/tree")


def test_access_errors_name_the_remedy_if_offline_or_without_the_datasets_library(data_set, monkeypatch):
    assert not is_hub("hf://datasets/a/b/c.parquet")  # a URL, which fsspec reads
    with pytest.raises(AccessError, match=r"unset HF_HUB_OFFLINE, or name a local folder as hf:\./FOLDER"):
        open_source("hf:nobody/news/en:train")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(AccessError, match=r"needs datasets: pip install 'lathe-training\[finetuning\]'"):
        open_source(f"hf:{data_set}/en:train")


class Hub(BaseHTTPRequestHandler):
    """Server of the hub API that `datasets` uses: one data set, a gated one, and one that fails."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        self.server.tokens.add(self.headers.get("authorization"))
        if "/datasets/me/broken" in path:
            self.answer(500, b"{}")
        elif "/datasets/me/gated/resolve" in path:
            self.answer(403, b"", {"x-error-code": "GatedRepo"})
        elif found := re.fullmatch(r"/api/datasets/(me/news|me/gated|me/thief)(?:/revision/(.*))?", path):
            self.tell_commit(*found.groups())
        elif found := re.fullmatch(r"/datasets/me/(news|thief)/resolve/[^/]+/(.*)", path):
            self.send_file(self.server.folder.parent / found[1] / found[2])
        elif found := re.fullmatch(r"/api/datasets/me/(news|thief)/tree/[^/]+(?:/(.*))?", path):
            self.list_files(self.server.folder.parent / found[1], found[2] or "")
        else:
            self.answer(401, b"{}", {"x-error-code": "RepoNotFound"})

    do_HEAD = do_GET

    def tell_commit(self, name, revision):
        if revision not in {None, "main", SHA}:
            self.answer(404, b"{}", {"x-error-code": "RevisionNotFound"})
            return
        told = {"_id": "1", "id": name, "sha": SHA, "siblings": [], "private": False, "tags": []}
        self.answer(200, json.dumps(told | {"downloads": 0, "likes": 0}).encode())

    def list_files(self, root, under):
        found = [path for path in sorted((root / under).glob("*"))]
        told = [
            {
                "type": "file" if path.is_file() else "directory",
                "path": str(path.relative_to(root)),
                "size": path.stat().st_size,
                "oid": hashlib.sha1(str(path).encode()).hexdigest(),
            }
            for path in found
        ]
        self.answer(200, json.dumps(told).encode())

    def send_file(self, path):
        if not path.is_file():
            self.answer(404, b"", {"x-error-code": "EntryNotFound", "x-repo-commit": SHA})
            return
        content = path.read_bytes()
        headers = {"x-repo-commit": SHA, "etag": f'"{hashlib.sha1(content).hexdigest()}"', "accept-ranges": "bytes"}
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range") or ""):
            start = int(found[1])
            part = content[start : int(found[2] or len(content)) + 1]
            self.answer(206, part, headers | {"content-range": f"bytes {start}-{start + len(part) - 1}/{len(content)}"})
        else:
            self.answer(200, content, headers)

    def answer(self, status, body, headers=None):
        self.send_response(status)
        for name, value in ({"content-length": len(body)} | (headers or {})).items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def hub(data_set):
    """Serve a data set, and one that names a file outside its folder. Record the tokens that the server receives."""
    thief = data_set.parent / "thief"
    thief.mkdir()
    (thief / "README.md").write_text(f"---\nconfigs:\n- config_name: all\n  data_files: {thief}/secret.txt\n---\n")
    (thief / "secret.txt").write_text("a secret")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.folder, server.tokens = data_set, set()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


ASK = """
import json, sys, warnings
warnings.simplefilter("error")
from lathe.training.errors import SourceError
from lathe.training.sources.source import open_source
for written in sys.argv[1:]:
    try:
        source = open_source(written)
        rows = [len(row) for batch in source.batches() for row in batch.values]
        print(json.dumps([source.name, source.location, source.kind(), source.count(), sum(rows)]))
    except SourceError as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


def open_in_process(address, home, *sources):
    """Open sources in a process with `address` as the hub and return its results for each, and all its output."""
    variables = {"HF_ENDPOINT": address, "HF_HOME": str(home), "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_TELEMETRY": "1"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")} | variables
    done = subprocess.run(
        [sys.executable, "-P", "-c", ASK, *sources], env=environment, capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()], done.stdout + done.stderr


def test_hub_data_sets_are_streamed_with_the_token_or_refused_with_the_reason(hub, tmp_path):
    """The token goes to the hub and is not printed, and no file is downloaded."""
    sources = {
        "hf:me/news/en:test": [f"me/news@{SHA}/en:test", "hf:me/news/en:test", "texts", ROWS],
        "hf:me/news@main/vectors#embedding": [f"me/news@{SHA}/vectors:train", "hf:me/news/vectors:train", "vectors"],
        "hf:me/news": "SourceError me/news has several configurations; it has en, vectors",
        "hf:me/news@dev/en": "SourceError the data set me/news has no revision 'dev'",
        "hf:me/nothing/en:train": "SourceError the hub has no data set me/nothing, or it is private: set HF_TOKEN",
        "hf:nothing": "SourceError the hub has no data set nothing",
        "hf:me/gated": "AccessError hf:me/gated is gated: accept its terms on the hub, and set HF_TOKEN",
        "hf:me/thief": "SourceError hf:me/thief cannot be read: Data files don't belong to me/thief.",
        "hf:me/broken": "AccessError hf:me/broken cannot be reached: ",
    }
    found, wrote = open_in_process(f"http://127.0.0.1:{hub.server_port}", tmp_path, *sources)
    for written, said in zip(sources, found, strict=True):
        expected = sources[written]
        if isinstance(expected, list):
            assert said[: len(expected)] == expected, written
        else:
            assert " ".join(said).startswith(expected), said
    assert found[1][3:] == [2 * ROWS, 2 * ROWS * 5]
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert TOKEN not in wrote
    assert not list(Path(tmp_path).rglob("*.parquet"))  # streamed, not downloaded


@pytest.mark.release  # me/broken is refused alike
def test_an_unreachable_hub_raises_access_error(tmp_path):
    (said,), wrote = open_in_process(f"http://127.0.0.1:{find_free_port()}", tmp_path, "hf:me/news/en:train")
    assert said[0] == "AccessError" and said[1].startswith("hf:me/news/en:train cannot be reached: ")
    assert TOKEN not in wrote
