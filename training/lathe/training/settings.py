"""Types of settings and requests: numbers with bounds, valid names, and immutable objects that reject unknown keys.

Nothing heavy is imported: the help of commands reads these types.
"""

import re
from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Cosine = Annotated[float, Field(ge=-1, le=1)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]

MAX_ENTRIES = 1000
"""Maximum number of sources, folders, corpora or gates of a request."""

Metric = Literal["cosine", "ip", "l2"]
"""How vectors are compared: by cosine, inner product or Euclidean distance."""

BadShards = Literal["refuse", "skip"]
"""Policy for damaged files: `refuse` raises at the first damaged file, `skip` leaves such files out and reports
them."""


class StrictSettings(BaseModel):
    """Base class of settings read from a file: unknown keys raise a validation error, and values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Prompts(StrictSettings):
    """Prompts put before the texts of a source, both in training and for the reference vectors.

    Attributes:
        anchor: prompt of anchors.
        positive: prompt of positives and hard negatives.
    """

    anchor: str = ""
    positive: str = ""


NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Regular expression of the names of chains, indexes and trained encoders."""

RESERVED = frozenset({"none"})
"""Names that no chain, index or encoder may have: requests use them to ask for vectors without a chain."""


def find_name_problem(name: str, what: str) -> str | None:
    """Return a message that says why a name is not valid for `what`, or None if it is valid.

    Names have letters, digits, '.', '_' and '-', at most 64 characters, and are not in `RESERVED`.
    """
    if re.fullmatch(NAME_PATTERN.strip("^$"), name) and name not in RESERVED:
        return None
    return (
        f"{name[:80]!r} cannot name {what}: letters, digits, '.', '_' and '-', at most 64, "
        f"beginning with a letter or digit, and not {', '.join(RESERVED)}"
    )


def _require_name(name: str, what: str) -> str:
    if problem := find_name_problem(name, what):
        raise ValueError(problem)
    return name


ChainName = Annotated[str, AfterValidator(partial(_require_name, what="a chain"))]
EncoderName = Annotated[str, AfterValidator(partial(_require_name, what="an encoder"))]
