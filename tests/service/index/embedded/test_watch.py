from dataclasses import replace

import numpy as np
import pytest

from lathe.service.index.embedded.generation import Generation
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.embedded.watch import RecallWatch
from lathe.service.index.reducer import Reducer
from lathe.service.index.spec import IndexSpec

pytest.importorskip("hnswlib")
SPEC = IndexSpec(
    encoder=None, encoder_fingerprint=None, width=32, raw_space_id="r", chain="none", dimensions=32, space_id="r"
)
VECTORS = np.random.default_rng(0).normal(size=(2000, 32)).astype(np.float32)


@pytest.fixture
def make(tmp_path):
    """Return a function that makes a generation whose rows are all in the graph."""

    def make_one(exact_rows=100, vectors=VECTORS, **settings):
        spec = replace(SPEC, **settings)
        record = IndexRecord.create(tmp_path / f"{settings.get('m', 16)}.db", spec, None)
        generation = Generation(tmp_path / "graph-1", spec, record, Reducer(spec, None), 1, exact_rows)
        ids = [str(row) for row in range(len(vectors))]
        generation.append(record.upsert(ids, vectors, [None] * len(ids), [None] * len(ids), spec).labels, vectors)
        generation.extend_graph(10**9, 1)
        return generation

    return make_one


@pytest.fixture
def watch(tmp_path, monkeypatch):
    monkeypatch.setattr("lathe.service.index.embedded.watch.PAUSE_SECONDS", 0)
    monkeypatch.setattr("lathe.service.index.embedded.watch.PAUSE_SHARE", 0)
    watch = RecallWatch(tmp_path / "recall.json")
    watch.random = np.random.default_rng(0)  # its intervals miss the truth in one run of twenty
    return watch


def ask(watch, generation, count):
    for _ in range(count):
        watch.ask_if_due(generation)


def test_a_graph_that_loses_hits_is_warned_of_and_a_sound_one_is_not(watch, make, tmp_path):
    assert watch.describe() is None and watch.excessive_loss is None
    sound = make(m=32, ef_construction=400)
    ask(watch, sound, 150)
    assert watch.describe()["queries"] == 150 and watch.describe()["losses"]["graph"][0] < 0.05
    assert watch.excessive_loss is None

    lossy = RecallWatch(tmp_path / "lossy.json")
    few_links = make(m=3, ef_construction=4)
    ask(lossy, few_links, 99)
    assert lossy.excessive_loss is None  # too few canaries
    ask(lossy, few_links, 51)
    mean, low, high = lossy.describe()["losses"]["graph"]
    assert 0.05 < low < mean < high
    assert lossy.excessive_loss == f"{mean:.2f} ({low:.2f} to {high:.2f})"


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_rows_with_copies_and_rows_that_the_graph_does_not_find_are_counted(watch, make, metric):
    vectors = VECTORS.copy()
    vectors[:500], vectors[500:520] = vectors[1500:], vectors[520]  # half the rows have one copy, and 21 have 20
    ask(watch, make(vectors=vectors, m=32, ef_construction=400, metric=metric), 300)
    rows = watch.describe()["rows"]
    assert rows["copied"][1] < 1021 / 2000 < rows["copied"][2] and rows["unreachable"][0] == 0

    watch.canaries.clear()
    ask(watch, make(m=2, ef_construction=2, metric=metric), 150)
    rows = watch.describe()["rows"]
    assert rows["copied"][0] == 0 and rows["unreachable"][1] > 0.02


@pytest.mark.parametrize("metric", ["ip", "l2"])
def test_rounding_of_large_scores_is_no_loss(watch, make, metric):
    ask(watch, make(vectors=1000 * VECTORS, m=64, ef_construction=800, metric=metric), 60)
    assert watch.describe()["losses"]["graph"][0] < 0.005


def test_canaries_are_kept_over_restarts_until_the_index_is_built_again(watch, make):
    generation = make()
    ask(watch, generation, 45)
    again = RecallWatch(watch.path)
    assert again.describe()["queries"] == 40  # every twenty are written
    again.next = 0
    ask(again, generation, 5)
    assert again.describe()["queries"] == 45
    for changed in ({"space_id": "other"}, {"generation": 7}):
        generation.spec = replace(generation.spec, **changed)
        ask(again, generation, 1)
        assert again.describe()["queries"] == 1

    for content in ("", "{}", '{"space_id": 1, "losses": [1]}'):
        watch.path.write_text(content)
        assert RecallWatch(watch.path).describe() is None


def test_a_canary_waits_its_turn_and_small_indexes_have_none(make, tmp_path):
    watch, generation = RecallWatch(tmp_path / "recall.json"), make(exact_rows=5000)
    watch.next = 0
    ask(watch, generation, 3)
    assert watch.describe() is None  # all rows are compared anyway
    generation.exact_rows = 100
    ask(watch, generation, 3)
    assert watch.describe()["queries"] == 1
