"""`lathe index export --to pgvector` on a real PostgreSQL: the table has what the index has, whatever was there."""

import json
from contextlib import closing
from pathlib import Path

import faiss
import numpy as np
import pytest

from lathe.service.chains.registry import Registry
from lathe.service.index.embedded.record import IndexRecord
from lathe.transforms import Chain, parse_steps
from tests.service.index.opening import serving

WIDTH, ROWS = 384, 1100


@pytest.fixture(scope="module")
def vectors():
    """Draw unit vectors `(ROWS, WIDTH)`."""
    found = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def store(tmp_path_factory, vectors):
    """Write the vectors to an .npy file and return its path."""
    path = tmp_path_factory.mktemp("store") / "rows.npy"
    np.save(path, vectors)
    return path


def opened(home, name):
    """Open the record of an index read-only."""
    return IndexRecord(home / "indexes" / name / "record.db", read_only=True)


def test_index_import_reports_the_chains_quality_and_writes_every_row(run, home, store, vectors):
    status, out, err = run("index", "import", "--name", "plain", "--source", store, "--chain", "debias")
    assert status == 0, err
    assert "measured on 1,100 of 1,100 rows" in out
    assert "recall@10" in out
    assert "plain: 1,100 items" in out
    record = opened(home, "plain")
    label = record.find_items(["77"])["77"][0]
    np.testing.assert_array_equal(record.read_originals([label], record.spec)[label], vectors[77])
    record.close()
    with serving(home / "indexes") as indexes:
        calibration = indexes.get("plain").describe()["calibration"]
        assert (calibration["kind"], calibration["rows"], calibration["stale"]) == ("rows", ROWS, False)
    assert "plain" in run("index", "list")[1]
    listed = json.loads(run("index", "list", "--json")[1])
    assert [(index["name"], index["count"], index["chain"]) for index in listed] == [("plain", ROWS, "debias@1")]


def test_index_import_writes_nothing_in_a_dry_run_or_if_a_gate_fails(run, home, store):
    status, out, _ = run(
        "index", "import", "--name", "dry", "--source", store, "--chain", "compact", "--dry-run", "--json"
    )
    assert status == 0
    cost = json.loads(out)["cost"]
    assert cost["bytes_per_vector"] == {"before": 1536, "after": 512}
    gate = f"recall_at_10={cost['quality']['recall_at_10'] + 0.01}"
    status, _, err = run("index", "import", "--name", "dry", "--source", store, "--chain", "compact", "--gate", gate)
    assert status == 1
    assert "nothing was written" in err
    assert not (home / "indexes" / "dry").exists()


def test_index_import_takes_ids_from_a_file_a_field_or_the_faiss_index(run, home, store, tmp_path, vectors):
    (tmp_path / "ids.txt").write_text("\n".join(f"doc {number}" for number in range(ROWS)))
    rows = [{"key": f"k{i}", "v": vectors[i].tolist(), "year": 2000 + i} for i in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    mapped = faiss.IndexIDMap(faiss.IndexFlatIP(WIDTH))
    mapped.add_with_ids(vectors[:30], np.arange(30) + 500)
    faiss.write_index(mapped, str(tmp_path / "mapped.faiss"))
    base = ("index", "import", "--chain", "none", "--source")
    assert run(*base, store, "--name", "listed", "--ids", tmp_path / "ids.txt")[0] == 0
    assert run(*base, f"{tmp_path / 'rows.jsonl'}#v", "--name", "keyed", "--id-field", "key")[0] == 0
    assert run(*base, tmp_path / "mapped.faiss", "--name", "mapped")[0] == 0
    for name, item, metadata in (
        ("listed", f"doc {ROWS - 1}", None),
        ("keyed", "k19", b'{"year":2019}'),
        ("mapped", "529", None),
    ):
        record = opened(home, name)
        assert record.find_items([item])[item][1] == metadata
        record.close()


def test_index_import_takes_the_metric_of_a_faiss_index_unless_one_is_named(run, home, tmp_path):
    for kind, flags, metric in [
        (faiss.IndexFlatL2, (), "l2"),
        (faiss.IndexFlatIP, (), "ip"),
        (faiss.IndexFlatL2, ("--metric", "cosine"), "cosine"),
    ]:
        flat = kind(8)
        flat.add(np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32))
        faiss.write_index(flat, str(tmp_path / "flat.faiss"))
        command = (
            "index",
            "import",
            "--name",
            f"flat-{metric}",
            "--source",
            tmp_path / "flat.faiss",
            "--chain",
            "none",
        )
        status, _, err = run(*command, *flags)
        assert status == 0, err
        with closing(opened(home, f"flat-{metric}")) as record:
            assert record.spec.metric == metric


def test_index_import_resumes_after_the_last_whole_batch(run, home, tmp_path, vectors):
    """A zero vector stops an import. With `--skip-zeros` it is left out."""
    rows = np.concatenate([vectors, np.zeros((1, WIDTH), np.float32), vectors[:5]])
    np.save(tmp_path / "zero.npy", rows)
    command = ("index", "import", "--name", "zero", "--source", tmp_path / "zero.npy", "--chain", "none")
    status, _, err = run(*command)
    assert status == 1
    assert "'1100' is zero" in err
    record = opened(home, "zero")
    before = record.read_meta("last_label")
    assert record.count_items()["count"] == 1024  # the whole batches before it
    record.close()
    status, out, err = run(*command, "--skip-zeros", "--json")
    assert status == 0, err
    result = json.loads(out)
    assert (result["imported"], result["left_out"], result["count"]) == (ROWS + 6 - 1024 - 1, 1, ROWS + 5)
    record = opened(home, "zero")
    assert record.read_meta("last_label") == before + result["imported"]
    record.close()


def test_index_backup_works_while_a_server_owns_the_index_and_restore_refuses_an_altered_newer_or_missing_one(
    run, home, tmp_path, store
):
    import_ = ("index", "import", "--name", "source", "--source", store, "--chain", "none")
    run(*import_)
    with serving(home / "indexes") as indexes:
        indexes.get("source").delete(["3"]).result()
        assert "1,099 items" in run("index", "backup", "source", "--to", tmp_path / "copy")[1]
        assert "owned by process" in run(*import_)[2] and run("index", "delete", "source")[0] == 1
        for name, status in (("source", 1), ("again", 0)):
            assert run("index", "restore", tmp_path / "copy", "--name", name)[0] == status
        assert indexes.get("again").record.find_items(["3", "4"]).keys() == {"4"}
    manifest = json.loads((tmp_path / "copy" / "backup.json").read_text())
    (tmp_path / "copy" / "backup.json").write_text(json.dumps(manifest | {"schema": 99}))
    assert "is of schema 99" in run("index", "restore", tmp_path / "copy", "--name", "r")[2]
    (tmp_path / "copy" / "backup.json").write_text(json.dumps(manifest))
    with (tmp_path / "copy" / "record.db").open("r+b") as file:
        file.seek(50_000)
        file.write(b"\xff" * 10)
    assert "altered" in run("index", "restore", tmp_path / "copy", "--name", "r")[2]
    assert not (home / "indexes" / "r").exists()
    assert "there is no backup" in run("index", "restore", tmp_path / "nothing")[2]


def test_index_export_and_import_round_trip_rows_and_metadata(run, home, tmp_path, vectors):
    told = {"tags": ["a", 1], "embedding": "a word", "id": "not the id"}
    rows = [{"id": f"k{i}", "v": vectors[i].tolist(), "metadata": told} for i in range(60)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run("index", "import", "--name", "first", "--source", f"{tmp_path / 'rows.jsonl'}#v", "--chain", "none")
    one = opened(home, "first")
    for form in ("parquet", "jsonl"):
        status, out, err = run("index", "export", "first", "--out", tmp_path / f"out.{form}")
        assert status == 0, err
        source = f"{tmp_path / f'out.{form}'}#embedding"
        assert run("index", "import", "--name", form, "--source", source, "--chain", "none")[0] == 0
        other = opened(home, form)
        assert one.read_payloads_after(0, 100)[1] == other.read_payloads_after(0, 100)[1]
        np.testing.assert_array_equal(
            one.read_rows_after(0, 100, one.spec)[1], other.read_rows_after(0, 100, other.spec)[1]
        )
        other.close()
    one.close()


def test_index_import_stores_codes_alone_and_export_refuses_them(run, home, store, tmp_path):
    command = ("index", "import", "--name", "codes", "--source", store, "--chain", "codes48", "--originals", "none")
    status, out, err = run(*command, "--json")
    assert status == 0, err
    result = json.loads(out)
    assert result["cost"]["bytes_per_vector"] == {"before": 4 * WIDTH, "after": 48}
    assert 0 < result["cost"]["quality"]["recall_at_10"] < 1
    with closing(opened(home, "codes")) as record:
        assert record.count_items()["count"] == ROWS and record.spec.originals == "none"
        assert record.read_rows_after(0, 10, record.spec)[1].shape == (10, 48)
    out_file = tmp_path / "out.jsonl"
    status, _, err = run("index", "export", "codes", "--out", out_file)
    assert status == 1 and "does not store (originals: none)" in err and not out_file.exists()
    status, _, err = run("index", "import", "--name", "floats", "--source", store, "--originals", "none")
    assert status == 1 and "ends in codes" in err
    assert not (home / "indexes" / "floats").exists()


def test_index_import_refuses_an_invalid_list_of_ids_and_creates_no_index(run, home, store, tmp_path):
    command = ("index", "import", "--name", "ids", "--source", store, "--chain", "none", "--ids", tmp_path / "ids.txt")
    for lines, reason in [
        (["a", "", "b"], "line 2 is blank"),
        (["a"] * 7, "7 ids for 1,100 rows"),
        (["a"] * ROWS, "'a' occurs twice"),
    ]:
        (tmp_path / "ids.txt").write_text("\n".join(lines))
        status, _, err = run(*command)
        assert (status, reason in err) == (1, True), err
    assert not (home / "indexes" / "ids").exists()


def test_index_import_keeps_the_last_of_rows_with_the_same_id_however_far_apart(run, home, tmp_path):
    rows = [{"id": f"r{n}", "v": [n + 1.0, 1.0], "n": n} for n in range(3000)]
    for first, second in ((4, 5), (7, 2900)):
        rows[second] = rows[second] | {"id": f"r{first}"}
    (tmp_path / "twice.jsonl").write_text("\n".join(map(json.dumps, rows)))
    status, out, err = run(
        "index", "import", "--name", "twice", "--source", f"{tmp_path / 'twice.jsonl'}#v", "--chain", "none"
    )
    assert status == 0 and "2 items replaced" in out, err
    with closing(opened(home, "twice")) as record:
        found = record.find_items(["r4", "r7"])
        assert record.count_items()["count"] == 2998
    assert {item: json.loads(metadata)["n"] for item, (_, metadata) in found.items()} == {"r4": 5, "r7": 2900}


def test_index_list_reports_a_damaged_record(run, home, store):
    run("index", "import", "--name", "damaged", "--source", store, "--chain", "none")
    (home / "indexes" / "damaged" / "record.db").write_bytes(b"no database" * 1000)
    assert "damaged" in run("index", "list")[1]


WIDTH_OF_INDEX_EXPORT, ROWS_OF_INDEX_EXPORT = 32, 1100


@pytest.fixture(scope="module")
def vectors_of_index_export():
    """Draw vectors `(ROWS, WIDTH)` that share a direction."""
    return (np.random.default_rng(0).normal(size=(ROWS_OF_INDEX_EXPORT, WIDTH_OF_INDEX_EXPORT)) + 0.5).astype(
        np.float32
    )


@pytest.fixture(scope="module")
def chain(home, vectors_of_index_export):
    """Publish a chain of 8 dimensions as `small`, and one that ends in codes as `coded`."""
    Registry(home / "chains").publish(Chain(parse_steps("codes:8")).fit(vectors_of_index_export), "coded", True)
    made = Chain(parse_steps("r2,pca:8")).fit(vectors_of_index_export)
    Registry(home / "chains").publish(made, "small", True)
    return made


@pytest.fixture
def fill(run, home, chain, vectors_of_index_export, tmp_path):
    """Return a function that imports rows with metadata into an index."""

    def create(name, chain="small", rows=ROWS_OF_INDEX_EXPORT, *more):
        file = tmp_path / "rows.jsonl"
        lines = [
            {"id": f"doc {n}", "embedding": vectors_of_index_export[n].tolist()}
            | ({"title": f'Ünit\'s "{n}"', "n": n} if n % 3 else {})
            for n in range(rows)
        ]
        file.write_text("\n".join(map(json.dumps, lines)))
        status, _, err = run(
            "index", "import", "--name", name, "--source", f"{file}#embedding", "--chain", chain, *more
        )
        assert status == 0, err

    return create


def read(database, table, *columns):
    """Return columns of a table as text, by id."""
    written = ", ".join(f"{column}::text" for column in columns)
    return {row[0]: row[1:] for row in database.execute(f"SELECT id, {written} FROM {table}")}


def parse(texts):
    """Return vectors from their text."""
    return np.array([json.loads(text) for text in texts], np.float32)


def test_exported_table_has_ids_metadata_original_and_reduced_vectors(
    run, database, fill, chain, vectors_of_index_export
):
    fill("all")
    status, out, err = run("index", "export", "all", "--to", "pgvector")
    assert status == 0, err
    assert "all: 1,100 items, 1,100 of them new or changed" in out
    rows = read(database, '"all"', "embedding", "reduced", "metadata")
    order = [f"doc {n}" for n in range(ROWS_OF_INDEX_EXPORT)]
    assert (
        parse(rows[item][0] for item in order) == vectors_of_index_export
    ).all()  # the digits tell each float32 exactly
    assert np.abs(parse(rows[item][1] for item in order) - chain.transform(vectors_of_index_export)).max() < 1e-6
    assert rows["doc 3"][2] is None
    assert json.loads(rows["doc 4"][2]) == {"title": 'Ünit\'s "4"', "n": 4}
    database.execute(out.splitlines()[-1])


def test_second_export_writes_what_differs_alone_and_leaves_other_rows(run, database, fill):
    fill("refilled", rows=40)
    command = ("index", "export", "refilled", "--to", "pgvector", "--table", "target")
    run(*command)
    before = dict(database.execute("SELECT id, xmin::text FROM target").fetchall())
    database.execute("UPDATE target SET reduced = NULL WHERE id = 'doc 9'")
    database.execute("UPDATE target SET metadata = '{}' WHERE id = 'doc 10'")
    database.execute("INSERT INTO target (id) VALUES ('mine')")
    database.execute("DELETE FROM target WHERE id = 'doc 11'")
    assert "3 of them new or changed" in run(*command)[1]
    after = dict(database.execute("SELECT id, xmin::text FROM target").fetchall())
    assert set(after) == set(before) | {"mine"}
    assert {item for item in before if after[item] != before[item]} == {"doc 9", "doc 10", "doc 11"}
    assert "0 of them new or changed; 1 other rows deleted" in run(*command, "--delete-others")[1]
    del after["mine"]
    assert dict(database.execute("SELECT id, xmin::text FROM target").fetchall()) == after


def test_items_with_a_nul_are_named_and_left_out_on_request(run, database, home, vectors_of_index_export, tmp_path):
    file = tmp_path / "odd.jsonl"
    texts = ["plain", "a \0 NUL", "the characters \\u0000", "a backslash and a NUL \\\0"]
    file.write_text(
        "\n".join(
            json.dumps({"id": f"t{n}", "text": text, "embedding": vectors_of_index_export[n].tolist()})
            for n, text in enumerate(texts)
        )
    )
    status, _, err = run("index", "import", "--name", "nul", "--source", f"{file}#embedding", "--chain", "none")
    assert status == 0, err
    command = ("index", "export", "nul", "--to", "pgvector")
    status, _, err = run(*command)
    assert status == 1 and "the item 't1'" in err and "--skip-nul" in err
    database.execute("INSERT INTO nul (id) VALUES ('mine'), ('t1')")
    status, out, err = run(*command, "--skip-nul", "--delete-others")
    assert status == 0, err
    assert "2 items, 2 of them new or changed; 1 other rows deleted; 2 with a NUL character left out" in out
    assert "the first of them 't1'" in out
    assert {item: json.loads(row[0] or "null") for item, row in read(database, "nul", "metadata").items()} == {
        "t0": {"text": texts[0]}, "t1": None, "t2": {"text": texts[2]}
    }  # fmt: skip


def test_types_of_the_columns_are_those_asked_for(run, database, fill):
    fill("typed", rows=40)
    for table, options, types in [
        ("half", "--column-type halfvec --originals float16", ["embedding halfvec(32)", "reduced halfvec(8)"]),
        ("bits", "--column-type bit", ["embedding vector(32)", "reduced bit(8)"]),
        ("alone", "--originals none", ["reduced vector(8)"]),
    ]:
        status, out, err = run("index", "export", "typed", "--to", "pgvector", "--table", table, *options.split())
        assert status == 0, err
        found = database.execute(
            "SELECT attname || ' ' || format_type(atttypid, atttypmod) FROM pg_attribute "
            f"WHERE attrelid = '{table}'::regclass AND attnum > 2"
        ).fetchall()
        assert sorted(column for (column,) in found) == types
        database.execute(out.splitlines()[-1])


def test_index_without_a_chain_has_a_reduced_column_of_bits_alone(run, database, fill, vectors_of_index_export):
    fill("raw", "none", 40)
    assert run("index", "export", "raw", "--to", "pgvector", "--table", "floats")[0] == 0
    assert set(read(database, "floats", "embedding")) == {f"doc {n}" for n in range(40)}
    assert run("index", "export", "raw", "--to", "pgvector", "--table", "bits", "--column-type", "bit")[0] == 0
    bits = read(database, "bits", "reduced")
    assert all(bits[f"doc {n}"][0] == "".join("01"[int(x > 0)] for x in vectors_of_index_export[n]) for n in range(40))
    status, _, err = run("index", "export", "raw", "--to", "pgvector", "--table", "nothing", "--originals", "none")
    assert status == 1
    assert "only its original vectors" in err


def test_metric_of_the_index_decides_the_operator_class(run, database, fill):
    fill("products", "small", 40, "--metric", "ip")
    status, out, err = run("index", "export", "products", "--to", "pgvector")
    assert status == 0, err
    assert "vector_ip_ops" in out
    status, _, err = run("index", "export", "products", "--to", "pgvector", "--table", "b", "--column-type", "bit")
    assert status == 1
    assert "a column of type bit needs cosine, not ip" in err


def test_export_that_cannot_work_is_refused_with_the_reason(run, database, fill, tmp_path):
    fill("one", rows=40)
    fill("coded", "coded", 40)
    database.execute("CREATE TABLE other (id int PRIMARY KEY, metadata jsonb)")
    database.execute("CREATE TABLE keyless (id text, metadata jsonb)")
    run("index", "export", "one", "--to", "pgvector", "--table", "taken")
    database.execute("COMMENT ON COLUMN taken.reduced IS 'vectors of mine'")
    command = ("index", "export", "one", "--to", "pgvector", "--table")
    for arguments, message in (
        ((*command, "other"), "exists without the columns of an export, id text PRIMARY KEY and metadata jsonb"),
        ((*command, "keyless"), "exists without the columns of an export"),
        ((*command, "taken"), "holds vectors of another space (vectors of mine; these are of vectors in the space"),
        ((*command, "taken", "--column-type", "halfvec"), "is of type vector(8), and these vectors take halfvec(8)"),
        (("index", "export", "coded", "--to", "pgvector"), "ends in a quantizer (codes), whose codes pgvector cannot"),
        (("index", "export", "missing", "--to", "pgvector"), "missing"),
        (("index", "export", "one"), "give either --out FILE or --to pgvector"),
        (("index", "export", "one", "--to", "pgvector", "--out", tmp_path / "x.jsonl"), "give either --out FILE"),
    ):
        status, out, err = run(*arguments)
        assert (status, out) == (1, "")
        assert message in err
    assert not Path(tmp_path / "x.jsonl").exists()


@pytest.mark.release
def test_export_reads_an_index_in_milvus(run, database, milvus, home, chain, vectors_of_index_export, tmp_path):
    np.save(tmp_path / "rows.npy", vectors_of_index_export[:40])
    command = ("index", "import", "--name", "far", "--source", tmp_path / "rows.npy", "--chain", "small")
    run(*command, LATHE_INDEX_URL=milvus.url)
    status, _, err = run("index", "export", "far", "--to", "pgvector", LATHE_INDEX_URL=milvus.url)
    assert status == 0, err
    rows = read(database, "far", "reduced")
    assert (
        np.abs(parse(rows[str(n)][0] for n in range(40)) - chain.transform(vectors_of_index_export[:40])).max() < 1e-6
    )
