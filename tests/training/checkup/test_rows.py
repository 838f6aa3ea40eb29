import numpy as np
import pytest

from lathe.training.checkup.rows import check_rows
from tests.training.checkup.words import WIDTH, make_rows


@pytest.fixture
def vectors():
    random = np.random.default_rng(0).normal(size=(400, WIDTH))
    return (random / np.linalg.norm(random, axis=1, keepdims=True)).astype(np.float32)


def find(vectors, metric="cosine", texts=None, total=None):
    """Return what is not fine, by its kind."""
    found = check_rows(make_rows(vectors, texts, total), metric)
    return {finding.kind: finding for finding in found if finding.severity != "fine"}


def test_sound_rows_have_nothing_to_fix_or_note(vectors):
    for metric in ("cosine", "ip", "l2"):
        assert find(vectors, metric, ["a text"] * len(vectors)) == {}


@pytest.mark.parametrize(("number", "kind"), [(np.nan, "not_finite"), (np.inf, "not_finite"), (0.0, "zero")])
def test_rows_without_a_direction_are_named_and_checked_no_further(vectors, number, kind):
    vectors[[7, 9]] = number
    found = find(vectors)
    assert {kind: finding.severity for kind, finding in found.items()} == {kind: "fix"}
    assert found[kind].ids == ["7", "9"] and found[kind].share.value == 2 / 400


def test_few_unnormalized_rows_harm_searches_unless_these_are_by_cosine(vectors):
    vectors[3], vectors[5] = 2 * vectors[3], 40 * vectors[5]
    for metric, severity in (("cosine", "note"), ("ip", "fix"), ("l2", "fix")):
        found = find(vectors, metric)
        assert [finding.severity for finding in found.values()] == [severity], metric
        assert found["unnormalized"].ids == ["5", "3"]  # the worst first


def test_a_metric_harms_searches_where_most_rows_are_not_normalized(vectors):
    lengths = np.random.default_rng(1).uniform(1, 9, (400, 1))
    assert find(vectors * lengths) == {}
    assert {kind: finding.severity for kind, finding in find(vectors * lengths, "ip").items()} == {"metric": "fix"}
    assert find(2 * vectors, "ip") == {}  # all are as long

    lengths[0] = 1000
    assert find(vectors * lengths)["norms"].ids == ["0"]


def test_copies_must_be_fixed_only_where_their_texts_differ(vectors):
    vectors[100:200] = vectors[0]
    texts = [f"text {0 if 100 <= row < 200 else row}" for row in range(400)]
    for stored, severity in ((None, "note"), (texts, "note"), ([f"text {row}" for row in range(400)], "fix")):
        found = find(vectors, texts=stored)["copies"]
        assert (found.severity, found.share.value) == (severity, 0.25)
        assert set(found.ids) <= {"0", *(str(row) for row in range(100, 200))}
        assert ("See with --texts" in found.advice) == (stored is None)
    cased = [text.upper() if row % 2 else f" {text}" for row, text in enumerate(texts)]
    assert find(vectors, texts=cased)["copies"].severity == "note"


def test_near_copies_collapse_and_hubs_are_noted(vectors):
    near = np.concatenate([vectors, vectors + 1e-4])
    assert "copies" not in find(near) and find(near)["near_copies"].share.low is None
    assert find(near, total=9000)["near_copies"].share.low > 0  # the rows are a sample
    assert "collapse" in find(vectors + np.eye(WIDTH, dtype=np.float32)[0])
    spread = 0.5 * np.eye(1, WIDTH) + vectors  # all lie around one row
    assert find(np.concatenate([np.eye(1, WIDTH), spread]))["hubs"].ids[0] == "0"


def test_few_rows_are_not_judged_by_their_neighbours(vectors):
    for count in (1, 9, 20):
        assert find(vectors[:count] + np.eye(WIDTH)[0]).keys() == {"few_rows"}


def test_a_sample_has_intervals(vectors):
    vectors[:40] = 0
    share = find(vectors, total=10_000)["zero"].share
    assert share.low < 0.1 < share.high
    assert find(vectors)["zero"].share.low is None
