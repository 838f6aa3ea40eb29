"""No regularizer: plain InfoNCE."""

from typing import Any

from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.regularizers.regularizer import Regularizer


class NoRegularizer(Regularizer):
    """Regularizer that adds nothing to InfoNCE.

    Any settings are ignored.
    """

    def __init__(self, *_: Any) -> None: ...

    def prepare(self, *_: Any) -> None:
        """Do nothing."""

    def loss(self, *_: Any) -> None:
        """Return None."""

    def summarize(self, mixture: Mixture) -> list[str]:
        """Return a sentence that says that there is no regularizer."""
        return ["There is no regulariser: the encoder is free to move."]
