"""Figures of REZE's offline phase: which directions separate the sources, and how they are shrunk."""

from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.regularizers.geometry import Geometry, pull_fractions
from lathe.training.finetuning.regularizers.shrinkage import Shrinkage
from lathe.training.reporting.figures import draw_figures, label_plainly

SHOWN_DIMENSIONS = 60
"""Maximum number of columns of the heat map: the dimensions that separate the sources most."""


def draw_shrinkage(mixture: Mixture, shrinkage: Shrinkage, geometry: Geometry) -> dict[str, str]:
    """Draw every figure of the shrinkage that has something to show, and return them as SVG text by title."""
    return draw_figures(PLOTS, mixture, shrinkage, geometry)


def plot_spectrum(mixture: Mixture, shrinkage: Shrinkage, geometry: Geometry) -> Any:
    """Plot the eigenvalues of the relations on a log scale, with active dimensions shaded, and return the figure."""
    figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
    ranks = np.arange(1, len(shrinkage.eigenvalues) + 1)
    axis.semilogy(ranks, np.maximum(shrinkage.eigenvalues, 1e-12), linewidth=1.2)
    axis.axvspan(1, max(shrinkage.active, 1), alpha=0.1)
    axis.set_ylim(bottom=max(shrinkage.eigenvalues[shrinkage.eigenvalues > 1e-10].min(initial=1.0) / 2, 1e-10))
    axis.set_xlabel(f"dimension; {shrinkage.active} are active")
    axis.set_ylabel("eigenvalue")

    return figure


def plot_dispersion(mixture: Mixture, shrinkage: Shrinkage, geometry: Geometry) -> Any:
    """Plot the dispersion of the sources in each active dimension, with the threshold.
    Return the figure, or None if no dimension is active.

    Shrunk dimensions are red.
    """
    if not shrinkage.active:
        return None

    figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
    values = np.maximum(shrinkage.dispersion[: shrinkage.active], 1e-12)
    ranks = np.arange(1, len(values) + 1)
    changed = shrinkage.changed[shrinkage.changed < len(values)]
    axis.scatter(ranks, values, s=5, color="grey", label="left alone")
    axis.scatter(ranks[changed], values[changed], s=7, color="tab:red", label="shrunk for some source")
    axis.axhline(max(shrinkage.dispersion_threshold, 1e-12), color="black", linewidth=0.8, linestyle="--")
    axis.set_yscale("log")
    label_plainly(axis.yaxis)
    axis.set_xlabel("active dimension")
    axis.set_ylabel("dispersion")
    axis.legend(fontsize=8)

    return figure


def plot_factors(mixture: Mixture, shrinkage: Shrinkage, geometry: Geometry) -> Any:
    """Plot how far each source is moved towards the centre in each shrunk dimension, as a heat map.
    Return the figure, or None if no dimension is shrunk.

    At most `SHOWN_DIMENSIONS` are shown, those with the largest dispersion.
    """
    changed = shrinkage.changed
    if not len(changed):
        return None

    shown = np.sort(changed[np.argsort(-shrinkage.dispersion[changed])][:SHOWN_DIMENSIONS])
    figure, axis = plt.subplots(figsize=(8, 1.2 + 0.28 * len(mixture.names)), layout="constrained")
    image = axis.imshow(pull_fractions(shrinkage)[:, shown], cmap="Reds", vmin=0, vmax=1, aspect="auto")
    axis.set_yticks(range(len(mixture.names)), mixture.names)
    every = max(1, len(shown) // 15)
    axis.set_xticks(range(0, len(shown), every), [str(dimension + 1) for dimension in shown[::every]])
    axis.set_xlabel(f"dimension; the {len(shown)} of {len(changed)} with the largest dispersion")
    axis.spines[:].set_visible(False)
    figure.colorbar(image, ax=axis, shrink=0.8)

    return figure


def plot_between_variance(mixture: Mixture, shrinkage: Shrinkage, geometry: Geometry) -> Any:
    """Plot the variance between sources before and after shrinking, cumulative over the active dimensions.
    Return the figure, or None if no dimension is active.
    """
    if not shrinkage.active:
        return None

    # Shares of the pairs (s, 1) weight the squared means (s, d) of the sources, before and after.
    counts = np.bincount(mixture.sources, minlength=len(mixture.names))[:, None] / len(mixture)
    before = (counts * shrinkage.source_means**2).sum(axis=0)[: shrinkage.active]
    means = shrinkage.source_means * shrinkage.shrink + shrinkage.shift
    after = (counts * (means - (counts * means).sum(axis=0)) ** 2).sum(axis=0)[: shrinkage.active]
    figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
    ranks = np.arange(1, len(before) + 1)
    axis.plot(ranks, np.cumsum(before), label="before", linewidth=1.2)
    axis.plot(ranks, np.cumsum(after), label="after", linewidth=1.2)
    axis.set_xlabel("active dimensions")
    axis.set_ylabel("between-source variance, summed up")
    axis.legend(fontsize=8)

    return figure


def plot_cosines(mixture: Mixture, shrinkage: Shrinkage, geometry: Geometry) -> Any:
    """Plot a box plot of the cosines between relations and targets for each source, and return the figure."""
    values = [geometry.cosines[mixture.sources == source] for source in range(len(mixture.names))]
    figure, axis = plt.subplots(figsize=(7, 1 + 0.28 * len(values)), layout="constrained")
    axis.boxplot(values, orientation="horizontal", showfliers=False, tick_labels=mixture.names)
    axis.invert_yaxis()
    axis.set_xlabel("cosine")
    return figure


PLOTS: dict[str, Callable[[Mixture, Shrinkage, Geometry], Any]] = {
    "Spectrum of the relations (Eq. 1); the shaded dimensions are active (Eq. 3)": plot_spectrum,
    "Cosine of each pair's relation to its target, cos(r, r̂)": plot_cosines,
    "Dispersion of the sources' means along each dimension (Eq. 2), and its threshold (Eq. 4)": plot_dispersion,
    "Between-source variance along the active dimensions, before and after": plot_between_variance,
    "Where each source is shrunk (1 − α of Eq. 6, or its shift over its deviation)": plot_factors,
}
"""Plot functions by title of the figure."""
