import asyncio
import base64
import errno
import gzip
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import count
from threading import get_native_id

import numpy as np
import pytest

from lathe.service.index.embedded.backup import back_up_index
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.embedded.serving import GenerationServing
from lathe.service.index.embedded.watch import Canary
from lathe.service.index.query import Query
from tests.helpers import eventually

numbers = count()
METADATA = [
    {"lang": "en", "year": 1999, "tags": ["money", "work"]},
    {"lang": "en", "year": 2005, "tags": ["work"]},
    {"lang": "de", "year": 2010, "wet": True},
    None,
    {"lang": "fr", "year": 2020, "place": {"city": "Bern"}},
    {"lang": None, "year": 2020.5},
]


@pytest.fixture(scope="module")
def start(start_app, tmp_path_factory):
    """Return a function that starts an app whose indexes are in its state folder, or in the Milvus of an address."""

    @contextmanager
    def start_one(url=None):
        home = tmp_path_factory.mktemp("home")
        with start_app(home=home, api_keys="use", admin_keys="boss", index_url=url) as app:
            app.client.headers["authorization"] = "Bearer use"
            app.embedded = url is None
            yield app

    return start_one


@pytest.fixture(scope="module")
def embedded(start):
    with start() as app:
        yield app


@pytest.fixture(scope="module")
def in_milvus(start, milvus):
    with start(milvus.url) as app:
        yield app


@pytest.fixture(params=["embedded", "in_milvus"])
def app(request):
    """Return the app of each backend."""
    return request.getfixturevalue(request.param)


embedded_only = pytest.mark.parametrize("app", ["embedded"], indirect=True)
"""For what does not depend on the backend, or what another test states of Milvus."""


@pytest.fixture
def create(app):
    """Return a function that creates an index and returns its path. Delete the indexes afterwards."""
    made = []

    def make(**body):
        made.append(f"/indexes/index-{next(numbers)}")
        assert app.client.put(made[-1], json=body, headers=app.admin).status_code == 200
        return made[-1]

    yield make
    for path in made:
        app.client.delete(path, headers=app.admin)


@pytest.fixture
def filled(app, create, sentences):
    """Return a function that creates an index of the six sentences and returns its path."""

    def make(**body):
        path = create(**body)
        ok(app, f"{path}/upsert", ids=ids(sentences), texts=sentences, metadata=METADATA)
        return path

    return make


@pytest.fixture
def embed(app, sentences):
    """Return a function that embeds the sentences, and returns the vectors and their space id."""

    def through(**body):
        answer = app.client.post("/embed", json={"inputs": sentences} | body)
        return np.array(answer.json(), np.float32), answer.headers["x-space-id"]

    return through


def ids(items):
    """Return the ids of items, `s0` onwards."""
    return [f"s{place}" for place in range(len(items))]


def ok(app, path, **body):
    """Post a body, assert that it is answered 200, and return the JSON."""
    answer = app.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer, status):
    """Assert the status of an error, and return its message."""
    assert answer.status_code == status, answer.text
    return answer.json()["error"]["message"]


def encoded(vectors):
    """Encode vectors as base64."""
    return [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors]


def check_scores(found, expected, atol=1e-5):
    """Assert that each query's items are the best by the expected scores `(q, n)`, the higher the better."""
    for row, items in zip(expected, found["results"], strict=True):
        places = [int(item["id"][1:]) for item in items]
        np.testing.assert_allclose([item["score"] for item in items], row[places], atol=atol)
        np.testing.assert_allclose(row[places], np.sort(row)[::-1][: len(places)], atol=2 * atol)


def test_creating_an_index_again_changes_nothing_and_with_other_settings_is_answered_409(app, filled):
    path = filled(chain="compact", m=8)
    before = app.client.get(path).json()
    passing = dict.fromkeys(("snapshot_age_seconds", "in_graph", "bytes", "sequence", "memory"))
    for same in ({"chain": "compact", "m": 8}, {"chain": "compact"}):  # what is not asked for may differ
        assert app.client.put(path, json=same, headers=app.admin).json() | passing == before | passing
    assert before["count"] == 6
    for body, difference in (({"chain": "compact", "m": 16}, "m 8"), ({"chain": "none"}, "chain compact@1")):
        assert difference in refused(app.client.put(path, json=body, headers=app.admin), 409)


def test_get_index_answers_its_settings_spaces_and_counts(app, filled, embed):
    path = filled(chain="compact")
    ok(app, f"{path}/delete", ids=["s0", "nobody"])
    shown = app.client.get(path).json()
    told = {"name": path.split("/")[-1], "count": 5, "chain": "compact@1"}
    told |= {"dimensions": 128, "width": 384, "metric": "cosine", "state": "ready", "encoder": "all-MiniLM-L6-v2"}
    assert shown | told == shown
    assert (shown["space_id"], shown["raw_space_id"]) == (embed(chain="compact")[1], embed()[1])
    if app.embedded:
        assert (shown["deleted"], shown["sequence"]) == (1, 2) and shown["bytes"]["record"] > 5 * 384 * 4
    assert shown["name"] in [index["name"] for index in app.client.get("/indexes").json()]


def test_an_index_is_listed_page_by_page_with_its_metadata(app, filled, create):
    """The order is that of the writes, in Milvus that of the ids; here they are the same."""
    path = filled(chain="compact")
    ok(app, f"{path}/delete", ids=["s1"])
    first = app.client.get(f"{path}/items", params={"limit": 3}).json()
    assert [item["id"] for item in first["items"]] == ["s0", "s2", "s3"]
    last = app.client.get(f"{path}/items", params={"limit": 3, "cursor": first["next_cursor"]}).json()
    assert [item["id"] for item in last["items"]] == ["s4", "s5"] and last["next_cursor"] is None
    assert app.client.get(f"{path}/items", params={"limit": 5}).json()["next_cursor"] is None
    listed = {item["id"]: item["metadata"] for item in first["items"] + last["items"]}
    assert listed == {item: METADATA[int(item[1:])] for item in listed}
    assert app.client.get(f"{path}/items", params={"limit": 1001}).status_code in (400, 422)
    for cursor in ("\n", "", "x" * 600, *(("s3", "-1", "9" * 17) if app.embedded else ())):
        assert "cursor" in refused(app.client.get(f"{path}/items", params={"cursor": cursor}), 400), cursor
    empty = create(chain="compact")
    assert app.client.get(f"{empty}/items").json() == {"items": [], "next_cursor": None}
    asked = {"texts": ["a", "b"], "rescore": 4, "filter": {"x": 1}}
    assert ok(app, f"{empty}/search", **asked)["results"] == [[], []]


CHAINS = [{"chain": "none"}, {"chain": "compact", "dimensions": 64}, {"chain": "codes48"}]


def test_search_scores_are_those_of_the_vectors_from_embed(app, filled, embed, sentences):
    """Queries of a chain that ends in codes are floats. Rescored scores are those of the raw vectors."""
    raw, _ = embed()
    for chain in CHAINS:
        path, (reduced, space) = filled(**chain), embed(**chain)
        queries, _ = embed(**chain, input_type="query")
        answer = app.client.post(f"{path}/search", json={"texts": sentences, "k": 4})
        found = answer.json()
        check_scores(found, queries @ reduced.T, atol=1e-4)
        assert [len(items) for items in found["results"]] == [4] * 6
        assert [items[0]["id"] for items in found["results"]] == ids(sentences), chain
        assert found["space_id"] == answer.headers["x-space-id"] == space
        assert (found["chain"], answer.headers["x-dimensions"]) == (answer.headers["x-chain"], str(reduced.shape[1]))
        rescored = ok(app, f"{path}/search", texts=sentences, k=2, rescore=3)
        check_scores(rescored, raw @ raw.T, atol=1e-3)  # originals are kept in float16 for this


@embedded_only
def test_cosine_scores_are_at_most_1(app, create):
    path, vectors = create(chain="none", width=7), np.random.default_rng(0).normal(size=(300, 7)).tolist()
    ok(app, f"{path}/upsert", ids=[str(n) for n in range(300)], vectors=vectors)
    for options in ({}, {"rescore": 2}):
        found = ok(app, f"{path}/search", vectors=vectors, k=1, **options)["results"]
        assert [items[0]["id"] for items in found] == [str(n) for n in range(300)]
        assert all(0.99999 < items[0]["score"] <= 1 for items in found), options


@embedded_only
def test_an_exact_search_compares_all_items_where_the_graph_loses_some(app, create):
    path, vectors = (
        create(chain="none", width=16, m=2, ef_construction=4),
        np.random.default_rng(0).normal(size=(900, 16)),
    )
    ok(app, f"{path}/upsert", ids=ids(vectors), vectors=vectors.tolist())
    eventually(lambda: app.client.get(path).json()["in_graph"] == 900)
    app.services.indexes.get(path.rpartition("/")[2]).generation.exact_rows = 0
    queries, unit = vectors[:20] + 1, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = queries / np.linalg.norm(queries, axis=1, keepdims=True) @ unit.T
    found = ok(app, f"{path}/search", vectors=queries.tolist(), exact=True)
    check_scores(found, expected)
    assert ok(app, f"{path}/search", vectors=queries.tolist(), ef=10) != found


def test_an_exact_search_of_milvus_is_refused(in_milvus):
    in_milvus.client.put("/indexes/inexact", json={"chain": "none", "width": 4}, headers=in_milvus.admin)
    answer = in_milvus.client.post("/indexes/inexact/search", json={"vectors": [[1, 2, 3, 4]], "exact": True})
    assert "is not searched exactly" in refused(answer, 400)
    in_milvus.client.delete("/indexes/inexact", headers=in_milvus.admin)


@embedded_only
def test_what_a_graph_loses_is_described_measured_and_warned_of(app, create):
    path = create(chain="none", width=4)
    name = path.rpartition("/")[2]
    assert app.client.get(path).json()["recall"] is None
    app.services.indexes.get(name).watch.canaries.extend(
        [Canary(0.2, None, True, False), Canary(0.0, None, False, False)] * 100
    )
    recall = app.client.get(path).json()["recall"]
    assert recall["queries"] == 200 and recall["losses"]["graph"][0] == pytest.approx(0.1)

    metrics = app.client.get("/metrics", headers=app.admin).text
    assert f'lathe_index_recall{{cause="",index="{name}"}} 0.9' in metrics
    assert f'lathe_index_recall{{cause="graph",index="{name}"}} 0.1' in metrics
    assert f'lathe_index_faulty_rows{{fault="copied",index="{name}"}} 0.5' in metrics
    (warning,) = app.client.get("/health").json()["warnings"]
    assert warning.startswith(f"the graph of the index {name} loses 0.10 (0.09 to 0.11) of recall@10")


@embedded_only
def test_a_quick_search_runs_on_the_event_loop_and_any_other_in_a_thread(app, create, monkeypatch):
    path = create(chain="none", width=4)
    ok(app, f"{path}/upsert", ids=ids(range(30)), vectors=np.random.default_rng(0).normal(size=(30, 4)).tolist())
    eventually(lambda: app.client.get(path).json()["in_graph"] == 30)
    threads, search = [], GenerationServing.search
    monkeypatch.setattr(
        GenerationServing, "search", lambda self, query: (threads.append(get_native_id()), search(self, query))[1]
    )
    query = {"vectors": [[1, 2, 3, 4]]}
    first = ok(app, f"{path}/search", **query)
    for other in ({"filter": {"a": 1}}, {"rescore": 2}, {"ef": 500}, {"exact": True}, {"vectors": [[1, 2, 3, 4]] * 2}):
        ok(app, f"{path}/search", **query | other)
    assert ok(app, f"{path}/search", **query) == first
    loop = threads[0]
    assert threads[-1] == loop and loop not in threads[1:-1]
    with app.services.indexes.get(path.rpartition("/")[2]).generation.graph.lock.acquire_shared(7):
        assert not app.services.indexes.get(path.rpartition("/")[2]).get_serving().is_quick(Query(np.ones((1, 4)), 1))


@embedded_only
def test_upsert_gives_the_same_index_for_texts_numbers_and_base64(app, create, embed, sentences):
    raw, space = embed()
    given = [{"texts": sentences}, {"vectors": raw.tolist()}, {"vectors": encoded(raw), "space_id": space}]
    query = {"vectors": raw[2:4].tolist(), "k": 6}
    found = []
    for items in given:
        path = create(chain="compact")
        assert ok(app, f"{path}/upsert", ids=ids(sentences), **items) == {"upserted": 6, "sequence": 1}
        found.append(ok(app, f"{path}/search", **query))
    openai = app.client.post("/v1/embeddings", json={"input": sentences, "encoding_format": "base64"}).json()
    ok(app, f"{path}/upsert", ids=ids(sentences), vectors=[row["embedding"] for row in openai["data"]])  # once more
    found.append(ok(app, f"{path}/search", texts=sentences[2:4], k=6))
    for other in found[1:]:
        assert [[i["id"] for i in items] for items in other["results"]] == [
            [i["id"] for i in items] for items in found[0]["results"]
        ]
        scores = [[[i["score"] for i in items] for items in one["results"]] for one in (other, found[0])]
        np.testing.assert_allclose(*scores, atol=1e-5)


def test_search_accepts_reduced_queries_that_name_the_indexs_space_id(app, filled, embed, sentences):
    """Without the id they are refused, and they cannot be rescored."""
    path = filled(chain="compact")
    reduced, space = embed(chain="compact")
    by_text = ok(app, f"{path}/search", texts=sentences, k=6)
    query = {"vectors": reduced.tolist(), "k": 6}
    by_header = app.client.post(f"{path}/search", json=query, headers={"x-space-id": space}).json()
    for found in (ok(app, f"{path}/search", space_id=space, **query), by_header):
        check_scores(found, reduced @ reduced.T)
        assert [i["id"] for i in found["results"][0]] == [i["id"] for i in by_text["results"][0]]
    assert "must have 384" in refused(app.client.post(f"{path}/search", json=query), 422)
    assert "rescored" in refused(app.client.post(f"{path}/search", json=query | {"space_id": space, "rescore": 2}), 400)


@embedded_only
@pytest.mark.parametrize("call", ["upsert", "search"])
def test_vectors_of_another_space_are_answered_409_with_both_space_ids(app, filled, embed, call):
    path = filled(chain="compact")
    raw, space = embed()
    spaces = app.client.get(path).json()
    body = {"vectors": raw[:1].tolist()} | ({"ids": ["x"]} if call == "upsert" else {})
    for answer in (
        app.client.post(f"{path}/{call}", json=body | {"space_id": "elsewhere"}),
        app.client.post(f"{path}/{call}", json=body, headers={"x-space-id": "elsewhere"}),
    ):
        message = refused(answer, 409)
        assert all(name in message for name in ("elsewhere", spaces["space_id"], spaces["raw_space_id"]))
    if call == "upsert":  # and so are those of its own chain
        reduced, own = embed(chain="compact")
        answer = app.client.post(
            f"{path}/upsert", json={"ids": ["x"], "vectors": reduced[:1].tolist(), "space_id": own}
        )
        assert answer.status_code in (409, 422), answer.text
    assert app.client.get(path).json()["count"] == 6
    ok(app, f"{path}/{call}", space_id=space, **body)


@embedded_only
def test_search_finds_an_item_while_it_is_replaced(app, create):
    path, body, found = create(chain="none", width=2), {"ids": ["x"], "vectors": [[1.0, 2.0]]}, []
    ok(app, f"{path}/upsert", **body)
    with ThreadPoolExecutor(1) as pool:
        writes = pool.submit(lambda: [ok(app, f"{path}/upsert", **body) for _ in range(50)])
        while not writes.done():
            found.append(ok(app, f"{path}/search", vectors=[[1.0, 2.0]])["results"][0])
        writes.result()
    assert {len(items) for items in found} == {1}


def test_get_returns_items_in_the_order_of_the_ids_and_null_for_unknown_ones(app, filled, embed):
    path = filled(chain="compact")
    items = ok(app, f"{path}/get", ids=["s4", "nobody", "s0", "s4"])["items"]
    assert items[1] is None and items[0] == items[3] == {"id": "s4", "metadata": METADATA[4]}
    items = ok(app, f"{path}/get", ids=["s4", "s0"], vectors=True)["items"]
    np.testing.assert_allclose([item["vector"] for item in items], embed()[0][[4, 0]], atol=1e-5)


def test_deleted_and_replaced_items_are_absent_from_search_get_and_filters(app, filled, sentences):
    path = filled(chain="compact")
    deleted = ok(app, f"{path}/delete", ids=["s1", "s1", "nobody"])
    assert deleted == {"deleted": 1, "sequence": 2 if app.embedded else None}  # Milvus counts no writes
    assert ok(app, f"{path}/delete", ids=["s1"])["deleted"] == 0
    ok(app, f"{path}/upsert", ids=["s0", "s6"], texts=[sentences[2], sentences[0]], metadata=[{"lang": "it"}, None])
    found = ok(app, f"{path}/search", texts=[sentences[0], sentences[2]], k=7)["results"]
    assert sorted(item["id"] for item in found[0]) == ["s0", "s2", "s3", "s4", "s5", "s6"]
    assert (found[0][0]["id"], found[0][0]["metadata"]) == ("s6", None)
    assert {item["id"] for item in found[1][:2]} == {"s0", "s2"}
    assert ok(app, f"{path}/get", ids=["s1"])["items"] == [None]
    for year in (2005, 1999):
        assert ok(app, f"{path}/search", texts="x", filter={"year": year})["results"] == [[]]
    shown = app.client.get(path).json()
    assert shown["count"] == 6
    assert not app.embedded or (shown["deleted"], shown["sequence"]) == (2, 4)


def test_items_that_satisfy_a_filter_are_deleted(app, filled, sentences):
    path = filled(chain="compact")
    assert ok(app, f"{path}/delete", filter={"year": {"gte": 2005, "lt": 2020}})["deleted"] == 2
    assert ok(app, f"{path}/delete", filter={"year": {"gte": 2005, "lt": 2020}})["deleted"] == 0
    found = ok(app, f"{path}/search", texts=sentences[0], k=7)["results"][0]
    assert {item["id"] for item in found} == {"s0", "s3", "s4", "s5"}
    assert app.client.get(path).json()["count"] == 4
    for body in ({}, {"filter": {}}, {"ids": ["s0"], "filter": {"year": 1999}}, {"filter": {"year": {"about": 1}}}):
        refused(app.client.post(f"{path}/delete", json=body), 400)
    assert app.client.get(path).json()["count"] == 4


@embedded_only
def test_an_index_with_a_text_field_stores_texts_in_the_metadata(app, filled, sentences):
    items = ok(app, f"{filled(chain='debias', text_field='text')}/get", ids=ids(sentences))["items"]
    assert [item["metadata"] for item in items] == [
        {"text": text} | (given or {}) for text, given in zip(sentences, METADATA, strict=True)
    ]


def test_search_with_a_filter_returns_exactly_the_matching_items(app, filled, sentences):
    path = filled(chain="compact")
    for wanted, places in (
        ({"lang": {"$ne": "en"}}, {2, 3, 4, 5}),
        ({"year": {"gte": 2005, "lt": 2020}}, {1, 2}),
        ({"$or": [{"tags": "money"}, {"place.city": "Bern"}], "not": {"wet": True}}, {0, 4}),
        ({}, {0, 1, 2, 3, 4, 5}),
    ):
        found = ok(app, f"{path}/search", texts=sentences[0], filter=wanted, rescore=2)["results"][0]
        assert {item["id"] for item in found} == {f"s{place}" for place in places}, wanted
        assert all(item["metadata"] == METADATA[int(item["id"][1:])] for item in found)


def test_every_metric_scores_vectors_without_an_encoder(app, create):
    vectors = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for metric, expected in (
        ("ip", vectors @ vectors.T),
        ("cosine", unit @ unit.T),
        ("l2", -np.linalg.norm(vectors[:, None] - vectors, axis=2)),
    ):
        path = create(chain="none", width=8, metric=metric)
        ok(app, f"{path}/upsert", ids=ids(vectors), vectors=vectors.tolist())
        for more, atol in (({}, 2e-3), ({"rescore": 2}, 1e-2)):
            found = ok(app, f"{path}/search", vectors=vectors[:5].tolist(), k=10_000, **more)
            assert all(len(items) == 40 for items in found["results"])
            if metric == "l2":  # distances: the shortest first
                for item in sum(found["results"], []):
                    item["score"] = -item["score"]
            check_scores(found, expected[:5], atol)
    assert "send vectors" in refused(app.client.post(f"{path}/search", json={"texts": "x"}), 422)


MAX_BODY_BYTES = 40_000
"""Less than a backup has."""


@pytest.fixture(scope="module")
def whole_app(start_app, tmp_path_factory):
    """Start an app whose bodies may be smaller than a backup, with an index of the six sentences."""
    home = tmp_path_factory.mktemp("home")
    with start_app(home=home, api_keys="use", admin_keys="boss", max_body_bytes=MAX_BODY_BYTES) as whole_app:
        whole_app.client.headers["authorization"] = "Bearer use"
        whole_app.indexes = home / "indexes"
        yield whole_app


@pytest.fixture(scope="module")
def path(whole_app, sentences):
    """Return the path of an index of the six sentences."""
    assert whole_app.client.put("/indexes/docs", json={"chain": "compact"}, headers=whole_app.admin).status_code == 200
    body = {"ids": [f"s{n}" for n in range(6)], "texts": sentences, "metadata": [{"n": n} for n in range(6)]}
    assert whole_app.client.post("/indexes/docs/upsert", json=body).status_code == 200
    return "/indexes/docs"


@pytest.fixture
def left(whole_app):
    """Assert that a test leaves the folder of the indexes as it was, but for lock files."""

    def list_folders():
        return sorted(file.name for file in whole_app.indexes.iterdir() if file.is_dir())

    before = list_folders()
    yield
    assert list_folders() == before


def fetch(whole_app, path):
    """Return the backup of an index."""
    answer = whole_app.client.get(f"{path}/backup", headers=whole_app.admin)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == f'attachment; filename="{path.rpartition("/")[2]}.db"'
    assert int(answer.headers["content-length"]) == len(answer.content)
    return answer.content


def restore(whole_app, name, content, **headers):
    """Send a backup as the index of a name."""
    return whole_app.client.put(f"/indexes/{name}/backup", content=content, headers=whole_app.admin | headers)


def search(whole_app, name, text):
    """Return the items that a search finds."""
    answer = whole_app.client.post(f"/indexes/{name}/search", json={"texts": [text], "k": 6})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def test_a_backup_is_restored_as_another_index_that_finds_the_same(whole_app, path, sentences):
    content = fetch(whole_app, path)
    assert len(content) > MAX_BODY_BYTES and content.startswith(b"SQLite format 3")
    whole_app.client.post(f"{path}/upsert", json={"ids": ["later"], "texts": ["written after the backup"]})
    answer = restore(whole_app, "again", content)
    assert answer.status_code == 200 and answer.json() == {"restored": "again", "count": 6}
    assert (
        len(search(whole_app, "docs", sentences[0])[0]) == 6
        and search(whole_app, "docs", "after the backup")[0][0]["id"] == "later"
    )
    whole_app.client.post(f"{path}/delete", json={"ids": ["later"]})
    for text in sentences:
        (found,), (expected,) = search(whole_app, "again", text), search(whole_app, "docs", text)
        assert [item["id"] for item in found] == [item["id"] for item in expected]
        assert [item["metadata"] for item in found] == [item["metadata"] for item in expected]
        # A row that is not in the graph yet is compared by another product, which rounds differently.
        np.testing.assert_allclose([i["score"] for i in found], [i["score"] for i in expected], atol=1e-6)
    whole_app.client.post("/indexes/again/upsert", json={"ids": ["s0"], "texts": ["a restored index can be written"]})
    assert whole_app.client.get("/indexes/again").json()["count"] == 6


def test_a_backup_may_be_compressed_or_the_record_of_a_folder_that_the_command_wrote(whole_app, path, tmp_path):
    back_up_index(whole_app.indexes / "docs", tmp_path / "copy")
    answer = restore(whole_app, "from-folder", (tmp_path / "copy" / "record.db").read_bytes())
    assert answer.json() == {"restored": "from-folder", "count": 6}
    answer = restore(whole_app, "small", gzip.compress(fetch(whole_app, path)), **{"content-encoding": "gzip"})
    assert answer.json() == {"restored": "small", "count": 6}
    assert "brotli" in refused(restore(whole_app, "other", b"", **{"content-encoding": "brotli"}), 415)


@pytest.mark.parametrize("spoil", ["empty", "half", "an item less"])
def test_a_body_that_is_no_backup_is_refused_and_leaves_nothing(whole_app, path, left, tmp_path, spoil):
    file = tmp_path / "file.db"
    file.write_bytes(fetch(whole_app, path))
    match spoil:
        case "empty":
            os.truncate(file, 0)
        case "half":
            os.truncate(file, file.stat().st_size // 2)
        case "an item less":
            with closing(sqlite3.connect(file)) as db, db:
                db.execute("DELETE FROM items WHERE label = 1")
    message = refused(restore(whole_app, "spoilt", file.read_bytes()), 400)
    assert "the body is not a backup that can be restored: " in message and str(whole_app.indexes) not in message
    assert "spoilt" not in [index["name"] for index in whole_app.client.get("/indexes").json()]


def test_names_are_checked_before_the_body_is_read(whole_app, path, left):
    assert "exists: restore under another name" in refused(restore(whole_app, "docs", b"no backup"), 409)
    assert "name" in refused(restore(whole_app, "not%20a%20name", b"no backup"), 400)
    assert "there is no index" in refused(whole_app.client.get("/indexes/nowhere/backup", headers=whole_app.admin), 404)


def test_an_index_that_is_created_while_its_backup_is_checked_is_kept(whole_app, path, monkeypatch, left):
    content = fetch(whole_app, path)
    counted = IndexRecord.count_items

    def create_meanwhile(self):
        if "raced" in str(self.path) and not (whole_app.indexes / "raced").exists():
            whole_app.client.put("/indexes/raced", json={"chain": "none"}, headers=whole_app.admin)
        return counted(self)

    monkeypatch.setattr(IndexRecord, "count_items", create_meanwhile)
    assert "exists" in refused(restore(whole_app, "raced", content), 409)
    assert whole_app.client.get("/indexes/raced").json()["count"] == 0
    whole_app.client.delete("/indexes/raced", headers=whole_app.admin)


def test_a_full_disk_is_answered_503_and_leaves_nothing(whole_app, path, left, monkeypatch):
    content = fetch(whole_app, path)

    def fail(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("lathe.service.index.embedded.backup.os.fsync", fail)
    for answer in (
        restore(whole_app, "full", content),
        whole_app.client.get(f"{path}/backup", headers=whole_app.admin),
    ):
        assert "the disk is full" in refused(answer, 503)


def test_a_client_that_disconnects_leaves_nothing(whole_app, path, left):
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "PUT", "scheme": "http",
        "path": "/indexes/half/backup", "raw_path": b"/indexes/half/backup", "root_path": "", "query_string": b"",
        "headers": [(b"authorization", whole_app.admin["authorization"].encode()), (b"content-length", b"9000000")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    messages = [{"type": "http.request", "body": bytes(3_000_000), "more_body": True}, {"type": "http.disconnect"}]
    sent, seen = [], []

    async def receive():
        seen.append(len(list(whole_app.indexes.glob(".half.*"))))
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    asyncio.run(whole_app.client.app(scope, receive, send))
    assert sent[0]["status"] == 499 and seen == [1, 1]


def test_indexes_in_milvus_are_backed_up_by_its_own_tool(start_app, tmp_path, milvus):
    with start_app(indexes_only=True, home=tmp_path / "home", index_url=milvus.url) as whole_app:
        made = whole_app.client.put("/indexes/backed-up", json={"chain": "none", "width": 4}, headers=whole_app.admin)
        assert made.status_code == 200, made.text
        for answer in (
            whole_app.client.get("/indexes/backed-up/backup", headers=whole_app.admin),
            restore(whole_app, "more", b"x"),
        ):
            assert "milvus-backup" in refused(answer, 501)
        whole_app.client.delete("/indexes/backed-up", headers=whole_app.admin)
