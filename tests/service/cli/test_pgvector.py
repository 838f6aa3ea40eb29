"""`lathe pgvector` on a real PostgreSQL: what it writes is what the chain gives, whatever happens meanwhile."""

import os

import numpy as np
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from lathe.service.chains.registry import Registry
from lathe.service.chains.usage import read_recorded_uses
from lathe.training.deciding.places.databases import PLACES, write_commands
from lathe.training.deciding.requests import AdviceRequest
from lathe.transforms import Chain, parse_steps

WIDTH, ROWS = 32, 1100
STEPS = {
    "small": "r2,pca:8",
    "nested": "geopres:16,nested=true,steps=5",
    "bits": "r2,pca:16,binary",
    "bytes": "codes:8",
}


@pytest.fixture(scope="module")
def vectors():
    """Draw vectors `(ROWS, WIDTH)` that share a direction and vary more in some directions than in others."""
    rng = np.random.default_rng(0)
    return (rng.normal(size=(ROWS, WIDTH)) * np.linspace(2, 0.2, WIDTH) + 0.5).astype(np.float32)


@pytest.fixture(scope="module")
def chains(home, vectors):
    """Publish the chains of `STEPS` and return them by name."""
    fitted = {name: Chain(parse_steps(steps)).fit(vectors[:600]) for name, steps in STEPS.items()}
    for name, chain in fitted.items():
        Registry(home / "chains").publish(chain, name, True)
    return fitted


@pytest.fixture
def fill(database, vectors):
    """Return a function that creates a table of full vectors. Row n, from 1, holds vector n - 1, NULL or zeros."""

    def create(key="id bigint PRIMARY KEY", table="items", column=f"vector({WIDTH})", null=(), zero=()):
        database.execute(f"CREATE TABLE {table} ({key}, title text, embedding {column})")
        with database.cursor() as cursor, cursor.copy(f"COPY {table} (id, embedding) FROM STDIN") as copy:
            for number, row in enumerate(vectors, 1):
                row = np.zeros_like(row) if number in zero else row
                copy.write_row((number, None if number in null else str(row.tolist())))

    return create


def read(database, column="reduced", table="items"):
    """Return a column of vectors or bits, by the row's key."""
    rows = database.execute(f"SELECT id, {column}::text FROM {table} WHERE {column} IS NOT NULL").fetchall()
    return {int(key): np.array([float(c) for c in text.strip("[]").split(",")] if "," in text else [*map(int, text)])
            for key, text in rows}  # fmt: skip


def stack(found, numbers):
    """Return vectors read from a table as a matrix, in the order of the numbers of their rows."""
    return np.array([found[number] for number in numbers])


@pytest.mark.parametrize(
    ("column_type", "source", "tolerance"),
    [("vector", f"vector({WIDTH})", 1e-6), ("halfvec", "vector", 1e-3), ("vector", f"halfvec({WIDTH})", 1e-6)],
)
def test_reduced_column_holds_what_the_chain_gives_for_each_row(
    run, database, fill, chains, vectors, column_type, source, tolerance
):
    fill(column=source)
    status, out, err = run("pgvector", "reduce", "--table", "items", "--chain", "small", "--column-type", column_type)
    assert status == 0, err
    assert "1,100 rows" in out
    found = read(database)
    assert len(found) == ROWS
    given = vectors.astype(np.float16).astype(np.float32) if "half" in source else vectors
    assert np.abs(stack(found, range(1, ROWS + 1)) - chains["small"].transform(given)).max() < tolerance
    database.execute(out.splitlines()[-1])  # the statement that creates the index


def test_statement_for_an_index_is_printed_only_while_there_is_none_and_the_chain_is_not_deleted_without_a_flag(
    run, database, fill, chains, home
):
    fill()
    Registry(home / "chains").publish(chains["small"], "used", True)
    command = ("pgvector", "reduce", "--table", "items", "--chain", "used")
    database.execute(run(*command)[1].splitlines()[-1])
    assert run(*command)[1].splitlines()[-1] == "-- the column reduced has the index items_reduced_idx"
    database.execute("DROP INDEX items_reduced_idx")
    assert run(*command)[1].splitlines()[-1].startswith("CREATE INDEX")
    status, _, err = run("chains", "delete", "used@1")
    assert status != 0
    assert err.count("the column reduced of items in the database") == 1
    assert "--force" in err
    assert run("chains", "delete", "used@1", "--force")[0] == 0


def test_column_of_bits_holds_the_signs_of_the_chains_floats(run, database, fill, chains, vectors):
    fill()
    for chain in ("small", "bits"):
        into = ("--chain", chain, "--column-type", "bit", "--into", chain)
        status, out, err = run("pgvector", "reduce", "--table", "items", *into)
        assert status == 0, err
        assert (stack(read(database, chain), range(1, ROWS + 1)) == (chains[chain].floats(vectors) > 0)).all()
        database.execute(out.splitlines()[-1])


def test_rows_without_a_vector_or_with_a_zero_vector_are_counted_and_get_none(run, database, fill, chains):
    fill(null=(3, 1050), zero=(1024, 1025, 1026))
    status, out, err = run("pgvector", "reduce", "--table", "items", "--chain", "small")
    assert status == 0, err
    assert "1,095 rows; 2 rows without a vector left out; 3 rows with a zero vector left out" in out
    assert set(range(1, ROWS + 1)) - set(read(database)) == {3, 1050, 1024, 1025, 1026}


def test_interrupted_reduction_is_completed_by_the_same_command_and_so_are_rows_that_are_added(
    run, database, fill, chains, vectors
):
    """A trigger fails as a full disk does, at the second batch."""
    fill()
    database.execute(
        "CREATE FUNCTION fill_disk() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$"
    )
    database.execute(
        "CREATE TRIGGER full_disk BEFORE UPDATE ON items FOR EACH ROW WHEN (new.id = 1060) EXECUTE FUNCTION fill_disk()"
    )
    command = ("pgvector", "reduce", "--table", "items", "--chain", "small")
    status, _, err = run(*command)
    assert status == 1
    assert "the disk of the database is full" in err
    assert set(read(database)) == set(range(1, 1025))
    database.execute("DROP TRIGGER full_disk ON items")
    written_before = database.execute("SELECT id, xmin::text FROM items WHERE id <= 1024").fetchall()
    assert "76 rows" in run(*command)[1]
    assert sorted(database.execute("SELECT id, xmin::text FROM items WHERE id <= 1024")) == sorted(written_before)
    assert np.abs(stack(read(database), range(1, ROWS + 1)) - chains["small"].transform(vectors)).max() < 1e-6
    assert "0 rows" in run(*command)[1]

    # Rows that are added or set to NULL are reduced by the next run.
    database.execute("INSERT INTO items (id, embedding) VALUES (9000, %s)", (str(vectors[4].tolist()),))
    database.execute("UPDATE items SET reduced = NULL, embedding = %s WHERE id = 7", (str(vectors[5].tolist()),))
    assert "2 rows" in run(*command)[1]
    found = read(database)
    expected = chains["small"].transform(vectors[4:6])
    assert np.abs(stack(found, [9000, 7]) - expected).max() < 1e-6


def test_rows_are_found_again_by_keys_of_any_type_and_number(run, database, fill, chains, vectors):
    for table, key in {
        "texts": "id text PRIMARY KEY",
        "numbers": "id numeric PRIMARY KEY",
        "parts": 'id int, part text DEFAULT $$it\'s "one"$$, PRIMARY KEY (part, id)',
        "collated": 'id varchar(9) COLLATE "C" PRIMARY KEY',
    }.items():
        fill(key, table)
        assert run("pgvector", "reduce", "--table", table, "--chain", "small")[0] == 0, table
        found = stack(read(database, table=table), range(1, ROWS + 1))
        assert np.abs(found - chains["small"].transform(vectors)).max() < 1e-6, table


def test_names_that_need_quotes_and_types_of_an_extension_outside_the_search_path_are_found(
    run, database, fill, chains
):
    database.execute('CREATE SCHEMA extensions; CREATE SCHEMA "My Schema"')
    fill(table='"My Schema"."Order; DROP TABLE x"')
    database.execute("ALTER EXTENSION vector SET SCHEMA extensions")
    database.execute('ALTER TABLE "My Schema"."Order; DROP TABLE x" RENAME embedding TO "full ""vector"""')
    status, out, err = run(
        "pgvector", "reduce", "--table", "My Schema.Order; DROP TABLE x", "--column", 'full "vector"',
        "--into", 'sm"all', "--chain", "small",
    )  # fmt: skip
    assert status == 0, err
    database.execute("SET search_path = public, extensions")
    database.execute(out.splitlines()[-1])
    assert len(read(database, '"sm""all"', '"My Schema"."Order; DROP TABLE x"')) == ROWS


def test_names_with_a_percent_sign_or_of_a_temporary_table_are_names_like_others(run, database, fill, chains):
    for table, into in (('"50%s"', "%(r)s"), ("lathe_reduced", "reduced")):
        fill(table=table)
        status, out, err = run("pgvector", "reduce", "--table", table.strip('"'), "--chain", "small", "--into", into)
        assert status == 0 and "1,100 rows" in out, err
        assert len(read(database, f'"{into}"', table)) == ROWS
    for option in (("--table", "x" * 64), ("--table", "lathe_reduced", "--into", "é" * 32)):
        status, _, err = run("pgvector", "reduce", *option, "--chain", "small")
        assert status == 1 and "at most 63 bytes" in err


def test_keys_that_differ_in_their_last_bit_are_told_apart_whatever_the_role_prints(
    run, database, fill, chains, vectors
):
    fill(key="id float8 PRIMARY KEY")
    database.execute("UPDATE items SET id = 1 + id * 2.220446049250313e-16")
    database.execute(f"ALTER DATABASE {database.info.dbname} SET extra_float_digits = 0")
    status, out, err = run("pgvector", "reduce", "--table", "items", "--chain", "small")
    assert status == 0 and "1,100 rows" in out, err
    assert database.execute("SELECT count(*) FROM items WHERE reduced IS NOT NULL").fetchone() == (ROWS,)


@pytest.mark.parametrize("body", ["RETURN NULL", "NEW.reduced := NULL; RETURN NEW"])
def test_rows_that_a_trigger_keeps_out_are_an_error(run, database, fill, chains, body):
    fill()
    database.execute(f"CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {body}; END'")
    database.execute("ALTER TABLE items ADD COLUMN other int")
    database.execute("CREATE TRIGGER spoil BEFORE UPDATE ON items FOR EACH ROW EXECUTE FUNCTION spoil()")
    status, _, err = run("pgvector", "reduce", "--table", "items", "--chain", "small")
    assert status == 1 and "PostgreSQL wrote 0 of 1,024 vectors of items: a trigger or a policy" in err


def test_a_table_that_another_session_holds_is_said_to_be_held(run, database, postgres, fill, chains):
    fill()
    database.execute(f"ALTER DATABASE {database.info.dbname} SET lock_timeout = '300ms'")
    with psycopg.connect(make_conninfo(postgres, dbname=database.info.dbname)) as other:
        other.execute("ALTER TABLE items ADD COLUMN reduced vector(8)")
        status, _, err = run("pgvector", "reduce", "--table", "items", "--chain", "small")
    assert status == 1 and "another session holds the table" in err and "the same command continues" in err


@pytest.mark.parametrize(
    ("candidate", "metric", "multiple"),
    [
        *(pytest.param(one, "cosine", 4, id=one.words) for one in [*PLACES["pgvector"].list_candidates(WIDTH)][1:]),
        pytest.param([*PLACES["pgvector"].list_candidates(WIDTH)][1], "ip", 1, id="inner product"),
        pytest.param([*PLACES["pgvector"].list_candidates(WIDTH)][3], "l2", 1, id="reduced, Euclidean distance"),
    ],
)
def test_what_advice_prints_for_pgvector_runs_on_a_table_with_an_index_and_takes_the_bytes_it_says(
    run, database, fill, chains, candidate, metric, multiple, tmp_path, monkeypatch
):
    """Every production table has an index over its vectors, with which their type cannot be changed."""
    monkeypatch.chdir(tmp_path)
    fill()
    database.execute("CREATE INDEX full_index ON items USING hnsw (embedding vector_cosine_ops)")
    lines = write_commands(
        AdviceRequest(source="vectors.npy", place="pgvector", metric=metric), candidate, multiple, WIDTH
    )
    for line in lines:
        if line.startswith("lathe "):
            status, _, err = run(*line.split()[1:])
            assert status == 0, err
        elif line.startswith("SELECT"):
            database.execute("DROP INDEX full_index")
            database.execute("SET enable_seqscan = off")
            found = [row[0] for row in database.execute(line).fetchall()]
            own = "SELECT id FROM items WHERE embedding = (SELECT embedding FROM items LIMIT 1)"
            (stored,) = database.execute(own).fetchone()
            assert len(found) == 10 and (metric == "ip" or found[0] == stored)
            assert "Index Scan" in "".join(row[0] for row in database.execute(f"EXPLAIN {line}").fetchall())
        elif not line.startswith("--"):
            database.execute(line.partition("  --")[0])
    assert lines[-2].startswith("SELECT")
    cost = PLACES["pgvector"].measure(candidate, ROWS)
    (index,) = database.execute(
        "SELECT pg_relation_size(indexrelid) FROM pg_index WHERE indrelid = 'items'::regclass AND NOT indisprimary"
    ).fetchone()
    assert index == pytest.approx(cost["graph"], rel=0.1, abs=20_000)
    table = database.execute("SELECT pg_table_size('items')").fetchone()[0]
    rest = 60  # bytes of a row besides its vectors
    assert table < 1.2 * (cost["data"] + cost["beside"] + rest * ROWS)


def test_sample_writes_vectors_of_distinct_rows_that_a_fit_reads(run, fill, chains, vectors, tmp_path):
    fill(null=(5,))
    status, out, err = run("pgvector", "sample", "--table", "items", "--out", tmp_path / "rows.npy", "--rows", 800)
    assert status == 0, err
    assert "800 × 32 of items.embedding" in out
    rows = np.load(tmp_path / "rows.npy")
    known = {row.tobytes() for row in vectors}
    assert rows.shape == (800, WIDTH)
    assert len({row.tobytes() for row in rows} & known) == 800
    run("pgvector", "sample", "--table", "items", "--out", tmp_path / "all.npy", "--rows", 5000)
    assert len(np.load(tmp_path / "all.npy")) == ROWS - 1


def test_sample_of_a_partitioned_table_has_the_rows_asked_for_and_no_missing_vectors(run, database, vectors, tmp_path):
    """Rows of different partitions have the same addresses, and those of the first one have no vectors."""
    database.execute(f"CREATE TABLE items (id int PRIMARY KEY, embedding vector({WIDTH})) PARTITION BY RANGE (id)")
    for part, start in enumerate((0, 100, 200)):
        database.execute(f"CREATE TABLE p{part} PARTITION OF items FOR VALUES FROM ({start}) TO ({start + 100})")
    for number, row in enumerate(vectors[:300]):
        database.execute("INSERT INTO items VALUES (%s, %s)", (number, None if number < 100 else str(row.tolist())))
    status, _, err = run("pgvector", "sample", "--table", "items", "--out", tmp_path / "rows.npy", "--rows", 50)
    assert status == 0, err
    known = {row.tobytes() for row in vectors[100:300]}
    assert len({row.tobytes() for row in np.load(tmp_path / "rows.npy")} & known) == 50


def test_reduction_that_cannot_work_is_refused_with_the_reason(run, database, fill, chains, vectors):
    fill()
    database.execute(f"CREATE TABLE keyless (embedding vector({WIDTH}))")
    database.execute("CREATE TABLE empty (id int PRIMARY KEY, embedding vector)")
    items = ("--table", "items")
    for arguments, message in [
        (("--table", "Items"), "no table Items; upper and lower case differ"),
        (("--table", ".items"), "--table takes TABLE or SCHEMA.TABLE, got '.items'"),
        ((*items, "--column", "vector"), "no column vector; it has id, title, embedding"),
        ((*items, "--column", "title"), "is of type text; it must be vector or halfvec"),
        ((*items, "--into", "title"), "is of type text, and these vectors take vector(8)"),
        ((*items, "--chain", "compact"), "takes vectors of 384 dimensions, not 32"),
        ((*items, "--chain", "nothing"), "no chain"),
        ((*items, "--chain", "bytes"), "ends in a quantizer (codes), whose codes pgvector cannot compare"),
        ((*items, "--chain", "bits"), "--column-type bit can"),
        (("--table", "keyless"), "the table keyless has no primary key"),
        (("--table", "empty"), "no row of empty has a vector in embedding"),
    ]:
        status, out, err = run("pgvector", "reduce", "--chain", "small", *arguments)
        assert (status, out) == (1, ""), arguments
        assert message in err


def test_vectors_that_a_chain_refuses_are_named_by_their_keys_and_the_others_are_reduced(
    run, database, chains, vectors
):
    database.execute("CREATE TABLE mixed (id int PRIMARY KEY, embedding vector)")
    for number, row in enumerate([vectors[0], np.ones(3), vectors[1], np.full(WIDTH, 3e38)]):
        database.execute("INSERT INTO mixed VALUES (%s, %s)", (number, str(row.tolist())))
    command = ("pgvector", "reduce", "--chain", "small", "--table", "mixed")
    status, out, err = run(*command)
    assert status == 1 and "2 rows; 2 rows that are refused left out" in out
    assert "the row 1: a vector of 3 dimensions, not 32" in err and "the row 3: a vector is too large" in err
    database.execute("DELETE FROM mixed WHERE id = 1")
    assert run(*command, "--skip")[0] == 0
    assert np.abs(stack(read(database, table="mixed"), (0, 2)) - chains["small"].transform(vectors[:2])).max() < 1e-6


def test_a_full_vector_that_changes_is_reduced_again_by_the_next_run(run, database, fill, chains, vectors):
    fill()
    command = ("pgvector", "reduce", "--table", "items", "--chain", "small")
    assert run(*command)[0] == 0
    database.execute("UPDATE items SET embedding = %s WHERE id = 7", (str(vectors[5].tolist()),))
    database.execute("UPDATE items SET embedding = NULL WHERE id = 8")
    status, out, err = run(*command)
    assert status == 0 and "1 rows; 1 rows without a vector left out" in out, err
    found = read(database)
    assert 8 not in found and np.abs(found[7] - chains["small"].transform(vectors[5:6])[0]).max() < 1e-6


def test_column_of_another_space_is_refused(run, home, database, fill, chains):
    fill()
    run("pgvector", "reduce", "--table", "items", "--chain", "small")
    database.execute("ALTER TABLE items ADD COLUMN mine vector(8)")
    database.execute("UPDATE items SET mine = reduced WHERE id = 1")
    for column, chain, why in (("reduced", "nested", "chain small@1"), ("mine", "small", "its comment names none")):
        status, _, err = run(
            "pgvector", "reduce", "--table", "items", "--chain", chain, "--into", column, "--dimensions", 8
        )
        assert status == 1
        assert "holds vectors of another space" in err
        assert why in err
    assert len(read(database, "mine")) == 1
    recorded = str(read_recorded_uses(home / "uses.json"))
    assert "the column reduced of items" in recorded
    assert "the column mine of items" not in recorded  # a column that was refused does not use the chain


def test_database_without_pgvector_read_only_or_without_rights_is_refused(run, database, fill, chains, monkeypatch):
    fill()
    command = ("pgvector", "reduce", "--table", "items", "--chain", "small")
    url = os.environ["LATHE_POSTGRES_URL"]
    database.execute("CREATE ROLE reader LOGIN")
    database.execute("GRANT SELECT ON items TO reader")
    try:
        assert (
            "PostgreSQL refuses: must be owner"
            in run(*command, LATHE_POSTGRES_URL=make_conninfo(url, user="reader"))[2]
        )
    finally:
        database.execute("DROP OWNED BY reader")
        database.execute("DROP ROLE reader")
    read_only = make_conninfo(url, options="-c default_transaction_read_only=on")
    assert "the database is read-only" in run(*command, LATHE_POSTGRES_URL=read_only)[2]
    database.execute("DROP TABLE items")
    database.execute("DROP EXTENSION vector")
    status, _, err = run(*command, LATHE_POSTGRES_URL=url)
    assert status == 1
    assert "CREATE EXTENSION vector" in err


def test_no_message_about_a_connection_quotes_the_password(run):
    for url, variables in [
        ("postgresql://someone:hunter2%zz@localhost/db", {}),
        ("postgresql://someone:hunter2@127.0.0.1:1/hunter2", {}),
        ("host=127.0.0.1 port=1 user=hunter2", {"PGPASSWORD": "hunter2"}),
        ("postgresql://someone:hunter2@[bad/db", {}),
    ]:
        command = ("pgvector", "reduce", "--table", "t", "--chain", "c")
        status, out, err = run(*command, LATHE_POSTGRES_URL=url, **variables)
        assert status == 1
        assert "hunter2" not in out + err
        assert "cannot be parsed" in err or "cannot be reached" in err
