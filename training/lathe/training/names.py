"""Names under which a request publishes a chain or an encoder: types that cannot hold an invalid name."""

import re
from typing import Annotated

from pydantic import AfterValidator

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Regular expression of the names of chains, indexes and trained encoders."""

RESERVED = frozenset({"none"})
"""Names that nothing may have: requests use them to ask for vectors without a chain."""


def find_name_problem(name: str, what: str) -> str | None:
    """Return the sentence that says why a name cannot name `what`, or None if it can."""
    if re.fullmatch(NAME_PATTERN.strip("^$"), name) and name not in RESERVED:
        return None
    return (
        f"{name[:80]!r} cannot name {what}: letters, digits, '.', '_' and '-', at most 64, "
        f"beginning with a letter or digit, and not {', '.join(RESERVED)}"
    )


def _require_chain_name(name: str) -> str:
    if problem := find_name_problem(name, "a chain"):
        raise ValueError(problem)
    return name


def _require_encoder_name(name: str) -> str:
    if problem := find_name_problem(name, "an encoder"):
        raise ValueError(problem)
    return name


ChainName = Annotated[str, AfterValidator(_require_chain_name)]
EncoderName = Annotated[str, AfterValidator(_require_encoder_name)]
