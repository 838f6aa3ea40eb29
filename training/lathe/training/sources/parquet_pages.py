"""Estimates of the memory that rows of a parquet file take, from its page headers, before anything is decompressed.

A column that repeats one text in a thousand rows is stored as a dictionary of that text and a thousand indices: a file
of a kilobyte can hold gigabytes of rows.
"""

from typing import IO, Any

DICTIONARY_PAGE = 2
"""Type of a dictionary page in a parquet page header."""

NEXT_I32 = 0x15
"""Byte of Thrift's compact protocol that announces the next field as a 32-bit integer. A page header begins with two
such fields: the page's type, and its uncompressed size."""

HEADER_BYTES = 16
"""Bytes read of a page header, enough for its first two fields."""


def read_dictionary_size(stored: IO[bytes], column: Any) -> int:
    """Read the uncompressed size in bytes of a column chunk's dictionary page; return 0 if the chunk has none.

    No value stored in the dictionary is larger.

    Args:
        stored: the parquet file; its position changes.
        column: the column chunk's metadata in pyarrow.

    Raises:
        ValueError: if the header of the first page is damaged.
    """
    first = min(offset for offset in (column.dictionary_page_offset, column.data_page_offset) if offset)
    stored.seek(first)
    kind, size = parse_page_header(stored.read(HEADER_BYTES))
    return size if kind == DICTIONARY_PAGE else 0


def parse_page_header(content: bytes) -> tuple[int, int]:
    """Parse the beginning of a page header; return the page's type and its uncompressed size in bytes.

    Raises:
        ValueError: if the bytes are not a page header.
    """
    found, at = [], 0
    for _ in range(2):
        if content[at : at + 1] != bytes([NEXT_I32]):
            raise ValueError("a page has no header")
        value, at = _decode_varint(content, at + 1)
        found.append((value >> 1) ^ -(value & 1))
    return found[0], found[1]


def _decode_varint(content: bytes, at: int) -> tuple[int, int]:
    """Decode a variable-length integer (7 bits per byte) at position `at`; return its value and the position after it.

    Raises:
        ValueError: if it does not end within 5 bytes.
    """
    value = 0
    for place, byte in enumerate(content[at : at + 5]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError("a page's header is cut off")
