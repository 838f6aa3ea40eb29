import pytest

from research.paper_findings.retention import compute_retentions


def test_retention_is_the_mean_score_divided_by_the_mean_raw_score(grid_of, table):
    """Eq. 2 of the GeoPres paper, whose M is the mean over the data sets of a group."""
    values = table("e", "abc", control=[0.8, 0.5, 0.2], **{"geopres:4": [0.4, 0.5, 0.3]})
    (one,) = compute_retentions(grid_of(values))
    assert one.mean.value == pytest.approx(1.2 / 1.5)
    assert (one.label, one.share, one.encoders, one.tasks) == ("geopres", 0.5, 1, 3)
    assert (one.mean.low, one.mean.high) == pytest.approx((0.5, 1.5))


@pytest.mark.parametrize(("raw", "told"), [(0.049, False), (-0.3, False), (0.05, True)])
def test_task_types_with_a_raw_score_below_0_05_have_no_retention(grid_of, table, raw, told):
    values = table("e", "ab", control=[0.9, raw], **{"geopres:4": [0.4, 0.9]})
    (one,) = compute_retentions(grid_of(values, {"a": "STS", "b": "Retrieval"}))
    assert set(one.types) == ({"STS", "Retrieval"} if told else {"STS"})
    assert one.mean.value == pytest.approx(1.3 / (0.9 + raw))


def test_retentions_are_averaged_over_encoders(grid_of, table):
    values = table("one", "ab", control=[0.5, 0.5], **{"geopres:4": [0.5, 0.25]})
    values |= table("two", "ab", control=[0.4, 0.8], **{"geopres:4": [0.2, 0.8]})
    (one,) = compute_retentions(grid_of(values))
    assert (one.encoders, one.mean.value) == (2, pytest.approx((0.75 / 1.0 + 1.0 / 1.2) / 2))
    assert (one.mean.low, one.mean.high) == pytest.approx((0.75, (0.75 + 1.0 / 1.2) / 2))


def test_retentions_and_differences_from_pca_are_given_by_task_type(grid_of, table):
    types = {"a": "STS", "b": "STS", "c": "Retrieval"}
    values = table("e", "abc", control=[0.5] * 3, **{"geopres:4": [0.5, 0.25, 0.125], "pca:4": [0.25, 0.25, 0.25]})
    one = next(one for one in compute_retentions(grid_of(values, types)) if one.label == "geopres")
    assert {name: found.value for name, found in one.types.items()} == {"STS": 0.75, "Retrieval": 0.25}
    assert {name: found.value for name, found in one.ahead.items()} == pytest.approx(
        {"all": (0.5 + 0 - 0.25) / 3, "STS": 0.25, "Retrieval": -0.25}
    )
