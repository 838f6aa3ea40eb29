"""Figure of the benchmark: recall by bytes, with a panel for each encoder."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from benchmarks.codes.methods import OURS, PRODUCT
from lathe.training.reporting.figures import STYLE, create_panels, to_svg

SHOWN = {
    PRODUCT: ("product_codes", "C0", "-"),
    OURS: ("codes", "C0", "--"),
    "FAISS OPQ, decoded vectors normalized": ("FAISS OPQ, normalized", "C1", "-"),
    "FAISS TurboQuant": ("FAISS TurboQuant", "C4", "-"),
    "FAISS RaBitQ": ("FAISS RaBitQ", "C2", "-"),
    "turbovec": ("turbovec", "C3", "-"),
    "turboquant-pro": ("turboquant-pro", "C5", "-"),
    "remex": ("remex", "C6", "-"),
}
"""Label, colour and line of each family in the picture."""


def write_plot(out: Path, panels: dict[str, list[dict[str, Any]]]) -> Path:
    """Write `codes.svg`, the recall@10 of codes by their bytes, fitted on the half that is not searched.

    Args:
        out: folder to write to.
        panels: by title, what `summarize` returned.
    """
    with plt.rc_context(STYLE):
        figure, axes = create_panels(len(panels), columns=3, size=(3.2, 2.8), sharey=True)
        for axis, (title, every) in zip(axes, panels.items(), strict=True):
            rows = [row for row in every if (row["fit"], row["measure"]) == ("other half", "recall_at_10")]
            for method, (label, color, line) in SHOWN.items():
                points = sorted((row["budget"], row["mean"]) for row in rows if row["family"] == method)
                sizes, recalls = [point[0] for point in points], [point[1] for point in points]
                axis.plot(sizes, recalls, line, color=color, marker="o", markersize=3, label=label)
            budgets = sorted({row["budget"] for row in rows})
            axis.set_xscale("log", base=2)
            axis.set_xticks(budgets, [str(budget) for budget in budgets])
            axis.set_title(title)
            axis.set_xlabel("bytes of a vector")
            axis.set_ylabel("recall@10, %")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
        path = out / "codes.svg"
        path.write_text(to_svg(figure))
    return path
