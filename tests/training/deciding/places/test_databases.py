"""The lines that a decision prints create, fill and search FAISS, and Qdrant and Milvus in their local modes."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from lathe.training.deciding.places.databases import PLACES, write_commands
from lathe.training.deciding.requests import AdviceRequest
from lathe.transforms import Chain, parse_steps

WIDTH, ROWS = 32, 400
LOCAL = {
    'QdrantClient("http://localhost:6333")': 'QdrantClient(":memory:")',
    'MilvusClient("http://localhost:19530")': 'MilvusClient("items.db")',
}
"""Clients of servers as the lines name them, and those of the engines that run in this process."""
METRICS = ("cosine", "ip", "l2")


def request_of(place, metric):
    """Return a request of advice for vectors in a file."""
    return AdviceRequest(source="vectors.npy", place=place, metric=metric)


@pytest.fixture(scope="module")
def vectors():
    """Draw vectors `(ROWS, WIDTH)` of different lengths that vary more in some directions than in others."""
    rng = np.random.default_rng(0)
    return (rng.normal(size=(ROWS, WIDTH)) * np.linspace(2, 0.1, WIDTH) + 0.3).astype(np.float32)


@pytest.fixture
def folder(tmp_path, monkeypatch, vectors):
    """Make a folder with the file of vectors that the lines read, and go there."""
    np.save(tmp_path / "vectors.npy", vectors)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def list_forms(place, every):
    """List the candidates of a place but the vectors as they are: all, or one for each part of the template."""
    candidates = [*PLACES[place].list_candidates(WIDTH)][0 if place == "memory" else 1 :]
    # Milvus in its local mode takes IVF_RABITQ and scans all rows instead.
    candidates = [one for one in candidates if "RABITQ" not in one.setting]
    if every:
        return candidates
    kinds = {(bool(one.form.steps), one.form.element == "codes"): one for one in reversed(candidates)}
    return list(kinds.values())


def find_nearest(vectors, metric):
    """Return the ten rows that are nearest to the first one."""
    if metric == "l2":
        return np.argsort(((vectors - vectors[0]) ** 2).sum(axis=1))[:10].tolist()
    scores = vectors @ vectors[0]
    return np.argsort(-(scores / np.linalg.norm(vectors, axis=1) if metric == "cosine" else scores))[:10].tolist()


def run_python(lines, candidate, vectors, metric, milvus="items.db"):
    """Make the files that the shell's lines make, run the lines of Python, and return the ids that they print."""
    shell, _, program = "\n".join(lines).partition("python - <<'END'\n")
    if steps := candidate.form.chain_steps:
        name = re.sub(r",center=none|\W", "", steps)
        assert f"lathe fit --name {name} --steps {steps} --source vectors.npy" in shell
        assert ("--no-normalize" in shell) == (metric != "cosine")
        shutil.rmtree(name, ignore_errors=True)
        chain = Chain(parse_steps(steps), normalize=metric == "cosine").fit(vectors)
        chain.save(Path(name))
        np.save(f"{name}.npy", chain.transform(vectors))
    for server, local in LOCAL.items():
        program = program.replace(server, local.replace("items.db", milvus))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Qdrant says that its local mode compares all rows
        exec(compile(program.removesuffix("END"), "lines", "exec"), {})
    return [int(number) for number in re.findall(r"\d+", printed.getvalue())]


@pytest.mark.parametrize("metric", [*METRICS, pytest.param("every cosine", marks=pytest.mark.release)])
@pytest.mark.parametrize("place", ["faiss", "qdrant", "milvus", "memory"])
def test_lines_of_a_place_find_the_nearest_rows(place, metric, folder, vectors):
    every, metric = metric.startswith("every"), metric.removeprefix("every ")
    pytest.importorskip({"faiss": "faiss", "qdrant": "qdrant_client", "milvus": "milvus_lite"}.get(place, "numpy"))
    near = set(find_nearest(vectors, metric))
    for number, candidate in enumerate(list_forms(place, every)):
        multiple = 4 if candidate.beside else 1
        lines = write_commands(request_of(place, metric), candidate, multiple, WIDTH)
        found = run_python(lines, candidate, vectors, metric, f"{number}.db")
        assert len(found) == 10, candidate.words
        least = 0.6 if candidate.form.element in ("bit", "pq") else 0.8 if candidate.form.dimensions > WIDTH / 2 else 0
        assert len(near & set(found)) / 10 >= least, (candidate.words, found)
        if candidate.beside:
            assert metric == "ip" or found[0] == 0, candidate.words


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("place", ["elasticsearch", "opensearch", "weaviate", "redis", "vectorchord"])
def test_lines_for_servers_that_cannot_be_installed_here_name_dimensions_and_are_json_and_python(place, metric):
    for candidate in [*PLACES[place].list_candidates(WIDTH)][1:]:
        lines = "\n".join(write_commands(request_of(place, metric), candidate, 4 if candidate.beside else 1, WIDTH))
        if place == "vectorchord":
            assert f"ADD COLUMN small {candidate.setting}({WIDTH});" in lines
            assert f"(small {candidate.setting}_{metric}_ops)" in lines and "LIMIT 10;" in lines
            continue
        shell, _, program = lines.removesuffix("END").partition("python - <<'END'\n")
        compile(program, "lines", "exec")
        reduced = bool(candidate.form.steps)
        assert program.count("chain.transform") == (2 if candidate.form.chain_steps else 0)
        if place in ("elasticsearch", "opensearch"):
            fields = json.loads(shell.partition("-d '")[2].rstrip().removesuffix("'"))["mappings"]["properties"]
            dimensions = {name: field.get("dims", field.get("dimension")) for name, field in fields.items()}
            assert dimensions == {"full": WIDTH} | ({"small": candidate.form.dimensions} if reduced else {})
        if place == "elasticsearch":
            assert f'"field": "{"small" if reduced else "full"}"' in program


@pytest.mark.release
@pytest.mark.services
def test_lines_for_texts_embed_them_first_and_run_in_a_shell(tiny_model, folder):
    """The whole text is pasted into a shell, with an encoder and a file whose names need quotes."""
    texts = "\n".join(f"text number {number} on the subject {number % 7}" for number in range(60))
    (folder / "my texts.txt").write_text(texts)
    candidate = next(one for one in PLACES["memory"].list_candidates(16) if one.form.steps)
    request = AdviceRequest(source="my texts.txt", place="memory", encoder=str(tiny_model))
    lines = write_commands(request, candidate, 1, 16, texts=True)
    environment = os.environ | {"LATHE_HOME": str(folder / "home")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    for _ in range(2):  # a second decision fits a second version, which is the one that is searched
        ran = subprocess.run(["bash", "-e"], input="\n".join(lines), text=True, capture_output=True, env=environment)
        assert ran.returncode == 0, ran.stderr
    assert len([*(folder / "home" / "chains" / "pca8").glob("[0-9]*")]) == 2
    found = [int(number) for number in re.findall(r"\d+", ran.stdout.splitlines()[-1])]
    assert len(found) == 10 and found[0] == 0
