import numpy as np
import pytest

from lathe.training.evaluation.encoders import KEYS, VECTORS, TextVectors, text_key, write_vectors
from lathe.training.evaluation.scores import ResultsLog, Score

DIMENSIONS = 6
ROWS = np.random.default_rng(0).standard_normal((9, DIMENSIONS)).astype(np.float32)
TEXTS = ["", "a", "A", "naïve 東京 😀", "two\nlines", "nul\0nul", "\ud800 alone", "x" * 10_000, "a "]
NAMES = [text_key(text) for text in TEXTS]


@pytest.fixture
def score():
    """Return a function that builds a score by task and method."""

    def build(task, method="raw", value=0.5, **others):
        return Score(task, f"key of {task}", "encoder", "f" * 32, method, f"key of {method}", value, **others)

    return build


def test_opened_vectors_are_bit_equal_by_text_key(tmp_path):
    write_vectors(tmp_path, [(NAMES, ROWS[::-1])])  # replaced by the next ones
    write_vectors(tmp_path, [(NAMES[:2], ROWS[:2]), (NAMES[2:6], ROWS[2:6])])
    vectors = TextVectors.open(tmp_path, DIMENSIONS)
    assert [key in vectors for key in NAMES] == [True] * 6 + [False] * 3
    order = [5, 0, 3, 3, 1]
    assert vectors.get([NAMES[row] for row in order]).tobytes() == ROWS[order].tobytes()
    assert vectors.get([]).shape == (0, DIMENSIONS)
    with pytest.raises(KeyError):
        vectors.get([NAMES[0], NAMES[8]])
    assert (tmp_path / KEYS).stat().st_size == 16 * 6
    assert (tmp_path / VECTORS).stat().st_size == ROWS[:6].nbytes


def test_no_vectors_can_be_written_and_opened(tmp_path):
    write_vectors(tmp_path, [])
    assert TextVectors.open(tmp_path, DIMENSIONS).get([]).shape == (0, DIMENSIONS)


def test_a_reopened_results_log_has_equal_scores(tmp_path, score):
    written = [score("sts", metrics={"ap": 0.1 + 0.2}, seconds=1.5), score("sts", "r2", 1.0), score("näh")]
    ResultsLog(tmp_path / "new" / "folder").add(written)
    log = ResultsLog(tmp_path / "new" / "folder")
    assert list(log.by_cell.values()) == written
    assert all(log.has_score(one.cell) for one in written)
    assert not log.has_score(score("other").cell)


def test_the_cell_of_a_score_depends_on_its_keys_and_not_on_its_names(tmp_path, score):
    one = score("sts")
    renamed = Score("new", one.task_key, "name", one.fingerprint, "here", one.method_key, 0.5)
    log = ResultsLog(tmp_path)
    log.add([one])
    assert log.has_score(renamed.cell)
    assert len({one.cell, score("other").cell, score("sts", "r2").cell}) == 3


def test_results_log_has_no_score_for_a_failed_cell_until_a_score_is_added(tmp_path, score):
    failed = score("sts", value=None, error="KeyError: 'a'")
    log = ResultsLog(tmp_path)
    log.add([failed])
    for found in (log, ResultsLog(tmp_path)):
        assert not found.has_score(failed.cell)
        assert found.by_cell[failed.cell] == failed
    log.add([score("sts")])
    for found in (log, ResultsLog(tmp_path)):
        assert found.has_score(failed.cell)
        assert found.by_cell[failed.cell] == score("sts")
