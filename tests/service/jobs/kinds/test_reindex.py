import base64
import io
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Event
from types import SimpleNamespace

import numpy as np
import pytest

from lathe.service.jobs.kinds.reindex import Reembedding
from tests.helpers import eventually

ENCODERS = [{"name": "all-MiniLM-L6-v2", "model": "sentence-transformers/all-MiniLM-L6-v2"}]
ENCODERS += [{"name": "shallow", "model": "sentence-transformers/all-MiniLM-L6-v2", "layer": 3}]
ROWS, MORE = 15_000, 600
"""Rows beyond those that are searched exactly, and vectors for later versions of items."""

MANY, MOVING, TEXTLESS = "/indexes/many", "/indexes/moving", "/indexes/textless"


class Server:
    """An app that can be ended and started again on the same home."""

    def __init__(self, start_app, home):
        self.start_app = start_app
        self.home = home
        self.start()

    def start(self):
        self.running = ExitStack()
        # Vectors of earlier tests would end a reindexing before anything could be seen of it.
        self.app = self.running.enter_context(self.start_app(home=self.home, encoders=ENCODERS, encoded_bytes=0))

    def restart(self):
        self.running.close()
        self.start()

    def post(self, path, **body):
        return self.app.client.post(path, json=body, headers=self.app.admin)

    def ok(self, path, **body):
        answer = self.post(path, **body)
        assert answer.status_code in (200, 202), answer.text
        return answer.json()

    def get(self, path):
        return self.app.client.get(path).json()

    def put(self, path, **body):
        assert self.app.client.put(path, json=body, headers=self.app.admin).status_code == 200
        return path

    def graphs(self, path):
        """Folders of generations."""
        return [folder for folder in (self.home / path[1:]).glob("graph-*") if folder.is_dir()]


@pytest.fixture(scope="module")
def server(start_app, tmp_path_factory):
    server = Server(start_app, tmp_path_factory.mktemp("home"))
    yield server
    server.running.close()


@pytest.fixture(scope="module")
def vectors():
    """Draw unit vectors `(ROWS + MORE, 384)`."""
    vectors = np.random.default_rng(0).normal(size=(ROWS + MORE, 384)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def through(server, vectors):
    """Return the vectors through each chain, by the chain's reference."""

    def reduce(chain, rows):
        file = io.BytesIO()
        np.save(file, rows)
        headers = {"content-type": "application/x-npy", "accept": "application/x-npy"}
        answer = server.app.client.post(f"/reduce?chain={chain}", content=file.getvalue(), headers=headers)
        return np.load(io.BytesIO(answer.content))

    compact = np.concatenate([reduce("compact", part) for part in np.array_split(vectors, 4)])
    return {"none": vectors, "compact@1": compact}


@pytest.fixture(scope="module")
def many(server, vectors):
    """Build an index of random vectors and return the rows of `vectors` that each item has had, by id."""
    server.put(MANY, chain="none", m=4, ef_construction=20)
    for start in range(0, ROWS, 5000):
        upsert(server, vectors, {f"i{row}": row for row in range(start, start + 5000)})
    return {f"i{row}": [row] for row in range(ROWS)}


@pytest.fixture(scope="module")
def texts(paragraphs):
    return paragraphs[:300]


def upsert(server, vectors, rows, **metadata):
    """Insert items, given as ids and rows of `vectors`, with the same metadata."""
    encoded = [base64.b64encode(vectors[row].tobytes()).decode() for row in rows.values()]
    server.ok(f"{MANY}/upsert", ids=list(rows), vectors=encoded, metadata=[metadata] * len(rows))


def begin(server, path, **body):
    """Start reindexing, wait for the new generation's folder, and return the job's URL."""
    url = server.ok(f"{path}/reindex", **body)["status_url"]
    eventually(lambda: len(server.graphs(path)) > 1 or server.get(url)["finished_at"])
    return url


def ended(server, url):
    """Wait until a job has ended and return its state and error."""
    job = eventually(lambda: (job := server.get(url))["finished_at"] and job)
    return job["state"], job["error"]


@contextmanager
def searching(server, path, pause=0.01, **query):
    """Search repeatedly in a thread during a block, and yield the list of answers."""
    stop, answers = Event(), []

    def search():
        while not stop.is_set():
            answers.append(server.ok(f"{path}/search", **query))
            time.sleep(pause)

    with ThreadPoolExecutor(1) as pool:
        searches = pool.submit(search)
        try:
            yield answers
        finally:
            stop.set()
        searches.result()


@pytest.mark.parametrize("chain", ["compact", pytest.param("none", marks=pytest.mark.release)])
def test_each_search_during_reindexing_uses_one_generation(server, many, vectors, through, chain):
    """Items written and deleted meanwhile are found as last written."""
    other = {"none": "compact", "compact": "none"}[chain]
    if server.get(MANY)["chain"].partition("@")[0] != other:
        assert ended(server, begin(server, MANY, chain=other)) == ("succeeded", None)
        eventually(lambda: server.get(MANY)["chain"].partition("@")[0] == other)
    before = server.get(MANY)
    replaced, deleted, first = list(many)[:50], list(many)[-50:], sum(map(len, many.values()))
    with searching(server, MANY, vectors=vectors[:4].tolist(), k=10) as answers:
        eventually(lambda: len(answers) > 3)
        url = begin(server, MANY, chain=chain)
        rows = {item: first + place for place, item in enumerate([*replaced, *[f"{chain}{n}" for n in range(50)]])}
        upsert(server, vectors, rows, made_for=chain)
        assert server.ok(f"{MANY}/delete", ids=deleted)["deleted"] == 50
        assert ended(server, url) == ("succeeded", None)
        eventually(lambda: answers[-1]["space_id"] != before["space_id"])
    for item, row in rows.items():
        many.setdefault(item, []).append(row)
    after = server.get(MANY)
    for answer in answers:
        generation = before if answer["space_id"] == before["space_id"] else after
        assert (answer["chain"], answer["space_id"]) == (generation["chain"], generation["space_id"])
        check_scores(answer["results"], many, through[answer["chain"]])
    spaces = [answer["space_id"] for answer in answers]
    changed = spaces.index(after["space_id"])
    assert changed > 3 and spaces == [before["space_id"]] * changed + [after["space_id"]] * (len(spaces) - changed)
    for item in deleted:
        del many[item]
    check_writes(server, vectors, rows, deleted, chain)
    assert (after["count"], after["chain"].split("@")[0]) == (len(many), chain)
    assert len(server.graphs(MANY)) == 1


def check_scores(results, many, reduced):
    """Assert that each score is that of one of the item's versions, in one space."""
    for query, items in zip(reduced[:4], results, strict=True):
        assert 5 < len({item["id"] for item in items}) == len(items) <= 10
        scores = [item["score"] for item in items]
        assert scores == sorted(scores, reverse=True)
        for item in items:
            assert np.abs(reduced[many[item["id"]]] @ query - item["score"]).min() < 1e-4


def check_writes(server, vectors, rows, deleted, chain):
    """Assert that items written or deleted during reindexing are found as last written, or not at all."""
    asked = vectors[list(rows.values())].tolist()
    found = server.ok(f"{MANY}/search", vectors=asked, k=1, filter={"made_for": chain}, rescore=2)["results"]
    assert [items[0]["id"] for items in found] == list(rows)
    np.testing.assert_allclose([items[0]["score"] for items in found], 1, atol=1e-3)
    assert server.ok(f"{MANY}/get", ids=deleted)["items"] == [None] * len(deleted)
    gone = server.ok(f"{MANY}/search", vectors=vectors[ROWS - 50 : ROWS].tolist(), k=5)["results"]
    assert not {item["id"] for items in gone for item in items} & set(deleted)


def test_a_second_reindex_is_answered_409_and_a_cancelled_one_leaves_the_index_unchanged(server, many, vectors):
    before = server.get(MANY)
    url = begin(server, MANY, m=8)
    again = server.post(f"{MANY}/reindex", chain="none")
    assert again.status_code == 409 and "already" in again.json()["error"]["message"]
    assert server.app.client.delete(url, headers=server.app.admin).status_code == 200
    assert ended(server, url) == ("cancelled", None)
    eventually(lambda: len(server.graphs(MANY)) == 1)
    after = server.get(MANY)
    for key in ("count", "sequence", "chain", "space_id", "m"):
        assert after[key] == before[key]
    assert len(server.ok(f"{MANY}/search", vectors=vectors[:1].tolist())["results"][0]) == 10
    queued = server.ok(f"{MANY}/reindex")["status_url"]
    server.app.client.delete(queued, headers=server.app.admin)
    assert ended(server, queued)[0] == "cancelled"


def test_reindexing_with_another_encoder_serves_throughout_and_equals_a_new_index(server, texts):
    server.put(MOVING, chain="none", text_field="text")
    server.ok(f"{MOVING}/upsert", ids=[f"t{n}" for n in range(len(texts))], texts=texts)
    old, asked, early, aligned = server.get(MOVING), {"texts": texts[:4], "k": 5}, 0, []
    with searching(server, MOVING, pause=0.2, **asked) as answers:
        url = begin(server, MOVING, encoder="shallow", chain="none")
        while not server.get(url)["finished_at"]:
            server.ok(f"{MOVING}/upsert", ids=["late"], texts="A heron stands in the shallow water.")
            answer = server.post(f"{MOVING}/search", encoder="shallow", **asked)
            assert answer.status_code in (200, 409), answer.text
            if answer.status_code == 409:
                early += 1
                assert "is being reindexed with that encoder" in answer.text and answer.headers["retry-after"] == "5"
            if answer.status_code == 200 and "aligned" in answer.json():
                aligned.append(answer.json())
                bare = server.post(f"{MOVING}/upsert", ids=["bare"], vectors=[[1.0] * 384], space_id=old["space_id"])
                assert bare.status_code == 409, bare.text  # without a text it could not move
            time.sleep(0.02)  # the alignment answers for a moment only, before the cutover
        assert ended(server, url) == ("succeeded", None)
    for answer in answers:
        assert [items[0]["id"] for items in answer["results"]] == [f"t{n}" for n in range(4)]
    assert early and aligned
    for answer in aligned:
        assert (answer["space_id"], answer["aligned"]["encoder"]) == (old["space_id"], "shallow")
        assert sum(items[0]["id"] == f"t{n}" for n, items in enumerate(answer["results"])) >= 3
    check_moved(server, old, texts)


def check_moved(server, old, texts):
    """Assert that the index equals a new one of the other encoder."""
    fresh = server.put("/indexes/fresh", chain="none", encoder="shallow")
    late = "A heron stands in the shallow water."
    server.ok(f"{fresh}/upsert", ids=["late", *[f"t{n}" for n in range(len(texts))]], texts=[late, *texts])
    query = {"texts": [late, *texts[::40]], "encoder": "shallow"}
    moved, expected = (server.ok(f"{path}/search", **query) for path in (MOVING, fresh))
    assert "aligned" not in moved and moved["space_id"] == expected["space_id"] != old["space_id"]
    for items, wanted in zip(moved["results"], expected["results"], strict=True):
        assert items[0]["id"] == wanted[0]["id"]
        np.testing.assert_allclose([i["score"] for i in items], [i["score"] for i in wanted], atol=1e-4)
    shown = server.get(MOVING)
    assert (shown["encoder"], shown["moving_to"], shown["count"]) == ("shallow", None, len(texts) + 1)
    stale = server.post(f"{MOVING}/search", vectors=[[1.0] * 384], space_id=old["space_id"])
    assert stale.status_code == 409
    unnamed = server.post(f"{MOVING}/upsert", ids=["x"], vectors=[[1.0] * 384])
    assert (unnamed.status_code, unnamed.json()["error"]["code"]) == (409, "space_unnamed")
    assert server.post(f"{MOVING}/search", texts="x", encoder="all-MiniLM-L6-v2").status_code == 409


def test_reindexing_with_another_encoder_fails_on_an_item_without_text_unless_the_request_has_it(server, texts):
    """After a failure the index serves as before."""
    server.put(TEXTLESS, chain="none", text_field="text")
    server.ok(f"{TEXTLESS}/upsert", ids=["a", "b"], texts=texts[:2])
    server.ok(f"{TEXTLESS}/upsert", ids=["bare"], vectors=[[1.0] * 384])
    before = server.get(TEXTLESS)
    state, error = ended(server, begin(server, TEXTLESS, encoder="shallow"))
    assert state == "failed" and "'bare'" in error and "'text'" in error
    eventually(lambda: len(server.graphs(TEXTLESS)) == 1)
    server.ok(f"{TEXTLESS}/upsert", ids=["bare too"], vectors=[[1.0] * 384])
    found = server.ok(f"{TEXTLESS}/search", texts=texts[0], k=1)
    assert (found["results"][0][0]["id"], found["space_id"]) == ("a", before["space_id"])
    given = {"bare": texts[2], "bare too": texts[3]}
    assert ended(server, begin(server, TEXTLESS, encoder="shallow", texts=given)) == ("succeeded", None)
    found = server.ok(f"{TEXTLESS}/search", texts=texts[:4], k=1, encoder="shallow")["results"]
    assert [items[0]["id"] for items in found] == ["a", "b", "bare", "bare too"]


def test_progress_of_reindexing_follows_the_texts_of_a_batch():
    class Encoder:
        def encode(self, texts, on_batch):
            for done in range(1, len(texts) + 1):
                on_batch(done)
            return SimpleNamespace(vectors=np.ones((len(texts), 4), np.float32))

    class Record:
        def read_payloads_after(self, label, rows):
            return np.arange(3), [(str(item), b'{"text": "a text"}') for item in range(3)]

    encoded = []
    labels, vectors = Reembedding(Record(), Encoder(), "text", {}, encoded.append).encode_after(0)
    assert encoded == [1, 2, 3]
    assert (len(labels), vectors.shape) == (3, (3, 4))
