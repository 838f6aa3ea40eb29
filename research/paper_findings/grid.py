"""Lookup of scores of fitted methods by encoder, method and task, as arrays."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from lathe.training.comparison import Array
from lathe.training.evaluation import comparison
from lathe.training.evaluation.methods import CONTROL
from research.fitted_methods.evaluation import FittedResult, FittedResults
from research.fitted_methods.methods import FittableMethod

FAMILIES = {"Retrieval": "Retrieval", "Classification": "Classification", "MultilabelClassification": "Classification"}
"""Family of tasks by mteb's type: the mean-bias paper has retrieval, classification and the rest."""
OTHER = "Other"
"""Family of all other types of tasks."""


def find_task_family(task_type: str) -> str:
    """Return the family of a task type of mteb: Retrieval, Classification or Other."""
    return FAMILIES.get(task_type, OTHER)


class Grid(comparison.Grid):
    """Scores of an evaluation of fitted methods, without failed tasks and scores."""

    encoders: Mapping[str, FittedResult]

    def __init__(self, results: FittedResults) -> None:
        super().__init__(results)

    def methods(self, encoder: str, label: str) -> list[FittableMethod]:
        """List the methods with this label that have a score on an encoder.

        They are one method with different seeds or samples. Methods of the group `sweep` are left out.
        """
        methods = self.encoders[encoder].methods.values()
        return [m for m in methods if m.label == label and m.group != "sweep" and self.has_scores(encoder, m)]

    def has_scores(self, encoder: str, method: FittableMethod) -> bool:
        """Return whether a method has a score on this encoder for at least one task, and so did not always fail."""
        return any((encoder, method.name, task) in self.values for task in self.tasks)

    def labels(self, *groups: str) -> list[str]:
        """List the distinct labels of methods in the groups, in the order they were requested."""
        distinct = [m.label for result in self.encoders.values() for m in result.methods.values() if m.group in groups]
        return list(dict.fromkeys(distinct))

    def complete_tasks(self, encoder: str, methods: Iterable[FittableMethod]) -> list[str]:
        """List, in order, the tasks for which the raw vectors and all these methods have a score on the encoder."""
        names = [CONTROL, *(method.name for method in methods)]
        return [task for task in self.tasks if all((encoder, name, task) in self.values for name in names)]

    def common_tasks(self, methods: Mapping[str, Iterable[FittableMethod]]) -> list[str]:
        """List the tasks that are complete on every encoder in `methods`.

        On such a task, the raw vectors and all the encoder's methods have a score. Without encoders, all tasks are
        listed.
        """
        complete = [set(self.complete_tasks(encoder, encoder_methods)) for encoder, encoder_methods in methods.items()]
        return [task for task in self.tasks if all(task in completed for completed in complete)]

    def scores(self, encoder: str, method: str, tasks: Sequence[str]) -> Array:
        """Return the scores `(n,)` of a method on an encoder for the tasks.

        Raises:
            KeyError: if one is missing.
        """
        return np.array([self.values[encoder, method, task] for task in tasks])

    def label_scores(self, encoder: str, label: str, tasks: Sequence[str]) -> Array:
        """Return the scores `(n,)` of a label on an encoder for the tasks, averaged over its seeds or samples.

        Raises:
            KeyError: if a score is missing.
        """
        scores = [self.scores(encoder, method.name, tasks) for method in self.methods(encoder, label)]
        return np.asarray(np.mean(scores, axis=0))

    def group_by_family(self, tasks: Sequence[str]) -> dict[str, list[int]]:
        """Return the positions of the tasks in the list, as lists by family: Retrieval, Classification or Other."""
        groups: dict[str, list[int]] = {}
        for kind, positions in self.group_by_type(tasks).items():
            groups.setdefault(find_task_family(kind), []).extend(positions)
        return groups
