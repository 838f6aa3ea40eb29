import numpy as np
import pytest

from lathe.service.checkup.own_index import IndexStore
from lathe.service.errors import BadValueError
from lathe.training.checkup.checkup import check_up
from tests.helpers import eventually


def draw(dimensions):
    """Return normalized random vectors."""
    vectors = np.random.default_rng(0).normal(size=(1500, dimensions)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


VECTORS = draw(32)


@pytest.fixture
def fill(lathe):
    """Return a function that creates an index with vectors and texts, and opens its store."""

    def send(method, path, body=None):
        answer = lathe.client.request(method, path, json=body, headers=lathe.admin)
        assert answer.status_code == 200, answer.text
        return answer.status_code, answer.json()

    def create(vectors=VECTORS, **settings):
        send("PUT", "/indexes/t", {"chain": "none", "width": vectors.shape[1]} | settings)
        index = lathe.services.indexes.get("t")
        index.generation.exact_rows = 0
        for start in range(0, len(vectors), 500):
            ids = [f"row {row}" for row in range(start, start + 500)]
            metadata = [{"text": f"text of {row}"} for row in ids]
            part = vectors[start : start + 500].tolist()
            send("POST", "/indexes/t/upsert", {"ids": ids, "vectors": part, "metadata": metadata})
        eventually(lambda: send("GET", "/indexes/t")[1]["in_graph"] == len(vectors))
        return IndexStore("t", send)

    yield create
    lathe.client.delete("/indexes/t", headers=lathe.admin)


def check(store):
    return check_up(store, None, None, lambda *_: None)


def test_items_have_their_vector_and_text(fill):
    rows = fill(text_field="text").read(1200)
    assert (len({*rows.ids}), rows.total) == (1200, 1500)
    for row, text, vector in zip(rows.ids, rows.texts, rows.vectors, strict=True):
        assert text == f"text of {row}" and vector == pytest.approx(VECTORS[int(row.split()[1])], abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "loses"),
    [({"m": 4, "ef_construction": 8}, True), ({"m": 32, "ef_construction": 400, "metric": "l2"}, False)],
)
def test_a_graph_of_few_links_loses_hits_and_a_sound_one_none(fill, settings, loses):
    found = check(fill(**settings))
    assert (found.searches.losses["graph"].value > 0.05) == found.must_fix == loses


def test_a_chain_loses_hits_as_a_quantizer(fill):
    found = check(fill(draw(384), chain="compact"))
    assert found.searches.losses["quantizer"].value > 0.2
    assert any(finding.sentence.startswith("The chain compact@1 loses") for finding in found.findings)


def test_an_index_without_original_vectors_is_refused(fill):
    with pytest.raises(BadValueError, match="stores no original vectors"):
        fill(draw(384), chain="codes48", originals="none")
