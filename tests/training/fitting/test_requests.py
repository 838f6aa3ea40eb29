import pytest
from pydantic import ValidationError

from lathe.training.errors import FitError
from lathe.training.fitting.requests import NewFit, QueryPair, RowSource
from lathe.transforms import StepError

R2 = [{"kind": "r2"}]


def new_fit(**fields):
    return NewFit(**{"name": "a", "source": "rows.npy", "steps": R2} | fields)


def test_a_request_is_the_same_after_its_journey_as_json():
    request = new_fit(
        source={"path": "rows.npy"},
        queries="queries.npy",
        gates={"recall_at_10": 0.5},
        out_of_domain={"news": "news.txt"},
        test_pairs=[{"query": "q", "document": "d"}],
        bytes=48,
        seed=3,
    )
    assert NewFit.model_validate_json(request.model_dump_json()) == request
    assert request.test_pairs == [QueryPair(query="q", document="d")]


def test_a_string_is_a_path():
    assert new_fit(source="rows.npy").source == RowSource(path="rows.npy")
    assert new_fit(source="rows.npy", targets="t.npy").paths == {"source": "rows.npy", "targets": "t.npy"}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({}, "exactly one of texts, vectors and path, got none"),
        ({"texts": ["a"], "path": "b"}, "got texts, path"),
        ({"text": ["a"]}, "did you mean texts?"),
        (5, "an object with texts, vectors or path, or the path alone"),
        ([1.0], "an object with texts, vectors or path, or the path alone"),
    ],
)
def test_a_source_is_refused_unless_it_is_one_of_three(source, words):
    with pytest.raises(ValidationError, match=words):
        new_fit(source=source)


def test_a_source_that_was_sent_has_no_location_until_it_is_a_file():
    request = new_fit(source={"texts": ["a"]}, pairs=[{"query": "q", "document": "d"}])
    assert request.paths == {}
    with pytest.raises(FitError, match="written to a file"):
        _ = request.source.location
    located = request.with_paths({"source": "source.jsonl", "pairs": "pairs.jsonl"})
    assert (located.source.location, located.pairs) == ("source.jsonl", "pairs.jsonl")


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"gates": {"novel": 1}}, FitError, "no gate 'novel'"),
        ({"steps": [{"kind": "novel"}]}, StepError, "novel"),
        ({"steps": []}, StepError, "at least one step"),
        ({"queries": "q.npy"}, FitError, "no step is fitted on queries"),
        ({"targets": "t.npy"}, FitError, "no step is fitted on targets"),
        ({"steps": [{"kind": "procrustes"}]}, FitError, "name the target encoder"),
        ({"steps": [{"kind": "procrustes"}], "targets": "t", "target_encoder": "e"}, FitError, "not both"),
        ({"steps": [{"kind": "query_adapter"}]}, FitError, "name a file of pairs"),
        ({"pairs": "p.jsonl"}, FitError, "no step is fitted on pairs"),
        ({"steps": [{"kind": "query_adapter"}], "pairs": "p", "test_pairs": "p"}, FitError, "data leakage"),
    ],
)
def test_what_can_be_known_before_rows_are_read_is_checked(fields, error, words):
    with pytest.raises(error, match=words):
        new_fit(**fields).check()
