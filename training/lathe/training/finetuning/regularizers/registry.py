"""Training methods: the regularizer of each method, and its name and colour in reports.

No heavy library is imported, because the command line imports this module.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lathe.training.finetuning.regularizers.regularizer import Regularizer, RegularizerSettings

NONE = "regularizer.NoRegularizer"
"""The class without a regularization loss, as in `Method.regularizer`."""


@dataclass(frozen=True)
class Method:
    """Training method, which `lathe train` has as a command.

    Attributes:
        regularizer: file of this folder and class of the regularizer, such as `reze.Reze`.
        label: display name in tables and figures.
        color: colour in figures.
        help: what the command does, in one sentence.
    """

    regularizer: str
    label: str
    color: str
    help: str


METHODS = {
    "ft": Method(NONE, "FT", "#9467bd", "Fine-tune on the pairs of the task itself."),
    "pft": Method(NONE, "PFT", "#d62728", "Pre-finetune on many sources without a regulariser."),
    "distill": Method(
        "reze.Distillation",
        "distillation",
        "#1f77b4",
        "Pre-finetune near the encoder as it was: the control that REZE must beat.",
    ),
    "reze": Method(
        "reze.Reze",
        "REZE",
        "#2ca02c",
        "Pre-finetune on many sources, near targets in which the directions that separate them are shrunk.",
    ),
}
"""Training methods by name. A new regularizer is a class in this folder and an entry here."""
REGULARIZED = tuple(name for name, method in METHODS.items() if method.regularizer != NONE)
"""Names of the methods with a regularizer."""


def create_regularizer(method: str, settings: "RegularizerSettings") -> "Regularizer":
    """Import the regularizer class of a training method, and create an instance with these settings.

    Raises:
        KeyError: if there is no such method.
    """
    module, _, name = METHODS[method].regularizer.partition(".")
    created: Regularizer = getattr(import_module(f"{__package__}.{module}"), name)(settings)
    return created
