import numpy as np
import pytest

from lathe.transforms import InputError, recall_at_k
from lathe.transforms.quality import compare_neighbours


@pytest.fixture(scope="module")
def rows():
    return (np.random.default_rng(0).normal(size=(300, 48)) * np.geomspace(1, 0.1, 48) + 0.3).astype(np.float32)


def test_equal_outputs_agree_and_have_the_recall_of_the_metric(rows):
    found = compare_neighbours(rows, rows[:, :16], rows[:, :16])

    assert found["agreement_at_k"] == {"value": 1, "low": 1, "high": 1}
    assert found["raw_recall_at_k"]["first"]["value"] == pytest.approx(recall_at_k(rows, rows[:, :16], 10))
    assert found["raw_recall_at_k"]["difference"] == {"value": 0, "low": 0, "high": 0}


def test_more_dimensions_find_more_of_the_raw_neighbours(rows):
    found = compare_neighbours(rows, rows[:, :4], rows[:, :32])

    assert found["raw_recall_at_k"]["difference"]["low"] > 0
    assert 0 < found["agreement_at_k"]["value"] < 1


def test_rows_that_are_not_finite_share_no_neighbours(rows):
    spoiled = rows[:, :16].copy()
    spoiled[::2] = np.nan

    found = compare_neighbours(rows, rows[:, :16], spoiled)

    assert found["agreement_at_k"]["value"] == 0.5
    assert found["raw_recall_at_k"]["difference"]["high"] < 0


def test_as_few_rows_as_neighbours_are_refused(rows):
    with pytest.raises(InputError, match="10 neighbours need more than 10 rows"):
        compare_neighbours(rows[:10], rows[:10], rows[:10])
