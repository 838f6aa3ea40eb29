"""Data sets of the hub, by way of folders, which the same library loads."""

import orjson
import pytest

from training.datasets.hub import HubDataSet
from training.datasets.records import Warnings
from training.errors import DataSetError


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Writes splits to a folder that stands for a data set of the hub, and reads its test."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def read(splits, task, split="test", columns=()):
        folder = tmp_path / "set"
        folder.mkdir()
        for name, rows in splits.items():
            (folder / f"{name}.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
        data, warnings = HubDataSet("x", task, str(folder), columns=columns, split=split), Warnings()
        return data.read_test(warnings), warnings.sentences()

    return read


def test_columns_come_under_our_names(hub):
    rows = [{"a": f"one {n}", "b": f"two {n}", "score": n, "extra": 1} for n in range(4)]
    data, warnings = hub({"test": rows}, "sts", columns=(("sentence1", "a"), ("sentence2", "b")))
    assert list(data.splits["test"]) == ["sentence1", "sentence2", "score"]
    assert data.splits["test"]["sentence1"][2] == "one 2" and not warnings


def test_rows_that_are_lists_are_taken_apart(hub):
    rows = [{"sentences": ["a", "b"], "labels": [0, 1]}, {"sentences": ["c"], "labels": [1]}]
    data, _ = hub({"test": rows}, "clustering", columns=(("text", "sentences"), ("label", "labels")))
    assert data.splits["test"] == {"text": ["a", "b", "c"], "label": ["0", "1", "1"]}


def test_documents_to_rerank_stay_lists(hub):
    data, _ = hub(
        {"validation": [{"query": "q", "positive": ["p"], "negative": ["n", "m"]}]}, "reranking", split="validation"
    )
    assert [text for _, text in data.corpus.values()] == ["p", "n", "m"]


def test_classification_takes_its_training_rows_too(hub):
    rows = [{"text": f"text {n}", "label": n % 2} for n in range(6)]
    data, warnings = hub({"train": rows, "test": [*rows[:3], {"text": " ", "label": 0}]}, "classification")
    assert (len(data.splits["train"]["text"]), data.splits["test"]["label"]) == (6, [0, 1, 0])
    assert any("'text' holds only spaces" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [({"columns": (("score", "gold"),)}, "has no column 'gold'"), ({"split": "other"}, "cannot be loaded")],
)
def test_what_is_not_as_the_suite_says_is_named(hub, entry, reason):
    with pytest.raises(DataSetError, match=reason):
        hub({"test": [{"sentence1": "a", "sentence2": "b", "score": 1}]}, "sts", **entry)
