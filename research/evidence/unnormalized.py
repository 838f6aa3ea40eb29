"""Reducers in the GeoPres paper's protocol: outputs are not normalized, and random projections have unit variance.

The paper trains on ten million texts, with 5,000 batches of 20,000. Here its recipe takes as many steps, of smaller
batches and fewer texts; both are options.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks.report import markdown_table
from lathe.training.comparison import Interval
from lathe.training.evaluation.methods import CONTROL, CONTROL_METHOD
from lathe.training.reporting.text import format_interval, format_percent
from lathe.transforms import Chain, RandomProjection
from research.evidence.requests import SHARES
from research.fitted_methods.evaluation import FittedRequest
from research.fitted_methods.methods import FittableMethod, label_method
from research.paper_findings.reductions import INTRINSIC
from research.paper_findings.statistics import Correlation, bootstrap_ratio, correlate

Figures = Mapping[str, Any]
"""Part of the raw figures: findings, and scores by encoder, method and task."""

RANDOM = "random projection, N(0, 1)"
REDUCERS = {
    "GeoPres, the paper's": "geopres:{k},preset=paper,steps={steps},batch={batch}",
    "GeoPres, ours": "geopres:{k}",
    "PCA, the paper's": "pca:{k},center=directions",
    "PCA": "pca:{k}",
    "PCA, uncentred": "pca:{k},center=none",
    RANDOM: "",
    "random selection": "random_selection:{k}",
    "autoencoder": "autoencoder:{k},steps=200,batch=4096",
    "truncation": "truncation:{k}",
}
"""Steps of the compared reducers, with the number of dimensions, steps and batch to fill in; the random projection is
built, not fitted."""
RIVAL = "PCA, the paper's"
"""Reducer that others are compared with."""


@dataclass(frozen=True)
class PaperReduction(FittedRequest):
    """Request for an evaluation of `REDUCERS` without normalization.

    Attributes:
        training: steps and rows of a batch of the paper's GeoPres.
    """

    training: Mapping[str, int] = field(default_factory=lambda: {"steps": 5000, "batch": 2048})

    def methods(self, dimensions: int) -> list[FittableMethod]:
        """List the methods to evaluate on an encoder with `dimensions` dimensions.

        The control is the first.
        """
        return [label_method(CONTROL_METHOD), *self.list_reducers(dimensions)]

    def list_reducers(self, dimensions: int) -> Iterator[FittableMethod]:
        """Yield every reducer at every size."""
        for share in SHARES:
            k = dimensions // share
            for name, steps in REDUCERS.items():
                if name == RANDOM:
                    chain = build_random_projection(dimensions, k)
                    key = f"random-projection-{dimensions}-{k}"
                    method = FittableMethod(f"{name}, {k}", "sweep", chain, key)
                else:
                    written = steps.format(k=k, **self.training)
                    method = FittableMethod(f"{name}, {k}", "sweep", steps=written)
                yield replace(method, label=name, normalize=False, size=k)


def build_random_projection(dimensions: int, k: int) -> Chain:
    """Build a random projection whose entries are from N(0, 1), as in the paper's section 4.3."""
    chain = Chain([projection := RandomProjection(k)], normalize=False)
    chain.fit(np.eye(dimensions, dtype=np.float32))
    projection.set_map(projection.weight * k**0.5)  # ours are from N(0, 1/k), which preserves distances
    return chain


def build_tables(*runs: Figures) -> str:
    """Build the table of retained shares of the mean score, then that of the measures that predict the score.

    Both have the encoders of all runs.
    """
    retentions = [
        [encoder, name, *map(format_percent, kept), format_interval(ahead[1], "+.1f", 100)]
        for figures in runs
        for encoder, name, kept, ahead in list_retentions(figures)
    ]
    header = ["encoder", "reducer", *(f"1/{share}" for share in SHARES), "at 1/4, ahead of the paper's PCA by"]
    measures = [
        [encoder, name.replace("_", " "), str(one.n), format_interval(one.spearman)]
        for figures in runs
        for encoder in figures["scores"]
        for name, one in correlate_measures(figures, encoder).items()
    ]
    second = markdown_table(["encoder", "measure", "reductions", "ρ with the mean score"], measures)
    return f"{markdown_table(header, retentions)}\n\n{second}"


def list_retentions(figures: Figures) -> Iterator[tuple[str, str, list[Interval], list[Interval]]]:
    """Yield encoder, reducer, the retained share of the mean score at each of `SHARES`, and its lead over `RIVAL`.

    Intervals resample tasks. Only tasks count that all reducers completed.
    """
    for encoder, scores in figures["scores"].items():
        sizes = sorted({int(method.rpartition(", ")[2]) for method in scores if method != CONTROL}, reverse=True)
        tasks = _complete_tasks(scores)
        raw, rivals = _column(scores, CONTROL, tasks), [_column(scores, f"{RIVAL}, {k}", tasks) for k in sizes]
        for name in REDUCERS:
            columns = [_column(scores, f"{name}, {k}", tasks) for k in sizes]
            kept = [bootstrap_ratio(column, raw) for column in columns]
            ahead = [bootstrap_ratio(column, raw, rival) for column, rival in zip(columns, rivals, strict=True)]
            yield encoder, name, kept, ahead


def correlate_measures(figures: Figures, encoder: str) -> dict[str, Correlation]:
    """Correlate each measure of the geometry with the mean score over all reductions of an encoder (Table 1).

    Errors are negated. Reductions are resampled as if they were independent.
    """
    scores, measured = figures["scores"][encoder], figures["intrinsic"][encoder]
    tasks = _complete_tasks(scores)
    means = np.array([_column(scores, method, tasks).mean() for method in measured])
    found = {}
    for name, sign in INTRINSIC.items():
        values = np.array([sign * measures[name] for measures in measured.values()])
        if (correlation := correlate(values, means)) is not None:
            found[name] = correlation
    return found


def _complete_tasks(scores: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    """List the tasks that every method completed."""
    return [task for task in scores[CONTROL] if all(column.get(task) is not None for column in scores.values())]


def _column(scores: Mapping[str, Mapping[str, float | None]], method: str, tasks: list[str]) -> Any:
    """Return a method's scores of the tasks, `(n, 1)`."""
    return np.array([[scores[method][task]] for task in tasks], dtype=float)
