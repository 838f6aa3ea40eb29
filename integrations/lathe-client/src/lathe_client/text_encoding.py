"""Encoding of what is sent as UTF-8, with an error that names a text that is not Unicode."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from lathe_client.errors import InvalidTextError


def encode_text(text: str, name: str) -> bytes:
    """Return a text as UTF-8 bytes. `name` is what an error calls it.

    Args:
        text: the text.
        name: what the error calls it, such as `texts[3]`.

    Raises:
        TypeError: if it is not text.
        InvalidTextError: if it holds half of a surrogate pair.
    """
    if not isinstance(text, str):
        raise TypeError(f"{name} is of type {type(text).__name__}, and not a text")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise InvalidTextError(
            f"{name} is no Unicode text: character {error.start} is \\u{code:04x}, half of a surrogate pair"
        ) from None


def encode_json(fields: Mapping[str, Any]) -> bytes:
    """Return fields as UTF-8 bytes of JSON.

    Raises:
        InvalidTextError: if a text in them is not Unicode.
    """
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        for name, part in _iterate_texts(fields, ""):
            encode_text(part, name)
        raise


def _iterate_texts(content: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each text in JSON fields, also of the keys."""
    if isinstance(content, str):
        yield name, content
    elif isinstance(content, Mapping):
        for key, item in content.items():
            yield f"a key of {name or 'the body'}", str(key)
            yield from _iterate_texts(item, f"{name}.{key}" if name else str(key))
    elif isinstance(content, list | tuple):
        for index, item in enumerate(content):
            yield from _iterate_texts(item, f"{name}[{index}]")
