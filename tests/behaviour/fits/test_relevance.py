"""Judgements in pairs: what counts as relevant, in files and requests alike."""

import json

import pytest
from pydantic import ValidationError

from lathe.training.deciding.adapt import read_searches
from lathe.training.deciding.judged import encode_searches
from lathe.training.deciding.requests import AdaptRequest
from lathe.training.errors import FitError, SourceError
from lathe.training.fitting.pairs import find_self_matches, read_pairs
from lathe.training.fitting.requests import QueryPair, RowSource
from lathe.transforms.progress import no_progress
from tests.training.fitting.numbered import NumberEncoder


def read_alike(path, rows):
    """Read pairs from a file and from a request, check that both give the same, and return it."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = read_pairs(str(path))
    assert found == read_pairs([QueryPair.model_validate(row) for row in rows])
    return found


@pytest.mark.parametrize(
    ("field", "relevant", "irrelevant"),
    [
        ("score", [1, 2, 1.0], [0, 0.0, -1]),
        ("label", ["relevant", "Yes", "1"], ["irrelevant", "not relevant", "not_relevant", "No", "0"]),
        ("relevance", [True], [False]),
        ("grade", [3, "2"], ["0"]),
    ],
)
def test_a_document_judged_not_relevant_is_left_out_and_counted(tmp_path, field, relevant, irrelevant):
    values = [*relevant, *irrelevant]
    rows = [{"query": f"query {n}", "document": "d", field: value} for n, value in enumerate(values)]
    found = read_alike(tmp_path / "pairs.jsonl", rows)
    assert list(found.by_query) == [f"query {n}" for n in range(len(relevant))]
    assert found.irrelevant == len(irrelevant)
    assert found.notes == [f"{len(irrelevant)} pairs are judged not relevant and were left out."]


@pytest.mark.parametrize("value", [0.37, "maybe", None, [1], float("nan")], ids=str)
def test_a_judgement_that_cannot_be_read_is_refused_by_its_field_and_value(tmp_path, value):
    pair = {"query": "q", "document": "d"}
    path = tmp_path / "pairs.jsonl"
    path.write_text(f"{json.dumps(pair | {'score': 1})}\n{json.dumps(pair | {'score': value})}\n")
    with pytest.raises((FitError, SourceError), match=r"pairs.jsonl line 2: .*(score is|NaN)"):
        read_pairs(str(path))
    with pytest.raises(ValidationError, match="score is"):
        QueryPair.model_validate(pair | {"score": value})


def test_two_judgements_of_a_pair_and_pairs_judged_in_part_are_refused(tmp_path):
    pair, path = {"query": "q", "document": "d"}, tmp_path / "pairs.jsonl"
    both = pair | {"score": 0.93, "label": "irrelevant"}
    path.write_text(json.dumps(both))
    with pytest.raises(
        FitError, match="line 1: a pair has score and label: leave out the field that is not a judgement"
    ):
        read_pairs(str(path))
    with pytest.raises(ValidationError, match="a pair has score and label"):
        QueryPair.model_validate(both)
    path.write_text(f"{json.dumps(pair | {'score': 1})}\n{json.dumps(pair)}")
    with pytest.raises(FitError, match="line 2: relevance is in None, and in score before"):
        read_pairs(str(path))


def test_a_file_without_a_relevant_pair_or_with_a_missing_text_is_refused(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"query": "q", "document": "d", "score": 0}))
    with pytest.raises(FitError, match="holds no pair to use. 1 pairs are judged not relevant"):
        read_pairs(str(path))
    path.write_text('{"query": "q", "document": "d"}\n{"query": "q", "document": null}')
    with pytest.raises(SourceError, match="line 2: 'document' is None; it must be a string"):
        read_pairs(str(path))


def test_pairs_of_parquet_are_read_as_those_of_lines(tmp_path):
    pandas = pytest.importorskip("pandas")
    rows = pandas.DataFrame({"query": ["a", "b"], "document": ["c", "d"], "score": [1, 0]})
    rows.to_parquet(tmp_path / "pairs.parquet")
    assert read_pairs(str(tmp_path / "pairs.parquet")).by_query == {"a": ["c"]}
    rows.rename(columns={"score": "position"}).to_parquet(tmp_path / "clicks.parquet")
    with pytest.raises(FitError, match="is a log of clicks: its rows have a position"):
        read_pairs(str(tmp_path / "clicks.parquet"))


def test_a_pair_of_one_text_is_left_out_and_a_querys_own_text_is_found_among_documents(tmp_path):
    rows = [{"query": "How  to x?", "document": "how to X?"}, {"query": "How to x?", "document": "like this"}]
    found = read_alike(tmp_path / "pairs.jsonl", rows)
    assert found.by_query == {"How to x?": ["like this"]}
    assert found.notes == ["1 pairs have one text as query and document and were left out."]
    assert find_self_matches(["a b", "c", "d"], ["D", "a  B", "e", "d"]).tolist() == [[0, 1], [2, 0], [2, 3]]


def test_the_own_text_of_a_query_is_left_out_of_its_results_and_that_is_said():
    pairs = [QueryPair(query=f"query {n}", document=f"document {n}") for n in range(200)]
    texts = [text for pair in pairs for text in (pair.query, pair.document)]
    searches = read_searches(AdaptRequest(source=RowSource(texts=texts), pairs=pairs))
    assert searches.notes == ("200 queries are documents too; a query's own text is left out of its results.",)
    measured = encode_searches(searches, NumberEncoder(), no_progress).measured
    own = [(row, searches.documents.index(query)) for row, query in enumerate(searches.measured.by_query)]
    assert measured.excluded.tolist() == [list(pair) for pair in own]
