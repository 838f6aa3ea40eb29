"""Figure of the benchmark: recall by bytes, with a panel for each encoder."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from lathe.training.reporting.figures import STYLE, create_panels, to_svg

SHOWN = {
    "codes, learned codebooks": ("product_codes", "C0", "-"),
    "codes": ("codes", "C0", "--"),
    "OPQ+PQ, decoded vectors normalized": ("OPQ+PQ, normalized", "C1", "-"),
    "residual quantizer": ("residual quantizer", "C4", "-"),
    "PCA, RaBitQ": ("RaBitQ after PCA", "C2", "-"),
    "PCA, integers": ("integers after PCA", "C3", "-"),
    "truncation, int8": ("truncation, int8", "C7", "-"),
}
"""Label, colour and line of each method in the picture."""


def write_plot(out: Path, panels: dict[str, list[dict[str, Any]]]) -> Path:
    """Write `codes.svg`, the recall@10 of codes alone by their bytes.

    Args:
        out: folder to write to.
        panels: by title, the best method of every family at every budget.
    """
    with plt.rc_context(STYLE):
        figure, axes = create_panels(len(panels), columns=2, size=(4, 3), sharey=True)
        for axis, (title, rows) in zip(axes, panels.items(), strict=True):
            for method, (label, color, line) in SHOWN.items():
                points = sorted((row["budget"], row["recall_at_10"]) for row in rows if row["family"] == method)
                sizes, recalls = [point[0] for point in points], [point[1] for point in points]
                axis.plot(sizes, recalls, line, color=color, marker="o", markersize=3, label=label)
            budgets = sorted({row["budget"] for row in rows})
            axis.set_xscale("log", base=2)
            axis.set_xticks(budgets, [str(budget) for budget in budgets])
            axis.set_title(title)
            axis.set_xlabel("bytes of a vector")
            axis.set_ylabel("recall@10")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
        path = out / "codes.svg"
        path.write_text(to_svg(figure))
    return path
