"""Reading .npy files in several threads.

NumPy parses a header as Python source, and CPython 3.11 counts the depth of that parser in one place for all threads:
two that parse at once can raise `SystemError` for a valid header (CPython's issue 106905).
"""

from os import PathLike
from threading import Lock
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

_parsing = Lock()
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an open .npy file.

    The file is then at its first value. Formats 1.0 and 2.0 are read, as NumPy writes them for numbers. Content that is
    not such a header raises errors of many kinds.

    Returns:
        The array's shape, whether it is in Fortran order, and its dtype.
    """
    version = np.lib.format.read_magic(file)
    with _parsing:
        return _READERS[version](file)


def open_npy(path: str | PathLike[str]) -> NDArray[Any]:
    """Open a .npy file and return its array as a read-only memmap.

    NumPy raises errors of many kinds if the file is not a .npy file.
    """
    with _parsing:
        return np.lib.format.open_memmap(path, mode="r")
