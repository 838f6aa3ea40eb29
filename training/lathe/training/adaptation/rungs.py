"""Rungs of the ladder: the changes that are tried, from the cheapest to the dearest."""

from dataclasses import dataclass
from typing import Literal

Training = Literal["pairs", "folders and pairs"]
"""What an encoder is trained on: the judged searches, or labelled folders before them."""


@dataclass(frozen=True)
class Rung:
    """A change that judged searches can teach.

    Attributes:
        name: key of the change in results.
        label: what is done, for tables and sentences.
        steps: steps of a chain on the encoder's vectors, as text; empty for none.
        training: what the encoder is trained on; None if it stays as it is.
    """

    name: str
    label: str
    steps: str = ""
    training: Training | None = None

    @property
    def encodes_again(self) -> bool:
        """Whether all documents must be encoded again: the vectors of a trained encoder are others."""
        return self.training is not None


AS_IS = Rung("as_is", "leave as is")
RUNGS = (
    AS_IS,
    Rung("debias", "debias", steps="r2"),
    Rung("query_adapter", "map queries", steps="query_adapter"),
    Rung("fine_tuning", "fine-tune the encoder", training="pairs"),
    Rung("pre_finetuning", "pre-finetune, then fine-tune", training="folders and pairs"),
)
"""All rungs, cheapest first. Debiasing changes stored vectors without encoding, and an adapter changes queries alone;
each is a fit of seconds. Training takes minutes to hours, and then all documents are encoded again."""
