"""Moves to another encoder: of a table on a real PostgreSQL, and of an index of the server."""

import json
from types import SimpleNamespace

import httpx2
import lathe_client
import numpy as np
import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from qdrant_client import QdrantClient, models

from lathe.service.cli.options import load_encoder, load_state
from lathe.service.index.pgvector import connection, filling, move
from lathe.training.sources.readers import extract_paragraphs, read_docstrings
from tests.helpers import eventually
from tests.service.conftest import find_library_files

MINILM = "all-MiniLM-L6-v2"
ROWS = 300
CHOICES = ("stay ", "encode again  ")


@pytest.fixture(scope="module")
def texts():
    """Return `ROWS` distinct paragraphs."""
    files = find_library_files("argparse", "inspect", "doctest", "turtle")
    return list(dict.fromkeys(extract_paragraphs(text for file in files for text in read_docstrings(file))))[:ROWS]


@pytest.fixture
def encode(tiny_model, run):
    """Return a function that encodes texts with the tiny model, as a command does."""
    run("encoders", "list")
    settings, _ = load_state()
    return lambda texts, name=str(tiny_model): load_encoder(settings, name).encode(texts).vectors


@pytest.fixture
def docs(database, texts, encode):
    """Create a table of texts with vectors of the tiny model and an index by inner product; two rows have no text."""
    database.execute("CREATE TABLE docs (id bigserial PRIMARY KEY, body text, embedding vector(16))")
    with database.cursor() as cursor, cursor.copy("COPY docs (body, embedding) FROM STDIN") as copy:
        for text, vector in zip(texts, encode(texts), strict=True):
            copy.write_row((text, str(vector.tolist())))
    database.execute("INSERT INTO docs (body) VALUES (NULL), (E' \\n')")
    database.execute("CREATE INDEX ON docs USING hnsw (embedding vector_ip_ops) WITH (m = 8)")
    return database


MOVE = ("pgvector", "move", "--table", "docs", "--text", "body", "--to", MINILM)
INTO = "embedding_all_MiniLM_L6_v2"


def read_vectors(database, column=INTO):
    """Return texts and vectors of the rows that have one."""
    rows = database.execute(
        f'SELECT body, "{column}"::text FROM docs WHERE "{column}" IS NOT NULL ORDER BY id'
    ).fetchall()
    return [row[0] for row in rows], np.array([json.loads(row[1]) for row in rows], np.float32)


def describe_index(database, column):
    """Return the definition of the index over a column of the table."""
    found = database.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'docs'").fetchall()
    (definition,) = (row[0] for row in found if column in row[0])
    return definition


def require_own_vectors(database, encode, count):
    """Check that so many rows have the vector of their present text."""
    texts, stored = read_vectors(database)
    assert len(texts) == count
    assert np.abs((encode(texts, MINILM) * stored).sum(1) - 1).max() < 1e-3


def test_a_table_gets_a_second_column_with_an_index_like_the_first_and_every_printed_statement_runs(run, docs, encode):
    status, out, err = run(*MOVE)
    assert status == 0, err
    first, *lines = out.splitlines()
    assert f"docs.{INTO}: {ROWS} rows by {MINILM}; 2 rows without a text left out; space " in first
    require_own_vectors(docs, encode, ROWS)
    index = describe_index(docs, INTO)
    assert "hnsw" in index and "vector_ip_ops" in index and "m='8'" in index

    (text, *_), (vector, *_) = read_vectors(docs)
    statements = [line for line in lines if not line.startswith("--")]
    assert len(statements) == 4 and len(lines) == 8
    for statement in statements:
        if statement.startswith("SELECT"):
            query = vector if INTO in statement else encode([text])[0]
            docs.execute(f"PREPARE search AS {statement}")
            found = docs.execute(f"EXECUTE search ('{query.tolist()}')").fetchall()
            assert found[0] == (1,) and len(found) == 10
            docs.execute("DEALLOCATE search")
        else:
            docs.execute(statement)
    docs.execute("UPDATE docs SET body = 'another' WHERE id = 1")
    require_columns = docs.execute("SELECT * FROM docs LIMIT 1").description
    assert [column.name for column in require_columns] == ["id", "body", INTO]


def test_rows_that_are_added_or_change_later_are_encoded_by_the_same_command_and_no_other(run, docs, encode):
    assert run(*MOVE)[0] == 0
    versions = dict(docs.execute("SELECT id, xmin::text FROM docs"))
    docs.execute("INSERT INTO docs (body) VALUES ('a new row')")
    docs.execute("UPDATE docs SET body = 'a new text' WHERE id = 5")
    docs.execute("UPDATE docs SET body = body, embedding = embedding WHERE id = 6")
    own = str(encode(["its own vector"], MINILM)[0].tolist())
    docs.execute(f"UPDATE docs SET body = 'its own vector', \"{INTO}\" = %s WHERE id = 7", (own,))
    status, out, err = run(*MOVE)
    assert status == 0 and "3 rows by" in out, err  # row 7 has the digest of its text before
    require_own_vectors(docs, encode, ROWS + 1)
    changed = {row for row, version in docs.execute("SELECT id, xmin::text FROM docs") if versions.get(row) != version}
    assert changed == {5, 6, 7, ROWS + 3}


def test_a_move_that_is_interrupted_continues_and_drops_an_index_that_is_not_whole(run, docs, encode):
    docs.execute(
        "CREATE FUNCTION fill_disk() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$"
    )
    docs.execute(
        "CREATE TRIGGER full_disk BEFORE UPDATE ON docs FOR EACH ROW WHEN (new.id = 260) EXECUTE FUNCTION fill_disk()"
    )
    status, _, err = run(*MOVE)
    assert status == 1 and "the same command continues" in err
    assert len(read_vectors(docs)[0]) == move.ENCODE_ROWS
    docs.execute("DROP TRIGGER full_disk ON docs")
    docs.execute(f'CREATE INDEX half ON docs USING hnsw ("{INTO}" vector_ip_ops)')
    docs.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'half'::regclass")
    status, out, err = run(*MOVE)
    assert status == 0 and f"{ROWS - move.ENCODE_ROWS} rows by" in out, err
    require_own_vectors(docs, encode, ROWS)
    indexes = docs.execute("SELECT indisvalid FROM pg_index WHERE indrelid = 'docs'::regclass").fetchall()
    assert indexes == [(True,)] * 3


def test_a_row_that_changes_while_it_is_encoded_gets_the_vector_of_its_new_text(
    run, docs, encode, postgres, monkeypatch
):
    """The application writes and deletes after the batch was read, and before its vectors are written."""
    normalize, writes = (
        move.normalized_rows,
        ["UPDATE docs SET body = 'later' WHERE id = 3", "DELETE FROM docs WHERE id = 4"],
    )

    def write_meanwhile(vectors, dtype):
        with psycopg.connect(docs.info.dsn, autocommit=True) as other:
            while writes:
                other.execute(writes.pop())
        return normalize(vectors, dtype)

    monkeypatch.setattr(move, "normalized_rows", write_meanwhile)
    status, out, err = run(*MOVE)
    assert status == 0 and f"{ROWS - 1} rows by" in out, err
    require_own_vectors(docs, encode, ROWS - 1)
    assert "later" in read_vectors(docs)[0]


def add_trigger(docs, name, body, columns=""):
    """Add a trigger of the application to the table, which fires before each update of a row."""
    docs.execute(
        f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; RETURN NEW; END $$"
    )
    docs.execute(f'CREATE TRIGGER "~~{name}" BEFORE UPDATE {columns} ON docs FOR EACH ROW EXECUTE FUNCTION {name}()')


def test_a_text_that_a_later_trigger_writes_is_encoded_by_the_next_run(run, docs, encode):
    """Its name stands behind that of any other trigger, so that none sees what it writes."""
    docs.execute("ALTER TABLE docs ADD COLUMN title text")
    add_trigger(docs, "compose", "NEW.body := NEW.title", "OF title")
    assert run(*MOVE)[0] == 0
    docs.execute("UPDATE docs SET title = 'written by a trigger' WHERE id = 5")
    docs.execute("UPDATE docs SET title = NULL WHERE id = 6")
    status, out, err = run(*MOVE)
    assert status == 0 and "1 rows by" in out and "3 rows without a text left out" in out, err
    require_own_vectors(docs, encode, ROWS - 1)
    assert "written by a trigger" in read_vectors(docs)[0]


def test_texts_that_change_whenever_a_vector_is_written_are_an_error_and_others_settle(run, docs, encode):
    add_trigger(docs, "settle", "NEW.body := btrim(NEW.body) || '.'; NEW.body := rtrim(NEW.body, '.') || '.'")
    status, out, err = run(*MOVE)
    assert status == 0 and "(settle) of docs" in err, err
    require_own_vectors(docs, encode, ROWS)
    add_trigger(docs, "z_grow", "NEW.body := NEW.body || 'x'")
    docs.execute("UPDATE docs SET body = 'another' WHERE id = 3")
    status, _, err = run(*MOVE)
    assert status == 1 and "a trigger of docs changes the value of a row whenever its vector is written" in err
    status, out, err = run(*MOVE, "--disable-triggers")
    assert status == 0 and "can fire" not in err
    require_own_vectors(docs, encode, ROWS)


def test_triggers_that_fire_for_each_row_are_named_before_and_left_out_if_the_role_may(
    run, docs, postgres, monkeypatch
):
    docs.execute("ALTER TABLE docs ADD COLUMN updated_at int DEFAULT 0")
    add_trigger(docs, "touch", "NEW.updated_at := OLD.updated_at + 1")
    add_trigger(docs, "of_another", "RETURN NULL", "OF body")
    status, _, err = run(*MOVE, "--disable-triggers")
    assert status == 0 and "warning" not in err
    assert docs.execute("SELECT sum(updated_at) FROM docs").fetchone() == (0,)
    status, _, err = run(*MOVE, "--into", "second")
    assert status == 0
    assert 'warning: each row that is written can fire "~~touch" (touch) of docs; --disable-triggers' in err
    assert docs.execute("SELECT sum(updated_at) FROM docs").fetchone() == (ROWS,)
    docs.execute("CREATE ROLE writer LOGIN; GRANT ALL ON docs TO writer; GRANT ALL ON SCHEMA public TO writer")
    docs.execute("ALTER TABLE docs OWNER TO writer")
    try:
        url = make_conninfo(postgres, dbname=docs.info.dbname, user="writer")
        status, _, err = run(*MOVE, "--into", "third", "--disable-triggers", LATHE_POSTGRES_URL=url)
        assert status == 1 and "--disable-triggers takes a role that may set session_replication_role" in err
    finally:
        docs.execute("REASSIGN OWNED BY writer TO CURRENT_USER; DROP OWNED BY writer; DROP ROLE writer")
    assert "third" not in [column.name for column in docs.execute("SELECT * FROM docs").description]


def test_an_update_goes_on_in_a_table_whose_json_holds_a_nul(run, docs, encode):
    docs.execute("ALTER TABLE docs ADD COLUMN more json")
    docs.execute("UPDATE docs SET more = '[\"\\u0000\"]'")
    assert run(*MOVE)[0] == 0
    docs.execute("UPDATE docs SET body = 'another text' WHERE id = 3")
    assert docs.execute(f'SELECT "{INTO}" IS NULL FROM docs WHERE id = 3').fetchone() == (True,)


def test_a_partitioned_table_is_moved_with_an_index_over_all_partitions(run, docs, encode):
    docs.execute("CREATE TABLE parts (id bigint PRIMARY KEY, body text, embedding vector(16)) PARTITION BY RANGE (id)")
    for part, start in enumerate((0, 100, 200)):
        docs.execute(f"CREATE TABLE p{part} PARTITION OF parts FOR VALUES FROM ({start}) TO ({start + 100})")
    docs.execute("INSERT INTO parts SELECT * FROM docs WHERE id < 300")
    docs.execute("ALTER TABLE docs RENAME TO whole; ALTER TABLE parts RENAME TO docs")
    for _ in range(2):
        status, _, err = run(*MOVE)
        assert status == 0, err
    require_own_vectors(docs, encode, 299)
    found = docs.execute("SELECT count(*), bool_and(indisvalid) FROM pg_index JOIN pg_class ON oid = indexrelid "
                         "WHERE relname LIKE %s", ("%embedding_all%",)).fetchone()  # fmt: skip
    assert found == (4, True)
    docs.execute("UPDATE docs SET body = 'another text', id = 250 + 1000 * (id - 250) WHERE id = 250")
    assert "1 rows by" in run(*MOVE)[1]


def test_triggers_of_tables_and_columns_with_similar_names_are_apart(run, docs):
    docs.execute("CREATE TABLE docs_a AS SELECT * FROM docs LIMIT 3; ALTER TABLE docs_a ADD PRIMARY KEY (id)")
    first = run(*MOVE, "--into", "a_b")
    second = run("pgvector", "move", "--table", "docs_a", "--text", "body", "--to", MINILM, "--into", "b")
    assert first[0] == second[0] == 0
    for line in first[1].splitlines():
        if line.startswith("DROP FUNCTION"):
            docs.execute(line)
            break
    docs.execute("UPDATE docs_a SET body = 'another text' WHERE id = 1")
    assert docs.execute("SELECT b IS NULL FROM docs_a WHERE id = 1").fetchone() == (True,)


def test_a_database_in_sql_ascii_is_moved(run, docs, postgres, encode):
    name = docs.info.dbname + "_ascii"
    with psycopg.connect(postgres, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name} ENCODING SQL_ASCII LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
        url = make_conninfo(postgres, dbname=name, client_encoding="utf8")
        with psycopg.connect(url, autocommit=True) as database:
            database.execute("CREATE EXTENSION vector")
            database.execute("CREATE TABLE docs (id text PRIMARY KEY, body text, embedding vector(16))")
            database.execute("INSERT INTO docs (id, body) VALUES ('é', 'Zürich'), ('b', 'Köln')")
            status, _, err = run(*MOVE, LATHE_POSTGRES_URL=make_conninfo(postgres, dbname=name))
            assert status == 0, err
            require_own_vectors(database, encode, 2)
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("code", ["40P01", "40001", "55P03"])
def test_a_batch_that_meets_another_session_is_tried_again_up_to_a_bound(run, docs, encode, monkeypatch, code):
    monkeypatch.setattr(connection, "FIRST_PAUSE", 0.01)
    docs.execute("CREATE SEQUENCE tries")
    add_trigger(docs, "conflict", f"IF NEW.id = 290 AND nextval('tries') < 4 THEN RAISE EXCEPTION 'in the way' USING "
                f"ERRCODE = '{code}'; END IF")  # fmt: skip
    status, _, err = run(*MOVE)
    assert status == 0, err
    require_own_vectors(docs, encode, ROWS)
    docs.execute("ALTER SEQUENCE tries RESTART MINVALUE -1000 START -1000")
    docs.execute("UPDATE docs SET body = 'another text' WHERE id = 289")
    add_trigger(docs, "conflict2", f"RAISE EXCEPTION 'in the way' USING ERRCODE = '{code}'")
    status, _, err = run(*MOVE)
    assert status == 1 and "PostgreSQL ended a statement (in the way)" in err and "the same command continues" in err


def test_large_texts_are_read_a_few_at_a_time(run, docs, encode, monkeypatch):
    batches, read = [], filling.ColumnFilling._read_batch
    limit = 20_000

    def note(self, *arguments):
        batches.append([row.value for row in read(self, *arguments)])
        return read(self, *arguments)

    monkeypatch.setattr(filling.ColumnFilling, "_read_batch", note)
    monkeypatch.setattr(filling, "MAX_BATCH_BYTES", limit)
    docs.execute("UPDATE docs SET body = repeat('large ', 5000) || id WHERE id % 100 = 0")
    assert run(*MOVE)[0] == 0
    require_own_vectors(docs, encode, ROWS)
    sizes = [len(batch) for batch in batches if batch and sum(len(text.encode()) for text in batch) > limit]
    assert sizes == [1, 1, 1] and max(map(len, batches)) > 5


def test_texts_that_the_encoder_refuses_are_named_by_their_keys_and_the_others_get_vectors(run, docs, monkeypatch):
    encoders = [{"name": "strict", "model": "sentence-transformers/all-MiniLM-L6-v2", "long_text": "error"}]
    monkeypatch.setenv("LATHE_ENCODERS", json.dumps(encoders))
    command = (*MOVE[:-1], "strict", "--into", "new")
    docs.execute("UPDATE docs SET body = 'short ' || id")
    status, _, err = run(*command)
    assert status == 0, err
    docs.execute("UPDATE docs SET body = 'changed ' || id")
    docs.execute("UPDATE docs SET body = repeat('word ', 3000) WHERE id IN (7, 90)")
    docs.execute("UPDATE docs SET new = (SELECT new FROM docs WHERE id = 8) WHERE id = 7")  # a stale one
    status, out, err = run(*command)
    assert status == 1 and f"docs.new: {ROWS} rows by strict; 2 rows that are refused left out" in out
    assert [line.partition(", more than")[0] for line in err.splitlines() if line.startswith("the row")] == [
        "the row 7 is 15000 characters long",
        "the row 90 is 15000 characters long",
    ]
    assert {7, 90} == {row for (row,) in docs.execute("SELECT id FROM docs WHERE new IS NULL")}
    status, out, err = run(*command, "--skip")
    assert status == 0 and "docs.new: 0 rows by strict; 2 rows that are refused left out" in out and "the row 7" in err


def test_the_old_column_is_completed_on_the_way_back_and_one_of_another_encoder_is_refused(
    run, docs, encode, tiny_model
):
    docs.execute("INSERT INTO docs (body) VALUES ('written after the switch')")
    assert run(*MOVE)[0] == 0
    docs.execute("UPDATE docs SET body = 'changed after the switch' WHERE id = 9")  # a few may be stale
    back = (*MOVE[:-1], tiny_model, "--column", INTO, "--into", "embedding")
    status, out, err = run(*back)
    assert status == 0 and "docs.embedding: 1 rows by" in out, err
    texts, stored = read_vectors(docs, "embedding")
    assert (np.abs((encode(texts) * stored).sum(1) - 1) > 1e-3).sum() <= 1  # the stale one
    for line in out.splitlines():  # as the application stays with the old encoder
        if not line.startswith("--") and "SELECT" not in line and "docs." not in line:
            docs.execute(line)
    assert [column.name for column in docs.execute("SELECT * FROM docs LIMIT 1").description] == [
        "id",
        "body",
        "embedding",
    ]
    docs.execute("ALTER TABLE docs ADD COLUMN other vector(16)")
    docs.execute("UPDATE docs SET other = '[1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6]'")
    status, _, err = run(*MOVE[:-1], tiny_model, "--into", "other")
    assert status == 1 and "holds vectors of another space (its comment names none" in err


def test_a_move_that_cannot_work_is_refused_before_anything_is_written(run, docs, postgres):
    docs.execute("CREATE TABLE keyless (body text, embedding vector(16))")
    docs.execute("ALTER TABLE docs ADD COLUMN generated text GENERATED ALWAYS AS (lower(body)) STORED")
    docs.execute("ALTER TABLE docs ADD COLUMN computed vector(384) GENERATED ALWAYS AS (NULL) STORED")
    for arguments, message in [
        (("--text", "id"), "is of type bigint; it must be text"),
        (("--text", "generated"), "PostgreSQL generates the column generated of docs from others"),
        (("--into", "computed"), "is generated by PostgreSQL, which takes no vectors for it"),
        (("--text", "nothing"), "no column nothing; it has id, body, embedding, generated, computed"),
        (("--column", "body"), "is of type text; it must be vector or halfvec"),
        (("--into", "embedding"), "the present vectors are in embedding too: name another column with --into"),
        (("--into", "body"), "is of type text, and these vectors take vector(384)"),
        (("--table", "keyless"), "no primary key"),
        (("--chain", "nothing"), "no chain"),
        (("--chain", "codes48"), "whose codes pgvector cannot compare"),
    ]:
        status, out, err = run(*MOVE, *arguments)
        assert (status, out) == (1, "") and message in err, (arguments, err)
    with psycopg.connect(make_conninfo(postgres, dbname=docs.info.dbname), autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(hashtextextended(%s, 'docs'::regclass::oid::bigint))", (INTO,))
        move_limit = pytest.MonkeyPatch()
        with move_limit.context() as patch:
            patch.setattr(move, "LOCK_SECONDS", 1)
            status, _, err = run(*MOVE)
    assert status == 1 and "another session holds the table" in err
    assert INTO not in [column.name for column in docs.execute("SELECT * FROM docs").description]


def test_a_halfvec_column_gets_a_halfvec_column_and_the_chain_of_the_new_vectors(run, docs, encode):
    docs.execute("DROP INDEX docs_embedding_idx")
    docs.execute("ALTER TABLE docs ALTER embedding TYPE halfvec(16)")
    status, out, err = run(*MOVE, "--chain", "compact", "--into", "small")
    assert status == 0, err
    written = docs.execute(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attname = 'small'"
    ).fetchone()
    assert written == ("halfvec(128)",)
    assert "halfvec_cosine_ops" in describe_index(docs, "small")


@pytest.fixture
def judged(tmp_path, texts):
    """Write the texts, and their beginnings as judged queries. Return the options that name the files."""
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    pairs = [{"query": " ".join(text.split()[:4]), "document": text} for text in texts[:60]]
    (tmp_path / "judged.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    return "--source", tmp_path / "rows.jsonl", "--pairs", tmp_path / "judged.jsonl"


def test_migrate_applies_a_decision_to_encode_again_and_no_other(run, docs, encode, judged, tiny_model):
    apply = ("--for", "pgvector", "--apply", "docs#body")
    status, out, err = run("migrate", "--from", tiny_model, "--to", MINILM, *judged, *apply)
    assert status == 0, err
    assert out.startswith("Encode again: ") and "-- the switch" in out
    assert "* encode again, as small" in out or "* encode again " in out
    status, out, err = run("migrate", "--from", MINILM, "--to", tiny_model, *judged, *apply)
    assert status == 0 and "Nothing is moved" in err and "-- the switch" not in out
    for arguments, message in [
        (("--for", "qdrant", "--apply", "docs"), "not --for qdrant"),
        (("--for", "pgvector", "--apply", "docs#body", "--bytes", 8), "pgvector cannot compare codes"),
        (
            ("--for", "pgvector", "--apply", "docs#body", "--column", "nothing"),
            "that of the present vectors with --column",
        ),
        (("--for", "pgvector", "--apply", "docs"), "--apply takes TABLE#COLUMN for --for pgvector"),
        (("--apply", "docs#body"), "--apply takes INDEX for --for lathe"),
    ]:
        status, out, err = run("migrate", "--from", tiny_model, "--to", MINILM, *judged, *arguments)
        assert (status, out) == (1, "") and message in err


@pytest.fixture
def server(lathe, serve_encoder, tiny_model, monkeypatch, home):
    """Serve MiniLM and the tiny model, with commands that reach the server without a socket. Return the server."""

    client = httpx2.Client

    def connect(base_url, headers, timeout):
        if base_url != "http://127.0.0.1:8080":
            return client(base_url=base_url, timeout=timeout)
        return SimpleNamespace(
            request=lambda method, path, json=None: lathe.client.request(method, path, json=json, headers=headers)
        )

    monkeypatch.setattr(httpx2, "Client", connect)
    monkeypatch.setenv("LATHE_ADMIN_KEYS", lathe.admin["authorization"].removeprefix("Bearer "))
    with serve_encoder("tiny", model=str(tiny_model)):
        yield lathe


def test_an_index_of_the_server_is_moved_and_goes_back_by_the_printed_command(run, server, texts):
    server.client.put(
        "/indexes/moved", json={"encoder": MINILM, "chain": "none", "text_field": "text"}, headers=server.admin
    )
    ids = [str(row) for row in range(50)]
    body = {"ids": ids, "texts": texts[:50], "metadata": [{"text": text} for text in texts[:50]]}
    assert server.client.post("/indexes/moved/upsert", json=body, headers=server.admin).status_code == 200
    status, out, err = run("index", "reindex", "moved", "--encoder", "tiny", "--chain", "none")
    assert status == 0, err
    assert out.startswith("moved: 50 items through none in ")
    assert server.client.get("/indexes/moved", headers=server.admin).json()["encoder"] == "tiny"
    back = out.splitlines()[1].removeprefix("To roll back: lathe ").split()
    status, out, err = run(*back)
    assert status == 0, err
    assert server.client.get("/indexes/moved", headers=server.admin).json()["encoder"] == MINILM
    for arguments, message in [
        (("nowhere",), "no index"),
        (("moved", "--encoder", "nobody"), "there is no encoder 'nobody'"),
        (("moved", "--chain", "nothing"), "no chain"),
        (("moved", "--server", "http://127.0.0.1:1"), "no server answers at http://127.0.0.1:1"),
    ]:
        status, out, err = run("index", "reindex", *arguments)
        assert (status, out) == (1, "") and message in err, err


@pytest.mark.release
def test_migrate_applies_its_decision_to_an_index(run, server, texts, judged, tiny_model):
    server.client.put(
        "/indexes/decided", json={"encoder": "tiny", "chain": "none", "text_field": "text"}, headers=server.admin
    )
    body = {"ids": ["1"], "texts": texts[:1], "metadata": [{"text": texts[0]}]}
    server.client.post("/indexes/decided/upsert", json=body, headers=server.admin)
    command = ("migrate", "--to", MINILM, *judged, "--apply", "decided")
    status, out, err = run(*command, "--from", tiny_model, "--bytes", 8, LATHE_HOME=server.settings.home)
    assert status == 0, err
    assert "* encode again" in out and "decided: 1 items through all-minilm-l6-v2-8-bytes@1" in out
    assert "To roll back: lathe chains delete all-minilm-l6-v2-8-bytes@1" in out
    stay, again = (next(line.split() for line in out.splitlines() if line[2:].startswith(name)) for name in CHOICES)
    assert (stay[-3], again[-3]) == ("64", "8")  # to stay is measured as the index stores its rows

    # What was published is what was measured.
    status, measured, err = run(*command[:-2], "--from", tiny_model, "--bytes", 8, "--json")
    assert status == 0, err
    found = next(choice for choice in json.loads(measured)["choices"] if choice["name"] == "encode again")
    certificate = server.client.get("/chains/all-minilm-l6-v2-8-bytes@1").json()["certificate"]
    assert 100 * certificate["relevance"]["ndcg_at_10"]["after"] == pytest.approx(found["mean"], abs=1e-6)
    assert certificate["bytes_per_vector"]["after"] == found["vector_bytes"] == 8

    # An index of byte codes goes on with as many bytes unless it is told otherwise.
    fit = ("fit", "--name", "tiny8", "--bytes", 8, *judged[:2], "--encoder", tiny_model)
    assert run(*fit, LATHE_HOME=server.settings.home)[0] == 0
    coded = {"encoder": "tiny", "chain": "tiny8", "text_field": "text"}
    assert server.client.put("/indexes/coded", json=coded, headers=server.admin).status_code == 200
    server.client.post("/indexes/coded/upsert", json=body, headers=server.admin)
    status, out, err = run(*command[:-1], "coded", "--from", tiny_model, LATHE_HOME=server.settings.home)
    assert status == 0, err
    assert "coded: 1 items through all-minilm-l6-v2-8-bytes@2" in out


def test_the_printed_program_moves_a_collection_of_qdrant(run, server, texts, judged, tiny_model, monkeypatch):
    status, out, err = run("migrate", "--from", tiny_model, "--to", MINILM, *judged, "--for", "qdrant")
    assert status == 0, err
    program = out.partition("<<'END'\n")[2].partition("\nEND\n")[0]
    qdrant = QdrantClient(":memory:")
    qdrant.create_collection("items", models.VectorParams(size=16, distance=models.Distance.COSINE))
    payload = [{"text": text} for text in texts]
    qdrant.upload_collection("items", np.ones((len(texts), 16), np.float32), payload=payload)

    def embed(inputs, **options):
        answer = server.client.post("/embed", json={"inputs": inputs} | options)
        return SimpleNamespace(vectors=np.array(answer.json()))

    monkeypatch.setattr("qdrant_client.QdrantClient", lambda _: qdrant)
    monkeypatch.setattr(lathe_client, "Client", lambda _: SimpleNamespace(embed=embed))
    exec(program, {})
    answer = server.client.post("/embed", json={"inputs": [texts[7]], "model": MINILM}).json()
    [hit] = qdrant.query_points("items", query=answer[0], using="all_MiniLM_L6_v2", limit=1).points
    assert hit.payload["text"] == texts[7]
    assert 'qdrant.delete_vector_name("items", "all_MiniLM_L6_v2")' in out


def test_migrate_finds_what_a_move_lacks_before_it_decides_or_publishes(run, server, judged, tiny_model, monkeypatch):
    monkeypatch.setattr("lathe.training.deciding.migrate.decide_migration", None)  # it must not be reached
    for name, fields in (("bare", {"encoder": "tiny"}), ("other", {"encoder": MINILM})):
        server.client.put(f"/indexes/{name}", json=fields | {"chain": "none"}, headers=server.admin)
        server.client.post(f"/indexes/{name}/upsert", json={"ids": ["1"], "texts": ["a"]}, headers=server.admin)
    before = server.client.get("/chains", headers=server.admin).json()
    for arguments, message in [
        (("nowhere",), "no index"),
        (("bare",), "have no text in the metadata field 'text', and another encoder needs texts"),
        (("other",), f"the index other has vectors of {MINILM}, not of"),
        (("bare", "--server", "http://127.0.0.1:1"), "no server answers at http://127.0.0.1:1"),
    ]:
        command = ("migrate", "--from", tiny_model, "--to", MINILM, *judged, "--apply", *arguments)
        status, out, err = run(*command, LATHE_HOME=server.settings.home)
        assert (status, out) == (1, "") and message in err, err
    body = {"texts": ["a"], "ids": ["1"], "metadata": [{"text": "a"}]}
    server.client.post("/indexes/bare/upsert", json=body, headers=server.admin)
    command = ("migrate", "--from", tiny_model, *judged, "--apply", "bare", "--to")
    own = json.dumps([{"name": "elsewhere", "model": str(tiny_model)}])
    status, out, err = run(*command, "elsewhere", LATHE_HOME=server.settings.home, LATHE_ENCODERS=own)
    assert (status, out) == (1, "") and "there is no encoder 'elsewhere'" in err, err
    status, out, err = run(*command, "elsewhere", LATHE_ADMIN_KEYS="another-key-of-32-characters-here")
    assert (status, out) == (1, "") and "key" in err, err
    assert server.client.get("/chains", headers=server.admin).json() == before


def test_decisions_over_http_are_jobs_that_change_nothing(server, texts, judged):
    pairs = [json.loads(line) for line in judged[3].read_text().splitlines()]
    body = {"source": {"texts": texts}, "to": MINILM, "encoder": "tiny", "pairs": pairs}

    def decide(**fields):
        answer = server.client.post("/migrate", json=body | fields, headers=server.admin)
        assert answer.status_code == 202, answer.text
        job = answer.json()["status_url"]
        eventually(lambda: server.client.get(job, headers=server.admin).json()["state"] in ("succeeded", "failed"), 120)
        return server.client.get(job, headers=server.admin).json()

    found = decide()["result"]
    assert found["sentence"].startswith("Encode again: ") and found["recommended"].startswith("encode again")
    found = decide(pairs=None, queries={"texts": [pair["query"] for pair in pairs]})["result"]
    assert found["sentence"].startswith("Undecided: ") and 50 < found["measured"] <= 60
    assert "name another encoder" in decide(to="tiny")["error"]
    for fields, status, message in [
        ({"to": "nobody"}, 404, "there is no encoder"),
        ({"queries": {"texts": ["a"]}}, 400, "give either pairs (judged) or queries (not judged)"),
        ({"source": {"texts": []}}, 400, "text"),
    ]:
        answer = server.client.post("/migrate", json=body | fields, headers=server.admin)
        assert answer.status_code in (status, 422) and message in answer.text, answer.text
    assert server.client.post("/migrate", json=body).status_code == 401
