"""Results of the cells of an experiment, as they are written to the results logs."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """Result of one cell: a method on a target, with a number of fine-tuning rows.

    Attributes:
        unit: key of the unit.
        target: name of the target.
        task: task of the target.
        metric: name of the metric of `score`.
        method: name of the method; see `conditions.py`.
        rows: number n of fine-tuning rows; 0 is before fine-tuning.
        learning_rate: learning rate of both stages.
        seed: seed of both stages.
        score: mteb's main score on the target's test; of a classification, the accuracy of logistic regressions.
        label_accuracy: share of a classification's test rows whose nearest label text is their own; else None.
        drift: mean 1 − cosine between the held-out domain texts' vectors and those of the base model, before
            fine-tuning; None after it.
        isoscore: IsoScore of the vectors of these texts before fine-tuning; None after it.
        steps: number of pre-finetuning steps; 0 without pre-finetuning.
        seconds_per_step: mean duration of a pre-finetuning step; None without pre-finetuning.
    """

    unit: str
    target: str
    task: str
    metric: str
    method: str
    rows: int
    learning_rate: float
    seed: int
    score: float
    label_accuracy: float | None
    drift: float | None = None
    isoscore: float | None = None
    steps: int = 0
    seconds_per_step: float | None = None


def read_result(**fields: Any) -> Result:
    """Return the result that a line of a results log holds.

    Logs of Lathe's first version have the label accuracy of a classification as its score, and mteb's accuracy as its
    `linear_probe`.
    """
    if "linear_probe" in fields:
        accuracy = fields.pop("linear_probe")
        fields["label_accuracy"] = None if accuracy is None else fields["score"]
        if accuracy is not None:
            fields |= {"score": accuracy, "metric": "accuracy"}
    return Result(**fields)
