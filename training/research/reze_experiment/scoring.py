"""How good an encoder is on a target's test, by mteb's own evaluators."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.evaluation.layouts import READERS
from training.evaluation.limits import limit_rows
from training.evaluation.model import Collector, PromptedModel
from training.evaluation.records import Warnings
from training.evaluation.store import MemoryStore, text_key
from training.evaluation.tasks import local_task
from training.evaluation.worker import measure
from training.finetuning.positives import blank
from training.research.reze_experiment.targets import Target

LABEL_ACCURACY = "label_accuracy"


@dataclass(frozen=True)
class Scores:
    """An encoder's on a target: the main one, and of a classification a linear probe's beside it."""

    score: float
    linear_probe: float | None = None


class Scorer:
    """A target's test, read once.

    A classification is scored as its pairs are trained on: the label whose text is nearest. mteb's own logistic
    regression on the vectors is the linear probe.

    Args:
        target: the data set.
        limit: rows, queries or documents; None for all.
    """

    def __init__(self, target: Target, limit: int | None) -> None:
        self.target, data = target, target.data
        self.prompts = {"query": target.prompts.anchor, "document": target.prompts.positive}
        read = READERS[data.task](data.folder, Warnings())
        self.task = local_task(data.name, data.task, data.language, read)
        if limit is not None:
            limit_rows(self.task, limit)
        collector = Collector({})
        measure(collector, self.task)
        self.asked = [text for _, text in collector.asked]
        self.labels = self.label_texts() if data.task == "classification" else {}
        self.inputs = self.asked
        if self.labels:
            test: Any = self.task.dataset
            self.inputs, numbers = list(test["test"]["text"]), list(test["test"]["label"])
            names = sorted(self.labels)  # the layouts number labels in this order
            self.truth = np.array([self.labels[names[number]] for number in numbers])
        self.metric = LABEL_ACCURACY if self.labels else str(self.task.metadata.main_score)

    def label_texts(self) -> dict[str, str]:
        """What each label says, of the rows that the layout keeps."""
        known, data = self.target.labels(), self.target.data
        rows = [row for split in ("train", "test") for row in data.rows(split) if not blank(row["text"])]
        return {label: known.get(label, label) for label in dict.fromkeys(str(row["label"]) for row in rows)}

    @property
    def texts(self) -> list[str]:
        """Every text whose vector is needed, with its prompt."""
        return list(dict.fromkeys([*self.model_texts(), *self.prompted_labels()]))

    def model_texts(self) -> list[str]:
        """Those that mteb asks for; where a task does not say which is which, both ways."""
        return [prompt + text for text in self.asked for prompt in dict.fromkeys(self.prompts.values())]

    def prompted_labels(self) -> list[str]:
        """Those of the labels."""
        return [self.prompts["document"] + text for text in self.labels.values()]

    def score(self, vectors: NDArray[np.float32]) -> Scores:
        """The scores of the vectors `(n, d)` of `texts`."""
        store = MemoryStore(self.texts, vectors)
        model = PromptedModel(store, self.prompts)
        value, _ = measure(model, self.task)
        if not self.labels:
            return Scores(value)
        return Scores(self.label_accuracy(store), value)

    def label_accuracy(self, store: MemoryStore) -> float:
        """The share of inputs whose nearest label text is their own; labels may share one."""
        inputs = store.get([text_key(self.prompts["query"] + text) for text in self.inputs])
        labels = store.get([text_key(text) for text in self.prompted_labels()])
        nearest = np.array(list(self.labels.values()))[np.argmax(inputs @ labels.T, axis=1)]
        return float((nearest == self.truth).mean())
