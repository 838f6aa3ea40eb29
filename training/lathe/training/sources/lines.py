"""Readers of files of lines: JSON Lines or plain text, optionally compressed with gzip."""

import codecs
import gzip
import io
import json
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import IO, Any

import orjson

from lathe.training.errors import SourceError
from lathe.training.sources.rows import MAX_BATCH_BYTES, WHOLE, RawBatch, Readable, Record, Span, restore_long_integers


@contextmanager
def _open_decompressed(file: Readable) -> Iterator[IO[bytes]]:
    """Open a file for the block, and yield a stream of its bytes, decompressed if the file's suffix is `.gz`.

    Raises:
        SourceError: if the file cannot be opened, read or decompressed, also while the block reads.
    """
    try:
        with file.open("rb") as stored:
            if file.suffix != ".gz":
                yield stored
                return
            with io.BufferedReader(gzip.GzipFile(fileobj=stored)) as unpacked:
                yield unpacked
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error  # without the path, which users of a server must not see
        raise SourceError(f"{file.name} cannot be read: {reason}") from error


MAX_LINE_BYTES = 16 * 2**20
"""Maximum bytes of a line, and of consecutive blank lines. Longer lines raise an error before they fill the memory."""


def _read_bounded_lines(file: Readable, lines: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a stream unchanged, including blank lines. A line that is too long raises.

    Raises:
        SourceError: if a line, or consecutive blank lines, take more than `MAX_LINE_BYTES`.
    """
    blank = 0
    for number, line in enumerate(iter(partial(lines.readline, MAX_LINE_BYTES + 1), b""), 1):
        blank = blank + len(line) if line.isspace() else 0
        if max(len(line), blank) > MAX_LINE_BYTES:
            what = "it is longer than" if len(line) > MAX_LINE_BYTES else "blank lines before it take more than"
            raise SourceError(f"{file.name} line {number}: {what} {MAX_LINE_BYTES:,} bytes")
        yield line


def read_numbered_lines(file: Readable, span: Span = WHOLE) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a span of a file that are not blank, as pairs of line number and stripped bytes.

    Line numbers count from 1 at the beginning of the file. A byte order mark is removed.

    Raises:
        SourceError: if the file cannot be read or decompressed, or has a line that is too long.
    """
    with _open_decompressed(file) as lines:
        # The offset was counted on the decompressed content; gzip decompresses up to it.
        if span.byte:
            lines.seek(span.byte)
        numbered = enumerate(_read_bounded_lines(file, lines), span.line + 1)
        stripped = (
            (number, line.removeprefix(codecs.BOM_UTF8).strip() if number == 1 else line.strip())
            for number, line in numbered
        )
        yield from islice(((number, line) for number, line in stripped if line), span.rows)


def explain_encoding(line: bytes, error: UnicodeDecodeError) -> str:
    """Return a message that says why a line is not UTF-8 and how to correct the file."""
    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "the file is UTF-16: save it as UTF-8"
    return f"not UTF-8, byte {error.object[error.start]:#04x} at {error.start}: save the file as UTF-8"


def find_line_spans(file: Readable, size: int) -> list[Span]:
    """Divide a file of lines into spans of `size` rows with the byte and line of the beginning, [] without rows.

    The file is read once. Rows are the lines that are not blank. The last span may be shorter.

    Raises:
        SourceError: if the file cannot be read or decompressed, or has a line that is too long.
    """
    begins: list[tuple[int, int]] = []
    rows, byte = 0, 0
    with _open_decompressed(file) as lines:
        for number, line in enumerate(_read_bounded_lines(file, lines)):
            if line.strip():
                if rows % size == 0:
                    begins.append((byte, number))
                rows += 1
            byte += len(line)

    return [
        Span(start=i * size, stop=min((i + 1) * size, rows), byte=byte, line=line)
        for i, (byte, line) in enumerate(begins)
    ]


def _read_line_batches(file: Readable, rows: int, span: Span) -> Iterator[list[tuple[int, bytes]]]:
    """Yield the nonblank lines of a span in lists of up to `rows` line numbers and stripped bytes. A huge list raises.

    A list that takes more than `MAX_BATCH_BYTES` raises.

    Raises:
        SourceError: as `read_numbered_lines`, or if the lines of one list take more than `MAX_BATCH_BYTES`.
    """
    # Checked line by line: a batch beyond the limit must be refused before all of it is in memory.
    batch: list[tuple[int, bytes]] = []
    size = 0
    for number, line in read_numbered_lines(file, span):
        batch.append((number, line))
        size += len(line)
        if size > MAX_BATCH_BYTES:
            raise SourceError(f"{file.name} line {number}: {len(batch)} lines take more than {MAX_BATCH_BYTES:,} bytes")
        if len(batch) == rows:
            yield batch
            batch, size = [], 0

    if batch:
        yield batch


def read_jsonl(file: Readable, field: str, rows: int, span: Span) -> Iterator[RawBatch]:
    """Read the rows of a span from a JSON Lines file, and yield batches of up to `rows` rows.

    A line without the field raises. Batches hold the values of `field` and the whole JSON objects. Blank lines are left
    out.

    Raises:
        SourceError: for a line that is not a JSON object, or lacks the field; and as `_read_line_batches`.
    """
    for batch in _read_line_batches(file, rows, span):
        records = [_parse_json_line(file, number, line, field) for number, line in batch]
        values = [record[field] for record in records]
        yield RawBatch(file.name, "line", [number for number, _ in batch], values, records)


def _parse_json_line(file: Readable, number: int, line: bytes, field: str) -> Record:
    """Parse a line as a JSON object that has a text or a list in `field`. Any other line raises.

    Integers beyond 64 bits outside of `field` keep their exact value.

    Raises:
        SourceError: if the line is not a JSON object, or has neither a text nor a list in the field.
    """
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise SourceError(f"{file.name} line {number}: {_explain_json(line, error)}") from error

    if not isinstance(record, dict) or field not in record:
        has = f"it has {', '.join(record)}" if isinstance(record, dict) else "it is not an object"
        raise SourceError(f"{file.name} line {number}: no field {field!r}; {has}. Name one as FILE#FIELD")
    if not isinstance(record[field], str | list):
        found = "null" if record[field] is None else f"{record[field]!r:.40}"
        raise SourceError(f"{file.name} line {number}: {field!r} is {found}, neither a text nor a list of numbers")

    others = [value for name, value in record.items() if name != field]
    restored: Record = restore_long_integers(line, record, others)
    return restored


def _explain_json(line: bytes, error: orjson.JSONDecodeError) -> str:
    """Return the message that says why a line cannot be parsed as JSON."""
    try:
        content = json.loads(line.decode())
    except UnicodeDecodeError as problem:
        return explain_encoding(line, problem)
    except (ValueError, RecursionError):
        return f"not JSON: {error}"

    if "surrogate" in error.msg:
        return f"a text with half of a surrogate pair, which is not Unicode: {error.msg} at character {error.pos}"

    fields = [name for name, value in content.items() if _is_not_finite(value)] if isinstance(content, dict) else []
    return f"NaN or Infinity in {', '.join(map(repr, fields)) or 'the line'}, which JSON does not allow: write null"


def _is_not_finite(value: Any) -> bool:
    """Return whether a JSON value is NaN or infinite, or a list that contains such a number."""
    values = value if isinstance(value, list) else [value]
    return any(isinstance(number, float) and not math.isfinite(number) for number in values)


def read_text(file: Readable, field: str, rows: int, span: Span) -> Iterator[RawBatch]:
    """Yield a span of a text file in batches of up to `rows` texts, one a line. A line that is not UTF-8 raises.

    Blank lines are left out. `field` is ignored.

    Raises:
        SourceError: for a line that is not UTF-8; and as `_read_line_batches`.
    """
    for batch in _read_line_batches(file, rows, span):
        values: list[Any] = []
        for number, line in batch:
            try:
                values.append(line.decode())
            except UnicodeDecodeError as error:
                raise SourceError(f"{file.name} line {number}: {explain_encoding(line, error)}") from error
        yield RawBatch(file.name, "line", [number for number, _ in batch], values, [])
