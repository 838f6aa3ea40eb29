"""The training config of the GeoPres paper, for its linear map and its autoencoder."""

from dataclasses import replace

from lathe.transforms.base import TrainingConfig

PAPER = TrainingConfig(
    steps=0,  # the number of epochs decides
    batch=20_000,
    learning_rate=1e-2,
    weight_decay=0.1,
    warmup=0.1,
    heldout=10_000,
    patience=3,
)
"""Section 4.2 of the GeoPres paper; `paper_config` sets `steps` and `check_every` from the number of rows."""

PAPER_EPOCHS = 10
"""Epochs of a training if `steps` is not set."""

MIN_EVALUATION_INTERVAL = 20
"""Minimum number of steps between two evaluations on held-out rows.

On 10,000 rows, an evaluation at every second step ends training after 18 steps: a recall@10 of .37, not .58.
"""


def paper_config(rows: int, steps: int | None, batch: int | None, learning_rate: float | None) -> TrainingConfig:
    """Return the training config of the GeoPres paper for a fit on `rows` rows. It has ten epochs unless `steps` is
    set, and arguments that are not None replace the paper's values.

    An epoch is counted in steps; there is an evaluation after each. The paper's epochs have 500 steps. With few rows an
    epoch has one or two steps, and the loss swings so much from one epoch to the next that patience would end the
    training at its start. So evaluations are at least `MIN_EVALUATION_INTERVAL` steps apart.
    """
    config = PAPER.override(steps, batch, learning_rate)
    steps = PAPER_EPOCHS * max(1, rows // config.batch) if steps is None else steps
    return replace(config, steps=steps, check_every=max(steps // PAPER_EPOCHS, MIN_EVALUATION_INTERVAL))
