import numpy as np
import pytest

from lathe.training.checkup.findings import format_recall
from lathe.training.checkup.searches import check_searches, describe_searches
from lathe.training.checkup.spaces import encode_again
from lathe.training.comparison import Interval
from tests.training.checkup.words import LossyStore, WordEncoder, known, make_rows, make_texts

VECTORS = np.random.default_rng(0).normal(size=(500, 64)).astype(np.float32)
QUERIES = VECTORS[:100]


def check(store, queries=QUERIES, again=None):
    """Return the check and what is not fine, by its kind."""
    found = check_searches(store, queries, again)
    described = {finding.kind: finding for finding in describe_searches(found, store) if finding.severity != "fine"}
    return found, described


def test_a_search_that_finds_all_loses_nothing():
    found, described = check(LossyStore(make_rows(VECTORS), (0, 0)))
    assert found.recall.value == 1 and found.losses["graph"].value == 0 and described == {}
    assert [effort.effort for effort in found.efforts] == [1]  # no other is tried


def test_the_least_effort_that_brings_hits_back_is_advised():
    found, described = check(LossyStore(make_rows(VECTORS), (3, 2, 0, 0)))
    assert found.recall.value == pytest.approx(0.7, abs=0.01)
    assert found.losses["graph"].value == pytest.approx(1 - found.recall.value)
    assert described["graph"].severity == "fix"
    assert described["graph"].advice == "ef 3 in place of 1 brings 0.30 back for 2000.0 ms a query."


def test_an_index_that_no_effort_helps_is_built_again():
    described = check(LossyStore(make_rows(VECTORS), (3, 3, 3)))[1]
    assert described["graph"].advice.startswith("Build the index again, with more links if it had few: no larger ef")


def test_a_copy_in_place_of_a_hit_is_no_loss():
    copied = np.repeat(VECTORS[:50], 2, axis=0)
    found, _ = check(LossyStore(make_rows(np.concatenate([copied, copied])), (2,)))
    assert found.losses["graph"].value == 0


def test_graph_and_quantizer_lose_what_each_of_them_loses():
    def quantize(vectors):
        return np.sign(vectors)

    alone, described = check(LossyStore(make_rows(VECTORS), (0,), quantize))
    assert alone.losses["graph"].value == 0 and alone.recall.value == pytest.approx(1 - alone.losses["quantizer"].value)
    assert described["quantizer"].severity == "note" and "signs loses" in described["quantizer"].sentence
    assert described["quantizer"].advice.startswith("Ranking")
    assert alone.ranked_again[2].value < alone.ranked_again[8].value

    both, described = check(LossyStore(make_rows(VECTORS), (5,), quantize))
    assert both.losses["quantizer"].value == alone.losses["quantizer"].value
    assert sum(loss.value for loss in both.losses.values()) == pytest.approx(1 - both.recall.value)
    assert described.keys() == {"graph", "quantizer"}


def test_bounds_beyond_what_a_share_can_be_are_not_said():
    assert format_recall(Interval(0.95, 0.89, 1.01)) == ".95 (.89 to 1.00)"
    assert format_recall(Interval(-0.01, -0.02, 0.01)) == ".00 (.00 to .01)"


def test_rows_that_their_texts_do_not_find_are_lost_and_others_are_not():
    texts, encoder = make_texts(300), WordEncoder()
    vectors = encoder.encode(texts, "document").vectors
    vectors[::10] = WordEncoder(1).encode(texts[::10], "document").vectors
    vectors[1::10] *= 3
    rows = make_rows(vectors, texts)
    again = encode_again(rows, known(encoder), lambda *_: None)
    found, _ = check(LossyStore(rows), vectors[5::10], again)
    assert found.losses["other_encoder"].value == pytest.approx(0.1, abs=0.02)
    assert found.recall.value == pytest.approx(1 - found.losses["other_encoder"].value)
    assert found.losses.keys() == {"graph", "other_encoder"}
