from types import SimpleNamespace

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from lathe.service.checkup.qdrant import QdrantStore, open_qdrant
from lathe.service.errors import BadValueError, UnavailableError
from lathe.training.checkup.checkup import check_up
from lathe.training.errors import EmptyError
from tests.helpers import find_free_port

VECTORS = np.random.default_rng(0).normal(size=(1200, 8)).astype(np.float32)
SIZE = models.VectorParams(size=8, distance=models.Distance.DOT)


@pytest.fixture(scope="module")
def client():
    client = QdrantClient(":memory:")
    client.create_collection("plain", SIZE)
    payload = [{"text": f"text {row}" if row % 2 else row} for row in range(len(VECTORS))]
    client.upload_collection("plain", VECTORS, payload, range(len(VECTORS)))
    client.create_collection("named", {"a": SIZE, "b": models.VectorParams(size=3, distance=models.Distance.EUCLID)})
    points = [{"a": row.tolist()} if number % 3 else {"b": [1.0, 2.0, number]} for number, row in enumerate(VECTORS)]
    client.upload_points("named", [models.PointStruct(id=n, vector=vector) for n, vector in enumerate(points)])
    client.create_collection("empty", SIZE)
    pairs = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    client.create_collection("pairs", SIZE.model_copy(update={"multivector_config": pairs}))
    client.create_collection("sparse", {}, sparse_vectors_config={"s": models.SparseVectorParams()})
    return client


def test_points_have_their_vector_and_texts_that_are_strings(client):
    for most in (100, 5000):
        rows = QdrantStore(client, "plain", None, "text").read(most)
        assert (len({*rows.ids}), rows.total) == (min(most, 1200), 1200)
        for row, text, vector in zip(map(int, rows.ids), rows.texts, rows.vectors, strict=True):
            assert text == (f"text {row}" if row % 2 else None) and vector == pytest.approx(VECTORS[row])


def test_points_without_the_named_vector_do_not_count(client):
    for vector, count in (("a", 800), ("b", 400)):
        store = QdrantStore(client, "named", vector, None)
        assert {store.read(5000).total, len(store.read(5000).ids)} == {count}
    hits = store.search_exactly(np.array([[1, 2, 30]], np.float32), 2)
    assert hits.ids[0][0] == "30" and hits.scores[0][0] == 0 > hits.scores[0][1]  # Euclid


def test_what_cannot_be_checked_is_said(client, tmp_path):
    for collection, vector, message in (
        ("none", None, "no collection 'none'"),
        ("plain", "a", "has no named vectors"),
        ("named", None, "named#VECTOR names one of its dense vectors: a, b"),
        ("sparse", "s", "dense vectors: none"),
        ("pairs", None, "must hold one vector a point"),
    ):
        with pytest.raises(BadValueError, match=message):
            QdrantStore(client, collection, vector, None)
    with pytest.raises(EmptyError):
        QdrantStore(client, "empty", None, None).read(10)
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(BadValueError, match="no folder .* of the local mode"), open_qdrant(str(folder)):
            pass
    assert not [*tmp_path.iterdir()]
    with pytest.raises(UnavailableError, match="127"), open_qdrant(f"http://127.0.0.1:{find_free_port()}") as away:
        QdrantStore(away, "plain", None, None)


def test_the_local_mode_has_no_graph_to_lose_hits(client):
    store = QdrantStore(client, "plain", None, None)
    assert store.efforts == ()
    found = check_up(store, None, None, lambda *_: None)
    assert found.searches is None and "norms" in {finding.kind for finding in found.findings}


def test_a_point_has_its_old_vector_though_qdrant_normalized_or_rounded_it():
    client = QdrantClient(":memory:")
    client.create_collection("t", {"a": SIZE.model_copy(update={"distance": models.Distance.COSINE})})
    old, new = VECTORS[:4].tolist(), VECTORS[4:8].tolist()
    stored = [old[0], (VECTORS[1] / np.linalg.norm(VECTORS[1])).tolist(), VECTORS[2].astype(np.float16).tolist()]
    stored += [old[3]]
    client.upsert("t", [models.PointStruct(id=row, vector={"a": vector}) for row, vector in enumerate(stored)])
    client.upsert("t", [models.PointStruct(id=4, vector={}), models.PointStruct(id=5, vector={"a": old[0]})])
    old[3] = [None] * 8  # as JSON holds inf, which the point has no more
    changes = [*zip("0123", old, new, strict=True), ("4", old[0], new[0]), ("5", old[1], new[0]), ("6", old[0], new[0])]
    assert QdrantStore(client, "t", "a", None).replace(changes) == 3


@pytest.fixture
def server(monkeypatch):
    """A client of a server that records the parameters of its searches, with a quantized collection."""
    int8 = models.ScalarQuantization(scalar=models.ScalarQuantizationConfig(type=models.ScalarType.INT8))
    graph = SimpleNamespace(ef_construct=100)
    params = SimpleNamespace(vectors=SIZE)
    config = SimpleNamespace(params=params, hnsw_config=graph, quantization_config=int8)
    client = QdrantClient(url="http://127.0.0.1:1", check_compatibility=False)
    asked = []

    def query_points(collection, search_params, **options):
        asked.append(search_params.model_dump(exclude_none=True, exclude_defaults=True))
        return SimpleNamespace(points=[])

    monkeypatch.setattr(client, "collection_exists", lambda name: True)
    monkeypatch.setattr(client, "get_collection", lambda name: SimpleNamespace(config=config))
    monkeypatch.setattr(client, "query_points", query_points)
    return client, asked


def test_a_quantized_collection_is_asked_by_its_codes_and_by_full_vectors(server):
    client, asked = server
    store = QdrantStore(client, "quantized", None, None)
    assert (store.efforts, store.quantizer) == ((100, 200, 400, 800), "Scalar quantization")
    query = VECTORS[:1]
    store.search(query, 10)
    store.search(query, 10, 400)
    store.search_exactly(query, 10)
    store.search_exactly(query, 10, full=True)
    # A server that is to be exact compares full vectors, whatever is said of quantization.
    codes = {"hnsw_ef": 2048, "quantization": {"rescore": False}}
    assert asked == [{}, {"hnsw_ef": 400}, codes, {"exact": True}]
