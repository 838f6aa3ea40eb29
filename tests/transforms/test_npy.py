import gc
import io
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lathe.transforms.npy import open_npy, read_npy_header


class Cyclic:
    """Object that only the garbage collector frees, by way of Python code, in which threads may be switched."""

    def __init__(self):
        self.me = self

    def __del__(self):
        for _ in range(30):
            pass


@pytest.fixture
def switching():
    """Collect garbage and switch threads as often as possible, in the middle of parsing too."""
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(5)
    yield
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)


def test_headers_are_read_in_several_threads_at_once(tmp_path, switching):
    file = io.BytesIO()
    np.save(file, np.zeros((2, 3), np.float32))
    (tmp_path / "rows.npy").write_bytes(file.getvalue())

    def read(_):
        garbage = [Cyclic() for _ in range(3)]
        del garbage
        header = read_npy_header(io.BytesIO(file.getvalue()))
        return (*header, open_npy(tmp_path / "rows.npy").shape)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(read, range(8000))) == {((2, 3), False, np.dtype(np.float32), (2, 3))}


def test_a_file_in_fortran_order_is_opened_as_it_was_saved(tmp_path):
    rows = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.save(tmp_path / "rows.npy", rows)
    with (tmp_path / "rows.npy").open("rb") as file:
        assert read_npy_header(file) == ((2, 3), True, np.dtype(np.float64))
    np.testing.assert_array_equal(open_npy(tmp_path / "rows.npy"), rows)
