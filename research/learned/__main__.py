"""Query adapters on search tasks: gains with intervals, cost, loss out of domain.

    python -m research.learned --data FOLDER --encoders FOLDER --work FOLDER --out research/results

Steps learn from the queries of a training split, and are measured on those of the test split. Each result is stored
in the work folder, so that a run that was stopped goes on where it was.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch

from benchmarks.codes.data import EncodedData, list_encoders, make_data_parser
from benchmarks.held_out import read_held_out
from benchmarks.report import markdown_table, write_report
from research.learned.data import PROOF, TUNING, EncodedTask, encode_task
from research.learned.measure import (
    measure_adapters,
    measure_before_codes,
    measure_guard,
    measure_out_of_domain,
    score,
)


def main() -> None:
    """Measure, print a table, write the raw figures."""
    options = make_data_parser(__doc__)
    arguments = options.parse_args()
    torch.set_num_threads(1)
    tasks = ("code/mbpp",) if arguments.quick else (*TUNING, *PROOF)
    figures: dict[str, Any] = {"held_out": sorted(read_held_out()), "tuning": TUNING, "proof": PROOF, "encoders": {}}
    for encoder in list_encoders(arguments.encoders, arguments.encoder or ["MiniLM", "WordLlama"]):
        data = EncodedData(arguments.data, arguments.work / "vectors", encoder)
        encoded = {name: encode_task(data, name) for name in tasks}
        folder = arguments.work / encoder.name
        folder.mkdir(parents=True, exist_ok=True)
        found = {name: _measure_task(task, folder / name.replace("/", "-")) for name, task in encoded.items()}
        weights = {name: weight for name, task in encoded.items() if (weight := _read_weight(folder, name)) is not None}
        for name, task in encoded.items():
            found[name]["adapters_of_others"] = measure_out_of_domain(task, weights)
        figures["encoders"][encoder.name] = found
        print(f"\n## {encoder.name}\n\n{_format_table(found)}")
    print("raw figures:", write_report(arguments.out, "learned", figures), file=sys.stderr)


def _measure_task(task: EncodedTask, path: Path) -> dict[str, Any]:
    """Return the figures of a task, from the file `path.json` where they are there.

    Write what is measured.
    """
    file = path.with_suffix(".json")
    found: dict[str, Any] = orjson.loads(file.read_bytes()) if file.exists() else {}
    if "before" not in found:
        ndcg, recall = score(task.test, task.documents, task.task.test_gains)
        found = {
            "documents": len(task.documents),
            "train_queries": len(task.train),
            "test_queries": len(task.test),
            "before": {"ndcg_at_10": 100 * float(ndcg.mean()), "recall_at_10": 100 * float(recall.mean())},
        }
    adapters = found.setdefault("adapters", {})
    for name, figures, weight in measure_adapters(task, set(adapters)):
        adapters[name] = figures
        if weight is not None:
            np.save(path.with_suffix(".npy"), weight)
        file.write_bytes(orjson.dumps(found))
    if task.task.name in TUNING and "guard" not in found:
        found["guard"] = measure_guard(task)
        file.write_bytes(orjson.dumps(found))
    if "before_codes" not in found and path.with_suffix(".npy").exists():
        found["before_codes"] = measure_before_codes(task, np.load(path.with_suffix(".npy")))
        file.write_bytes(orjson.dumps(found))
    return found


def _read_weight(folder: Path, name: str) -> Any:
    """Return the map of a task's adapter.

    The result is None if it was refused.
    """
    path = folder / f"{name.replace('/', '-')}.npy"
    return np.load(path) if path.exists() else None


def _format_table(found: dict[str, Any]) -> str:
    """Return the gains of adapters as a table."""
    rows = []
    for name, figures in found.items():
        default = figures["adapters"].get("default", {"refused": ""})
        gains = [
            "refused" if "refused" in default else f"{default[k]['mean']:+.1f} ± {default[k]['ci95']:.1f}"
            for k in ("ndcg_at_10", "recall_at_10")
        ]
        counts = [f"{figures[k]:,}" for k in ("documents", "train_queries", "test_queries")]
        rows.append([name, *counts, f"{figures['before']['ndcg_at_10']:.1f}", *gains])
    return markdown_table(["task", "documents", "train", "test", "nDCG@10", "gain", "recall@10"], rows)


if __name__ == "__main__":
    main()
