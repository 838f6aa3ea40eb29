"""Scores of an encoder on a target's test, by mteb's own evaluators."""

from dataclasses import dataclass
from itertools import starmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.training.datasets.layouts.classification import Classification
from lathe.training.datasets.records import Warnings, is_blank
from lathe.training.evaluation.encoders import TextVectors, text_key
from lathe.training.evaluation.model import Collector, StoredModel
from lathe.training.evaluation.tasks import limit_rows
from lathe.training.evaluation.worker import measure
from research.reze_experiment.targets import Target


@dataclass(frozen=True)
class Scores:
    """Scores of an encoder on a target.

    Attributes:
        score: mteb's main score.
        label_accuracy: share of the test rows whose nearest label text is their own; None unless the target is a
            classification.
    """

    score: float
    label_accuracy: float | None = None


class Scorer:
    """Scorer of encoders on one target, whose test is read once.

    A classification is also scored as its pairs are trained on: the label whose text is nearest is predicted.

    Construction reads the test, and runs its task once on random vectors to record the texts that it encodes.

    Args:
        target: data set.
        limit: maximum number of rows, queries or documents; None for all.

    Attributes:
        metric: name of mteb's main metric.
        asked: texts that mteb encodes, without prompts.
        labels: text of each label, by label; empty unless the target is a classification.
        inputs: texts of a classification's test rows; else `asked`.
        truth: text of each input's label; only of a classification.
    """

    def __init__(self, target: Target, limit: int | None) -> None:
        self.target, data = target, target.data
        self.prompts = {"query": target.prompts.anchor, "document": target.prompts.positive}
        self.task = data.build_task(Warnings())
        if limit is not None:
            limit_rows(self.task, limit)
        collector = Collector()
        measure(collector, self.task)
        self.asked = [text for _, text in collector.asked]
        self.labels = self.read_label_texts() if isinstance(data.layout, Classification) else {}
        self.inputs = self.asked
        if self.labels:
            test: Any = self.task.dataset
            self.inputs, numbers = list(test["test"]["text"]), list(test["test"]["label"])
            names = sorted(self.labels)  # the layouts number labels in this order
            self.truth = np.array([self.labels[names[number]] for number in numbers])
        self.metric = str(self.task.metadata.main_score)

    def read_label_texts(self) -> dict[str, str]:
        """Return the text of each label in the training and test rows, by label.

        The label itself where none is set.
        """
        known, data = self.target.read_labels(), self.target.data
        rows = [row for split in ("train", "test") for row in data.read_rows(split) if not is_blank(row["text"])]
        return {label: known.get(label, label) for label in dict.fromkeys(str(row["label"]) for row in rows)}

    @property
    def texts(self) -> list[str]:
        """Distinct texts to encode for `score`, with their prompts."""
        return list(dict.fromkeys([*self.list_model_texts(), *self.list_prompted_labels()]))

    def list_model_texts(self) -> list[str]:
        """Return the texts that mteb encodes, each with both prompts, since mteb does not always tell which it uses."""
        return [prompt + text for text in self.asked for prompt in dict.fromkeys(self.prompts.values())]

    def list_prompted_labels(self) -> list[str]:
        """Return the texts of the labels with the document prompt.

        Empty unless the target is a classification.
        """
        return [self.prompts["document"] + text for text in self.labels.values()]

    def score(self, vectors: NDArray[np.float32]) -> Scores:
        """Score vectors `(n, d)` that correspond to `texts`."""
        store = TextVectors(map(text_key, self.texts), vectors)
        asked = [(text, prompt) for text in self.asked for prompt in dict.fromkeys(self.prompts.values())]
        vectors = store.get([text_key(text) for text in self.list_model_texts()])
        model = StoredModel(TextVectors(starmap(text_key, asked), vectors), self.prompts, self.prompts["query"])
        value = measure(model, self.task).score
        return Scores(value, self.compute_label_accuracy(store) if self.labels else None)

    def compute_label_accuracy(self, store: TextVectors) -> float:
        """Return the share of inputs whose nearest label text, by dot product, is the text of their own label.

        Labels may share a text, which is then right for each of them.
        """
        inputs = store.get([text_key(self.prompts["query"] + text) for text in self.inputs])
        labels = store.get([text_key(text) for text in self.list_prompted_labels()])
        nearest = np.array(list(self.labels.values()))[np.argmax(inputs @ labels.T, axis=1)]
        return float((nearest == self.truth).mean())
