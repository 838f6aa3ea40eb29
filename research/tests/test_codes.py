"""The comparisons of weightings and kinds of codes."""

import numpy as np
import pytest

from benchmarks.held_out import read_held_out
from research.codes.defaults import PROOF, REFERENCE, TUNING, average_over_tasks, measure_halves
from research.codes.weightings import summarize
from research.learned.data import EncodedTask, Task


def test_a_measure_that_orders_weightings_as_tasks_do_has_rho_1_and_the_loss_of_its_choice():
    cell = {"budget": 24, "loss": [-3.0, -1.0, -2.0, -4.0, -5.0], "retrieval": [3, 5, 4, 2, 1]}
    found = summarize([cell | {"recall_at_10": [3, 1, 2, 4, 5], "by_split_half": 1, "by_recall": 4}], 24)
    assert (found["split_half_rho"], found["recall_rho"]) == (pytest.approx(1), pytest.approx(-1))
    assert (found["loss"]["by split-half"], found["loss"]["by recall"]) == (-1, -5)
    assert found["loss"]["best in hindsight"] == -1 and found["changed_by_split_half"] == 1


def test_the_default_is_not_chosen_by_tasks_that_are_set_aside():
    assert not set(TUNING) & read_held_out() and not set(TUNING) & set(PROOF)


def test_codes_fitted_on_what_they_search_lose_less_than_codes_fitted_on_the_other_half():
    rng = np.random.default_rng(0)
    documents = rng.normal(size=(600, 256)).astype(np.float32)
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    queries = (documents + 0.15 * rng.normal(size=documents.shape)).astype(np.float32)
    names, gains = [str(n) for n in range(600)], [{n: 1} for n in range(600)]
    task = EncodedTask(Task("some", names, [], [], names, gains), documents, np.zeros((0, 256), np.float32), queries)
    found = measure_halves(task)
    assert (found["rows"], found["queries"]) == ([300, 300], 600)

    rows = {(row["kind"], row["weighting"], row["bytes"]): row for row in found["codes"]}
    assert rows[*REFERENCE, 24]["ahead"]["mean"] == pytest.approx(0, abs=1e-9)
    learned = rows["product_codes", 0.5, 24]
    assert learned["memorized_gain"]["mean"] > learned["memorized_gain"]["ci95"]
    assert learned["recall_at_10"]["same half"] > learned["recall_at_10"]["other half"]


def test_encoders_are_averaged_before_tasks_and_tasks_are_independent():
    def cell(task, mean):
        row = {"kind": "codes", "weighting": 0.0, "bytes": 24, "loss": {"mean": mean, "ci95": 2.0}}
        return {"task": task, "codes": [row]}

    cells = [cell("a", -1.0), cell("a", -3.0), cell("b", -4.0)]
    found = average_over_tasks(cells, ("codes", 0.0), 24, "loss")
    assert found == {"mean": pytest.approx(-3), "ci95": pytest.approx(2 / 2**0.5), "tasks": 2}
    assert average_over_tasks(cells, ("codes", 0.0), 48, "loss") is None
