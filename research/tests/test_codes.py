"""The comparison of weightings of codes."""

import pytest

from research.codes.weightings import summarize


def test_a_measure_that_orders_weightings_as_tasks_do_has_rho_1_and_the_loss_of_its_choice():
    cell = {"budget": 24, "loss": [-3.0, -1.0, -2.0, -4.0, -5.0], "retrieval": [3, 5, 4, 2, 1]}
    found = summarize([cell | {"recall_at_10": [3, 1, 2, 4, 5], "by_split_half": 1, "by_recall": 4}], 24)
    assert (found["split_half_rho"], found["recall_rho"]) == (pytest.approx(1), pytest.approx(-1))
    assert (found["loss"]["by split-half"], found["loss"]["by recall"]) == (-1, -5)
    assert found["loss"]["best in hindsight"] == -1 and found["changed_by_split_half"] == 1
