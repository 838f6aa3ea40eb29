"""Comparison of methods with the raw vectors, as in the mean-bias paper."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lathe.training.comparison import Array, Interval
from research.paper_findings.grid import Grid
from research.paper_findings.statistics import (
    Correlation,
    PairedTest,
    bootstrap,
    correlate,
    is_large,
    leave_one_out,
    outlier_shares,
    paired_test,
)

MIN_TASKS = 5
"""Minimum number of tasks of a family on an encoder for its t to count in tables by family (Section 2 of the paper)."""
NORM_BINS = (0.0, 0.3, 0.6, 0.75, 1.05)
"""Boundaries of four intervals of ‖μ‖: the paper's quartiles (its Table 3)."""
CLASSIFICATION = "Classification"
"""Family of tasks whose t is correlated with ‖μ‖."""


@dataclass(frozen=True)
class Cell:
    """Comparison of a method with the raw vectors on one encoder.

    Attributes:
        encoder: name of the encoder.
        label: label of the method; scores of several seeds or samples are averaged for each task.
        tasks: number of tasks that all compared methods completed.
        difference: mean difference over the tasks in points (hundredths of a score), with a bootstrap interval.
        test: paired test over all tasks.
        families: paired test for each family of tasks.
        types: paired test for each type of tasks.
        spread: standard deviation of the mean difference in points among seeds or samples; None for one.
        outstanding: shares of tasks more than two standard deviations above and below the mean difference.
    """

    encoder: str
    label: str
    tasks: int
    difference: Interval
    test: PairedTest
    families: dict[str, PairedTest]
    types: dict[str, PairedTest]
    spread: float | None
    outstanding: tuple[float, float]


@dataclass(frozen=True)
class Tally:
    """Summary of several encoders' paired tests: their number, mean t, and wins, ties and losses at |t| > 2."""

    encoders: int
    mean_t: float
    wins: int
    ties: int
    losses: int


@dataclass(frozen=True)
class FamilyRow:
    """Summary of a method in one family of tasks, over encoders with at least five such tasks.

    Attributes:
        label: label of the method.
        family: family of tasks.
        all: summary over all these encoders.
        without: summary without one family of encoders, by its name.
    """

    label: str
    family: str
    all: Tally
    without: dict[str, Tally]


@dataclass(frozen=True)
class LargeEffect:
    """Large change of one score by a method: `control` is the raw score, `difference` the change, both as scores."""

    label: str
    encoder: str
    task: str
    control: float
    difference: float


def compare_with_raw(grid: Grid, labels: Sequence[str]) -> list[Cell]:
    """Compare the methods of each label with raw vectors on each encoder.

    There is a `Cell` for each pair with scores. On an encoder, all labels are compared on the same tasks: those that
    all of them completed.
    """
    found = []
    for encoder in grid.encoders:
        methods = {label: grid.methods(encoder, label) for label in labels}
        tasks = grid.complete_tasks(encoder, [method for some in methods.values() for method in some])
        if not tasks:
            continue
        control = grid.control_scores(encoder, tasks)
        for label, some in methods.items():
            if not some:
                continue
            scores = grid.label_scores(encoder, label, tasks)
            each = [float(100 * (grid.scores(encoder, m.name, tasks) - control).mean()) for m in some]
            found.append(
                Cell(
                    encoder=encoder,
                    label=label,
                    tasks=len(tasks),
                    difference=bootstrap(100 * (scores - control)),
                    test=paired_test(scores, control),
                    families=_group_tests(scores, control, grid.group_by_family(tasks)),
                    types=_group_tests(scores, control, grid.group_by_type(tasks)),
                    spread=float(np.std(each, ddof=1)) if len(each) > 1 else None,
                    outstanding=outlier_shares(100 * (scores - control)),
                )
            )
    return found


def _group_tests(scores: Array, control: Array, groups: dict[str, list[int]]) -> dict[str, PairedTest]:
    return {name: paired_test(scores[places], control[places]) for name, places in groups.items()}


def average_differences(grid: Grid, labels: Sequence[str]) -> dict[str, Interval]:
    """Return, by label, the mean difference to raw vectors in points over the encoders that have it, with an interval.

    Only tasks count that each of these encoders completed with its methods of all the labels; a label without such a
    task is left out. The bootstrap resamples tasks, the same ones for all encoders, because related encoders have
    similar scores.
    """
    found = {}
    for label in labels:
        encoders = [encoder for encoder in grid.encoders if grid.methods(encoder, label)]
        tasks = grid.common_tasks({e: [m for one in labels for m in grid.methods(e, one)] for e in encoders})
        if encoders and tasks:
            columns = [100 * (grid.label_scores(e, label, tasks) - grid.control_scores(e, tasks)) for e in encoders]
            found[label] = bootstrap(np.stack(columns, axis=1))
    return found


def summarize_families(grid: Grid, found: Sequence[Cell]) -> list[FamilyRow]:
    """Summarize t, wins, ties and losses by label and family of tasks, with and without each family of encoders.

    Only encoders with at least `MIN_TASKS` tasks of a family count; a family without any has no row.
    """
    rows = []
    for label in dict.fromkeys(cell.label for cell in found):
        for family in dict.fromkeys(name for cell in found for name in cell.families):
            some = [cell for cell in found if cell.label == label and family in cell.families]
            some = [cell for cell in some if cell.families[family].n >= MIN_TASKS]
            if not some:
                continue
            tests = [cell.families[family] for cell in some]
            kin = [grid.encoders[cell.encoder].member.family for cell in some]
            without = {
                name: _tally_tests([test for test, stays in zip(tests, rest, strict=True) if stays])
                for name, rest in leave_one_out(kin)
                if rest.any()
            }
            rows.append(FamilyRow(label, family, _tally_tests(tests), without))
    return rows


def _tally_tests(some: Sequence[PairedTest]) -> Tally:
    """Return the mean t of paired tests, an undefined t as 0, and the counts of their verdicts."""
    verdicts = [test.verdict for test in some]
    mean = float(np.mean([test.t or 0.0 for test in some]))
    return Tally(len(some), mean, verdicts.count("win"), verdicts.count("tie"), verdicts.count("loss"))


def correlate_gain_with_norm(grid: Grid, found: Sequence[Cell], label: str) -> dict[str, Correlation | None]:
    """Correlate a method's gain with ‖μ‖ over encoders.

    Returns the correlations by kind of gain, None where undefined. The keys are `classification t`, `mean difference`
    and, if there are several families of encoders, `classification t without FAMILY` for each. Encoders without ‖μ‖ are
    left out, for t also those with fewer than `MIN_TASKS` such tasks. The bootstrap resamples encoders, as if they were
    independent.
    """
    some = [cell for cell in found if cell.label == label and grid.encoders[cell.encoder].mean_norm is not None]
    norms = np.array([grid.encoders[cell.encoder].mean_norm for cell in some], dtype=float)
    classified = [_family_t(cell, CLASSIFICATION) for cell in some]
    tested = np.array([t is not None for t in classified], dtype=bool)
    t = np.array([value for value in classified if value is not None])
    kin = [grid.encoders[cell.encoder].member.family for cell, stays in zip(some, tested, strict=True) if stays]
    correlations = {
        "classification t": correlate(norms[tested], t),
        "mean difference": correlate(norms, np.array([cell.difference.value for cell in some])),
    }
    if len(set(kin)) > 1:
        for name, rest in leave_one_out(kin):
            correlations[f"classification t without {name}"] = correlate(norms[tested][rest], t[rest])
    return correlations


def average_by_norm(grid: Grid, found: Sequence[Cell], label: str) -> list[dict[str, float | int | str | None]]:
    """Return the mean t of each family of tasks in each interval of ‖μ‖, one row per interval (Table 3 of the paper).

    The keys of a row are `bin`, `encoders` (their number) and the families; a mean without encoders is None.
    """
    rows: list[dict[str, float | int | str | None]] = []
    normed = [(cell, grid.encoders[cell.encoder].mean_norm) for cell in found if cell.label == label]
    for low, high in zip(NORM_BINS, NORM_BINS[1:], strict=False):
        some = [cell for cell, norm in normed if norm is not None and low <= norm < high]
        row: dict[str, float | int | str | None] = {"bin": f"[{low:.2f}, {high:.2f})", "encoders": len(some)}
        for family in dict.fromkeys(name for cell in found for name in cell.families):
            known = [t for t in (_family_t(cell, family) for cell in some) if t is not None]
            row[family] = float(np.mean(known)) if known else None
        rows.append(row)
    return rows


def _family_t(cell: Cell, family: str) -> float | None:
    """Return a cell's t in a family of tasks.

    It is None if undefined, or if the family has under `MIN_TASKS` tasks.
    """
    test = cell.families.get(family)
    return test.t if test is not None and test.n >= MIN_TASKS else None


def count_head_to_head(found: Sequence[Cell], one: str, other: str) -> dict[str, dict[str, int]]:
    """Count the encoders on which method `one` has a higher or lower t than `other`, by family (Table 4 of the paper).

    The keys of each count are `ahead`, `behind` and `of`, the number of encoders that have both methods and at least
    `MIN_TASKS` tasks of the family. An undefined t counts as 0.
    """
    by_name = {(cell.encoder, cell.label): cell for cell in found}
    counts: dict[str, dict[str, int]] = {}
    for (encoder, label), cell in by_name.items():
        rival = by_name.get((encoder, other))
        if label != one or rival is None:
            continue
        for family, test in cell.families.items():
            if test.n < MIN_TASKS:
                continue
            count = counts.setdefault(family, {"ahead": 0, "behind": 0, "of": 0})
            count["of"] += 1
            ours, theirs = test.t or 0.0, rival.families[family].t or 0.0
            count["ahead"] += int(ours > theirs)
            count["behind"] += int(ours < theirs)
    return counts


def list_large_effects(grid: Grid, labels: Sequence[str]) -> list[LargeEffect]:
    """List changes of a task's score by over 0.1 and over 2 % of the raw score, largest first (Tables 8, 9)."""
    found = []
    for encoder in grid.encoders:
        for label in labels:
            methods = grid.methods(encoder, label)
            tasks = grid.complete_tasks(encoder, methods) if methods else []
            if not tasks:
                continue
            scores, control = grid.label_scores(encoder, label, tasks), grid.control_scores(encoder, tasks)
            found += [
                LargeEffect(label, encoder, task, float(before), float(after - before))
                for task, after, before in zip(tasks, scores, control, strict=True)
                if is_large(after, before)
            ]
    return sorted(found, key=lambda effect: -abs(effect.difference))
