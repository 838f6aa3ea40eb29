"""Picture of compressed retrieval: nDCG@10 by bytes of a vector, a panel for each encoder and size of the corpus."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from lathe.training.reporting.figures import STYLE, create_panels, to_svg

FAMILIES = {
    "product_codes": ("C0", "-"),
    "codes": ("C0", "--"),
    "PQ": ("C1", "-"),
    "LSH": ("C2", "-"),
    "equal distance": ("C3", "-"),
    "percentiles": ("C3", "--"),
    "binary": ("C4", ""),
    "casting": ("C5", ""),
    "GeoPres": ("C6", "-"),
    "PCA": ("C6", "--"),
    "truncation": ("C7", "-"),
}
"""Colour and line of each family of methods."""


def write_plot(out: Path, figures: Mapping[str, Any]) -> Path:
    """Write `evidence-corect.svg` from the raw figures to a folder, and return its path."""
    with plt.rc_context(STYLE):
        sizes, encoders = figures["sizes"], figures["encoders"]
        figure, axes = create_panels(len(encoders) * len(sizes), columns=len(sizes), size=(4, 3), sharey=True)
        panels = ((name, place) for name in encoders for place in range(len(sizes)))
        for axis, (name, place) in zip(axes, panels, strict=True):
            plot_panel(axis, encoders[name]["methods"], place)
            axis.set_title(f"{name}, {sizes[place]:,} documents")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
        path = out / "evidence-corect.svg"
        path.write_text(to_svg(figure) + "\n")
    return path


def plot_panel(axis: Any, methods: list[dict[str, Any]], place: int) -> None:
    """Plot nDCG@10 by bytes for one encoder and the corpus at a place, with a grey line for uncompressed vectors."""
    axis.axhline(methods[0]["scores"][place]["ndcg_at_10"]["value"], color="grey", linewidth=0.8)
    for family, (color, line) in FAMILIES.items():
        rows = [row for row in methods if row["family"] == family]
        points = [(row["bytes"], row["scores"][place]["ndcg_at_10"]["value"]) for row in rows]
        sizes, values = zip(*sorted(points), strict=True)
        axis.plot(sizes, values, line, color=color, marker="o", markersize=3, label=family)
    axis.set_xscale("log", base=2)
    axis.set_xticks([16, 64, 256, 1024], ["16", "64", "256", "1,024"])
    axis.set_xlabel("bytes of a vector")
    axis.set_ylabel("nDCG@10 × 100")
