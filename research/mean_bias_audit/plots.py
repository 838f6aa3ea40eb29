"""Figures of an audit, as SVG text for an HTML page."""

from collections.abc import Callable
from typing import Any

import numpy as np

from lathe.training.reporting.figures import create_panels, draw_figures
from research.mean_bias_audit.findings import AuditFindings


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
    figure, (axis,) = create_panels(1, size=(8, 4))
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
    figure, (axis,) = create_panels(1, size=(4.5 + 0.6 * len(languages), 3.2))
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


PLOTS: dict[str, Callable[[AuditFindings], Any]] = {
    "Norm of the mean by sample, measured and expected": plot_mean_growth,
    "Norm of the mean as languages are added": plot_language_means,
}
"""Plot functions by title of the figure."""
