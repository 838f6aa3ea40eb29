"""Copies of a vector in an index: one node of the graph that stands for many items."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from lathe.service.index.embedded import graphs
from lathe.service.index.embedded.generation import Generation
from lathe.service.index.embedded.graphs import nodes
from lathe.service.index.embedded.graphs.nodes import GraphNodes
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.embedded.snapshot import restore_snapshot, save_snapshot
from lathe.service.index.query import Query, parse_filter
from lathe.service.index.reducer import Reducer

pytest.importorskip("hnswlib")
pytest.importorskip("faiss")

EXACT = 10**9


@pytest.fixture(params=["hnswlib", "faiss", "codes"])
def made(request, tmp_path, monkeypatch, chain_of, coded_spec):
    """Return a generation that always asks its graph, with its record, and functions that write to both."""
    chain, artifact = chain_of("codes:4") if request.param == "codes" else (None, None)
    spec = coded_spec() if chain else replace(coded_spec(), chain="none", space_id="raw")
    if request.param == "faiss":
        monkeypatch.setattr(graphs, "find_spec", lambda name: name == "faiss")

    record = IndexRecord.create(tmp_path / "record.db", spec, artifact)

    def open_generation():
        return Generation(tmp_path / "graph-1", spec, record, Reducer(spec, artifact), 1, exact_rows=0)

    generation = open_generation()

    def put(ids, vectors, **metadata):
        """Write items, which replace those of the same ids, with the same metadata each."""
        recorded, originals, compact = generation.convert(vectors)
        payload = json.dumps(metadata).encode() if metadata else None
        written = record.upsert(ids, recorded, [metadata or None] * len(ids), [payload] * len(ids), spec)
        generation.rows.append(written.labels, originals, compact, written.dead)
        return written.labels

    def delete(ids):
        generation.rows.mark_dead(record.delete(record.find_labels(ids)).dead)

    yield SimpleNamespace(generation=generation, put=put, delete=delete, open=open_generation)
    record.close()


def names(kind, rows):
    """Name this many items of a kind."""
    return [f"{kind} {number}" for number in range(rows)]


def assert_answers_are_exact(generation, queries, ks=(1, 10, 700), item_filter=None):
    """Assert that the graph finds the items, scores and order of exact search, and no item twice."""
    parsed = None if item_filter is None else parse_filter(item_filter)
    for k in ks:
        query = Query(queries, k, ef=600, item_filter=parsed)
        generation.exact_rows = 0
        labels, scores, _ = generation.search(query)
        generation.exact_rows = EXACT
        expected, right, _ = generation.search(query)
        generation.exact_rows = 0
        np.testing.assert_allclose(scores, right, atol=2e-6)
        scores, right = np.maximum(scores, -9), np.maximum(right, -9)
        assert ((np.diff(scores, axis=1) < 0) | (np.diff(labels, axis=1) > 0) | (labels[:, 1:] < 0)).all()
        for found, best, values in zip(labels, expected, right, strict=True):
            assert len(set(found[found >= 0])) == (found >= 0).sum()
            # Items of nearly equal scores may change places, the last one with an item that is cut off.
            clear = np.abs(np.diff(values, append=values[-1:])) > 1e-5
            clear &= np.abs(np.diff(values, prepend=2.0)) > 1e-5
            assert (found[clear] == best[clear]).all() and ((found < 0) == (best < 0)).all()


def test_rows_that_follow_many_copies_are_found_by_their_own_vectors(made, biased):
    before, empty, after = biased(300, 1), np.tile(biased(1, 2), (1500, 1)), biased(1200, 3)
    made.put(names("before", 300), before)
    made.put(names("empty", 1500), empty)
    labels = made.put(names("after", 1200), after)
    while made.generation.extend_graph(128, 1):
        pass

    found, scores, _ = made.generation.search(Query(after, 10, ef=100))
    compact = made.generation.rows.take_view().compact
    own = (compact[np.maximum(found, 1) - 1] == compact[labels - 1][:, None]).all(axis=2).any(axis=1)
    assert made.generation.covered == 3000 and made.generation.graph.covered <= 1501
    assert np.mean(own) > 0.995


def test_copies_that_come_and_go_are_found_as_by_exact_search(made, biased):
    generation, vectors, queries = made.generation, biased(500, 1), biased(8, 2)
    empty = vectors[:1]
    queries[0] = empty
    made.put(names("row", 500), vectors, kind="row")
    assert generation.extend_graph(EXACT, 1) == 0
    made.put(names("empty", 400), np.tile(empty, (400, 1)), kind="empty")
    for copy in range(12):
        made.put(names(f"copy {copy}", 50), vectors[100:150], kind="copy")
    assert_answers_are_exact(generation, queries)  # while the graph lacks the copies
    generation.extend_graph(200, 1)
    assert_answers_are_exact(generation, queries)  # and half of them
    assert generation.extend_graph(EXACT, 1) == 0
    assert_answers_are_exact(generation, queries)
    assert_answers_are_exact(generation, queries, item_filter={"kind": "copy"})
    assert_answers_are_exact(generation, queries, item_filter={"kind": {"ne": "row"}})

    made.delete(names("empty", 399))  # all but the last, and the first row of the node
    made.delete(["row 0"])
    assert_answers_are_exact(generation, queries)
    made.delete(["empty 399"])
    assert_answers_are_exact(generation, queries)
    made.put(names("empty", 3), np.tile(empty, (3, 1)), kind="empty")
    made.put(["copy 0 0", "copy 1 0"], biased(2, 9), kind="moved")  # two copies get other vectors
    assert_answers_are_exact(generation, queries)
    assert generation.extend_graph(EXACT, 1) == 0
    assert_answers_are_exact(generation, queries)
    assert_answers_are_exact(generation, queries, item_filter={"kind": "empty"})
    assert generation.covered == generation.rows.count and generation.graph.covered <= 502


def test_copies_are_the_same_nodes_after_a_restart_and_a_graph_without_them_is_rebuilt(made, biased):
    vectors, queries = biased(300, 1), biased(8, 2)
    made.put(names("row", 300), vectors)
    made.put(names("copy", 300), vectors)
    made.generation.extend_graph(450, 1)
    save_snapshot(made.generation)
    again = made.open()
    assert restore_snapshot(again)["covered"] == again.covered == 450 and again.notes == []
    assert again.graph.covered == made.generation.graph.covered <= 300
    assert_answers_are_exact(again, queries)
    again.replay()
    assert again.extend_graph(EXACT, 1) == 0 and again.graph.covered == made.generation.graph.covered
    assert_answers_are_exact(again, queries)

    # Before copies shared a node, each row was one: such a file is not taken for one of nodes.
    old = made.open()
    old.replay()
    old.graph.extend(old.rows.take_view().compact[:450], 1, 450)
    old.nodes = SimpleNamespace(current=SimpleNamespace(count_covered=lambda linked: linked))
    save_snapshot(old)
    again = made.open()
    assert restore_snapshot(again)["covered"] == again.covered == 0
    assert again.notes == ["the graph was missing or damaged: it is rebuilt, searches are exact meanwhile"]


def test_items_of_nodes_that_the_graph_failed_to_link_are_found_and_linked_later(made, biased, monkeypatch):
    generation, vectors, queries = made.generation, biased(400, 1), biased(8, 2)
    made.put(names("row", 200), vectors[:200])
    generation.extend_graph(EXACT, 1)
    made.put(names("copy", 200), vectors[:200])
    made.put(names("later", 200), vectors[200:])
    made.put(names("later copy", 200), vectors[200:])

    def fail(*_arguments, **_named):
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(generation.graph, "extend", fail)
        with pytest.raises(MemoryError):
            generation.extend_graph(EXACT, 1)
    assert generation.covered <= 400
    assert_answers_are_exact(generation, queries)
    assert generation.extend_graph(EXACT, 1) == 0 and generation.graph.covered <= 400
    assert_answers_are_exact(generation, queries)


@pytest.mark.parametrize("colliding", [False, True])
def test_only_rows_with_equal_bytes_share_a_node(monkeypatch, colliding):
    monkeypatch.setattr(nodes, "MIN_RECENT", 20)
    monkeypatch.setattr(nodes, "BLOCK_ROWS", 70)
    if colliding:
        monkeypatch.setattr(nodes, "hash", lambda content: content[0] % 8, raising=False)
    generator = np.random.default_rng(0)
    rows = generator.integers(0, 150, (1000, 1)).astype(np.uint8)
    assigned = GraphNodes()
    for upto in (1, 130, 131, 500, 1000):
        assigned.assign(rows, upto)
        current = assigned.current
        firsts = current.find_first_rows(np.arange(current.count))
        members = [{int(first), *current.rows[current.nodes == node]} for node, first in enumerate(firsts)]
        assert sorted(row for node in members for row in node) == list(range(upto))
        assert all(len({int(rows[row, 0]) for row in node}) == 1 for node in members)
        assert colliding or len(members) == len(np.unique(rows[:upto]))
        for share in (0.02, 0.5, 1.0):
            allowed = generator.random(upto - upto // 10) < share
            expected = sum(any(row < len(allowed) and allowed[row] for row in node) for node in members)
            assert current.count_allowed(allowed) == expected
        for linked in (0, len(members) // 2, len(members)):
            whole = upto if linked == len(members) else int(firsts[linked])
            assert current.count_covered(linked) == whole
