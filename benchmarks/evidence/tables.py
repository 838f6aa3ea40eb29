"""Tables of the evidence, from its raw figures: what debiasing changes and what reducers keep, encoder by encoder."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks.report import markdown_table
from training.evaluation.methods import CONTROL, GEOPRES, TRUNCATION, UNCENTRED_PCA
from training.evaluation.statistics import Interval, bootstrap_ratio
from training.reporting.text import format_half_width, format_percent

Figures = Mapping[str, Any]
"""Part of the raw figures: findings, and scores by encoder, method and task."""

DEBIASING = ("R1", "R2", "ABTT-1", "mean-centring", "random direction", "whitening")
FAMILIES = ("Classification", "Retrieval")
REDUCERS = {"GeoPres": GEOPRES, "PCA": "pca:{k}", "PCA, uncentred": UNCENTRED_PCA, "truncation": TRUNCATION}
SHARES = (2, 4, 8, 16)
"""Original dimensions divided by those that are left."""


def build_debiasing_table(figures: Figures) -> str:
    """Build the table of differences to raw vectors in points, with R2's by family of tasks, encoder by encoder."""
    cells = {(cell["encoder"], cell["label"]): cell for cell in figures["findings"]["cells"]}
    header = ["encoder", "‖μ‖", *DEBIASING, *(f"R2, {family.lower()}: points, t" for family in FAMILIES)]
    rows = []
    for encoder, norm in figures["mean_norms"].items():
        changes = [format_half_width(Interval(**cells[encoder, label]["difference"])) for label in DEBIASING]
        families = [cells[encoder, "R2"]["families"][family] for family in FAMILIES]
        rows.append([encoder, f"{norm:.2f}", *changes, *(f"{one['mean']:+.2f}, {one['t']:+.2f}" for one in families)])
    return markdown_table(header, rows)


def build_retention_table(figures: Figures) -> str:
    """Build the table of the share of the raw vectors' mean score that reducers keep, encoder by encoder."""
    rows = [[encoder, name, *map(format_percent, retentions)] for encoder, name, retentions in list_retentions(figures)]
    return markdown_table(["encoder", "reducer", *(f"1/{share}" for share in SHARES)], rows)


def list_retentions(figures: Figures) -> Iterator[tuple[str, str, list[Interval]]]:
    """Yield encoder, name of a reducer, and the share of the mean score that it keeps at each of `SHARES`.

    The intervals resample tasks.
    """
    for encoder, scores in figures["scores"].items():
        width = 2 * max(int(method.partition(":")[2]) for method in scores if method.startswith("truncation:"))
        for name, steps in REDUCERS.items():
            columns = [scores[CONTROL], *(scores[steps.format(k=width // share)] for share in SHARES)]
            tasks = [task for task in columns[0] if all(column.get(task) is not None for column in columns)]
            raw, *kept = (np.array([[column[task]] for task in tasks]) for column in columns)
            yield encoder, name, [bootstrap_ratio(one, raw) for one in kept]
