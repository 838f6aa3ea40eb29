"""Evaluations with fewer methods than `lathe evaluate` has: reducers of a table, debiasing of many layers."""

from collections.abc import Iterator
from dataclasses import dataclass

from lathe.training.evaluation.methods import CONTROL_METHOD
from lathe.transforms.learned.losses import LOSSES
from research.fitted_methods.evaluation import FittedRequest
from research.fitted_methods.methods import (
    GEOPRES,
    RANDOM_SEEDS,
    TRUNCATION,
    UNCENTRED_PCA,
    FittableMethod,
    build_reducer,
    label_method,
    list_debiasing_methods,
)

SHARES = (2, 4, 8, 16)
"""Original dimensions divided by those that are left."""
REDUCERS = {"GeoPres": GEOPRES, "PCA": "pca:{k}", "PCA, uncentred": UNCENTRED_PCA, "truncation": TRUNCATION}
"""Steps of the compared reducers, with the number of dimensions to fill in."""

LOSS_SHARES = (4, 8)
"""Those of `SHARES` at which GeoPres is trained with each of its losses."""
LOSS_STEPS = {loss: GEOPRES if loss == "blend" else f"{GEOPRES},loss={loss}" for loss in LOSSES}
"""Steps of GeoPres with each loss, with the number of dimensions to fill in; `blend` is the default."""

LAYER_METHODS = ("R1", "R2", "ABTT-1", "mean-centring", f"random, seed {RANDOM_SEEDS[0]}", "whitening")
"""Names of the debiasing methods that are measured on layers."""
LAYER_TASKS = ("classification", "retrieval", "sts")
"""Tasks that layers are measured on: those whose texts are short or few, and that are scored quickly."""


@dataclass(frozen=True)
class Reduction(FittedRequest):
    """Request for an evaluation of `REDUCERS` at all `SHARES` of the dimensions."""

    def methods(self, dimensions: int) -> list[FittableMethod]:
        """List the methods to evaluate on an encoder with `dimensions` dimensions.

        The control is the first.
        """
        return [label_method(CONTROL_METHOD), *self._list_reducers(dimensions)]

    def _list_reducers(self, dimensions: int) -> Iterator[FittableMethod]:
        """Yield every reducer at every size, named by its steps."""
        for share in SHARES:
            for label, steps in REDUCERS.items():
                written = steps.format(k=dimensions // share)
                yield build_reducer(written, label, dimensions // share)


@dataclass(frozen=True)
class LossComparison(FittedRequest):
    """Request for an evaluation of GeoPres with each of its losses, at `LOSS_SHARES` of the dimensions."""

    def methods(self, dimensions: int) -> list[FittableMethod]:
        """List the methods to evaluate on an encoder with `dimensions` dimensions.

        The control is the first.
        """
        written = [(loss, steps, dimensions // share) for share in LOSS_SHARES for loss, steps in LOSS_STEPS.items()]
        return [
            label_method(CONTROL_METHOD),
            *(build_reducer(steps.format(k=k), loss, k) for loss, steps, k in written),
        ]


@dataclass(frozen=True)
class LayerDebiasing(FittedRequest):
    """Request for an evaluation of `LAYER_METHODS`."""

    def methods(self, dimensions: int) -> list[FittableMethod]:
        """List the methods to evaluate.

        The control is the first. The number of dimensions does not matter.
        """
        return [
            label_method(CONTROL_METHOD),
            *(one for one in list_debiasing_methods() if one.name in LAYER_METHODS),
        ]
