import os
from contextlib import ExitStack

import numpy as np
import pytest

from lathe.service.checkup.pgvector import PgvectorStore
from lathe.service.errors import BadValueError
from lathe.service.index.pgvector.connection import open_database
from lathe.service.index.pgvector.filling import find_full_vectors
from lathe.service.index.pgvector.table import get_table, parse_table_name
from lathe.training.checkup.checkup import check_up
from lathe.training.errors import EmptyError

WIDTH = 32
VECTORS = np.random.default_rng(0).normal(size=(3000, WIDTH)).astype(np.float32)
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)
GRAPH = "hnsw (embedding vector_cosine_ops)"


@pytest.fixture
def fill(database):
    """Return a function that creates a table `t` with vectors and indexes."""

    def create(*indexes, vectors=VECTORS, kind=f"vector({WIDTH})", column="embedding"):
        database.execute(f'CREATE TABLE t (a int, b text, body text, "{column}" {kind}, PRIMARY KEY (a, b))')
        with database.cursor().copy("COPY t FROM STDIN") as copy:
            for row, vector in enumerate(vectors):
                copy.write_row((row, "x", f"text {row}", str(vector.tolist())))
        for index in indexes:
            database.execute(f"CREATE INDEX ON t USING {index}")
        database.execute("ANALYZE t")
        return database

    return create


@pytest.fixture
def open_store(database):
    """Return a function that opens the store of the table `t`, with settings of the session."""
    with ExitStack() as stack:

        def open_one(column="embedding", metric=None, text=None, **settings):
            connection = stack.enter_context(open_database(os.environ["LATHE_POSTGRES_URL"]))
            for name, value in settings.items():
                connection.execute(f"SET {name.replace('__', '.')} = {value}")
            full = find_full_vectors(connection, get_table(connection, parse_table_name("t")), column)
            return PgvectorStore(connection, full, text, metric)

        yield open_one


def check(store):
    return check_up(store, None, None, lambda *_: None)


def test_rows_have_their_key_text_and_vector(fill, open_store):
    fill(vectors=VECTORS[:50]).execute("UPDATE t SET embedding = NULL WHERE a < 10")
    rows = open_store(text="body").read(100)
    assert (rows.total, len(rows.ids)) == (40, 40)
    for row, text, vector in zip(rows.ids, rows.texts, rows.vectors, strict=True):
        number = int(row.removesuffix(",x"))
        assert text == f"text {number}" and vector == pytest.approx(VECTORS[number])
    assert len(open_store().read(7).ids) == 7


def test_a_table_without_rows_or_with_several_dimensions_cannot_be_checked(fill, open_store):
    database = fill(vectors=VECTORS[:3], kind="vector")
    database.execute("INSERT INTO t VALUES (9, 'y', '', '[1,2]')")
    with pytest.raises(BadValueError, match="several dimensions \\(3 of 32, 1 of 2\\)"):
        open_store().read(10)
    database.execute(f"DELETE FROM t; ALTER TABLE t ALTER embedding TYPE vector({WIDTH})")
    with pytest.raises(EmptyError, match="no vectors"):
        open_store().read(10)


def test_a_low_effort_loses_hits_that_a_higher_one_brings_back(fill, open_store):
    fill(GRAPH)
    sound = check(open_store(hnsw__ef_search=1000))
    assert sound.summary == "Recall@10 is 1.00. No loss was found." and not sound.must_fix

    lowered = check(open_store(hnsw__ef_search=10, enable_seqscan="off"))
    graph = next(finding for finding in lowered.findings if finding.kind == "graph")
    assert lowered.searches.losses["graph"].value > 0.1 and graph.severity == "fix"
    assert graph.advice.startswith("hnsw.ef_search ") and " in place of 10 brings " in graph.advice


def test_more_candidates_are_not_credited_with_a_plan_that_compares_all_rows(fill, open_store):
    fill("hnsw (embedding vector_cosine_ops) WITH (m = 2, ef_construction = 4)")
    store = open_store(hnsw__ef_search=10)
    store.connection.execute("SET random_page_cost = 1")
    found = check(store)
    assert max(effort.recall.value for effort in found.searches.efforts) < 0.9
    graph = next(finding for finding in found.findings if finding.kind == "graph")
    assert graph.advice.startswith("Build the index again, with more links if it had few")


def test_lists_that_are_not_probed_lose_hits(fill, open_store):
    fill("ivfflat (embedding vector_l2_ops) WITH (lists = 30)")
    store = open_store()
    assert (store.metric, store.effort_name, store.efforts) == ("l2", "ivfflat.probes", [1, 2, 4, 8, 16])
    assert check(store).must_fix


@pytest.mark.parametrize(
    ("column", "expression", "loses"),
    [
        ("half", f'("half"::halfvec({WIDTH})) halfvec_cosine_ops', False),
        ("bit", f'(binary_quantize("bit")::bit({WIDTH})) bit_hamming_ops', True),
        ('a "%s" b', f'("a ""%s"" b"::halfvec({WIDTH})) halfvec_l2_ops', False),
    ],
)
def test_a_quantizer_of_an_indexed_expression_is_measured_whatever_the_columns_name(
    fill, open_store, column, expression, loses
):
    fill(f"hnsw ({expression})", column=column.replace('"', '""'))
    found = check(open_store(column, hnsw__ef_search=1000))
    assert found.searches.losses["graph"].value < 0.01
    assert (found.searches.losses["quantizer"].value > 0.2) == loses
    (quantizer,) = [finding for finding in found.findings if finding.kind == "quantizer"]
    assert quantizer.severity == ("note" if loses else "fine")


def test_the_index_is_one_that_searches_all_rows_of_the_column_by_the_metric(fill, open_store):
    database = fill(
        "hnsw (embedding vector_l1_ops)",
        f"hnsw (((embedding || embedding)::vector({2 * WIDTH})) vector_ip_ops)",
        vectors=VECTORS[:100],
    )
    assert open_store().metric == "ip"
    database.execute("CREATE INDEX ON t USING hnsw (embedding vector_cosine_ops) WHERE a < 10")
    assert open_store(metric="cosine").efforts == ()
    database.execute(f"ALTER TABLE t ADD other vector({WIDTH})")
    database.execute("CREATE INDEX ON t USING hnsw (other vector_l2_ops)")
    assert open_store(metric="l2").efforts == ()
    found = check(open_store(metric="l2"))
    assert found.searches is None and "no approximate index" in found.summary


def test_rows_that_were_written_again_wear_the_graph_out(fill, open_store):
    database = fill(GRAPH, vectors=VECTORS[:1000])
    database.execute("ALTER TABLE t SET (autovacuum_enabled = off)")
    for _ in range(3):
        database.execute("UPDATE t SET embedding = embedding + array_fill(0.001, ARRAY[%s])::vector", (WIDTH,))
    assert check(open_store(hnsw__ef_search=20)).searches.losses["graph"].value > 0.1
