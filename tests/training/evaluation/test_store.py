import os

import numpy as np
import pytest

from training.evaluation.scores import SCORES, ResultsLog, Score
from training.evaluation.store import KEYS, VECTORS, VectorStore, text_key

DIMENSIONS = 6
ROWS = np.random.default_rng(0).standard_normal((9, DIMENSIONS)).astype(np.float32)
TEXTS = ["", "a", "A", "naïve 東京 😀", "two\nlines", "nul\0nul", "\ud800 alone", "x" * 10_000, "a "]
NAMES = [text_key(text) for text in TEXTS]


@pytest.fixture
def folder(tmp_path):
    """Of a store with the first six vectors, added in two calls."""
    store = VectorStore(tmp_path / "store", DIMENSIONS)
    store.add(NAMES[:2], ROWS[:2])
    store.add(NAMES[2:6], ROWS[2:6])
    return store.folder


@pytest.fixture
def score():
    """A maker of scores: of a task, by a method."""

    def build(task, method="raw", value=0.5, **others):
        return Score(task, f"key of {task}", "encoder", "f" * 32, method, f"key of {method}", value, **others)

    return build


def test_vectors_are_found_by_their_text_bit_for_bit_after_reopening(folder):
    store = VectorStore(folder, DIMENSIONS)
    assert len(store) == 6
    assert [key in store for key in NAMES] == [True] * 6 + [False] * 3
    order = [5, 0, 3, 3, 1]
    assert store.get([NAMES[row] for row in order]).tobytes() == ROWS[order].tobytes()
    assert store.get([]).shape == (0, DIMENSIONS)
    with pytest.raises(KeyError):
        store.get([NAMES[0], NAMES[8]])


def test_vectors_of_any_layout_are_stored_as_float32_in_rows(tmp_path):
    for number, given in enumerate((ROWS.astype(np.float64), np.asfortranarray(ROWS), np.repeat(ROWS, 2, 0)[::2])):
        store = VectorStore(tmp_path / str(number), DIMENSIONS)
        store.add(NAMES, given)
        assert store.get(NAMES).tobytes() == ROWS.tobytes()


def test_one_process_sees_what_another_added_once_it_looks_again(folder):
    reader, writer = VectorStore(folder, DIMENSIONS), VectorStore(folder, DIMENSIONS)
    writer.add(NAMES[6:], ROWS[6:])
    assert (len(reader), NAMES[6] in reader) == (6, False)
    assert reader.get(NAMES[:6]).tobytes() == ROWS[:6].tobytes()
    reader.reload()
    assert reader.get(NAMES).tobytes() == ROWS.tobytes()


def test_a_store_is_made_only_when_something_is_added(tmp_path):
    assert len(VectorStore(tmp_path / "none", DIMENSIONS)) == 0
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(("name", "width"), [(VECTORS, 4 * DIMENSIONS), (KEYS, 16)])
@pytest.mark.parametrize("lost", [1, 16, 17, 30, 70])
def test_a_half_written_tail_is_dropped_and_written_again(folder, name, width, lost):
    size = (folder / name).stat().st_size
    os.truncate(folder / name, size - lost)
    store = VectorStore(folder, DIMENSIONS)
    left = (size - lost) // width
    assert len(store) == left < 6
    assert store.get(NAMES[:left]).tobytes() == ROWS[:left].tobytes()
    store.add(NAMES[left:], ROWS[left:])
    for found in (store, VectorStore(folder, DIMENSIONS)):
        assert found.get(NAMES).tobytes() == ROWS.tobytes()
    assert (folder / KEYS).stat().st_size == 16 * len(TEXTS)
    assert (folder / VECTORS).stat().st_size == ROWS.nbytes


def test_every_text_with_every_prompt_has_a_key_of_its_own():
    prompts = [None, "query: ", "passage: "]
    keys = {text_key(text, prompt) for text in TEXTS for prompt in prompts}
    assert len(keys) == len(TEXTS) * len(prompts)
    assert text_key("query: a") != text_key("a", "query: ")
    assert text_key("a", "") == text_key("a", None)


def test_a_reopened_book_has_every_score_as_it_was(tmp_path, score):
    written = [score("sts", metrics={"ap": 0.1 + 0.2}, seconds=1.5), score("sts", "r2", 1.0), score("näh")]
    ResultsLog(tmp_path / "new" / "folder").add(written)
    log = ResultsLog(tmp_path / "new" / "folder")
    assert list(log.by_cell.values()) == written
    assert all(log.has_score(one.cell) for one in written)
    assert not log.has_score(score("other").cell)


def test_a_cell_is_known_by_its_keys_whatever_its_task_encoder_and_method_are_called(tmp_path, score):
    one = score("sts")
    renamed = Score("new", one.task_key, "name", one.fingerprint, "here", one.method_key, 0.5)
    log = ResultsLog(tmp_path)
    log.add([one])
    assert log.has_score(renamed.cell)
    assert len({one.cell, score("other").cell, score("sts", "r2").cell}) == 3


def test_a_cell_with_an_error_is_not_done_until_a_score_follows(tmp_path, score):
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


def test_a_torn_last_line_is_passed_over_wherever_it_was_torn_and_later_lines_are_read(tmp_path, score):
    first, torn, last = score("ß"), score("sts", metrics={"ä": 1.0}), score("last")
    ResultsLog(tmp_path).add([first])
    kept = (tmp_path / SCORES).stat().st_size
    ResultsLog(tmp_path).add([torn])
    whole = (tmp_path / SCORES).read_bytes()
    for size in range(kept, len(whole) - 1):
        (tmp_path / SCORES).write_bytes(whole[:size])
        log = ResultsLog(tmp_path)
        assert list(log.by_cell.values()) == [first]
        log.add([last])
        assert list(ResultsLog(tmp_path).by_cell.values()) == [first, last]


def test_a_line_that_lacks_only_its_end_is_a_score(tmp_path, score):
    ResultsLog(tmp_path).add([score("one")])
    (tmp_path / SCORES).write_bytes((tmp_path / SCORES).read_bytes().rstrip(b"\n"))
    ResultsLog(tmp_path).add([score("two")])
    assert list(ResultsLog(tmp_path).by_cell.values()) == [score("one"), score("two")]


@pytest.mark.parametrize("line", [b"5", b"[]", b'{"task": "sts"}', b'{"unknown": 1}', b"null", b"\xff"])
def test_a_line_that_is_no_score_is_passed_over(tmp_path, score, line):
    ResultsLog(tmp_path).add([score("one")])
    with (tmp_path / SCORES).open("ab") as file:
        file.write(line + b"\n")
    ResultsLog(tmp_path).add([score("two")])
    assert list(ResultsLog(tmp_path).by_cell.values()) == [score("one"), score("two")]
