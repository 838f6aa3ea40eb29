"""What reductions keep of the scores, as the GeoPres paper reports it."""

import re
from dataclasses import dataclass

import numpy as np

from training.evaluation.grid import Grid
from training.evaluation.methods import CONTROL, Method
from training.evaluation.statistics import Array, Correlation, Interval, bootstrap_ratio, correlate

ALL = "all"
CONTROL_LEAST = 0.05
"""Of the raw vectors' mean score, for a share of it to be more than noise."""
LANGUAGE_SUFFIX = re.compile(r"[_-]([a-z]{2})$")
ENGLISH = "en"
RIVAL = "pca"
INTRINSIC = {"local_spearman": 1, "positional": -1, "angular": -1, "recall_at_10": 1}
"""The intrinsic measures, with −1 for those that are errors: correlations are with what is kept."""


@dataclass(frozen=True)
class Retention:
    """What a reducer keeps at a size, over encoders and tasks.

    Attributes:
        label: of the reducer.
        share: of the dimensions, rounded to a ten-thousandth.
        encoders: that were reduced.
        tasks: that all reducers completed at every size.
        mean: normalised score M(f∘g)/M(g) (Eq. 2), M the mean of all tasks, with its interval.
        types: of each type of task.
        ahead: by type and over `all`, how much of the score is kept more than by centred PCA, paired by task.
    """

    label: str
    share: float
    encoders: int
    tasks: int
    mean: Interval
    types: dict[str, Interval]
    ahead: dict[str, Interval]


def retentions(grid: Grid) -> list[Retention]:
    """Every reducer and nested chain at every size, over the tasks complete for all."""
    sized = {name: [m for m in e.methods.values() if m.size is not None] for name, e in grid.encoders.items()}
    sized = {name: methods for name, methods in sized.items() if methods}
    tasks = grid.common(sized)
    if not sized or not tasks:
        return []
    scores: dict[tuple[str, float], dict[str, Array]] = {}
    for encoder, methods in sized.items():
        width = grid.encoders[encoder].member.dimensions
        for method in methods:
            key = method.label, round((method.size or width) / width, 4)
            scores.setdefault(key, {})[encoder] = grid.scores(encoder, method.name, tasks)
    groups = {ALL: list(range(len(tasks)))} | grid.types(tasks)
    found = []
    for (label, share), columns in scores.items():
        rows, control = together(columns), together({name: grid.control(name, tasks) for name in columns})
        rival = scores.get((RIVAL, share), {})
        matched = together({name: rival[name] for name in columns}) if set(columns) <= set(rival) else None
        told = {name: places for name, places in groups.items() if (control[places].mean(0) >= CONTROL_LEAST).all()}
        kept = {name: bootstrap_ratio(rows[places], control[places]) for name, places in told.items()}
        ahead = {
            name: bootstrap_ratio(rows[places], control[places], matched[places])
            for name, places in told.items()
            if matched is not None
        }
        if ALL in kept:
            found.append(Retention(label, share, len(columns), len(tasks), kept.pop(ALL), kept, ahead))
    order = list(dict.fromkeys(one.label for one in found))
    return sorted(found, key=lambda one: (-one.share, order.index(one.label)))


def together(columns: dict[str, Array]) -> Array:
    """Scores of encoders as the columns of an array `(n, m)`."""
    return np.stack(list(columns.values()), axis=1)


def intrinsic_correlations(grid: Grid) -> dict[str, Correlation]:
    """How what a reduction keeps of the geometry goes with its mean score (Table 1 of the paper).

    A pair for each encoder, reducer and size; of errors the negative is taken, so that more is better of all.
    """
    configurations = [
        (encoder, name) for encoder, result in grid.encoders.items() for name in result.intrinsic if result.intrinsic
    ]
    tasks = [
        task for task in grid.tasks if all((encoder, name, task) in grid.values for encoder, name in configurations)
    ]
    if not tasks:
        return {}
    means = np.array([grid.scores(encoder, name, tasks).mean() for encoder, name in configurations])
    found = {}
    for measure, sign in INTRINSIC.items():
        kept = np.array([sign * grid.encoders[encoder].intrinsic[name][measure] for encoder, name in configurations])
        correlation = correlate(kept, means)
        if correlation is not None:
            found[measure] = correlation
    return found


@dataclass(frozen=True)
class CrossLingual:
    """A parallel data set in another language (Table 2 of the paper).

    Attributes:
        encoder: its name.
        label: of the reducer.
        size: of the output.
        task: what the data sets share.
        language: the other one.
        retention: R, the share of the raw score kept there.
        against_english: Δ = R − R of English.
    """

    encoder: str
    label: str
    size: int
    task: str
    language: str
    retention: float
    against_english: float


def cross_lingual(grid: Grid) -> list[CrossLingual]:
    """Retention in other languages less that in English, where one data set is there in both.

    Data sets are parallel if they are of one type and their last names differ only in the language at the end, as
    `stsb_de` and `stsb`; of several in one language nobody can say which is meant, and none is taken.
    """
    found = []
    for (_, stem), languages in parallel(grid).items():
        english = languages.pop(ENGLISH, None)
        for encoder, result in grid.encoders.items():
            for method in (m for m in result.methods.values() if m.size is not None):
                against = kept_share(grid, encoder, method, english)
                for language, task in languages.items():
                    share = kept_share(grid, encoder, method, task)
                    if share is not None and against is not None:
                        row = encoder, method.label, method.size or 0, stem, language, share, share - against
                        found.append(CrossLingual(*row))
    return found


def kept_share(grid: Grid, encoder: str, method: Method, task: str | None) -> float | None:
    """What a method keeps of a task's raw score; None where that is noise, or one of them was not scored."""
    if task is None or not all((encoder, name, task) in grid.values for name in (CONTROL, method.name)):
        return None
    control = grid.values[encoder, CONTROL, task]
    return grid.values[encoder, method.name, task] / control if control >= CONTROL_LEAST else None


def parallel(grid: Grid) -> dict[tuple[str, str], dict[str, str]]:
    """Tasks by type and what their last names share, and by language."""
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
