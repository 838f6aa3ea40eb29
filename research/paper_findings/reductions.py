"""Geometry of reductions and their scores, and reductions in other languages, as in the GeoPres paper."""

import re
from dataclasses import dataclass

import numpy as np

from lathe.training.evaluation.methods import CONTROL
from research.fitted_methods.methods import FittableMethod
from research.paper_findings.grid import Grid
from research.paper_findings.retention import MIN_CONTROL_SCORE
from research.paper_findings.statistics import Correlation, correlate

LANGUAGE_SUFFIX = re.compile(r"[_-]([a-z]{2})$")
"""Pattern of a two-letter language at the end of a data set's name."""
ENGLISH = "en"
"""Language that others are compared with, and that of data sets without a language."""
INTRINSIC = {"local_spearman": 1, "positional": -1, "angular": -1, "recall_at_10": 1}
"""Sign of each intrinsic measure in correlations: −1 for errors, so that more is better for all."""


def correlate_intrinsic(grid: Grid) -> dict[str, Correlation]:
    """Correlate each intrinsic measure with the mean score, over encoders, reducers and sizes (Table 1 of the paper).

    Errors are negated, so that more is better for all measures. Undefined correlations are left out; the result is
    empty if no task is common to all reductions.
    """
    configurations = [(encoder, name) for encoder, result in grid.encoders.items() for name in result.intrinsic]
    tasks = [task for task in grid.tasks if all((*one, task) in grid.values for one in configurations)]
    if not tasks:
        return {}
    means = np.array([grid.scores(encoder, name, tasks).mean() for encoder, name in configurations])
    found = {}
    for measure, sign in INTRINSIC.items():
        kept = np.array([sign * grid.encoders[encoder].intrinsic[name][measure] for encoder, name in configurations])
        if (correlation := correlate(kept, means)) is not None:
            found[measure] = correlation
    return found


@dataclass(frozen=True)
class CrossLingual:
    """Retention of one reducer on a parallel data set in another language than English (Table 2 of the paper).

    Attributes:
        encoder: name of the encoder.
        label: label of the reducer.
        size: output dimensions.
        task: common part of the data sets' names.
        language: the other language.
        retention: R, the share of the raw score that is retained in it.
        against_english: Δ = R − R of English.
    """

    encoder: str
    label: str
    size: int
    task: str
    language: str
    retention: float
    against_english: float


def compare_languages(grid: Grid) -> list[CrossLingual]:
    """Compare the share of the score that each reduction retains in another language with that in English.

    Only parallel data sets are compared, those with both scores and raw scores of at least `MIN_CONTROL_SCORE`.

    Data sets are parallel if they have the same type, and the last parts of their names differ only in the language at
    the end, such as `stsb_de` and `stsb`. If several are in the same language, none of these is used, since the match
    is ambiguous.
    """
    found = []
    for (_, stem), languages in _parallel_tasks(grid).items():
        english = languages.pop(ENGLISH, None)
        for encoder, result in grid.encoders.items():
            for method in (m for m in result.methods.values() if m.size is not None):
                against = _retained_share(grid, encoder, method, english)
                for language, task in languages.items():
                    share = _retained_share(grid, encoder, method, task)
                    if share is not None and against is not None:
                        row = encoder, method.label, method.size or 0, stem, language, share, share - against
                        found.append(CrossLingual(*row))
    return found


def _retained_share(grid: Grid, encoder: str, method: FittableMethod, task: str | None) -> float | None:
    """Return a task's score with the method divided by its raw score.

    It is None if one is missing, or the raw one is too low.
    """
    if task is None or not all((encoder, name, task) in grid.values for name in (CONTROL, method.name)):
        return None
    control = grid.values[encoder, CONTROL, task]
    return grid.values[encoder, method.name, task] / control if control >= MIN_CONTROL_SCORE else None


def _parallel_tasks(grid: Grid) -> dict[tuple[str, str], dict[str, str]]:
    """Return the names of tasks by (type, last part of the name without the language at its end), then by language.

    Tasks in several languages are left out, and tasks that have type, name and language in common. No language counts
    as English.
    """
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name, task in grid.tasks.items():
        last = name.rpartition("/")[2]
        suffix = LANGUAGE_SUFFIX.search(last)
        named = suffix is not None and suffix.group(1) == task.language
        stem = last[: -len(suffix.group(0))] if named and suffix else last
        if "-" not in task.language and "," not in task.language:
            languages = found.setdefault((task.type, stem), {})
            languages.setdefault(task.language or ENGLISH, []).append(name)
    return {
        key: {language: names[0] for language, names in languages.items() if len(names) == 1}
        for key, languages in found.items()
    }
