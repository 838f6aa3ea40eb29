"""Spectral tempering: partial whitening with a power derived from the spectrum, against powers that are given.

    python -m research.tempering --data FOLDER --encoders FOLDER --work FOLDER --out research/results

Each reduction is fitted on the documents of a search task, or on the training texts of a classification, and judged by
labels: nDCG@10 of the test queries, and the accuracy of a logistic regression. Nothing is tuned, so that all tasks are
ones that are set aside. Each result is stored in the work folder.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from benchmarks.codes.data import EncodedData, Vectors, list_encoders
from benchmarks.codes.measure import average_paired
from benchmarks.held_out import read_held_out
from benchmarks.report import markdown_table, write_report
from lathe.training.datasets.folder import FolderDataSet
from lathe.transforms import Chain, Whitening
from research.learned.data import PROOF, encode_task, measure_once, task_parser
from research.learned.measure import score

POWERS: tuple[Any, ...] = (0.0, 0.25, 0.5, 0.75, 1.0, "auto")
"""Powers of the whitening that are compared; 0 is PCA."""

SHARES = (2, 4, 8, 16)
"""Divisors of the full dimensions: a reduction keeps one in so many."""

CLASSIFICATIONS = ("finance/gold_headlines_sentiment", "general/trec_question_type")
MAX_TEXTS = 5000
"""Maximum number of texts of a split of a classification."""

Outcome = NDArray[np.float64]
"""Score of each test query or text × 100, `(a,)`."""


def main() -> None:
    """Measure, print tables, write the raw figures."""
    arguments = task_parser(__doc__).parse_args()
    tasks = CLASSIFICATIONS[:1] if arguments.quick else arguments.task or (*PROOF, *CLASSIFICATIONS)
    torch.set_num_threads(1)
    figures: dict[str, Any] = {"held_out": sorted(read_held_out()), "encoders": {}}
    for encoder in list_encoders(arguments.encoders, arguments.encoder or ["MiniLM", "e5-small", "WordLlama"]):
        data = EncodedData(arguments.data, arguments.work / "vectors", encoder)
        found: dict[str, Any] = {}
        for task in tasks:
            path = arguments.work / f"tempering-{encoder.name}-{task.replace('/', '-')}.json"
            measure = measure_classification if task in CLASSIFICATIONS else measure_search
            if (figure := measure_once(path, partial(measure, data, task), arguments.measured)) is not None:
                found[task] = figure
        figures["encoders"][encoder.name] = found
        print(f"\n## {encoder.name}\n\n{format_table(found)}")
    print("raw figures:", write_report(arguments.out, "tempering", figures), file=sys.stderr)


def measure_search(data: EncodedData, name: str) -> dict[str, Any]:
    """Return what `measure_powers` finds for a search task, judged by the nDCG@10 of its test queries × 100."""
    task = encode_task(data, name, train=False)

    def judge(chain: Chain | None) -> Outcome:
        queries, documents = (side if chain is None else chain.transform(side) for side in (task.test, task.documents))
        ndcg, _ = score(queries, documents, task.task.test_gains)
        return 100 * ndcg

    return measure_powers(task.documents, judge)


def measure_classification(data: EncodedData, name: str) -> dict[str, Any]:
    """Return what `measure_powers` finds for a classification, judged by whether each test text is classified right."""
    folder = FolderDataSet(name, "classification", data.data / name)
    rows = {split: list(folder.read_rows(split))[:MAX_TEXTS] for split in ("train", "test")}
    labels = {split: np.array([str(row["label"]) for row in rows[split]]) for split in rows}
    vectors = {
        split: data.encoded(f"{name} {split}", [str(row["text"]) for row in rows[split]], data.encoder.query)
        for split in rows
    }

    def judge(chain: Chain | None) -> Outcome:
        train, test = (v if chain is None else chain.transform(v) for v in (vectors["train"], vectors["test"]))
        model = LogisticRegression(max_iter=1000).fit(train, labels["train"])
        correct: Outcome = (model.predict(test) == labels["test"]).astype(np.float64)
        return 100 * correct

    return measure_powers(vectors["train"], judge)


def measure_powers(fitted_on: Vectors, judge: Callable[[Chain | None], Outcome]) -> dict[str, Any]:
    """Fit every power at every size.

    Args:
        fitted_on: vectors that the reductions are fitted on, `(n, d)`.
        judge: returns the scores `(a,)` of test queries or texts through a chain; called with None, those of the full
            vectors.

    Returns:
        Mean scores, derived powers, and differences between `auto` and the others.
    """
    found: dict[str, Any] = {"full": float(judge(None).mean()), "sizes": {}}
    d = fitted_on.shape[1]
    for share in SHARES:
        steps = {power: Whitening(d // share, power=power).fit(fitted_on) for power in POWERS}
        outcomes = {power: judge(Chain([step])) for power, step in steps.items()}
        found["sizes"][f"1/{share}"] = {
            "dimensions": d // share,
            "chosen": steps["auto"].chosen_parameters()["power"],
            "scores": {str(power): float(outcome.mean()) for power, outcome in outcomes.items()},
            "ahead": {str(p): average_paired(outcomes["auto"] - outcomes[p]) for p in POWERS if p != "auto"},
        }
    return found


def format_table(found: dict[str, Any]) -> str:
    """Return a table of `auto` less each given power by size: the mean over tasks, and how many are worse / better."""
    rows = []
    for share in (f"1/{share}" for share in SHARES):
        cells = []
        for power in (str(p) for p in POWERS if p != "auto"):
            ahead = [one["sizes"][share]["ahead"][power] for one in found.values()]
            worse = sum(a["mean"] < -a["ci95"] for a in ahead)
            better = sum(a["mean"] > a["ci95"] for a in ahead)
            cells.append(f"{np.mean([a['mean'] for a in ahead]):+.2f} ({worse} / {better})")
        chosen = [one["sizes"][share]["chosen"] for one in found.values()]
        rows.append([share, f"{min(chosen):.2f} to {max(chosen):.2f}", *cells])
    return markdown_table(["size", "chosen", *(f"ahead of {p}" for p in POWERS if p != "auto")], rows)


if __name__ == "__main__":
    main()
