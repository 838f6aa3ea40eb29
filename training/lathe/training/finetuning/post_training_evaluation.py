"""Post-training evaluation: the trained model against its base, on the domain and on general tasks.

OUT/
├── evaluation/       vectors and scores                        training/lathe/training/evaluation/run.py
└── comparison.json   the comparison, by task and by category
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from lathe.training.datasets.overlap import normalize_text
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.evaluation.encoders import RequestedEncoder
from lathe.training.evaluation.methods import CONTROL
from lathe.training.evaluation.run import Request, Results, evaluate
from lathe.training.evaluation.statistics import Interval, bootstrap_ratio, holm, paired_test
from lathe.training.evaluation.suites import Entry, Suite, open_suite
from lathe.training.finetuning.evaluators import collect_measured_texts
from lathe.training.finetuning.extras import SuiteSettings
from lathe.training.reporting.tables import Table
from lathe.transforms.files import replace_synced
from lathe.transforms.progress import Progress

BASE, ADAPTED = "base", "adapted"
"""Names of the two encoders in the evaluation's results."""
COMPARISON = "comparison.json"
"""File name of the comparison in the job's folder."""
ALL = "all"
"""Name of the category that holds all tasks of a suite."""
SIGNIFICANT = 0.05
"""Significance level α, as in the paper's Table 14."""


@dataclass(frozen=True)
class TaskScores:
    """Main scores of one task, by the base model and by the adapted model.

    Attributes:
        task: name of the task.
        category: mteb's task type.
        base: main score of the base model.
        adapted: main score of the adapted model.
        seen: number of distinct test inputs that occur in the training texts, ignoring case and punctuation.
    """

    task: str
    category: str
    base: float
    adapted: float
    seen: int


@dataclass(frozen=True)
class CategoryComparison:
    """Comparison of both models over the tasks of one category, as in Table 14 of the FinMTEB paper.

    Attributes:
        name: mteb's task type, or `all`.
        tasks: number of tasks.
        base: mean score of the base model.
        adapted: mean score of the adapted model.
        p: p-value of the two-sided paired t-test over tasks; None for one task, or if all differences are equal.
        p_holm: p-value after Holm's correction over the categories of the suite; None for `all`.
        retention: mean adapted score over mean base score, with a bootstrap interval over tasks.
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
        """Whether the difference is significant at α = .05, by `p_holm` if set, else by `p`; False if both are None."""
        p = self.p if self.p_holm is None else self.p_holm
        return p is not None and p < SIGNIFICANT


@dataclass(frozen=True)
class SuiteComparison:
    """Comparison of both models on one suite.

    Attributes:
        suite: title of the suite.
        tasks: scores of every task that both models have a score for.
        categories: comparison by category; the last is `all` if there are several.
        problems: messages about tasks that could not be measured.
    """

    suite: str
    tasks: list[TaskScores]
    categories: list[CategoryComparison]
    problems: list[str]


def open_suites(settings: SuiteSettings) -> dict[str, Suite]:
    """Open the suites that the settings name, and return them by purpose, `domain` and `general`.

    If both suites have a different data set of the same name, the one of `general` is renamed to "NAME, general".

    Raises:
        EvaluationError: if there is no suite of that name.
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
) -> dict[str, SuiteComparison]:
    """Evaluate base and trained model on the suites, write `comparison.json`, and return the comparisons by purpose.

    The evaluation resumes: vectors and scores that a stopped run left in the folder are reused.

    Args:
        suites: suites by purpose, as `open_suites` returns them.
        limit: maximum number of rows, queries or documents of each data set; None for all.
        base: spec of the base model.
        model: folder of the trained model.
        trained: texts that the model was trained on, to count test inputs among them.
        device: device to encode on; None for the best there is.
        out: the job's folder.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        EvaluationError: if nothing of a suite can be evaluated.
    """
    adapted = replace(base, name=ADAPTED, model=str(model), revision=None, pooling=None, layer=None)
    encoders = [RequestedEncoder(replace(base, name=BASE)), RequestedEncoder(adapted)]
    request = Request(_merge_suites(suites.values()), encoders, out / "evaluation", limit=limit, device=device)
    results, known = evaluate(request, on_progress), {normalize_text(text) for text in trained}
    found = {name: _build_comparison(results, suite, known) for name, suite in suites.items()}
    figures = {name: asdict(one) for name, one in found.items()}
    replace_synced(out / COMPARISON, orjson.dumps(figures, option=orjson.OPT_INDENT_2))
    return found


def _merge_suites(suites: Iterable[Suite]) -> Suite:
    """Merge suites into one `Suite` that holds every data set once, by name."""
    entries = {entry.name: entry for suite in suites for entry in suite.entries}
    return Suite("", "both suites", tuple(entries.values()))


def _build_comparison(results: Results, suite: Suite, known: set[str]) -> SuiteComparison:
    """Build a suite's comparison from the results of evaluating both models; tasks without both scores become problems.

    Args:
        results: results of the evaluation of both models on all suites.
        suite: the suite to compare on.
        known: normalized training texts.
    """
    values = {(score.encoder, score.task): score.score for score in results.scores if score.method == CONTROL}
    described = {one.task: one for one in results.tasks}
    tasks, problems = [], [f"{name}: {why}" for name, why in suite.problems.items()]
    for entry in suite.entries:
        one = described[entry.name]
        before, after = values.get((BASE, entry.name)), values.get((ADAPTED, entry.name))
        if before is not None and after is not None:
            tasks.append(TaskScores(entry.name, one.type, before, after, _count_trained_inputs(entry, known)))
        else:
            problems.append(f"{entry.name}: {one.error or 'it could not be scored on both models'}")
    return SuiteComparison(suite.title, tasks, list(compare_categories(tasks)), [*problems, *results.problems])


def _count_trained_inputs(entry: Entry, known: set[str]) -> int:
    """Return the number of distinct test inputs of a task that are among the training texts; 0 if not a local folder.

    Args:
        entry: the task.
        known: normalized training texts; texts that differ only in case or punctuation are the same.
    """
    if entry.kind != "folder":
        return 0
    return len(collect_measured_texts(entry.data_set()) & known)


def compare_categories(tasks: Sequence[TaskScores]) -> Iterator[CategoryComparison]:
    """Yield the comparison of each category, with Holm-corrected p-values; if there are several, then of all tasks."""
    groups: dict[str, list[TaskScores]] = {}
    for one in tasks:
        groups.setdefault(one.category, []).append(one)
    tests = {name: paired_test(*_split_scores(some)) for name, some in groups.items()}
    corrected = holm([test.p for test in tests.values()])
    for (name, some), p_holm in zip(groups.items(), corrected, strict=True):
        yield _compare_category(name, some, tests[name].p, p_holm)
    if len(groups) > 1:
        yield _compare_category(ALL, tasks, paired_test(*_split_scores(tasks)).p, None)


def _compare_category(
    name: str, tasks: Sequence[TaskScores], p: float | None, p_holm: float | None
) -> CategoryComparison:
    """Compute mean scores and retention over some tasks, and return them with the given p-values."""
    after, before = _split_scores(tasks)
    retention = bootstrap_ratio(after[:, None], before[:, None])
    return CategoryComparison(name, len(tasks), float(before.mean()), float(after.mean()), p, p_holm, retention)


def _split_scores(tasks: Sequence[TaskScores]) -> tuple[Any, Any]:
    """Return the adapted model's scores and the base model's scores, `(n,)` each, in this order."""
    return np.array([one.adapted for one in tasks]), np.array([one.base for one in tasks])


def build_category_table(found: Mapping[str, SuiteComparison]) -> Table:
    """Build the table of categories of all suites."""
    return Table.from_records(
        (
            {
                "suite": name,
                "category": one.name,
                "tasks": str(one.tasks),
                "base": one.base,
                "adapted": one.adapted,
                "points": 100 * (one.adapted - one.base),
                "kept of the base": _format_retention(one.retention),
                "p": one.p,
                "p (Holm)": one.p_holm,
                "": "significant" if one.significant else "not significant",
            }
            for name, suite in found.items()
            for one in suite.categories
        ),
        {"points": "+.1f"},
        ".4f",
    )


def _format_retention(share: Interval) -> str:
    """Format a share and, if it has bounds, its interval as percentages: "98.1% [96.0%, 99.9%]"."""
    bounds = "" if share.low is None or share.high is None else f" [{share.low:.1%}, {share.high:.1%}]"
    return f"{share.value:.1%}{bounds}"


def build_task_table(found: Mapping[str, SuiteComparison]) -> Table:
    """Build the table of tasks; in each suite the largest losses come first."""
    return Table.from_records(
        (
            {
                "suite": name,
                "task": one.task,
                "category": one.category,
                "base": one.base,
                "adapted": one.adapted,
                "points": 100 * (one.adapted - one.base),
                "inputs trained on": one.seen,
            }
            for name, suite in found.items()
            for one in sorted(suite.tasks, key=lambda one: one.adapted - one.base)
        ),
        {"points": "+.1f", "inputs trained on": ","},
        ".4f",
    )


def summarize_comparison(found: Mapping[str, SuiteComparison]) -> list[str]:
    """Summarize the comparison in sentences: overall scores and retention by suite, contaminated tasks, problems."""
    sentences = []
    for name, suite in found.items():
        whole = suite.categories[-1:]
        for one in whole:
            lost = sum(task.adapted < task.base for task in suite.tasks)
            sentences.append(
                f"{name}: {one.base:.4f} before, {one.adapted:.4f} after, "
                f"{_format_retention(one.retention)} of the base, "
                f"{'significant' if one.significant else 'not significant'} at .05; "
                f"{lost} of {len(suite.tasks)} tasks got worse."
            )
        if known := sum(task.seen > 0 for task in suite.tasks):
            sentences.append(f"{name}: inputs of {known} of these tasks were trained on; their scores say little.")
        sentences += [f"{name}: {problem}" for problem in suite.problems]
    return sentences
