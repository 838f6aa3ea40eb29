"""Plots of an experiment: scores, weight sweep, isotropy and drift, the shift in two dimensions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from lathe.training.finetuning.regularizers.registry import METHODS, REGULARIZED
from lathe.training.reporting.figures import STYLE, create_panels, use_plain_tick_labels
from research.reze_experiment.findings import Findings
from research.reze_experiment.run import Experiment
from research.reze_experiment.tables import format_stage, name_method
from research.reze_experiment.unit import choose_shown_pairs

METHOD_COLORS = {
    "none": "#888888",
    "pft_whitening": "#e377c2",
    "pft_flow": "#ff7f0e",
} | {name: method.color for name, method in METHODS.items()}
"""Colour of each method."""
MARK_OFFSET = 0.02
"""Horizontal offset between the marks of methods at the same size, so that their intervals do not overlap."""
Plot = Callable[[Experiment, Findings], Any]
"""Function that draws a matplotlib figure, or returns None without data."""


def plot_all(experiment: Experiment, findings: Findings) -> dict[str, tuple[str, Any]]:
    """Draw all figures that have data, and return title and figure by file name stem.

    The figures stay open.
    """
    with plt.rc_context(STYLE):
        return {
            name: (title, figure)
            for name, (title, plot) in PLOTS.items()
            if (figure := plot(experiment, findings)) is not None
        }


def plot_averages(experiment: Experiment, findings: Findings) -> Any:
    """Draw the average scores by number of fine-tuning rows, with intervals, a panel for each learning rate."""
    rates = sorted({a.learning_rate for a in findings.averages})
    figure, axes = create_panels(len(rates), len(rates), (5, 3.6))
    for axis, rate in zip(axes, rates, strict=True):
        some = [a for a in findings.averages if a.learning_rate == rate and a.measure == "score"]
        sizes = sorted({a.rows for a in some})
        for number, method in enumerate(dict.fromkeys(a.method for a in some)):
            own = sorted((a for a in some if a.method == method), key=lambda a: a.rows)
            places = [sizes.index(a.rows) + MARK_OFFSET * number for a in own]
            halves = [0.0 if a.score.low is None else a.score.value - a.score.low for a in own]
            style = {"color": METHOD_COLORS.get(method), "label": name_method(method)}
            axis.errorbar(places, [a.score.value for a in own], halves, marker="o", ms=4, capsize=2, **style)
        targets = {a.rows: a.targets for a in some}
        axis.set_xticks(range(len(sizes)), [f"{format_stage(n)}\n{targets[n]} targets" for n in sizes])
        axis.set_title(f"learning rate {rate:g}")
        axis.set_ylabel("score × 100, average over targets")
    axes[0].legend(fontsize=7)
    return figure


def plot_weights(experiment: Experiment, findings: Findings) -> Any:
    """Draw Figure 2, the average score by REZE's loss weight, with PFT as weight 0.

    The result is None for fewer than 2 weights.
    """
    weights = {
        condition.method: condition.regularizer.weight
        for condition in experiment.conditions
        if condition.method == "reze" or condition.method.startswith("reze, weight")
    }
    if len(weights) < 2:
        return None
    weights |= {condition.method: 0.0 for condition in experiment.conditions if condition.method == "pft"}
    figure, (axis,) = create_panels(1, size=(5.5, 3.6))
    for rate in sorted({a.learning_rate for a in findings.averages}):
        for rows in sorted({a.rows for a in findings.averages}):
            some = [
                (weights[a.method], a.score.value)
                for a in findings.averages
                if (a.learning_rate, a.rows, a.measure) == (rate, rows, "score") and a.method in weights
            ]
            if len(some) > 1:
                axis.plot(*zip(*sorted(some), strict=True), marker="o", ms=4, label=f"{format_stage(rows)}, {rate:g}")
    axis.set_xscale("symlog", linthresh=0.1)
    axis.set_xticks(sorted(weights.values()))
    use_plain_tick_labels(axis.xaxis)
    axis.set_xlabel("weight of the regulariser (α of Eq. 10)")
    axis.set_ylabel("score × 100")
    axis.legend(fontsize=7)
    return figure


def plot_isotropy(experiment: Experiment, findings: Findings) -> Any:
    """Draw Figure 3, bars of IsoScore and drift before fine-tuning.

    The result is None for fewer than 2 shifts.
    """
    if len(findings.shifts) < 2:
        return None
    rates = sorted({shift.learning_rate for shift in findings.shifts})
    methods = list(dict.fromkeys(shift.method for shift in findings.shifts))
    figure, axes = create_panels(2, 2, (4.5, 3.4))
    width = 0.8 / len(rates)
    for axis, name, measure in zip(axes, ("IsoScore", "drift, 1 − cos"), ("isoscore", "drift"), strict=True):
        for number, rate in enumerate(rates):
            own = [shift for shift in findings.shifts if shift.learning_rate == rate]
            found = [getattr(shift, measure) for shift in own]
            places = [methods.index(shift.method) + number * width for shift in own]
            reach = [0 if one.high is None else one.high - one.value for one in found]  # these lie evenly
            axis.bar(places, [one.value for one in found], width, yerr=reach, capsize=2, label=f"{rate:g}")
        offset = width * (len(rates) - 1) / 2
        axis.set_xticks([place + offset for place in range(len(methods))], list(map(name_method, methods)), rotation=20)
        axis.set_ylabel(name)
    axes[0].legend(fontsize=7, title="learning rate", title_fontsize=7)
    return figure


def plot_relations(experiment: Experiment, findings: Findings) -> Any:
    """Draw Figure 4, each model's relations in the base model's top two principal directions.

    The result is None without data. A relation is the vectors of a pair side by side. There is a panel each for the
    base model, PFT, distillation and REZE, at the highest learning rate, for the first target that has the relations of
    PFT and REZE.
    """
    rate = max(unit.training.learning_rate for unit in experiment.units)
    found = [(one, _find_relations(experiment, one.target.name, rate)) for one in experiment.prepared]
    prepared, paths = next(((one, paths) for one, paths in found if {"pft", "reze"} <= set(paths)), (None, {}))
    if prepared is None:
        return None
    kept = {method: np.load(path).astype(np.float64) for method, path in paths.items()}
    panels = {"none": kept["pft"][0]} | {name: kept[name][1] for name in ("pft", *REGULARIZED) if name in kept}
    center = panels["none"].mean(axis=0)
    _, _, directions = np.linalg.svd(panels["none"] - center, full_matrices=False)
    mixture = prepared.mixture
    sources = mixture.sources[choose_shown_pairs(mixture)]
    figure, axes = plt.subplots(1, len(panels), figsize=(3.2 * len(panels), 3.6), sharex=True, sharey=True)
    colors = plt.get_cmap("tab20")
    for axis, (method, rows) in zip(axes, panels.items(), strict=True):
        flat = (rows - center) @ directions[:2].T
        for source, name in enumerate(mixture.names):
            own = flat[sources == source]
            axis.scatter(own[:, 0], own[:, 1], s=5, color=colors(source % 20), label=name)
        axis.set_title(name_method(method) if method != "none" else "base")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=5, fontsize=6, markerscale=2)
    figure.tight_layout(rect=(0, 0.04 * (1 + len(mixture.names) // 5), 1, 1))
    return figure


def _find_relations(experiment: Experiment, target: str, rate: float) -> dict[str, Path]:
    """Return the files with vectors of pairs stored for a target and learning rate, by method, of the first seed."""
    paths = {
        unit.condition.method: unit.out / "relations" / f"{unit.key}.npy"
        for unit in reversed(experiment.units)  # of the first seed, where there are several
        if (unit.target.name, unit.training.learning_rate) == (target, rate)
    }
    return {method: path for method, path in paths.items() if path.is_file()}


PLOTS: dict[str, tuple[str, Plot]] = {
    "averages": ("Average score by the rows of the fine-tuning (Table 2)", plot_averages),
    "weight": ("The weight of the regulariser (Figure 2)", plot_weights),
    "isotropy": ("Isotropy and drift before the fine-tuning (Figure 3)", plot_isotropy),
    "shift": ("Relations of the sources in two dimensions (Figure 4)", plot_relations),
}
"""Title and drawing function of each figure, by file name stem."""
