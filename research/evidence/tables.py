"""Tables of the evidence, from its raw figures: what debiasing changes and what reducers keep, encoder by encoder."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.report import markdown_table
from lathe.training.comparison import Interval
from lathe.training.evaluation.methods import CONTROL
from lathe.training.reporting.text import format_half_width, format_interval, format_percent
from research.evidence.requests import LOSS_SHARES, LOSS_STEPS, REDUCERS, SHARES
from research.fitted_methods.corpus import HELDOUT_SHARE, MAX_HELDOUT
from research.paper_findings.grid import find_task_family
from research.paper_findings.statistics import bootstrap, bootstrap_ratio, paired_test

Figures = Mapping[str, Any]
"""Part of the raw figures: findings, and scores by encoder, method and task."""

DEBIASING = ("R1", "R2", "ABTT-1", "mean-centring", "random direction", "whitening")
SEEDED = "random, seed"
"""How names of the methods begin whose scores are averaged over seeds: random directions."""
FAMILIES = ("Classification", "Retrieval")
RIVALS = ("PCA", "truncation")
"""Reducers that GeoPres is compared with."""


def merge_runs(runs: Sequence[Figures]) -> Figures:
    """Merge runs of one protocol with different encoders, and compare methods with raw vectors anew.

    Only tasks count that every encoder completed with every method.
    """
    scores = {encoder: found for run in runs for encoder, found in run["scores"].items()}
    columns = [column for found in scores.values() for column in found.values()]
    tasks = [task for task in runs[0]["tasks"] if all(column.get(task) is not None for column in columns)]
    families: dict[str, list[int]] = {}
    for place, task in enumerate(tasks):
        families.setdefault(find_task_family(runs[0]["tasks"][task]), []).append(place)
    cells = []
    for encoder, found in scores.items():
        raw = np.array([found[CONTROL][task] for task in tasks])
        for label in DEBIASING:
            methods = [label] if label in found else [name for name in found if name.startswith(SEEDED)]
            mean = np.mean([[found[name][task] for task in tasks] for name in methods], axis=0)
            tests = {name: asdict(paired_test(mean[places], raw[places])) for name, places in families.items()}
            difference = asdict(bootstrap(100 * (mean - raw)))
            cells.append({"encoder": encoder, "label": label, "families": tests, "difference": difference})
    norms = {encoder: norm for run in runs for encoder, norm in run["mean_norms"].items()}
    known = {"tasks": {task: runs[0]["tasks"][task] for task in tasks}, "scores": scores, "mean_norms": norms}
    return known | {"read_corpus_sentences": runs[0]["read_corpus_sentences"], "findings": {"cells": cells}}


def select_encoders(run: Figures, names: Sequence[str]) -> Figures:
    """Return a run of debiasing with only the named encoders.

    The tasks stay the same.
    """
    cells = [cell for cell in run["findings"]["cells"] if cell["encoder"] in names]
    chosen = {key: {name: run[key][name] for name in names} for key in ("scores", "mean_norms")}
    return {**run, **chosen, "findings": {"cells": cells}}


def build_debiasing_table(figures: Figures) -> str:
    """Build the table of differences to raw vectors in points, with R2's by family of tasks, encoder by encoder.

    After ‖μ‖ stands the norm that is expected by chance.
    """
    cells = {(cell["encoder"], cell["label"]): cell for cell in figures["findings"]["cells"]}
    header = ["encoder", "‖μ‖ (by chance)", *DEBIASING, *(f"R2, {family.lower()}: points, t" for family in FAMILIES)]
    rows = []
    for encoder, norm in figures["mean_norms"].items():
        changes = [format_half_width(Interval(**cells[encoder, label]["difference"])) for label in DEBIASING]
        families = [cells[encoder, "R2"]["families"][family] for family in FAMILIES]
        noise = compute_noise(norm, figures["read_corpus_sentences"])
        gains = [f"{one['mean']:+.2f}, {one['t']:+.2f}" for one in families]
        rows.append([encoder, f"{norm:.2f} ({noise:.2f})", *changes, *gains])
    return markdown_table(header, rows)


def compute_noise(norm: float, sentences: int) -> float:
    """Return ‖μ‖ that is expected by chance, √(tr Σ / n), of unit vectors: tr Σ is 1 − ‖μ‖².

    Args:
        norm: ‖μ‖.
        sentences: number of sentences of the corpus, including held-out ones.
    """
    fitted = sentences - min(int(sentences * HELDOUT_SHARE), MAX_HELDOUT)
    return float(np.sqrt(max(0.0, 1 - norm**2) / fitted))


def build_retention_table(figures: Figures) -> str:
    """Build the table of the share of the raw vectors' mean score that reducers keep, encoder by encoder.

    Then come the differences of GeoPres to each of `RIVALS` in points of this share.
    """
    rows = []
    for encoder, scores in figures["scores"].items():
        raw, columns = read_reductions(scores)
        for name, kept in columns.items():
            rows.append([encoder, name, *(format_percent(bootstrap_ratio(column, raw)) for column in kept)])
        for rival in RIVALS:
            pairs = zip(columns["GeoPres"], columns[rival], strict=True)
            leads = [bootstrap_ratio(ours, raw, theirs) for ours, theirs in pairs]
            rows.append([encoder, f"GeoPres − {rival}", *(format_interval(lead, "+.1f", 100) for lead in leads)])
    return markdown_table(["encoder", "reducer", *(f"1/{share}" for share in SHARES)], rows)


def build_losses_table(figures: Figures) -> str:
    """Build the table of the share of the raw vectors' mean score that GeoPres keeps with each loss, by encoder.

    After each share stands its difference to that of the default loss, in points.
    """
    rows = []
    for encoder, scores in figures["scores"].items():
        sizes = [int(size) for name in scores if (size := name.removeprefix("geopres:")).isdecimal()]
        width = LOSS_SHARES[0] * max(sizes)
        raw, columns = read_methods(scores, width, LOSS_STEPS, LOSS_SHARES)
        default = next(iter(columns.values()))
        for loss, kept in columns.items():
            cells = []
            for column, other in zip(kept, default, strict=True):
                ahead = "" if column is other else format_interval(bootstrap_ratio(column, raw, other), "+.1f", 100)
                cells += [format_percent(bootstrap_ratio(column, raw)), ahead]
            rows.append([encoder, loss, *cells])
    header = [cell for share in LOSS_SHARES for cell in (f"1/{share}", f"less the default's, 1/{share}")]
    return markdown_table(["encoder", "loss", *header], rows)


def read_reductions(scores: Mapping[str, Mapping[str, float | None]]) -> tuple[Any, dict[str, list[Any]]]:
    """Return the raw vectors' scores of the tasks, `(n, 1)`, and those of each reducer at each of `SHARES`."""
    width = 2 * max(int(method.partition(":")[2]) for method in scores if method.startswith("truncation:"))
    return read_methods(scores, width, REDUCERS, SHARES)


def read_methods(
    scores: Mapping[str, Mapping[str, float | None]],
    width: int,
    steps_by_name: Mapping[str, str],
    shares: Sequence[int],
) -> tuple[Any, dict[str, list[Any]]]:
    """Return the raw vectors' scores of the tasks, `(n, 1)`, and those of each reducer at each share, by its name.

    Only tasks count that every reducer completed at every share.

    Args:
        scores: an encoder's scores by method and task.
        width: dimensions of the encoder.
        steps_by_name: steps of each reducer, with the number of dimensions to fill in.
        shares: original dimensions divided by those that are left.
    """
    columns = {
        name: [scores[steps.format(k=width // share)] for share in shares] for name, steps in steps_by_name.items()
    }
    every = [scores[CONTROL], *(column for kept in columns.values() for column in kept)]
    tasks = [task for task in scores[CONTROL] if all(column.get(task) is not None for column in every)]

    def read(column: Mapping[str, float | None]) -> Any:
        """Return a method's scores of the tasks, `(n, 1)`."""
        return np.array([[column[task]] for task in tasks], dtype=float)

    return read(scores[CONTROL]), {name: [read(column) for column in kept] for name, kept in columns.items()}
