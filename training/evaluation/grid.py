"""Scores by encoder, method and task, as arrays."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from training.evaluation.methods import CONTROL, Method
from training.evaluation.run import EncoderResult, Results
from training.evaluation.scores import Collected
from training.evaluation.statistics import Array

FAMILIES = {"Retrieval": "Retrieval", "Classification": "Classification", "MultilabelClassification": "Classification"}
OTHER = "Other"
"""The mean-bias paper's three families of tasks: retrieval, classification, and all the rest."""


def family_of(task_type: str) -> str:
    """The family of a type of mteb's."""
    return FAMILIES.get(task_type, OTHER)


class Grid:
    """What was measured, found by what it is of.

    Args:
        results: of an evaluation.
    """

    def __init__(self, results: Results) -> None:
        self.tasks: dict[str, Collected] = {task.task: task for task in results.tasks if task.error is None}
        self.encoders: dict[str, EncoderResult] = {result.member.name: result for result in results.encoders}
        self.values: dict[tuple[str, str, str], float] = {
            (score.encoder, score.method, score.task): score.score
            for score in results.scores
            if score.score is not None and score.task in self.tasks
        }

    def methods(self, encoder: str, label: str) -> list[Method]:
        """The methods of a label on an encoder: seeds or draws of one thing, not one thing at several sizes."""
        methods = self.encoders[encoder].methods.values()
        return [m for m in methods if m.label == label and m.group != "sweep" and self.scored(encoder, m)]

    def scored(self, encoder: str, method: Method) -> bool:
        """Whether a method has any score on an encoder; one that failed on every task must not empty the tables."""
        return any((encoder, method.name, task) in self.values for task in self.tasks)

    def labels(self, *groups: str) -> list[str]:
        """Labels of the groups, in the order they were asked for."""
        found = [m.label for result in self.encoders.values() for m in result.methods.values() if m.group in groups]
        return list(dict.fromkeys(found))

    def complete(self, encoder: str, methods: Iterable[Method]) -> list[str]:
        """Tasks that every one of the methods, and the control, completed on an encoder."""
        names = [CONTROL, *(method.name for method in methods)]
        return [task for task in self.tasks if all((encoder, name, task) in self.values for name in names)]

    def common(self, methods: Mapping[str, Iterable[Method]]) -> list[str]:
        """Tasks complete on every one of some encoders, each with its own methods."""
        complete = [set(self.complete(encoder, some)) for encoder, some in methods.items()]
        return [task for task in self.tasks if all(task in some for some in complete)]

    def scores(self, encoder: str, method: str, tasks: Sequence[str]) -> Array:
        """A method's scores `(n,)`."""
        return np.array([self.values[encoder, method, task] for task in tasks])

    def control(self, encoder: str, tasks: Sequence[str]) -> Array:
        """The raw vectors' scores `(n,)`."""
        return self.scores(encoder, CONTROL, tasks)

    def label_scores(self, encoder: str, label: str, tasks: Sequence[str]) -> Array:
        """Scores `(n,)` of a label: the mean of its methods."""
        found = [self.scores(encoder, method.name, tasks) for method in self.methods(encoder, label)]
        return np.asarray(np.mean(found, axis=0))

    def types(self, tasks: Sequence[str]) -> dict[str, list[int]]:
        """Places of tasks by mteb's type."""
        found: dict[str, list[int]] = {}
        for place, task in enumerate(tasks):
            found.setdefault(self.tasks[task].type, []).append(place)
        return found

    def families(self, tasks: Sequence[str]) -> dict[str, list[int]]:
        """Places of tasks by family."""
        found: dict[str, list[int]] = {}
        for kind, places in self.types(tasks).items():
            found.setdefault(family_of(kind), []).extend(places)
        return found
