import numpy as np
import pytest

from lathe.training.evaluation.encoders import KEYS, VECTORS, TextVectors, text_key, write_vectors

DIMENSIONS = 6
ROWS = np.random.default_rng(0).standard_normal((9, DIMENSIONS)).astype(np.float32)
TEXTS = ["", "a", "A", "naïve 東京 😀", "two\nlines", "nul\0nul", "\ud800 alone", "x" * 10_000, "a "]
NAMES = [text_key(text) for text in TEXTS]


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
