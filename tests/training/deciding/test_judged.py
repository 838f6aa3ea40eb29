"""Division of judged queries: none that teaches is measured with, and relevant documents are always searched."""

import json

import pytest

from lathe.training.deciding.adapt import find_shortage, read_searches
from lathe.training.deciding.judged import encode_searches
from lathe.training.deciding.requests import AdaptRequest
from lathe.training.errors import FitError
from lathe.training.fitting.requests import QueryPair, RowSource
from lathe.transforms.progress import no_progress
from tests.training.fitting.numbered import NumberEncoder, pairs_of, write


def request(pairs, **fields):
    texts = [f"document {n}" for n in range(300)]
    return AdaptRequest(source=RowSource(texts=texts), pairs=[QueryPair(**pair) for pair in pairs], **fields)


def queries_of(part):
    return set(part.by_query)


def test_three_fifths_teach_a_fifth_chooses_and_a_fifth_reports():
    searches = read_searches(request(pairs_of(range(200))))
    assert (len(searches.learn.by_query), len(searches.measured.by_query)) == (120, 80)
    assert len(queries_of(searches.learn) | queries_of(searches.measured)) == 200
    first, second = searches.folds
    assert [len(rows) for rows in (*first, *second)] == [40, 40, 40, 40]
    assert set(first[0]).isdisjoint(first[1]) and (first[0] is second[1]) and (first[1] is second[0])
    assert searches.count_queries() == {"learn": 120, "choose": 80, "report": 80}
    assert find_shortage(searches) is None


def test_test_pairs_are_reported_on_and_teach_nothing():
    test = [QueryPair(**pair) for pair in pairs_of(range(200, 240))]
    searches = read_searches(request(pairs_of(range(200)), test_pairs=test))
    assert set(searches.reported) == {f"query {n}" for n in range(200, 240)} and not searches.crossed
    assert searches.count_queries() == {"learn": 160, "choose": 40, "report": 40}


def test_test_queries_among_those_to_learn_from_are_refused():
    test = [QueryPair(query="Query  3", document="document 3")]
    with pytest.raises(FitError, match="data leakage"):
        read_searches(request(pairs_of(range(200)), test_pairs=test))


def test_relevant_documents_are_searched_even_if_the_source_lacks_them():
    searches = read_searches(request(pairs_of(range(290, 500))))
    assert {f"document {n}" for n in range(290, 500)} <= set(searches.documents)
    assert len(searches.documents) == len(set(searches.documents)) == 500


def test_all_parts_search_the_same_documents_by_unit_vectors():
    searches = read_searches(request(pairs_of(range(200))))
    vectors = encode_searches(searches, NumberEncoder(), no_progress)
    assert vectors.learn.documents is vectors.measured.documents
    row, column = vectors.measured.relevant[0]
    query = list(searches.measured.by_query)[row]
    assert searches.documents[column] == query.replace("query", "document")


def test_a_log_of_clicks_is_refused_with_the_reason(tmp_path):
    """What was clicked was seen, and what was seen was chosen by the ranking that is to be improved."""
    rows = [pair | {"position": 1 + n % 10} for n, pair in enumerate(pairs_of(range(200)))]
    path = write(tmp_path / "clicks.jsonl", rows)
    with pytest.raises(FitError, match="a log of clicks: .*position"):
        read_searches(AdaptRequest(source=RowSource(texts=["document 1"]), pairs=path))


def test_a_source_of_vectors_is_refused(tmp_path):
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"query": "a", "document": "b"}))
    with pytest.raises(FitError, match="an adaptation encodes texts"):
        AdaptRequest(source=RowSource(vectors=[[1.0]]), pairs=str(tmp_path / "pairs.jsonl")).check()
