"""Bridges between encoders: searches of an old encoder's index by a new encoder's mapped queries.

    python -m research.bridges --data FOLDER --encoders FOLDER --work FOLDER --out research/results

Each bridge maps vectors of the new encoder to those of the old one, and is fitted on the documents of a task, encoded
with both. It is measured with the task's test queries, against what encoding all documents with the new encoder would
give. Each result is stored in the work folder, so that a run that was stopped goes on where it was.
"""

import sys
import time
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.codes.data import EncodedData, Vectors, list_encoders
from benchmarks.held_out import read_held_out
from benchmarks.report import markdown_table, write_report
from lathe.service.index.bridge import HELDOUT_SHARE
from lathe.transforms import Chain, ContrastiveAlignment, LowRankAffine, Procrustes
from lathe.transforms.base import Transform
from lathe.transforms.quality import cross_recall_at_k
from research.learned.data import PROOF, TUNING, EncodedTask, encode_task, measure_once, task_parser
from research.learned.measure import Scores, gain, score

MIGRATIONS = (("MiniLM", "e5-small"), ("WordLlama", "MiniLM"), ("e5-small", "MiniLM"))
"""Old encoder, whose vectors the index holds, and new encoder, which encodes the queries."""

PAIRS = 5000
"""Maximum number of documents that a bridge is fitted on."""

TIMED_ROWS, TIMED_RUNS = 4096, 9
"""Number of vectors that are mapped at once for the time, and of runs, whose median counts."""

BRIDGES = ("procrustes", "low_rank_affine", "low_rank_affine, ridge 0.1", "contrastive_alignment")
CHOSEN_AMONG = ("procrustes", "low_rank_affine", "contrastive_alignment")
"""Bridges of which the one with the best recall@10 on held-out pairs is also reported, to judge that choice."""
REFERENCE = "procrustes"
"""Bridge that the others are also compared with."""


def make_bridge(name: str) -> Transform:
    """Return an unfitted bridge by its name in `BRIDGES`.

    Raises:
        ValueError: for another name.
    """
    match name:
        case "procrustes":
            return Procrustes(center=True)
        case "low_rank_affine":
            return LowRankAffine()
        case "low_rank_affine, ridge 0.1":
            return LowRankAffine(ridge=0.1)
        case "contrastive_alignment":
            return ContrastiveAlignment()
    raise ValueError(name)


def main() -> None:
    """Measure, print tables, write the raw figures."""
    arguments = task_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    encoders = {one.name: one for one in list_encoders(arguments.encoders, ["MiniLM", "e5-small", "WordLlama"])}
    data = {name: EncodedData(arguments.data, arguments.work / "vectors", one) for name, one in encoders.items()}
    tasks = ("code/mbpp",) if arguments.quick else arguments.task or (*TUNING, *PROOF)
    figures: dict[str, Any] = {"held_out": sorted(read_held_out()), "tuning": TUNING, "proof": PROOF, "pairs": PAIRS}
    figures["migrations"] = {}
    for old, new in MIGRATIONS:
        found: dict[str, Any] = {}
        for task in tasks:
            path = arguments.work / f"bridges-{old}-to-{new}-{task.replace('/', '-')}.json"
            measure = partial(measure_migration, data[old], data[new], task)
            if (figure := measure_once(path, measure, arguments.measured)) is not None:
                found[task] = figure
        figures["migrations"][f"{old} to {new}"] = found
        print(f"\n## {old} to {new}\n\n{format_table(found)}")
    print("raw figures:", write_report(arguments.out, "bridges", figures), file=sys.stderr)


def measure_migration(old: EncodedData, new: EncodedData, task: str) -> dict[str, Any]:
    """Return what `measure_task` finds for a task, encoded by the encoder of the index and by the new one."""
    return measure_task(*(encode_task(data, task, train=False) for data in (old, new)))


def measure_task(old: EncodedTask, new: EncodedTask) -> dict[str, Any]:
    """Return the scores of encoding all documents again, and the differences to them of each other way to search.

    The other ways are each bridge, and the old encoder for queries and documents (`old`). Scores and differences are
    nDCG@10 and recall@10 × 100. Each bridge also has its fitting time in CPU seconds and the microseconds per vector.

    Args:
        old: the task's vectors by the encoder of the index.
        new: the task's vectors by the new encoder.
    """
    gains = old.task.test_gains
    again = score(new.test, new.documents, gains)
    chosen = np.sort(np.random.default_rng(0).permutation(len(old.documents))[:PAIRS])
    found: dict[str, Any] = {
        "documents": len(old.documents),
        "queries": len(old.test),
        "pairs": len(chosen),
        "again": {"ndcg_at_10": 100 * float(again[0].mean()), "recall_at_10": 100 * float(again[1].mean())},
        "old": gain(score(old.test, old.documents, gains), again),
        "bridges": {},
    }
    scores: dict[str, Scores] = {}
    for name in BRIDGES:
        begun = time.process_time()
        step = make_bridge(name).fit(new.documents[chosen], targets=old.documents[chosen])
        seconds = time.process_time() - begun
        chain = Chain([step])
        scores[name] = score(chain.transform(new.test), old.documents, gains)
        found["bridges"][name] = gain(scores[name], again) | {
            "seconds": seconds,
            "microseconds": time_chain(chain.fold(), new.documents),
            "heldout_recall_at_10": measure_heldout(name, new.documents[chosen], old.documents[chosen]),
            "steps": None if step.training_log is None else step.training_log.steps,
            "orthogonal_alone": bool(step.fit_warnings()),
        }
    for name in BRIDGES:
        if name != REFERENCE:
            found["bridges"][name]["ahead_of_procrustes"] = gain(scores[name], scores[REFERENCE])
    by_recall = max(CHOSEN_AMONG, key=lambda name: found["bridges"][name]["heldout_recall_at_10"])
    found["chosen"] = {"bridge": by_recall} | gain(scores[by_recall], again)
    found["chosen"]["ahead_of_procrustes"] = gain(scores[by_recall], scores[REFERENCE])
    return found


def measure_heldout(name: str, new: Vectors, old: Vectors) -> float:
    """Fit a bridge on four of five pairs, and return its recall@10 on the others, by which one could be chosen."""
    fitted_on = np.arange(len(new)) % HELDOUT_SHARE > 0
    chain = Chain([make_bridge(name)]).fit(new[fitted_on], targets=old[fitted_on])
    return cross_recall_at_k(chain.transform(new[~fitted_on]), old[~fitted_on])


def time_chain(chain: Chain, vectors: Vectors) -> float:
    """Return the median CPU time to map a vector in a batch of `TIMED_ROWS` by one thread, in microseconds."""
    rows = torch.from_numpy(np.resize(vectors, (TIMED_ROWS, vectors.shape[1])))
    times = []
    for _ in range(TIMED_RUNS):
        begun = time.process_time()
        chain.transform(rows)
        times.append(time.process_time() - begun)
    return 1e6 * float(np.median(times)) / TIMED_ROWS


def format_table(found: dict[str, Any]) -> str:
    """Return a table of nDCG@10 of encoding all documents again and of the differences to it, a row for each task."""

    def cell(one: dict[str, Any]) -> str:
        return f"{one['ndcg_at_10']['mean']:+.1f} ± {one['ndcg_at_10']['ci95']:.1f}"

    rows = [
        [
            name,
            f"{one['again']['ndcg_at_10']:.1f}",
            cell(one["old"]),
            *(cell(one["bridges"][b]) for b in BRIDGES),
            cell(one["chosen"]),
        ]
        for name, one in found.items()
    ]
    return markdown_table(["task", "again", "old", *BRIDGES, "chosen by recall"], rows)


if __name__ == "__main__":
    main()
