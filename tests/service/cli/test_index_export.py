"""`lathe index export --to pgvector` on a real PostgreSQL: the table has what the index has, whatever was there."""

import json
from pathlib import Path

import numpy as np
import pytest

from lathe.service.chains.registry import Registry
from lathe.transforms import Chain, parse_steps

WIDTH, ROWS = 32, 1100


@pytest.fixture(scope="module")
def vectors():
    """Draw vectors `(ROWS, WIDTH)` that share a direction."""
    return (np.random.default_rng(0).normal(size=(ROWS, WIDTH)) + 0.5).astype(np.float32)


@pytest.fixture(scope="module")
def chain(home, vectors):
    """Publish a chain of 8 dimensions as `small`, and one that ends in codes as `coded`."""
    Registry(home / "chains").publish(Chain(parse_steps("codes:8")).fit(vectors), "coded", True)
    made = Chain(parse_steps("r2,pca:8")).fit(vectors)
    Registry(home / "chains").publish(made, "small", True)
    return made


@pytest.fixture
def fill(run, home, chain, vectors, tmp_path):
    """Return a function that imports rows with metadata into an index."""

    def create(name, chain="small", rows=ROWS, *more):
        file = tmp_path / "rows.jsonl"
        lines = [
            {"id": f"doc {n}", "embedding": vectors[n].tolist()}
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


def test_exported_table_has_ids_metadata_original_and_reduced_vectors(run, database, fill, chain, vectors):
    fill("all")
    status, out, err = run("index", "export", "all", "--to", "pgvector")
    assert status == 0, err
    assert "all: 1,100 items, 1,100 of them new or changed" in out
    rows = read(database, '"all"', "embedding", "reduced", "metadata")
    order = [f"doc {n}" for n in range(ROWS)]
    assert (parse(rows[item][0] for item in order) == vectors).all()  # the digits tell each float32 exactly
    assert np.abs(parse(rows[item][1] for item in order) - chain.transform(vectors)).max() < 1e-6
    assert rows["doc 3"][2] is None
    assert json.loads(rows["doc 4"][2]) == {"title": 'Ünit\'s "4"', "n": 4}
    database.execute(out.splitlines()[-1])


def test_second_export_writes_what_differs_alone_and_leaves_other_rows(run, database, fill):
    fill("twice", rows=40)
    command = ("index", "export", "twice", "--to", "pgvector", "--table", "target")
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


def test_items_with_a_nul_are_named_and_left_out_on_request(run, database, home, vectors, tmp_path):
    file = tmp_path / "odd.jsonl"
    texts = ["plain", "a \0 NUL", "the characters \\u0000", "a backslash and a NUL \\\0"]
    file.write_text(
        "\n".join(
            json.dumps({"id": f"t{n}", "text": text, "embedding": vectors[n].tolist()}) for n, text in enumerate(texts)
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


def test_interrupted_export_is_completed_by_the_same_command(run, database, fill):
    fill("broken")
    command = ("index", "export", "broken", "--to", "pgvector")
    run(*command)
    database.execute("TRUNCATE broken")
    database.execute("ALTER TABLE broken ADD CONSTRAINT stop CHECK (id <> 'doc 1060')")
    status, _, err = run(*command)
    assert status == 1
    assert 'violates check constraint "stop"' in err
    assert database.execute("SELECT count(*) FROM broken").fetchone() == (1024,)
    database.execute("ALTER TABLE broken DROP CONSTRAINT stop")
    assert "1,100 items, 76 of them new or changed" in run(*command)[1]


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


def test_index_without_a_chain_has_a_reduced_column_of_bits_alone(run, database, fill, vectors):
    fill("raw", "none", 40)
    assert run("index", "export", "raw", "--to", "pgvector", "--table", "floats")[0] == 0
    assert set(read(database, "floats", "embedding")) == {f"doc {n}" for n in range(40)}
    assert run("index", "export", "raw", "--to", "pgvector", "--table", "bits", "--column-type", "bit")[0] == 0
    bits = read(database, "bits", "reduced")
    assert all(bits[f"doc {n}"][0] == "".join("01"[int(x > 0)] for x in vectors[n]) for n in range(40))
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


def test_export_reads_an_index_in_milvus(run, database, milvus, home, chain, vectors, tmp_path):
    np.save(tmp_path / "rows.npy", vectors[:40])
    command = ("index", "import", "--name", "far", "--source", tmp_path / "rows.npy", "--chain", "small")
    run(*command, LATHE_INDEX_URL=milvus.url)
    status, _, err = run("index", "export", "far", "--to", "pgvector", LATHE_INDEX_URL=milvus.url)
    assert status == 0, err
    rows = read(database, "far", "reduced")
    assert np.abs(parse(rows[str(n)][0] for n in range(40)) - chain.transform(vectors[:40])).max() < 1e-6
