"""Training of the difference of a linear map to a known one."""

from collections.abc import Callable
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lathe.transforms.base import FitContext, Spec, TrainingConfig, TrainingLog
from lathe.transforms.learned.descent import BatchSampler, autograd_loss, limit_threads, prepare_checkpoint, train
from lathe.transforms.vectors import Vectors

CHECK_EVERY, PATIENCE = 10, 8
"""Number of steps between two evaluations, and of evaluations without a lower loss after which training stops."""


class _TrainedMap(Protocol):
    """Protocol of the transforms that `train_difference` trains, whose parameters are the settings of the training.

    Attributes:
        kind: kind of the transform.
        steps: maximum number of training steps.
        batch: number of rows in a batch.
        learning_rate: peak learning rate.
        weight_decay: of the difference to the known map, as AdamW applies it.
        training_log: log of the training, set by `train_difference`.
    """

    kind: ClassVar[str]
    steps: int
    batch: int
    learning_rate: float
    weight_decay: float
    training_log: TrainingLog | None

    @property
    def device(self) -> torch.device:
        """Device to train on."""

    def spec(self) -> Spec:
        """Return kind and parameters as a dict that can be serialized as JSON."""


def make_config(step: _TrainedMap, heldout: int) -> TrainingConfig:
    """Return the training config of a transform, from its parameters.

    Up to `heldout` rows are held out to decide when to stop.
    """
    return TrainingConfig(
        steps=step.steps,
        batch=step.batch,
        learning_rate=step.learning_rate,
        weight_decay=step.weight_decay,
        warmup=0.1,
        heldout=heldout,
        check_every=CHECK_EVERY,
        patience=PATIENCE,
    )


def train_difference(
    step: _TrainedMap,
    start: Tensor,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    batches: BatchSampler,
    config: TrainingConfig,
    context: FitContext,
    vectors: Vectors,
    mean: NDArray[np.float64],
) -> Tensor:
    """Train a map W from W₀, and return the W `(k, d)` of the lowest held-out loss. Sets `step.training_log`.

    The result may be W₀ itself. W − W₀ is trained, so that weight decay draws W to W₀ and not to zero.

    Args:
        step: the step that is fitted.
        start: W₀, `(k, d)`, on the step's device.
        loss_of: function from W and a batch to the loss.
        batches: sampler of training batches and held-out rows.
        config: config of the training, see `make_config`.
        context: context of the fit.
        vectors: rows `(n, d)` by which a checkpoint is recognized.
        mean: their mean `(d,)`.
    """
    # Weight decay shrinks what is trained: of W itself it would be drawn to zero, of W − W₀ it is drawn to W₀.
    difference = torch.zeros_like(start, requires_grad=True)
    parameters = {"difference": difference}
    loss = autograd_loss(parameters, lambda batch: loss_of(start + difference, batch))
    checkpoint = prepare_checkpoint(context, step.spec(), config, vectors, mean)
    with limit_threads(step.batch, step.device):
        # With the start evaluated, W₀ is returned where no trained map is better.
        step.training_log = train(
            step.kind, parameters, loss, batches, config, context, checkpoint, evaluate_start=True
        )
    return start + difference.detach()
