"""Parsing of Lathe's own JSON files, which may be damaged, or come from somebody else."""

import json
from pathlib import Path
from typing import Any

from lathe.transforms.files import read_plain_file

MAX_DEPTH = 64
"""Maximum nesting depth of lists and objects. What Lathe writes has fewer than ten levels."""


def parse_json(content: bytes | str) -> Any:
    """Parse JSON text, check that other parsers would read it alike, and return its value.

    Raises:
        ValueError: if it is no JSON, nested more than `MAX_DEPTH` deep, or holds integers of more than 64 bits or lone
            surrogates.
    """
    try:
        parsed = json.loads(content)
    except RecursionError:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep") from None
    _require_portable(parsed)
    return parsed


def parse_json_object(content: bytes | str) -> dict[str, Any]:
    """Parse JSON text that must hold an object, with the checks of `parse_json`, and return it as a dict.

    Raises:
        ValueError: also if it is no object.
    """
    parsed = parse_json(content)
    if not isinstance(parsed, dict):
        raise ValueError("it holds no JSON object")
    return parsed


def read_json_file(path: Path) -> Any:
    """Read a regular file, parse its content as JSON that all parsers read alike, and return the value.

    Raises:
        OSError: if it cannot be read, or is no regular file.
        ValueError: if it is no such JSON.
    """
    return parse_json(read_plain_file(path))


def _require_portable(value: Any, depth: int = 0) -> None:
    """Check that a JSON value holds nothing that other parsers refuse: deep nesting, long integers and lone surrogates.

    An object's keys are checked like its values.

    Raises:
        ValueError: if it does.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")

    if isinstance(value, str):
        # A lone surrogate raises UnicodeEncodeError, a ValueError.
        value.encode()
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise ValueError("it holds an integer of more than 64 bits")
    elif isinstance(value, dict):
        for key, inner in value.items():
            key.encode()
            _require_portable(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _require_portable(inner, depth + 1)
