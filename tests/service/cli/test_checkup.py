import json

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from lathe.service.cli.checkup import _find_worse
from lathe.service.errors import BadValueError
from tests.service.conftest import SENTENCES

RANDOM = np.random.default_rng(0)
VECTORS = RANDOM.normal(size=(400, 24)).astype(np.float32)
SOUND = "50 rows, all read, 50 queries asked\nRecall@10 is 1.00. No loss was found.\n"
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)


@pytest.fixture
def file(tmp_path):
    """Return a function that stores vectors in one file and returns its path."""

    def store(vectors):
        np.save(tmp_path / "rows.npy", vectors)
        return tmp_path / "rows.npy"

    return store


def broken():
    """Return vectors of which a tenth are zeros."""
    vectors = VECTORS.copy()
    vectors[::10] = 0
    return vectors


def test_what_must_be_fixed_is_said_with_rows_and_advice(run, file):
    status, out, _ = run("checkup", "--source", file(VECTORS))
    assert status == 0 and "400 rows, all read\nNothing must be fixed." in out and "fix " not in out

    status, out, _ = run("checkup", "--source", file(broken()))
    assert status == 1 and "Something must be fixed." in out
    assert "fix   10 % of the rows are all zeros" in out and "      → Encode them again." in out
    assert all(int(row) % 10 == 0 for row in out.partition("rows: ")[2].partition("\n")[0].split(", "))

    status, out, _ = run("checkup", "--source", file(broken()), "--json")
    found = json.loads(out, parse_constant=pytest.fail)  # no NaN
    assert status == 1 and found["must_fix"] and found["findings"][0]["kind"] == "zero"


def test_a_run_is_worse_than_its_baseline_only_beyond_chance(run, file, tmp_path):
    command = ("checkup", "--source", file(broken()), "--baseline", tmp_path / "before.json")
    assert run(*command)[0] == 0 and run(*command)[0] == 0  # it was as bad before

    worse = broken()
    worse[1::10] = 0
    file(worse)
    status, out, _ = run(*command)
    assert status == 1 and out.endswith("before.json: 20 % of the rows are all zeros, which have no direction.\n")
    assert json.loads(run(*command, "--json")[1])["worse"]

    before = json.loads((tmp_path / "before.json").read_text())
    (tmp_path / "before.json").write_text(json.dumps(before | {"store": "other.npy"}))
    status, _, err = run(*command)
    assert status == 1 and "the baseline is of other.npy" in err
    for content in ("", "[1]", "{}", "not JSON"):
        (tmp_path / "before.json").write_text(content)
        status, _, err = run(*command)
        assert status == 1 and "is not a run of lathe checkup: remove it" in err


def test_what_a_baseline_did_not_look_at_or_may_have_missed_is_not_worse():
    def describe(*shares, checked=5000):
        findings = [{"kind": kind, "share": share, "severity": "fix", "sentence": kind} for kind, share in shares]
        return {"store": "s", "rows": 5000, "checked": checked, "searches": None, "findings": findings}

    def between(value, low, high):
        return {"value": value, "low": low, "high": high}

    sound = describe(("space", None))
    assert _find_worse(sound, describe(("changed_text", between(0.0025, 0.0004, 0.014)))) == []  # one of 400
    assert _find_worse(sound, describe(("changed_text", between(0.1, 0.07, 0.14)))) == ["changed_text"]
    exact = between(0.002, None, None)
    assert _find_worse(describe(), describe(("copies", exact))) == ["copies"]
    assert _find_worse(describe(checked=1000), describe(("copies", exact))) == []
    assert _find_worse(describe(), describe(("graph", between(0.02, 0.01, 0.03)))) == []  # recall was compared
    with pytest.raises(BadValueError, match="give both the same --texts"):
        _find_worse(sound, describe(("strangers", exact)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "name one store by --index, --source, --table, --collection; given are none"),
        (["--source", "a.npy", "--table", "t"], "given are --source and --table"),
        (["--for", "qdrant", "--table", "t"], "--for qdrant takes --collection, not --table"),
        (["--for", "pgvector", "--source", "a"], "--for pgvector takes --table, not --source"),
        (["--index", "a", "--texts", "body"], "--texts is not for --index"),
        (["--collection", "a", "--metric", "ip"], "--metric is not for --collection"),
        (["--source", "rows.npy", "--encoder", "x"], "--encoder encodes texts: name those of the rows with --texts"),
        (
            ["--source", "rows.npy", "--queries", "texts.jsonl"],
            "holds texts, and their encoder is not known: give vectors, or --encoder",
        ),
        (["--source", "texts.jsonl"], "holds texts: a checkup takes stored vectors"),
        (["--source", "rows.npy", "--texts", "texts.jsonl"], "400 vectors and 1 texts do not match"),
        (["--collection", "a", "--qdrant", "none"], "there is no folder none"),
    ],
)
def test_options_that_name_no_store_or_contradict_one_another_are_refused(
    run, file, tmp_path, monkeypatch, options, message
):
    file(VECTORS)
    (tmp_path / "texts.jsonl").write_text('{"text": "one"}\n')
    monkeypatch.chdir(tmp_path)
    status, out, err = run("checkup", *options)
    assert (status, out) == (1, "") and message in err


def test_texts_are_encoded_again_by_the_default_encoder(run, file, tmp_path):
    texts = [f"{text} It was on day {day}." for text in SENTENCES for day in range(10)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "queries.jsonl").write_text('{"text": "When was the ledger closed?"}\n')
    with_texts = ("--texts", tmp_path / "texts.jsonl")

    status, out, _ = run("embed", "--source", tmp_path / "texts.jsonl", "--out", tmp_path / "rows.npy")
    assert status == 0, out
    vectors = np.load(tmp_path / "rows.npy")
    status, out, _ = run("checkup", "--source", file(vectors), *with_texts, "--queries", tmp_path / "queries.jsonl")
    assert status == 0 and "60 texts encoded again have their stored vectors" in out

    vectors[[3, 50]] = vectors[[50, 3]]
    status, out, _ = run("checkup", "--source", file(vectors), *with_texts)
    assert status == 1 and "3.33 % of the rows are vectors of another text" in out
    status, _, err = run("checkup", "--source", file(vectors[:, :99]), *with_texts)
    assert status == 1 and "gives 384 dimensions, and the rows have 99" in err


def test_a_table_a_collection_and_an_index_are_checked(run, database, tmp_path, start_app, monkeypatch):
    database.execute("CREATE TABLE docs (id int PRIMARY KEY, v vector(24))")
    for row, vector in enumerate(VECTORS[:50]):
        database.execute("INSERT INTO docs VALUES (%s, %s)", (row, str(vector.tolist())))
    database.execute("CREATE INDEX ON docs USING hnsw (v vector_cosine_ops)")
    status, out, _ = run("checkup", "--for", "pgvector", "--table", "docs#v")
    assert status == 0 and out.startswith(
        "docs#v: 50 rows, all read, 50 queries asked\nRecall@10 is 1.00. No loss was found.\n"
    )
    for table, message in (
        ("none#v", "no table none"),
        ("docs", "no column embedding"),
        ("docs#id", "of type integer"),
    ):
        status, _, err = run("checkup", "--table", table)
        assert status == 1 and message in err

    (tmp_path / "qdrant").mkdir()
    client = QdrantClient(path=str(tmp_path / "qdrant"))
    client.create_collection("docs", {"v": models.VectorParams(size=24, distance=models.Distance.COSINE)})
    client.upsert("docs", [models.PointStruct(id=n, vector={"v": v.tolist()}) for n, v in enumerate(VECTORS[:50])])
    client.close()
    status, out, _ = run("checkup", "--for", "qdrant", "--collection", "docs#v", "--qdrant", tmp_path / "qdrant")
    assert status == 0 and out.startswith("docs#v: 50 rows, all read\nNothing must be fixed.")

    with start_app(home=tmp_path / "served", admin_keys="boss", indexes_only=True) as app:
        app.client.headers |= app.admin
        app.client.put("/indexes/docs", json={"chain": "none", "width": 24})
        ids = [str(row) for row in range(50)]
        app.client.post("/indexes/docs/upsert", json={"ids": ids, "vectors": VECTORS[:50].tolist()})

        def connect(self, url):
            self.url, self.client = url, app.client

        monkeypatch.setattr("lathe.service.cli.reindex.ServerClient.__init__", connect)
        status, out, _ = run("checkup", "--index", "docs")
    assert status == 0 and out.startswith(
        "docs: 50 rows, all read, 50 queries asked\nRecall@10 is 1.00. No loss was found.\n"
    )


@pytest.mark.parametrize("place", ["pgvector", "qdrant"])
def test_rows_that_are_not_their_texts_vectors_are_fixed_and_the_fix_is_undone(run, database, tmp_path, place):
    texts = [f"{text} It was on day {day}." for text in SENTENCES for day in range(10)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert run("embed", "--source", tmp_path / "texts.jsonl", "--out", tmp_path / "rows.npy")[0] == 0
    vectors = np.load(tmp_path / "rows.npy")
    broken = vectors.copy()
    broken[[3, 50, 7]] = vectors[[50, 3, 8]]
    if place == "pgvector":
        database.execute("CREATE TABLE docs (id int PRIMARY KEY, body text, embedding vector(384))")
        for row, vector in enumerate(broken):
            database.execute("INSERT INTO docs VALUES (%s, %s, %s)", (row, texts[row], str(vector.tolist())))
        command = ["checkup", "--table", "docs", "--texts", "body"]

        def read():
            found = database.execute("SELECT embedding::text FROM docs ORDER BY id").fetchall()
            return np.array([json.loads(vector) for (vector,) in found])

    else:
        (tmp_path / "qdrant").mkdir()
        client = QdrantClient(path=str(tmp_path / "qdrant"))
        client.create_collection("docs", models.VectorParams(size=384, distance=models.Distance.COSINE))
        points = [
            models.PointStruct(id=row, vector=vector.tolist(), payload={"body": texts[row]})
            for row, vector in enumerate(broken)
        ]
        client.upsert("docs", points)
        client.close()
        command = ["checkup", "--collection", "docs", "--texts", "body", "--qdrant", tmp_path / "qdrant"]

        def read():
            client = QdrantClient(path=str(tmp_path / "qdrant"))
            found = client.retrieve("docs", range(60), with_vectors=True)
            client.close()
            return np.array([point.vector for point in found])

    file = tmp_path / "old.jsonl"
    status, out, _ = run(*command)
    assert status == 1 and "5 % of the rows are vectors of another text" in out
    status, out, err = run(*command, "--fix", file)
    assert status == 0 and "3 of 3 rows were encoded again" in err and "60 texts encoded again have" in out
    assert read() == pytest.approx(vectors, abs=1e-3)
    assert run(*command, "--fix", file)[0] == 1  # the file would be lost

    status, _, err = run(*command, "--undo", file)
    assert status == 1 and "3 of 3 rows have their old vectors again" in err
    assert read() == pytest.approx(broken, abs=1e-3)
    assert "0 of 3 rows" in run(*command, "--undo", file)[2]  # they do not have the new vectors
    assert "name their column with --texts" in run(*command[:3], *command[5:], "--fix", tmp_path / "b.jsonl")[2]
    if place == "pgvector":  # numbers are not the texts
        status, _, err = run(*command[:3], "--texts", "id", "--fix", tmp_path / "all.jsonl")
        assert status == 1 and "name the right --encoder, --chain and --texts" in err
        assert not (tmp_path / "all.jsonl").exists()
    (tmp_path / "other.jsonl").write_text("{}\n")
    assert "does not hold rows" in run(*command, "--undo", tmp_path / "other.jsonl")[2]
    (tmp_path / "other.jsonl").write_text(file.read_text().replace('"docs', '"else'))
    assert "holds rows of else" in run(*command, "--undo", tmp_path / "other.jsonl")[2]
