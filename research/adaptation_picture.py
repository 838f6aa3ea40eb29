"""Draw what the README shows first: vectors and search before Lathe and after.

    python -m research.adaptation_picture

The figures are those of `adaptation.json`, for all-MiniLM-L6-v2 and its ten tasks.
"""

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from lathe.training.reporting.figures import STYLE, to_svg

RESULTS = Path(__file__).parent / "results"
TASKS = {
    "code/nl2bash": "commands, by descriptions",
    "finance/tatqa": "tables of reports, by questions",
    "code/spider_sql": "SQL, by questions",
    "code/mbpp": "Python functions, by tasks",
    "general/cranfield": "abstracts on aerodynamics",
    "general/quora_pairs": "questions, by their duplicates",
    "code/cosqa": "Python functions, by questions",
    "finance/fiqa_qa": "answers on finance, by questions",
    "general/covid_faq": "answers on Covid, by questions",
    "general/trec_qa": "answers of TREC QA",
}
"""What is searched in each task, by its data set. Those that gain most come first."""
BEFORE, AFTER = "0.6", "C0"
"""Colours of the encoder's own vectors and of what `lathe adapt` recommends."""


def read_scores(figure: dict[str, Any]) -> tuple[float, float]:
    """Return the nDCG@10 of a task in points: of the encoder's full vectors, and of codes after the chosen change."""
    reports = {(trial["change"], trial["bytes"]): trial.get("report") for trial in figure["trials"]}
    chosen = reports[figure["choices"]["codes"]["chosen"], 48]
    return 100 * reports["as_is", None]["ndcg_at_10"], 100 * chosen["ndcg_at_10"]


def draw(tasks: dict[str, Any]) -> str:
    """Return the picture as SVG text: bytes of a vector at the left, nDCG@10 of each task at the right."""
    with plt.rc_context(STYLE):
        figure, (sizes, scores) = plt.subplots(1, 2, figsize=(9, 3.1), layout="constrained", width_ratios=[2, 3])
        figure.patch.set_facecolor("white")
        sizes.barh(["before", "after"], [1536, 48], color=[BEFORE, AFTER], height=0.5)
        for row, text in enumerate(("1,536 MB", "48 MB")):
            sizes.text((1536, 48)[row] + 30, row, text, va="center", weight="bold")
        sizes.set_xlim(0, 1950)
        sizes.set_xticks([])
        sizes.spines[["bottom"]].set_visible(False)
        sizes.invert_yaxis()
        sizes.set_title("Vectors of one million texts", loc="left", weight="bold")
        for row, name in enumerate(TASKS):
            before, after = read_scores(tasks[name])
            scores.plot([before, after], [row, row], color="0.8", zorder=1)
            scores.scatter(before, row, color=BEFORE, zorder=2)
            scores.scatter(after, row, color=AFTER, zorder=3)
        scores.set_yticks(range(len(TASKS)), list(TASKS.values()))
        scores.invert_yaxis()
        scores.set_xlim(30, 100)
        scores.set_title("Search (nDCG@10), before and after", loc="left", weight="bold")
        return to_svg(figure)


def main() -> None:
    """Write `adaptation.svg` beside the figures."""
    figures = json.loads((RESULTS / "adaptation.json").read_text())["figures"]
    path = RESULTS / "adaptation.svg"
    path.write_text(draw(figures["encoders"]["MiniLM"]))
    print(path)


if __name__ == "__main__":
    main()
