from types import SimpleNamespace

import numpy as np
import pytest

from lathe.service.errors import ConflictError
from lathe.service.jobs.kinds.checkup import CheckupJob
from tests.helpers import eventually
from tests.service.conftest import SENTENCES

RANDOM = np.random.default_rng(0)


def draw(dimensions, rows=1500):
    vectors = RANDOM.normal(size=(rows, dimensions)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


VECTORS = draw(32)


@pytest.fixture
def index(lathe):
    """Return a function that creates an index with vectors, and one that checks it."""

    def send(method, path, body=None, status=200):
        answer = lathe.client.request(method, f"/indexes/t{path}", json=body, headers=lathe.admin)
        assert answer.status_code == status, answer.text
        return answer.json()

    def create(vectors=VECTORS, **settings):
        send("PUT", "", {"chain": "none", "width": vectors.shape[1]} | settings)
        lathe.services.indexes.get("t").generation.exact_rows = 0
        for start in range(0, len(vectors), 500):
            part = vectors[start : start + 500].tolist()
            ids = [f"row {row}" for row in range(start, start + len(part))]
            send("POST", "/upsert", {"ids": ids, "vectors": part})
        eventually(lambda: send("GET", "")["in_graph"] == len(vectors))

    def check(body=None):
        job = send("POST", "/checkup", body or {}, 202)["job_id"]
        return eventually(lambda: (found := lathe.client.get(f"/jobs/{job}").json())["finished_at"] and found)

    yield SimpleNamespace(send=send, create=create, check=check)
    lathe.client.delete("/indexes/t", headers=lathe.admin)


def test_a_graph_of_few_links_loses_hits_that_building_it_again_does_not_bring_back(index, lathe):
    index.create(m=4, ef_construction=8)
    result = index.check()["result"]
    assert result["searches"]["losses"]["graph"]["value"] > 0.05 and result["must_fix"] and result["rows"] == 1500
    (graph,) = (finding for finding in result["findings"] if finding["kind"] == "graph")
    rebuilt = result["searches"]["rebuilt"]
    assert graph["advice"].startswith("ef ") or ("more links" in graph["advice"] and rebuilt["value"] < 0.95)

    assert index.send("GET", "")["checkup"] == result  # kept
    metrics = lathe.client.get("/metrics", headers=lathe.admin).text
    assert 'lathe_index_faulty_rows{fault="copies",index="t"} 0.0' not in metrics  # no copy has a share
    assert not [*lathe.services.indexes.get("t").generation.folder.glob("*.npz")]


def test_a_sound_graph_loses_none_and_copies_have_a_metric(index, lathe):
    vectors = VECTORS.copy()
    vectors[750:] = vectors[:750]
    index.create(vectors, m=32, ef_construction=400, metric="l2")
    result = index.check()["result"]
    assert result["searches"]["losses"]["graph"]["value"] < 0.005 and not result["must_fix"]
    metrics = lathe.client.get("/metrics", headers=lathe.admin).text
    assert 'lathe_index_faulty_rows{fault="copies",index="t"} 0.5' in metrics


def test_a_chain_loses_hits_as_a_quantizer(index):
    index.create(draw(384, 500), chain="compact")
    result = index.check({"queries": {"vectors": draw(384, 60).tolist()}})["result"]
    assert result["searches"]["queries"] == 60 and result["searches"]["losses"]["quantizer"]["value"] > 0.2
    assert any(finding["sentence"].startswith("The chain compact@1 loses") for finding in result["findings"])


def test_rows_that_are_not_their_texts_vectors_are_encoded_again(index, lathe):
    texts = [f"{sentence} {number}" for number in range(8) for sentence in SENTENCES][:48]
    index.send("PUT", "", {"chain": "none", "text_field": "text"})
    index.send("POST", "/upsert", {"ids": [str(row) for row in range(48)], "texts": texts})
    ids = [str(row) for row in range(6)]
    index.send(
        "POST",
        "/upsert",
        {"ids": ids, "vectors": draw(384, 6).tolist(), "metadata": [{"text": text} for text in texts[:6]]},
    )
    result = index.check()["result"]
    faults = {finding["kind"]: finding for finding in result["findings"] if finding["severity"] == "fix"}
    assert {*faults} == {"changed_text"} and {*faults["changed_text"]["ids"]} == {*ids}
    assert faults["changed_text"]["advice"].endswith("lathe index reindex t --encode")

    job = index.send("POST", "/reindex", {"encode": True}, 202)["job_id"]
    eventually(lambda: lathe.client.get(f"/jobs/{job}").json()["state"] == "succeeded")
    assert index.send("GET", "")["checkup"] is None  # it was of the rows before
    assert not index.check()["result"]["must_fix"]
    # The index has the same embedding space, so that vectors need not name it now either.
    index.send("POST", "/upsert", {"ids": ["new"], "vectors": draw(384, 1).tolist(), "metadata": [{"text": "new"}]})


def test_what_cannot_be_checked_is_refused_at_once(index):
    index.send("POST", "/checkup", {}, 404)
    index.create(draw(384, 500), chain="codes48", originals="none")
    assert "does not store" in index.send("POST", "/checkup", {}, 409)["error"]["message"]
    index.send("POST", "/checkup", {"queries": {"vectors": [[1.0, 2.0]]}}, 409)


def test_an_index_that_is_deleted_before_the_job_begins_is_named(tmp_path):
    job = CheckupJob.model_construct(index="gone")
    with pytest.raises(ConflictError, match="the index gone was deleted meanwhile"):
        job.run(tmp_path, SimpleNamespace(home=tmp_path), print)


def test_an_index_without_an_encoder_cannot_encode_its_texts_again(index):
    index.create(VECTORS[:500])
    assert "name one" in index.send("POST", "/reindex", {"encode": True}, 409)["error"]["message"]
