"""Indexes whose rows are codes: the same promises as of rows of floats."""

import json
from dataclasses import replace

import numpy as np
import pytest

from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.embedded.snapshot import SNAPSHOT, compute_content_digest, read_snapshot
from lathe.service.index.query import Query, parse_filter
from lathe.service.index.reducer import normalize_rows, read_artifact_files
from lathe.transforms.artifact import write_artifact
from lathe.transforms.errors import ArtifactError
from tests.service.index.opening import opened, serving

hnswlib = pytest.importorskip("hnswlib")

ROWS = 400
STEPS = "r2,codes:4"


def fill(index, vectors, linked=ROWS - 50):
    """Insert the vectors, replace 20 of them and delete two, and add all but 50 rows to the graph."""
    ids = [str(number) for number in range(ROWS)]
    index.upsert(ids, vectors[:ROWS], [{"odd": bool(n % 2)} for n in range(ROWS)], None).result()
    index.upsert(ids[:20], vectors[ROWS : ROWS + 20], [{"odd": bool(n % 2)} for n in range(20)], None).result()
    index.delete(["30", "31"]).result()
    index.generation.extend_graph(linked, 1)


@pytest.fixture(scope="module")
def vectors(biased):
    return biased(ROWS + 20, 5)


@pytest.fixture
def create(tmp_path, chain_of, coded_spec, vectors):
    """Return a function that makes a filled and closed index and returns its folder."""

    def make(metric="cosine", steps=STEPS, **settings):
        folder = tmp_path / "indexes" / "x"
        folder.mkdir(parents=True)
        chain, artifact = chain_of(steps)
        spec = replace(coded_spec(metric, **settings), dimensions=chain.output_dimensions)
        IndexRecord.create(folder / "record.db", spec, artifact).close()
        with opened(folder) as index:
            fill(index, vectors)
        return folder

    return make


@pytest.fixture
def folder(create):
    return create()


@pytest.fixture
def truth(chain_of, vectors):
    """Return a function that finds the ids of the best items by the chain's own scores, over all of them."""

    def find(queries, k, metric="cosine", steps=STEPS, matches=lambda number: True):
        chain, _ = chain_of(steps)
        there = [n for n in range(ROWS) if n not in (30, 31) and matches(n)]
        decoded = chain.floats(np.stack([vectors[ROWS + n if n < 20 else n] for n in there]))
        asked = chain.transform_queries(queries)
        if metric == "l2":
            scores = -np.linalg.norm(asked[:, None] - decoded[None], axis=2)
        else:
            scores = asked @ (normalize_rows(decoded) if metric == "cosine" else decoded).T
        best = np.argsort(-scores, axis=1)[:, :k]
        return [[str(there[n]) for n in row] for row in best]

    return find


def found(index, queries, k=10, **options):
    return [[hit["id"] for hit in hits] for hits in index.get_serving().search(Query(queries, k, **options))]


def overlap(ours, theirs):
    return np.mean([len(set(one) & set(other)) / len(other) for one, other in zip(ours, theirs, strict=True)])


@pytest.mark.parametrize(
    ("metric", "steps"),
    [("cosine", STEPS), ("ip", "product_codes:4"), ("l2", "int8"), ("cosine", "pca:12,binary"), ("l2", STEPS)],
)
def test_exact_and_graph_search_of_codes_find_the_best_by_the_chains_own_scores(create, truth, biased, metric, steps):
    folder, queries = create(metric, steps), biased(60, 7)
    # Codes of few bytes are equal for some items; of these any may be found.
    for exact_rows, least in ((None, 0.99), (20, 0.93)):
        with opened(folder, exact_rows=exact_rows) as index:
            assert overlap(found(index, queries, ef=300), truth(queries, 10, metric, steps)) >= least
            filtered = found(index, queries, ef=300, item_filter=parse_filter({"odd": True}))
            assert overlap(filtered, truth(queries, 10, metric, steps, lambda n: n % 2)) >= least


def test_a_reopened_index_of_codes_finds_the_same_from_its_snapshot_and_from_its_record(folder, biased):
    queries = biased(30, 9)
    with opened(folder) as index:
        assert index.generation.notes == [] and index.generation.covered == ROWS - 50
        expected = found(index, queries)
    for file in (folder / "graph-1").iterdir():
        file.unlink()
    with opened(folder) as index:
        (note,) = index.generation.notes
        assert "rebuilt from the record" in note
        assert found(index, queries) == expected


def reseal(graphs, **changes):
    content = read_snapshot(graphs) | changes
    (graphs / SNAPSHOT).write_text(json.dumps(content | {"sha256": compute_content_digest(content)}))


def test_a_graph_of_another_engine_is_rebuilt_and_its_file_deleted(folder, biased):
    graphs = folder / "graph-1"
    with opened(folder) as index:
        expected = found(index, biased(30, 9))
    content = read_snapshot(graphs)
    other = f"graph.{ROWS - 50}.other"
    (graphs / content["graph"]).rename(graphs / other)
    digests = content["digests"] | {other: content["digests"].pop(content["graph"])}
    reseal(graphs, graph=other, digests=digests)
    with opened(folder, exact_rows=20) as index:
        (note,) = index.generation.notes
        assert "another engine" in note and index.generation.covered == 0
        assert found(index, biased(30, 9)) == expected
        index.generation.extend_graph(10**6, 1)
    assert [file.name for file in graphs.glob("graph.*")] == [f"graph.{ROWS + 18}.codes"] or not (
        graphs / other
    ).exists()


def test_an_index_whose_chain_is_of_a_newer_codec_is_unavailable_with_the_reason(folder, tmp_path, chain_of):
    chain, (manifest, _) = chain_of(STEPS)
    newer = json.loads(manifest)
    newer["steps"][-1]["codec_version"] = 9
    del newer["manifest_sha256"]
    write_artifact(tmp_path / "newer", newer, chain.tensors())
    record = IndexRecord(folder / "record.db")
    with record.transaction() as db:
        db.execute("UPDATE chains SET manifest = ?, tensors = ?", read_artifact_files(tmp_path / "newer"))
    record.close()
    with serving(folder.parent) as indexes:
        (described,) = indexes.describe()
        assert described["state"] == "unavailable" and "codec version 9" in described["error"]
        with pytest.raises(ArtifactError, match="codec version 9; this Lathe reads up to 1: upgrade it"):
            indexes.get("x")
