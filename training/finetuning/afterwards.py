"""The trained model against its base, on what it was trained for and on what it must not forget.

OUT/
├── evaluation/       vectors and scores     training/evaluation/run.py
└── comparison.json   of these, per task and per category
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from training.encoder.spec import EncoderSpec
from training.evaluation.encoders import Wanted
from training.evaluation.methods import CONTROL
from training.evaluation.run import Request, Results, evaluate
from training.evaluation.statistics import Interval, bootstrap_ratio, holm, paired_test
from training.evaluation.suites import Entry, Suite, open_suite
from training.finetuning.datasets import FolderDataSet
from training.finetuning.development import measured_texts
from training.finetuning.extras import SuiteSettings
from training.finetuning.overlap import normalized
from transforms.files import replace_synced
from transforms.progress import Progress

BASE, ADAPTED = "base", "adapted"
COMPARISON = "comparison.json"
ALL = "all"
SIGNIFICANT = 0.05
"""α of the paper's Table 14."""


@dataclass(frozen=True)
class TaskScores:
    """A task's main score by both models, and how many training pairs share a text with its test."""

    task: str
    category: str
    base: float
    adapted: float
    seen: int


@dataclass(frozen=True)
class Category:
    """Both models on the tasks of a category, as in Table 14 of the FinMTEB paper.

    Attributes:
        name: mteb's type, or `all`.
        tasks: how many.
        base: mean score.
        adapted: likewise.
        p: of the paired t-test over tasks, two-sided; None for one task, or where all differences are equal.
        p_holm: corrected for the categories of the suite; None for `all`, which is none of them.
        retention: mean score of the adapted model over that of its base, tasks resampled.
    """

    name: str
    tasks: int
    base: float
    adapted: float
    p: float | None
    p_holm: float | None
    retention: Interval

    @property
    def significant(self) -> bool:
        """Whether the difference is at α = .05, corrected where there is a correction."""
        p = self.p if self.p_holm is None else self.p_holm
        return p is not None and p < SIGNIFICANT


@dataclass(frozen=True)
class Compared:
    """A suite: every task, every category, and what could not be measured."""

    suite: str
    tasks: list[TaskScores]
    categories: list[Category]
    problems: list[str]


def open_suites(settings: SuiteSettings) -> dict[str, Suite]:
    """The suites that a job names; of two data sets with one name, that of the later suite is called after it too.

    Raises:
        EvaluationError: for one that there is not.
    """
    found: dict[str, Suite] = {}
    known: dict[str, Entry] = {}
    for name, written in (("domain", settings.domain), ("general", settings.general)):
        if written:
            suite = open_suite(written)
            entries = tuple(
                entry if known.setdefault(entry.name, entry) == entry else replace(entry, name=f"{entry.name}, {name}")
                for entry in suite.entries
            )
            found[name] = replace(suite, entries=entries)
    return found


def compare_models(
    suites: Mapping[str, Suite],
    limit: int | None,
    base: EncoderSpec,
    model: Path,
    trained: Sequence[str],
    device: str | None,
    out: Path,
    on_progress: Progress,
) -> dict[str, Compared]:
    """Measure both models on the suites; what a stopped run has done is not done again.

    Args:
        suites: by what they are for.
        limit: rows, queries or documents of each data set.
        base: the model before.
        model: the folder of the model afterwards.
        trained: texts that were trained on.
        device: to run on.
        out: the job's folder.
        on_progress: told a fraction and a sentence.

    Raises:
        EvaluationError: if nothing of a suite can be evaluated.
    """
    adapted = replace(base, name=ADAPTED, model=str(model), revision=None, pooling=None, layer=None)
    encoders = [Wanted(replace(base, name=BASE)), Wanted(adapted)]
    request = Request(together(suites.values()), encoders, out / "evaluation", limit=limit, device=device)
    results, known = evaluate(request, on_progress), {normalized(text) for text in trained}
    found = {name: compared(results, suite, known) for name, suite in suites.items()}
    figures = {name: asdict(one) for name, one in found.items()}
    replace_synced(out / COMPARISON, orjson.dumps(figures, option=orjson.OPT_INDENT_2))
    return found


def together(suites: Iterable[Suite]) -> Suite:
    """All data sets of some suites, each once."""
    entries = {entry.name: entry for suite in suites for entry in suite.entries}
    return Suite("", "both suites", tuple(entries.values()))


def compared(results: Results, suite: Suite, known: set[str]) -> Compared:
    """What an evaluation of both models found on a suite."""
    values = {(score.encoder, score.task): score.score for score in results.scores if score.method == CONTROL}
    described = {one.task: one for one in results.tasks}
    tasks, problems = [], [f"{name}: {why}" for name, why in suite.problems.items()]
    for entry in suite.entries:
        one = described[entry.name]
        before, after = values.get((BASE, entry.name)), values.get((ADAPTED, entry.name))
        if before is not None and after is not None:
            tasks.append(TaskScores(entry.name, one.type, before, after, seen(entry, known)))
        else:
            problems.append(f"{entry.name}: {one.error or 'it could not be scored on both models'}")
    return Compared(suite.title, tasks, list(categories(tasks)), [*problems, *results.problems])


def seen(entry: Entry, known: set[str]) -> int:
    """How many inputs of a task's test were trained on, but for case and punctuation; 0 of those that lie elsewhere."""
    if entry.kind != "folder":
        return 0
    data = FolderDataSet(entry.name, entry.task, Path(entry.place), entry.language)  # type: ignore[arg-type]
    return len(measured_texts(data) & known)


def categories(tasks: Sequence[TaskScores]) -> Iterator[Category]:
    """Every category with more than its name to say, then all tasks together."""
    groups: dict[str, list[TaskScores]] = {}
    for one in tasks:
        groups.setdefault(one.category, []).append(one)
    tests = {name: paired_test(*columns(some)) for name, some in groups.items()}
    corrected = holm([test.p for test in tests.values()])
    for (name, some), p_holm in zip(groups.items(), corrected, strict=True):
        yield category(name, some, tests[name].p, p_holm)
    if len(groups) > 1:
        yield category(ALL, tasks, paired_test(*columns(tasks)).p, None)


def category(name: str, tasks: Sequence[TaskScores], p: float | None, p_holm: float | None) -> Category:
    """Some tasks together."""
    after, before = columns(tasks)
    retention = bootstrap_ratio(after[:, None], before[:, None])
    return Category(name, len(tasks), float(before.mean()), float(after.mean()), p, p_holm, retention)


def columns(tasks: Sequence[TaskScores]) -> tuple[Any, Any]:
    """Scores `(n,)` of the adapted model and of its base."""
    return np.array([one.adapted for one in tasks]), np.array([one.base for one in tasks])


def category_rows(found: Mapping[str, Compared]) -> list[list[str]]:
    """The table of categories, its header first."""
    rows = [["suite", "category", "tasks", "base", "adapted", "points", "kept of the base", "p", "p (Holm)", ""]]
    for name, suite in found.items():
        rows += [
            [
                name,
                one.name,
                str(one.tasks),
                f"{one.base:.4f}",
                f"{one.adapted:.4f}",
                f"{100 * (one.adapted - one.base):+.1f}",
                in_percent(one.retention),
                "–" if one.p is None else f"{one.p:.4f}",
                "–" if one.p_holm is None else f"{one.p_holm:.4f}",
                "significant" if one.significant else "not significant",
            ]
            for one in suite.categories
        ]
    return rows


def in_percent(share: Interval) -> str:
    """A share with its interval."""
    bounds = "" if share.low is None or share.high is None else f" [{share.low:.1%}, {share.high:.1%}]"
    return f"{share.value:.1%}{bounds}"


def task_rows(found: Mapping[str, Compared]) -> list[list[str]]:
    """The table of tasks, those that lost most first in each suite."""
    rows = [["suite", "task", "category", "base", "adapted", "points", "inputs trained on"]]
    for name, suite in found.items():
        for one in sorted(suite.tasks, key=lambda one: one.adapted - one.base):
            scores = [f"{one.base:.4f}", f"{one.adapted:.4f}", f"{100 * (one.adapted - one.base):+.1f}"]
            rows.append([name, one.task, one.category, *scores, f"{one.seen:,}"])
    return rows


def verdicts(found: Mapping[str, Compared]) -> list[str]:
    """What it says, in sentences."""
    said = []
    for name, suite in found.items():
        whole = suite.categories[-1:]
        for one in whole:
            lost = sum(task.adapted < task.base for task in suite.tasks)
            said.append(
                f"{name}: {one.base:.4f} before, {one.adapted:.4f} after, {in_percent(one.retention)} of the base, "
                f"{'significant' if one.significant else 'not significant'} at .05; "
                f"{lost} of {len(suite.tasks)} tasks got worse."
            )
        if known := sum(task.seen > 0 for task in suite.tasks):
            said.append(f"{name}: inputs of {known} of these tasks were trained on; their scores say little.")
        said += [f"{name}: {problem}" for problem in suite.problems]
    return said
