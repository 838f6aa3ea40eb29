"""Search for the text of a JSON body that is not valid Unicode, to name it in the error's message."""

import json
from collections.abc import Iterator
from typing import Any

from lathe.service.errors import BadValueError

MAX_BYTES = 2_000_000
"""Maximum bytes of a body that is searched: it is parsed once more, by a slower parser that reads damaged texts."""


def find_damaged_text(body: bytes) -> BadValueError | None:
    """Find the first text in a JSON body that is not valid Unicode. Return an error that names it, or None.

    Such a text holds half of a surrogate pair, or bytes that are not UTF-8.

    Args:
        body: JSON body that cannot be parsed.

    Returns:
        An error that names the text, such as `inputs[3]`; None if the body is too large or has another fault too.
    """
    if len(body) > MAX_BYTES:
        return None
    escaped = body.isascii()
    try:
        content = json.loads(body.decode("utf-8", "surrogateescape"))
        for path, subject, text in _iterate_texts(content, ""):
            if damage := _describe_damage(text, escaped):
                field = path.partition("[")[0].partition(".")[0] or None
                return BadValueError(f"{subject} no Unicode text: {damage}", param=field, code="malformed_body")
    except (ValueError, RecursionError):
        pass
    return None


def _describe_damage(text: str, escaped: bool) -> str:
    """Return what makes a text invalid Unicode, such as a lone surrogate, or an empty string if it is valid.

    Python's `surrogateescape` has U+DC80 to U+DCFF for bytes that are not UTF-8.

    Args:
        text: text of the body.
        escaped: whether the body is ASCII, so that surrogates can only be written as escapes.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        if 0xDC80 <= code <= 0xDCFF and not escaped:
            return f"character {error.start} is the byte 0x{code - 0xDC00:02x}, which is not UTF-8"
        return f"character {error.start} is \\u{code:04x}, half of a surrogate pair without the other"
    return ""


def _iterate_texts(content: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield each text in parsed JSON, keys included, as (path, beginning of a sentence about it, text)."""
    name = path or "the body"
    if isinstance(content, str):
        yield path, f"{name} is", content
    elif isinstance(content, list):
        for index, item in enumerate(content):
            yield from _iterate_texts(item, f"{path}[{index}]")
    elif isinstance(content, dict):
        for key, item in content.items():
            yield path, f"a key of {name} is", key
            yield from _iterate_texts(item, f"{path}.{key}" if path else key)
