"""Hub data sets, read from local folders by the same library."""

import orjson
import pytest

from lathe.training.datasets.hub import HubDataSet
from lathe.training.datasets.records import Warnings
from lathe.training.errors import DataSetError


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Return a function that writes splits to a folder as a hub data set, and reads its test."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def read(splits, task, split="test", columns=()):
        folder = tmp_path / "set"
        folder.mkdir()
        for name, rows in splits.items():
            (folder / f"{name}.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
        data, warnings = HubDataSet("x", task, str(folder), columns=columns, split=split), Warnings()
        return data.read_test(warnings), warnings.to_sentences()

    return read


def test_hub_data_set_renames_columns_and_drops_the_others(hub):
    rows = [{"a": f"one {n}", "b": f"two {n}", "score": n, "extra": 1} for n in range(4)]
    data, warnings = hub({"test": rows}, "sts", columns=(("sentence1", "a"), ("sentence2", "b")))
    assert list(data.splits["test"]) == ["sentence1", "sentence2", "score"]
    assert data.splits["test"]["sentence1"][2] == "one 2" and not warnings


def test_hub_data_set_flattens_rows_of_lists_for_clustering(hub):
    rows = [{"sentences": ["a", "b"], "labels": [0, 1]}, {"sentences": ["c"], "labels": [1]}]
    data, _ = hub({"test": rows}, "clustering", columns=(("text", "sentences"), ("label", "labels")))
    assert data.splits["test"] == {"text": ["a", "b", "c"], "label": ["0", "1", "1"]}


def test_hub_data_set_reads_lists_of_documents_for_reranking(hub):
    data, _ = hub(
        {"validation": [{"query": "q", "positive": ["p"], "negative": ["n", "m"]}]}, "reranking", split="validation"
    )
    assert [text for _, text in data.corpus.values()] == ["p", "n", "m"]


def test_hub_data_set_reads_the_training_rows_for_classification_and_warns_of_blank_texts(hub):
    rows = [{"text": f"text {n}", "label": n % 2} for n in range(6)]
    data, warnings = hub({"train": rows, "test": [*rows[:3], {"text": " ", "label": 0}]}, "classification")
    assert (len(data.splits["train"]["text"]), data.splits["test"]["label"]) == (6, [0, 1, 0])
    assert any("'text' holds only spaces" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [({"columns": (("score", "gold"),)}, "has no column 'gold'"), ({"split": "other"}, "cannot be loaded")],
)
def test_hub_data_set_refuses_a_missing_column_and_a_missing_split(hub, entry, reason):
    with pytest.raises(DataSetError, match=reason):
        hub({"test": [{"sentence1": "a", "sentence2": "b", "score": 1}]}, "sts", **entry)
