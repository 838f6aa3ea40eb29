"""Readers of rows from files, one `Format` of functions for each file format, and of two built-in sources.

The built-in sources `pydoc:` and `pydoc:topics` are English text that every Python installation contains. The kind of
rows is None for texts, and the number of dimensions for vectors.
"""

import ast
import gc
import re
import sysconfig
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lathe.training.errors import AccessError, EmptyError, SourceError
from lathe.training.sources.faiss_indexes import read_faiss, read_faiss_shape
from lathe.training.sources.hub import HubFile, detect_hub_kind, read_hub
from lathe.training.sources.lines import find_line_spans, read_jsonl, read_text
from lathe.training.sources.parquet import count_parquet, detect_parquet_kind, read_parquet
from lathe.training.sources.remote import RemoteFile
from lathe.training.sources.rows import (
    WHOLE,
    Kind,
    RawBatch,
    Readable,
    Span,
    check_dimensions,
    detect_batch_kind,
    open_native_path,
    validate_rows,
)
from lathe.transforms.npy import open_npy, read_npy_header
from lathe.transforms.vectors import FloatArray

MIN_CHARACTERS, MAX_CHARACTERS = 64, 512
"""Minimum and maximum number of characters of a paragraph, the range of the sentences in the mean-bias paper."""

HOLDS_STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)
"""Nodes of a syntax tree that may contain a definition."""


@cache
def read_docstring_paragraphs() -> list[str]:
    """Read the distinct paragraphs of 64 to 512 characters in the docstrings of Python's standard library.

    The paragraphs are in the order of the library's files. The source files are parsed, never imported or run, which
    takes two seconds. The result is cached.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    paths = [path for path in sorted(library.rglob("*.py")) if not left_out & set(path.relative_to(library).parts)]
    # A syntax tree is a million objects without reference cycles. In a process that has imported PyTorch, garbage
    # collection would double the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return extract_paragraphs(text for path in paths for text in read_docstrings(path))
    finally:
        if collecting:
            gc.enable()


@cache
def read_topic_paragraphs() -> list[str]:
    """Read the distinct paragraphs of 64 to 512 characters in the language reference that `help()` shows.

    The result is cached.
    """
    from pydoc_data.topics import topics

    return extract_paragraphs(topics.values())


def read_docstrings(path: Path) -> Iterator[str]:
    """Yield the docstring of a Python file's module, classes and functions, '' if missing. Skips unparsable files."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # templates and files of other versions of Python
        return
    # Breadth first, as `ast.walk`, but without expressions, which hold no definitions and are most of a tree.
    nodes = deque[ast.AST]([tree])
    while nodes:
        node = nodes.popleft()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
        for _, field in ast.iter_fields(node):
            if isinstance(field, list):
                nodes.extend(child for child in field if isinstance(child, HOLDS_STATEMENTS))


def extract_paragraphs(texts: Iterable[str]) -> list[str]:
    """Split texts into paragraphs, and return the distinct paragraphs of 64 to 512 characters, each as one line."""
    paragraphs = (" ".join(part.split()) for text in texts for part in re.split(r"\n\s*\n", text))
    return list(dict.fromkeys(p for p in paragraphs if MIN_CHARACTERS <= len(p) <= MAX_CHARACTERS))


BUILT_IN = {"pydoc:": read_docstring_paragraphs, "pydoc:topics": read_topic_paragraphs}
"""Built-in sources: functions that return the texts, by the name that a user writes."""

Reader = Callable[[Any, str, int, Span], Iterator[RawBatch]]
"""Function of a file, a field, the maximum rows of a batch and a span, which yields the span's rows in batches."""


@dataclass(frozen=True)
class Format:
    """Functions that read the files of one format, such as .jsonl or .parquet.

    Attributes:
        read: yields the rows in batches of at most a number of rows.
        count: returns the number of rows; None for vectors, whose rows `shape` returns, and for files of lines.
        shape: returns rows and dimensions, for formats that hold only vectors; None for others.
        schema: returns the kind of the rows from the file's header and raises if there are no rows; None for formats
            whose header does not tell the kind.
        readable_remotely: whether the rows of a remote file can be counted, and the first be read, without downloading
            the file.
    """

    read: Reader
    count: Callable[[Any, str], int] | None = None
    shape: Callable[[Any, str], tuple[int, int]] | None = None
    schema: Callable[[Any, str], Kind] | None = None
    readable_remotely: bool = True


def find_format_key(name: str) -> str:
    """Return the key of `FORMATS` with which a file name ends, such as '.jsonl.gz', or '' if the format is unknown."""
    return next((ending for ending in FORMATS if name.endswith(ending)), "")


def _find_format(file: Readable | HubFile) -> Format:
    if isinstance(file, HubFile):
        return HUB_FORMAT
    return BUILT_IN_FORMAT if str(file) in BUILT_IN else FORMATS[find_format_key(file.name)]


def read_rows(file: Readable | HubFile, field: str, rows: int, span: Span = WHOLE) -> Iterator[RawBatch]:
    """Read the rows of a span from a file of any known format, and yield batches of up to `rows` rows, not validated.

    Args:
        file: the file.
        field: field, column or data set that holds the texts or vectors.
        rows: maximum rows of a batch.
        span: rows to read.

    Raises:
        SourceError: if the file is damaged or lacks the field; the message names file and row.
    """
    return _find_format(file).read(file, field, rows, span)


def find_spans(file: Readable | HubFile, field: str, size: int) -> list[Span]:
    """Divide a file into spans of `size` rows, in order. The list is empty for a file without rows.

    A file of lines is read once to count its rows.

    Raises:
        SourceError: if the file is damaged.
    """
    file_format = _find_format(file)
    if file_format.shape is not None:
        rows, _ = file_format.shape(file, field)
    elif file_format.count is not None:
        rows = file_format.count(file, field)
    else:
        assert not isinstance(file, HubFile)
        return find_line_spans(file, size)

    return [Span(start=start, stop=min(start + size, rows)) for start in range(0, rows, size)]


def detect_kind(file: Readable | HubFile, field: str, by_header: bool = False) -> Kind:
    """Detect whether a file holds texts (None) or vectors (dimensions), by header or first row. An empty file raises.

    Args:
        file: the file.
        field: field, column or data set that holds the texts or vectors.
        by_header: whether to read only the header of a parquet file, because a row can decompress to gigabytes. The
            kind of vectors is then 1, because the header does not tell their dimensions.

    Raises:
        EmptyError: if the file has no rows.
        SourceError: if the file is damaged or lacks the field.
    """
    reader = _find_format(file)
    if reader.shape is not None:
        rows, dimensions = reader.shape(file, field)
        if rows:
            return dimensions
    elif reader.schema is not None and (by_header or isinstance(file, HubFile)):
        return reader.schema(file, field)
    elif (raw := next(reader.read(file, field, 1, WHOLE), None)) is not None:
        validate_rows(raw, detect_batch_kind(raw))
        return detect_batch_kind(raw)

    raise EmptyError(f"{file.name} holds no rows")


def _read_npy(file: Readable, field: str, rows: int, span: Span) -> Iterator[RawBatch]:
    """Read the rows of a span from a .npy file, and yield batches of up to `rows` vectors in the file's dtype.

    `field` is ignored.

    Raises:
        SourceError: if the file is damaged or does not hold floats `(n, d)`.
    """
    vectors = _require_floats(file, _open_npy(file))[: span.stop]
    for start in range(span.start, vectors.shape[0], rows):
        block = np.array(vectors[start : start + rows])
        yield RawBatch(file.name, "row", range(start + 1, start + 1 + len(block)), block, [])


def _read_npy_shape(file: Readable, field: str) -> tuple[int, int]:
    """Read the number of rows and the dimensions of a .npy file from its header. `field` is ignored.

    Raises:
        SourceError: if the file is damaged or does not hold floats `(n, d)`.
    """
    rows, dimensions = _require_floats(file, _open_npy(file)).shape
    return int(rows), int(dimensions)


def _open_npy(file: Readable) -> FloatArray:
    """Open the array of a .npy file as a memmap. For a remote file, the result has the right shape but only zeros.

    The zeros take no memory.

    Raises:
        SourceError: if the file is damaged or cannot be reached.
    """
    try:
        if isinstance(file, RemoteFile):
            return _build_npy_placeholder(file)
        with open_native_path(file) as path:
            return open_npy(path)
    except AccessError:
        raise
    except Exception as error:  # NumPy parses the header as Python source, with that parser's errors
        raise SourceError(f"{file.name} is not a .npy file that can be read: {error!r}") from error


def _build_npy_placeholder(file: Readable) -> FloatArray:
    """Build zeros with the shape and dtype in the header of a .npy file, without memory. A truncated file raises.

    Raises:
        ValueError: if the file is shorter than the header says.
    """
    with file.open("rb") as stored:
        shape, _, dtype = read_npy_header(stored)
        header = stored.tell()
        if stored.seek(0, 2) < header + dtype.itemsize * int(np.prod(shape)):
            raise ValueError("it is truncated")
    return np.broadcast_to(np.zeros((), dtype), shape)


def _require_floats(file: Readable, vectors: FloatArray) -> FloatArray:
    """Raise `SourceError` if an array does not hold floats `(n, d)` with 1 ≤ d ≤ `MAX_DIMENSIONS`, else return it."""
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or vectors.shape[1] == 0:
        raise SourceError(f"{file.name} must hold floats of the shape (n, d), not {vectors.dtype} {vectors.shape}")
    check_dimensions(file, vectors.shape[1])
    return vectors


def _read_built_in(file: Readable, field: str, rows: int, span: Span) -> Iterator[RawBatch]:
    texts = BUILT_IN[str(file)]()[: span.stop]
    for start in range(span.start, len(texts), rows):
        part = texts[start : start + rows]
        yield RawBatch(str(file), "row", range(start + 1, start + 1 + len(part)), part, [])


BUILT_IN_FORMAT = Format(_read_built_in, lambda file, _: len(BUILT_IN[str(file)]()))
"""Format of the built-in sources."""

HUB_FORMAT = Format(read_hub, lambda file, _: file.count_rows(), schema=detect_hub_kind)
"""Format of the files of a data set on the hub."""

FORMATS: dict[str, Format] = {
    ".jsonl": Format(read_jsonl),
    ".jsonl.gz": Format(read_jsonl),
    ".txt": Format(read_text),
    ".txt.gz": Format(read_text),
    ".parquet": Format(read_parquet, count_parquet, schema=detect_parquet_kind),
    ".npy": Format(_read_npy, shape=_read_npy_shape),
    ".faiss": Format(read_faiss, shape=read_faiss_shape, readable_remotely=False),
}
"""Formats by the end of the file name."""
