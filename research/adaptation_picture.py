"""Draw what the README shows first: bytes and search quality of embeddings before Lathe and after.

    python -m research.adaptation_picture

The figures are those for all-MiniLM-L6-v2 and its ten tasks: of `adaptation-published.json` where it has the task, else
of `adaptation.json`. The picture is written as SVG text because a plot cannot follow a reader's light or dark mode.
"""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
TASKS = {
    "code/nl2bash": "shell commands, by descriptions",
    "finance/tatqa": "tables of reports, by questions",
    "code/spider_sql": "SQL, by questions",
    "code/mbpp": "Python functions, by tasks",
    "general/cranfield": "aeronautics papers, by questions",
    "general/covid_faq": "Covid answers, by questions",
    "general/quora_pairs": "questions, by their duplicates",
    "code/cosqa": "Python functions, by questions",
    "finance/fiqa_qa": "finance answers, by questions",
    "general/trec_qa": "news sentences, by questions",
}
"""What is searched in each task, by its data set. Those that gain most come first."""

BYTES = 48
FLOAT_BYTES = 1536
"""Bytes of a vector after and before: codes, and the 384 floats of the encoder."""

AXIS = (250, 650)
"""Horizontal positions of 30 and 100 points of nDCG@10."""

STYLE = """
    text { fill: #1f2328 } .soft { fill: #59636e; font-size: 12px } .title { font-weight: 600; font-size: 15px }
    .before { fill: #8c959f } .after { fill: #0969da } line { stroke: #d1d9e0; stroke-width: 2 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 } .soft { fill: #9198a1 }
      .before { fill: #7d8590 } .after { fill: #4493f8 } line { stroke: #3d444d }
    }
"""


def read_scores(figure: dict[str, Any]) -> tuple[float, float]:
    """Return the nDCG@10 of a task in points: of the encoder's full vectors, and of codes after the chosen change."""
    reports = {(trial["change"], trial["bytes"]): trial.get("report") for trial in figure["trials"]}
    chosen = reports[figure["choices"]["codes"]["chosen"], BYTES]
    return 100 * reports["as_is", None]["ndcg_at_10"], 100 * chosen["ndcg_at_10"]


def _place(points: float) -> float:
    """Return the horizontal position of an nDCG@10 in points."""
    left, right = AXIS
    return left + (right - left) * (points - 30) / 70


def _draw_task(name: str, before: float, after: float, y: int) -> str:
    """Return a row: the task's name, a dot before and a dot after with a line between them, and the difference."""
    start, end = _place(before), _place(after)
    gain = f"{after - before:+.1f}".replace("-", "−")
    return f"""
  <text x="{AXIS[0] - 12}" y="{y + 4}" text-anchor="end">{name}</text>
  <line x1="{start:.1f}" y1="{y}" x2="{end:.1f}" y2="{y}"/>
  <circle class="before" cx="{start:.1f}" cy="{y}" r="5"/><circle class="after" cx="{end:.1f}" cy="{y}" r="5"/>
  <text x="712" y="{y + 4}" text-anchor="end">{gain}</text>"""


def draw(tasks: dict[str, Any]) -> str:
    """Return the picture as SVG text: bytes of a million vectors above, nDCG@10 of each task below."""
    scores = {name: read_scores(tasks[name]) for name in TASKS}
    full = 470
    rows = "".join(
        _draw_task(TASKS[name], before, after, 192 + 24 * row)
        for row, (name, (before, after)) in enumerate(scores.items())
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 440" role="img" aria-labelledby="title said" \
font-family="system-ui, sans-serif" font-size="13">
  <title id="title">One million embeddings before and after Lathe</title>
  <desc id="said">They take {FLOAT_BYTES:,} MB as 384 floats each, and {BYTES} MB as {BYTES} bytes each. Search \
quality, nDCG@10 on ten tasks, changes from {min(a - b for b, a in scores.values()):.1f} to \
{max(a - b for b, a in scores.values()):+.1f} points.</desc>
  <style>{STYLE}  </style>
  <text class="title" x="8" y="20">One million embeddings</text>
  <rect class="before" x="8" y="34" width="{full}" height="26" rx="3"/>
  <text x="{full + 20}" y="52">{FLOAT_BYTES:,} MB: 384 floats each</text>
  <rect class="after" x="8" y="70" width="{full * BYTES / FLOAT_BYTES:.1f}" height="26" rx="3"/>
  <text x="34" y="88">{BYTES} MB: {BYTES} bytes each, fitted on your own text</text>
  <text class="title" x="8" y="138">Search with them, on ten tasks (nDCG@10, all-MiniLM-L6-v2)</text>
  <circle class="before" cx="15" cy="161" r="5"/><text class="soft" x="26" y="165">before: full vectors</text>
  <circle class="after" cx="175" cy="161" r="5"/>
  <text class="soft" x="186" y="165">after: {BYTES} bytes, and what judged queries could teach (lathe adapt)</text>
  <text class="soft" x="712" y="165" text-anchor="end">points</text>{rows}
  <text class="soft" x="{AXIS[0]}" y="436" text-anchor="middle">30</text>
  <text class="soft" x="{_place(65):.0f}" y="436" text-anchor="middle">65</text>
  <text class="soft" x="{AXIS[1]}" y="436" text-anchor="middle">100</text>
</svg>
"""


def main() -> None:
    """Write `adaptation.svg` beside the figures."""
    tasks: dict[str, Any] = {}
    for name in ("adaptation.json", "adaptation-published.json"):
        tasks |= json.loads((RESULTS / name).read_text())["figures"]["encoders"]["MiniLM"]
    path = RESULTS / "adaptation.svg"
    path.write_text(draw(tasks))
    print(path)


if __name__ == "__main__":
    main()
