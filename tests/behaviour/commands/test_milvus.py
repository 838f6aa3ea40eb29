import json

import numpy as np
import pytest

WIDTH, ROWS = 16, 1100


@pytest.fixture(scope="module")
def vectors():
    """Return random vectors `(1100, 16)` of different norms, since Milvus must store them unnormalized."""
    return np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)


@pytest.fixture(scope="module")
def store(tmp_path_factory, vectors):
    folder = tmp_path_factory.mktemp("store")
    np.save(folder / "rows.npy", vectors)
    (folder / "ids.txt").write_text("\n".join(f"doc {number}" for number in range(ROWS)))
    return folder


@pytest.fixture
def index(run, milvus):
    """Return a function that runs `lathe index` with its indexes in Milvus."""

    def command(*arguments):
        return run("index", *arguments, LATHE_INDEX_URL=milvus.url)

    return command


@pytest.fixture
def fill(index):
    """Return a function that imports a source with `--chain none`, and returns the command's JSON."""

    def command(name, source, *more):
        status, out, err = index("import", "--name", name, "--source", source, "--chain", "none", "--json", *more)
        assert status == 0, err
        return json.loads(out)

    return command


def listed(index):
    return {found["name"]: found["count"] for found in json.loads(index("list", "--json")[1])}


def exported(index, name, file):
    """Export an index and return metadata and vector of each item, by id."""
    status, out, err = index("export", name, "--out", file)
    assert status == 0, err
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert f"{len(rows):,} items" in out
    return {row["id"]: (row["metadata"], np.array(row["embedding"], np.float32)) for row in rows}


def test_index_commands_import_list_export_and_delete_in_milvus(index, fill, store, vectors, tmp_path):
    """Vectors come back bit-equal. An export to .npy is refused, since Milvus keeps no order."""
    result = fill("first", store / "rows.npy", "--ids", store / "ids.txt")
    assert (result["imported"], result["replaced"], result["count"]) == (ROWS, 0, ROWS)
    assert result["cost"]["quality"]["recall_at_10"] == 1
    assert listed(index)["first"] == ROWS
    shown = index("list")[1]
    assert "in Milvus" in shown and "1,100" in shown and f"{WIDTH}→{WIDTH}" in shown
    items = exported(index, "first", tmp_path / "out.jsonl")
    assert len(items) == ROWS
    for number, row in enumerate(vectors):
        assert items[f"doc {number}"][1].tobytes() == row.tobytes()
    status, _, err = index("export", "first", "--out", tmp_path / "out.npy")
    assert status and "in no order" in err and not (tmp_path / "out.npy").exists()
    assert index("delete", "first")[:2] == (0, "first is deleted\n")
    assert "first" not in listed(index)
    for command in (("export", "first", "--out", "x.jsonl"), ("delete", "first")):
        status, _, err = index(*command)
        assert status == 1 and "there is no index 'first'" in err


def test_metadata_round_trips_through_milvus(index, fill, vectors, tmp_path):
    said = [{"tags": ["a", 1], "embedding": "a word"}, {"n": 2**53 + 1, "deep": {"er": None}}, {"é": "\u0000\"'"}]
    rows = [{"id": f"k{n}", "v": vectors[n].tolist(), "metadata": given} for n, given in enumerate(said)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    fill("told", f"{tmp_path / 'rows.jsonl'}#v")
    items = exported(index, "told", tmp_path / "out.jsonl")
    assert [items[f"k{n}"][0] for n in range(len(said))] == said
    index("delete", "told")


def test_index_import_into_milvus_resumes_after_the_last_whole_batch_unless_the_index_was_deleted(
    index, fill, vectors, tmp_path
):
    np.save(tmp_path / "zero.npy", np.concatenate([vectors, np.zeros((1, WIDTH), np.float32), vectors[:5]]))
    status, _, err = index("import", "--name", "zero", "--source", tmp_path / "zero.npy", "--chain", "none")
    assert status == 1 and f"'{ROWS}' is zero" in err
    assert listed(index)["zero"] == 1024  # the whole batches before it
    for imported in (ROWS + 5 - 1024, ROWS + 5):
        result = fill("zero", tmp_path / "zero.npy", "--skip-zeros")
        assert (result["imported"], result["left_out"], result["count"]) == (imported, 1, ROWS + 5)
        assert index("delete", "zero")[0] == 0


def test_index_import_whose_first_batch_fails_leaves_no_index(index, tmp_path):
    np.save(tmp_path / "zeros.npy", np.eye(4, WIDTH, dtype=np.float32) * [[0], [1], [1], [1]])
    status, _, err = index("import", "--name", "nothing", "--source", tmp_path / "zeros.npy", "--chain", "none")
    assert (status, "'0' is zero" in err) == (1, True), err
    assert "nothing" not in listed(index)


@pytest.mark.parametrize("command", [("backup", "any", "--to", "copy"), ("restore", "copy")])
def test_index_backup_and_restore_refer_to_milvus_backup(run, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    status, _, err = run("index", *command, LATHE_INDEX_URL="http://127.0.0.1:9")
    assert (status, list(tmp_path.iterdir())) == (1, [])
    assert "LATHE_INDEX_URL names a Milvus, which is backed up by milvus-backup" in err


@pytest.mark.parametrize("command", [("list",), ("export", "any", "--out", "x.jsonl")])
def test_index_commands_print_one_line_without_the_password_if_milvus_is_unreachable(
    run, tmp_path, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)
    status, out, err = run("index", *command, LATHE_INDEX_URL="http://user:secret@127.0.0.1:9")
    assert (status, out, len(err.splitlines())) == (1, "", 1)
    assert "the Milvus at 127.0.0.1:9 cannot answer this request" in err and "secret" not in err
