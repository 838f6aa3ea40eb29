import orjson
import pytest

from lathe.training.journal import Journal
from research.reze_experiment.results import Result, read_result

CELL = ("unit", "tone", "classification", "accuracy", "reze", 100, 1e-4, 0)


@pytest.mark.parametrize("accuracy", [0.5, None])
def test_results_are_read_as_they_were_written(tmp_path, accuracy):
    journal = Journal(tmp_path / "log.jsonl", read_result)
    journal.append([Result(*CELL, 0.75, accuracy, drift=0.1)])
    assert journal.read() == [Result(*CELL, 0.75, accuracy, drift=0.1)]


@pytest.mark.parametrize(
    ("metric", "probe", "expected"),
    [("label_accuracy", 0.75, (0.75, 0.5, "accuracy")), ("map", None, (0.5, None, "map"))],
)
def test_in_logs_of_the_first_version_the_two_accuracies_change_places(tmp_path, metric, probe, expected):
    entry = {"unit": "unit", "target": "tone", "task": "any", "metric": metric, "method": "reze", "rows": 100}
    entry |= {"learning_rate": 1e-4, "seed": 0, "score": 0.5, "linear_probe": probe}
    (tmp_path / "log.jsonl").write_bytes(orjson.dumps(entry) + b"\n")
    (found,) = Journal(tmp_path / "log.jsonl", read_result).read()
    assert (found.score, found.label_accuracy, found.metric) == expected
