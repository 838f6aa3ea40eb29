"""The collections that probabilities are measured on, and what could give their answers away."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.held_out import read_held_out
from research.scores.changes import ENCODERS, choose_precise, estimate, search_graph, switch_encoders
from research.scores.data import CHOSEN_ON, SET_ASIDE, JudgedSearch, read_texts
from research.scores.measure import Collection, LeftOut, find_safe_threshold, measure_collection


def test_nothing_is_learnt_from_data_sets_that_are_set_aside():
    assert set(SET_ASIDE) <= read_held_out()
    assert not set(CHOSEN_ON) & read_held_out()


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in rows))


def test_equal_documents_are_one_and_queries_that_are_documents_are_left_out(tmp_path):
    folder = tmp_path / "some"
    documents = ["One", "two", "ONE ", "three", "four"]
    write(folder / "corpus.jsonl", [{"_id": f"d{n}", "text": text} for n, text in enumerate(documents)])
    write(folder / "queries.jsonl", [{"_id": "a", "text": "first?"}, {"_id": "b", "text": "Two"}])
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\na\td2\t1\na\td3\t0\nb\td1\t1\n")
    texts = read_texts(tmp_path, "some", max_documents=3, max_queries=10)
    assert texts.queries == ["first?"]
    assert not read_texts(tmp_path, "some", 3, 10, max_words=0).queries
    assert len(texts.documents) == 3
    assert [[texts.documents[row] for row in rows] for rows in texts.relevant] == [["One"]]


@pytest.fixture(scope="module")
def search():
    random = np.random.default_rng(0)
    documents = random.normal(size=(120, 16)).astype(np.float32)
    queries = documents[:40] + random.normal(size=(40, 16)).astype(np.float32)
    return JudgedSearch("code/some", "MiniLM", documents, queries, np.eye(40, 120, dtype=bool))


def test_half_of_the_queries_lose_their_answers(search):
    halving = Collection(search).halve(0)
    found = np.array([row in hits for row, hits in enumerate(halving.rows)])
    assert halving.relevant.any(1).sum() == found.sum() <= 20
    assert (np.diff(halving.searches["rows"].scores) <= 0).all()


def test_hubs_of_a_log_know_neither_the_query_nor_those_that_the_row_answers(search):
    collection = Collection(search)
    halving = collection.halve(1)
    hubs = halving.searches["queries"].hubs
    for query, rank in ((0, 0), (7, 3), (31, 9)):
        row = halving.rows[query, rank]
        others = [other for other in range(40) if other != query and not search.relevant[other, row]]
        assert hubs[query, rank] == pytest.approx(np.sort(collection.cosines[others, row])[-10:].mean(), abs=1e-6)


def test_weights_are_learnt_without_the_data_set_and_without_the_family_of_the_encoder(search):
    own = measure_collection(Collection(search))
    same_set, same_family = replace(own, encoder="e5-small"), replace(own, name="code/other", encoder="MiniLM layer 3")
    other = replace(own, name="code/other", encoder="e5-small")
    learnt, rate = LeftOut([own, same_set, same_family, other]).learn(own, "rows")
    alone, _ = LeftOut([other]).learn(own, "rows")
    assert np.array_equal(learnt, alone)
    assert rate == other.right[:2].mean()


def test_a_safe_threshold_needs_more_than_a_few_right_hits():
    scores = np.linspace(1, 0, 200)
    assert find_safe_threshold(scores, np.arange(200) < 5) == np.inf
    assert find_safe_threshold(scores, np.arange(200) < 100) == pytest.approx(scores[109])


def test_a_cutoff_is_the_lowest_score_from_which_on_nine_of_ten_hits_are_right():
    scores, right = np.linspace(1, 0, 101), np.arange(101) < 18
    assert choose_precise(scores, right) == pytest.approx(0.81)
    assert choose_precise(scores, np.arange(101) < 8) == np.inf


def test_an_old_cosine_answers_nothing_where_all_cosines_are_halved_and_an_old_probability_as_much_as_before():
    random = np.random.default_rng(0)
    documents = random.normal(size=(400, 32)).astype(np.float32)
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    queries = documents[:300] + 0.1 * random.normal(size=(300, 32)).astype(np.float32)
    sides = [(queries, documents), (np.pad(queries, ((0, 0), (0, 1))), np.column_stack([documents, np.full(400, 2)]))]
    relevant = np.eye(300, 400, dtype=bool)
    collections = [
        Collection(JudgedSearch("some", "some", rows.astype("f4"), asked, relevant)) for asked, rows in sides
    ]
    chosen = Counter()
    tables = switch_encoders(dict(zip(ENCODERS, [*collections, collections[0]], strict=True)), chosen)
    assert set(chosen.values()) == {30}
    cosine, share, probability = (
        estimate(tables["nine of ten right", kind, *ENCODERS[:2]]) for kind in ("cosine", "share", "probability")
    )
    assert cosine["answered"][0] == 0 and cosine["searches"] == 1500
    assert share["answered"][0] == pytest.approx(0.55, abs=0.05)
    assert probability["answered"][0] == pytest.approx(0.55, abs=0.05) and probability["precision"][1] > 0.8


def test_a_graph_with_as_many_candidates_as_rows_finds_what_an_exact_search_finds(search):
    exact, graph = Collection(search), Collection(search)
    assert search_graph(graph, 120) == pytest.approx(1)
    assert np.array_equal(exact.halve(0).rows, graph.halve(0).rows)
