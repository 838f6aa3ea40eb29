"""Lookup of scores by encoder, method and task, as arrays."""

from collections.abc import Mapping, Sequence

import numpy as np

from lathe.training.evaluation.methods import CONTROL
from lathe.training.evaluation.run import EncoderResult, Results
from lathe.training.evaluation.scores import TaskDescription
from lathe.training.evaluation.statistics import Array


class Grid:
    """Scores of an evaluation, without failed tasks and scores.

    Args:
        results: results of the evaluation.

    Attributes:
        tasks: tasks without an error, by name.
        encoders: results by encoder name.
        values: scores by (encoder, method, task).
    """

    def __init__(self, results: Results) -> None:
        self.tasks: dict[str, TaskDescription] = {task.task: task for task in results.tasks if task.error is None}
        self.encoders: Mapping[str, EncoderResult] = {result.member.name: result for result in results.encoders}
        self.values: dict[tuple[str, str, str], float] = {
            (score.encoder, score.method, score.task): score.score
            for score in results.scores
            if score.score is not None and score.task in self.tasks
        }

    def names(self, *groups: str) -> list[str]:
        """List the distinct names of methods in the groups, in the order they were requested."""
        distinct = [m.name for result in self.encoders.values() for m in result.methods.values() if m.group in groups]
        return list(dict.fromkeys(distinct))

    def tasks_of_raw_vectors(self) -> list[str]:
        """List the tasks for which the raw vectors of every encoder have a score."""
        return [task for task in self.tasks if all((name, CONTROL, task) in self.values for name in self.encoders)]

    def control_scores(self, encoder: str, tasks: Sequence[str]) -> Array:
        """Return the raw vectors' scores `(n,)` on an encoder for the tasks.

        Raises:
            KeyError: if one is missing.
        """
        return np.array([self.values[encoder, CONTROL, task] for task in tasks])

    def group_by_type(self, tasks: Sequence[str]) -> dict[str, list[int]]:
        """Return the positions of the tasks in the list, as lists by mteb's type of task such as `Retrieval`."""
        groups: dict[str, list[int]] = {}
        for position, task in enumerate(tasks):
            groups.setdefault(self.tasks[task].type, []).append(position)
        return groups
