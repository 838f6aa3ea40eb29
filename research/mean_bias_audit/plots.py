"""Figures of an audit, as SVG text for an HTML page."""

from collections.abc import Callable
from typing import Any

import numpy as np

from lathe.training.reporting.figures import draw_figures, new_panels, plot_heat_map, write_numbers
from research.mean_bias_audit.findings import AuditFindings
from research.paper_findings.statistics import OUTLIER_Z

MAX_Z = 2 * OUTLIER_Z
"""|z| at which the colour scale of the map ends."""


def draw_audit(findings: AuditFindings) -> dict[str, str]:
    """Draw every figure for which the findings have data, and return SVG text by title."""
    return draw_figures(PLOTS, findings)


def plot_mean_growth(findings: AuditFindings) -> Any:
    """Plot ‖μ_n‖ against n, measured as points and expected as a line.

    Returns:
        None without a corpus.
    """
    some = {name: audit.corpus.growth for name, audit in findings.encoders.items() if audit.corpus}
    if not some:
        return None
    figure, (axis,) = new_panels(1, size=(8, 4))
    for name, growth in some.items():
        counts = [point.n for point in growth]
        expected = np.sqrt([point.expected_square for point in growth])
        (line,) = axis.plot(counts, expected, linewidth=1)
        axis.plot(counts, [point.norm for point in growth], "o", markersize=4, color=line.get_color(), label=name)
        floors = [point.noise_floor for point in growth]
        axis.plot(counts, floors, ":", linewidth=0.8, color=line.get_color())
    axis.set_xscale("log")
    powers = [10**power for power in range(1, 7) if 10**power <= max(axis.get_xlim())]
    axis.set_xticks(powers, [f"{power:,}" for power in powers])
    axis.minorticks_off()
    axis.set_ylim(bottom=0)
    axis.set_xlabel("sentences n; lines: √(‖μ‖² + tr Σ / n), dotted: √(tr Σ / n)")
    axis.set_ylabel("‖μ_n‖")
    figure.legend(fontsize=7, loc="outside right upper")
    return figure


def plot_language_means(findings: AuditFindings) -> Any:
    """Plot ‖μ‖ of each language, and the running ‖μ‖ as languages are added.

    Returns:
        None without two languages.
    """
    some = {name: audit.languages.means for name, audit in findings.encoders.items() if audit.languages}
    some = {name: means for name, means in some.items() if len(means) > 1}
    if not some:
        return None
    languages = [one.language for one in max(some.values(), key=len)]
    figure, (axis,) = new_panels(1, size=(4.5 + 0.6 * len(languages), 3.2))
    for name, means in some.items():
        places = [languages.index(one.language) for one in means]
        (line,) = axis.plot(places, [one.running_norm for one in means], "-", linewidth=1, label=name)
        axis.plot(places, [one.norm for one in means], "o", markersize=4, color=line.get_color())
    first, *others = languages
    axis.set_xticks(range(len(languages)), [first, *(f"+ {name}" for name in others)])
    axis.set_ylim(bottom=0)
    axis.set_ylabel("‖μ‖: line so far, points alone")
    figure.legend(fontsize=7, loc="outside right upper")
    return figure


def plot_outliers(findings: AuditFindings) -> Any:
    """Plot a heat map of the z-scores of R2's differences, tasks by encoders.

    The result is None without tasks.
    """
    tasks = [one.task for one in findings.profile.tasks]
    encoders = [one.encoder for one in findings.profile.encoders]
    if not tasks:
        return None
    z = findings.profile.z
    values = np.array([[z[encoder].get(task, np.nan) for encoder in encoders] for task in tasks])
    figure, (axis,) = new_panels(1, size=(3 + 0.5 * len(encoders), 1.5 + 0.22 * len(tasks)))
    plot_heat_map(axis, values, tasks, encoders, MAX_Z)
    write_numbers(axis, values, "+.1f", MAX_Z, threshold=OUTLIER_Z, fontsize=7)
    return figure


PLOTS: dict[str, Callable[[AuditFindings], Any]] = {
    "Norm of the mean by sample, measured and expected": plot_mean_growth,
    "Norm of the mean as languages are added": plot_language_means,
    "R2's differences in standard deviations of each encoder's own": plot_outliers,
}
"""Plot functions by title of the figure."""
