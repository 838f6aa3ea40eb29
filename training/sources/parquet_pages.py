"""What rows of a parquet file take in memory, by its footer and the headers of its pages, before any is unpacked.

A column of one text in a thousand rows is stored as a dictionary of that text and a thousand times its number: a file
of a kilobyte, and gigabytes of rows.
"""

from typing import IO, Any

DICTIONARY_PAGE = 2
NEXT_I32 = 0x15
"""In Thrift's compact protocol: the next field, an integer of 32 bits. A page's header begins with its type, then its
size unpacked."""
HEADER_BYTES = 16


def dictionary_bytes(stored: IO[bytes], column: Any) -> int:
    """Return the size of a column chunk's dictionary, which is that of its largest value at least; 0 without one."""
    first = min(offset for offset in (column.dictionary_page_offset, column.data_page_offset) if offset)
    stored.seek(first)
    kind, size = page_header(stored.read(HEADER_BYTES))
    return size if kind == DICTIONARY_PAGE else 0


def page_header(content: bytes) -> tuple[int, int]:
    """Return the type and the unpacked size of the page whose header begins here.

    Raises:
        ValueError: if none does.
    """
    found, at = [], 0
    for _ in range(2):
        if content[at : at + 1] != bytes([NEXT_I32]):
            raise ValueError("a page has no header")
        value, at = _varint(content, at + 1)
        found.append((value >> 1) ^ -(value & 1))
    return found[0], found[1]


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, and where the next begins."""
    value = 0
    for place, byte in enumerate(content[at : at + 5]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError("a page's header is cut off")
