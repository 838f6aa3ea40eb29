"""What settings are made of: numbers within bounds, and objects that refuse names they do not know."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Cosine = Annotated[float, Field(ge=-1, le=1)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Settings(BaseModel):
    """Values that come from a file: unknown names are refused, and nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Prompts(Settings):
    """What is put before the texts of a source, in training and for the reference alike."""

    anchor: str = ""
    positive: str = ""
