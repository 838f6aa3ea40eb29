"""Types of settings: numbers with bounds, and immutable objects that reject unknown keys."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Cosine = Annotated[float, Field(ge=-1, le=1)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]

MAX_ENTRIES = 1000
"""Maximum number of sources, folders, corpora or gates of a request: each is a file to look up, or a line to answer."""


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
