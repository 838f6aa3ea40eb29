"""Names, numbers and chain references as they appear in paths."""

import re

from lathe.service.errors import BadValueError, UnknownNameError, WrongShapeError
from lathe.training.settings import NAME_PATTERN, find_name_problem

RAW = "none"
"""Name of no chain: requests use it to ask for the encoder's vectors, responses and indexes to mark them."""


def is_name(text: str) -> bool:
    """Return whether a text has the characters and length that the name of a chain or an index may have.

    Reserved names pass.
    """
    return re.fullmatch(NAME_PATTERN.strip("^$"), text) is not None


def require_name(name: str, what: str = "a chain", param: str = "name") -> None:
    """Raise `BadValueError` unless a name has valid characters and length and is not reserved.

    Args:
        name: the name.
        what: what is named, for the message.
        param: parameter of the request, for the error.
    """
    if problem := find_name_problem(name, what):
        raise BadValueError(problem, param=param)


def parse_number(text: str) -> int | None:
    """Parse a whole number of at most nine digits, or return None for any other text."""
    return int(text) if re.fullmatch(r"0|[1-9][0-9]{0,8}", text) else None


def parse_parameter_number(text: str, param: str) -> int:
    """Parse a request parameter as a whole number of at most nine digits. Raise `WrongShapeError` otherwise.

    Raises:
        WrongShapeError: if the text is anything else.
    """
    number = parse_number(text)
    if number is None:
        raise WrongShapeError(f"{param} must be a whole number, got {text[:40]!r}", param=param)
    return number


def split_ref(ref: str, kind: str = "chain") -> tuple[str, int | None]:
    """Split `name`, `name@live` or `name@version` into `(name, version)`. The version is None for the live version.

    Args:
        ref: the reference.
        kind: what it refers to, for the error.

    Raises:
        UnknownNameError: if the reference is not valid.
    """
    name, _, version_text = ref.partition("@")
    version = None if version_text in ("", "live") else parse_number(version_text)
    if not is_name(name) or (version is None and version_text not in ("", "live")):
        raise UnknownNameError(f"there is no {kind} {ref[:80]!r}", param=kind)
    return name, version
