"""Does the advice on debiasing pick what labelled data say is best.

For each data set and each layer of the default encoder, under two poolings: the advice is taken from the data set's own
texts without their labels, every method is fitted on those texts, and mteb scores every method on the labels. What is
compared with doing nothing: the advice, what the halves of texts alone speak for, each method always, and R2 where ‖μ‖
is .5 or more. What is done stays in --work.
"""

import hashlib
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch

from benchmarks.report import markdown_table, parser, write_report
from lathe.training.comparison import Interval
from lathe.training.deciding.debiasing import LARGE_MEAN, METHODS, NOTHING, choose_by_mean_norm, compare_debiasing
from lathe.training.deciding.evidence import MIN_ROWS
from lathe.training.deciding.sample import build_text_sample, list_texts_to_encode
from lathe.training.encoder.spec import DEFAULT_ENCODER, Pooling
from lathe.training.evaluation.encoders import EvaluatedEncoder, Member, RequestedEncoder, text_key, write_vectors
from lathe.training.evaluation.methods import EvaluatedMethod
from lathe.training.evaluation.suites import Entry, open_suite
from lathe.training.evaluation.worker import Job, Workers, collect_texts, score_methods
from lathe.training.reporting.text import format_percent, format_points
from lathe.training.sources.row_sample import RowSample
from lathe.transforms.chain import Chain, parse_steps
from lathe.transforms.errors import TransformError
from lathe.transforms.files import replace_synced
from lathe.transforms.statistics import Moments
from lathe.transforms.vectors import FloatArray
from research.paper_findings.statistics import bootstrap

MODEL = ":layer6-mean"
"""The layer and pooling that the encoder was trained with."""
NEAR = 0.2
"""Points from the best that count as picked right."""
Cell = dict[str, Any]


def main() -> None:
    """Measure every data set, print what each policy gains, write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--suite", required=True, help="a folder of data sets")
    options.add_argument("--limit", type=int, default=300, help="rows of a data set that are scored")
    options.add_argument("--rows", type=int, default=1500, help="texts of a data set that advice is taken from")
    options.add_argument("--processes", type=int, default=2)
    options.add_argument("--work", type=Path, default=Path("build/advise"))
    arguments = options.parse_args()
    torch.set_num_threads(arguments.processes)
    poolings: tuple[Pooling, ...] = ("mean",) if arguments.quick else ("mean", "cls")
    wanted = [(layer, pooling) for layer in range(6 if arguments.quick else 1, 7) for pooling in poolings]
    encoders = [request_layer(layer, pooling).open(None) for layer, pooling in wanted]
    entries = open_suite(arguments.suite).entries[: 3 if arguments.quick else None]
    cells: list[Cell] = []
    left_out: list[str] = []
    with Workers(arguments.processes) as workers:
        measure = Measure(encoders, workers, arguments.limit, arguments.rows, arguments.work)
        for number, entry in enumerate(entries, 1):
            print(f"{number} of {len(entries)}: {entry.name}", file=sys.stderr)
            found = measure.cells(entry)
            cells += found
            left_out += [] if found else [entry.name]
    policies, incomplete = summaries(cells)
    figures = {"limit": arguments.limit, "rows": arguments.rows, "data_sets": len(entries), "left_out": left_out}
    figures |= {"incomplete_cells": incomplete, "policies": policies, "cells": cells}
    print(table(policies))
    print(f"{len(left_out)} of {len(entries)} data sets too small or unreadable, {incomplete} cells incomplete")
    print("raw figures:", write_report(arguments.out, "advice", figures), file=sys.stderr)


def request_layer(layer: int, pooling: Pooling) -> RequestedEncoder:
    """Return the request for a layer of the default encoder under a pooling."""
    name = f"{DEFAULT_ENCODER.name}:layer{layer}-{pooling}"
    return RequestedEncoder(replace(DEFAULT_ENCODER, name=name, layer=layer, pooling=pooling))


@dataclass(frozen=True)
class Measure:
    """Advice and scores of one data set after another."""

    encoders: Sequence[EvaluatedEncoder]
    workers: Workers
    limit: int
    rows: int
    work: Path

    def cells(self, entry: Entry) -> list[Cell]:
        """Return a cell for each encoder, measured once.

        There is none for a data set that cannot be read, or is too small.
        """
        what = [entry.digest(), self.limit, self.rows, [one.member.output for one in self.encoders], METHODS]
        kept = self.work / "cells" / f"{hashlib.sha256(orjson.dumps(what)).hexdigest()[:32]}.json"
        if not kept.is_file():
            found = list(self.measured(entry))
            if not found:
                return []
            kept.parent.mkdir(parents=True, exist_ok=True)
            replace_synced(kept, orjson.dumps(found))
        cells: list[Cell] = orjson.loads(kept.read_bytes())
        return cells

    def measured(self, entry: Entry) -> Iterator[Cell]:
        """Encode, advise, fit and score, and yield a cell for each encoder."""
        variants = [replace(entry, limit=limit) for limit in (None, self.limit)]
        jobs: list[Job] = [(collect_texts, (variant, {})) for variant in variants]
        found = dict(self.workers.run(jobs))
        whole, scored = found[0], found[1]
        if isinstance(whole, Exception) or isinstance(scored, Exception) or whole.error or scored.error:
            return
        texts = list(dict.fromkeys(text for _, text in whole.asked if text.strip()))
        order = np.random.default_rng(0).permutation(len(texts))[: self.rows]
        drawn = RowSample([texts[place] for place in order], None, len(texts), 0, 0.0)
        if len(drawn) < MIN_ROWS:
            return
        asked = [text for _, text in scored.asked]
        everything = list(dict.fromkeys([*list_texts_to_encode(drawn), *asked]))
        places = {text: row for row, text in enumerate(everything)}
        for encoder in self.encoders:
            member, rows = encoder.member, encoder.encode(everything, None, ignore)
            sample = build_text_sample(drawn, {text: rows[row] for text, row in places.items()})
            own = rows_of(rows, places, drawn.texts)
            advice = compare_debiasing(sample)
            yield {
                "task": entry.name,
                "type": scored.type,
                "encoder": member.name,
                "mean_norm": Moments.from_vectors(own).mean_norm(),
                "cut": len(sample.halves.first) if sample.halves else 0,
                "by_halves": advice.by_halves,
                "gains": {one.method: one.gain for one in advice.trials if one.gain},
                "scores": self.scores(variants[1], member, asked, rows_of(rows, places, asked), own),
            }

    def scores(
        self, entry: Entry, member: Member, asked: Sequence[str], vectors: FloatArray, own: FloatArray
    ) -> dict[str, float | None]:
        """Return the score of every method fitted on the data set's own texts, None where it cannot be had."""
        folder = self.work / "scoring" / entry.key / member.output
        shutil.rmtree(folder, ignore_errors=True)
        write_vectors(folder / "vectors", [([text_key(text, member.default_prompt) for text in asked], vectors)])
        methods = []
        for method, steps in METHODS.items():
            with suppress(TransformError):  # too few texts for it
                Chain(parse_steps(steps)).fit(own).save(folder / method)
                methods.append(EvaluatedMethod(method, "chain", key=f"{entry.key}-{method}", folder=folder / method))
        shares = [methods[start :: self.workers.processes] for start in range(self.workers.processes)]
        jobs = [(score_methods, (entry, member, folder / "vectors", share)) for share in shares if share]
        results = [result for _, result in self.workers.run(jobs)]
        shutil.rmtree(folder)
        return {
            score.method: score.score for result in results if not isinstance(result, Exception) for score in result
        }


def rows_of(vectors: FloatArray, places: Mapping[str, int], texts: Sequence[str]) -> FloatArray:
    """Return the vectors of some texts."""
    return np.asarray(vectors[[places[text] for text in texts]])


def ignore(_rows: int) -> None:
    """Do nothing: nobody watches single batches."""


def summaries(cells: list[Cell]) -> tuple[dict[str, dict[str, Any]], int]:
    """Compute what each policy gains and how often it picks the best or nearly so.

    Cells without all scores are left out, and their number is returned beside.
    """
    usable = [cell for cell in cells if all(cell["scores"].get(method) is not None for method in METHODS)]
    groups = {"all": usable, "the model as it is": [cell for cell in usable if cell["encoder"].endswith(MODEL)]}
    for cell in usable:
        groups.setdefault(cell["task"].partition("/")[0], []).append(cell)
    found = {
        f"{group}, {policy}": summary(some, [pick(cell) for cell in some])
        for group, some in groups.items()
        for policy, pick in POLICIES.items()
    }
    return found, len(cells) - len(usable)


def always(method: str, _: Cell) -> str:
    """Return one method, whatever the cell."""
    return method


POLICIES: dict[str, Callable[[Cell], str]] = {
    "advice": lambda cell: choose_by_mean_norm(cell["by_halves"], cell["mean_norm"], gain_of_r2(cell)),
    "halves alone": lambda cell: str(cell["by_halves"]),
    **{f"always {method}": partial(always, method) for method in METHODS if method != NOTHING},
    "R2 where ‖μ‖ ≥ .5": lambda cell: "R2" if cell["mean_norm"] >= LARGE_MEAN else NOTHING,
    "nothing": lambda _: NOTHING,
}
"""The advice takes ‖μ‖ of held-out texts, here it is that of all: of hundreds of texts each, they hardly differ."""


def gain_of_r2(cell: Cell) -> Interval | None:
    """Return R2's gain by the halves, None where they were not ranked."""
    return Interval(**cell["gains"]["R2"]) if "R2" in cell["gains"] else None


def summary(cells: list[Cell], picked: list[str]) -> dict[str, Any]:
    """Compute a policy's gain in points, averaged over the encoders of each task and resampled over tasks."""
    gained: dict[str, list[float]] = {}
    ahead: dict[str, list[float]] = {}
    near: dict[str, list[bool]] = {}
    for cell, method in zip(cells, picked, strict=True):
        scores = cell["scores"]
        gained.setdefault(cell["task"], []).append(100 * (scores[method] - scores[NOTHING]))
        ahead.setdefault(cell["task"], []).append(100 * (scores[method] - scores["R2"]))
        near.setdefault(cell["task"], []).append(100 * (max(scores.values()) - scores[method]) <= NEAR)
    return {
        "cells": len(cells),
        "tasks": len(gained),
        "near_best": asdict(bootstrap(np.array([np.mean(some) for some in near.values()]))),
        "gain": asdict(bootstrap(np.array([np.mean(some) for some in gained.values()]))),
        "ahead_of_r2": asdict(bootstrap(np.array([np.mean(some) for some in ahead.values()]))),
        "picked": dict(Counter(picked)),
    }


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Format the policies as a table."""
    header = ["", "tasks", "cells", "best or within .2 points", "gain to nothing", "gain to always R2"]
    rows = [[name, str(one["tasks"]), str(one["cells"]), *gained(one)] for name, one in found.items()]
    return markdown_table(header, rows)


def gained(one: Mapping[str, Any]) -> list[str]:
    """Return how often a policy picks well, and what it gains, with intervals over tasks."""
    gains = [format_points(Interval(**one[name])) for name in ("gain", "ahead_of_r2")]
    return [format_percent(Interval(**one["near_best"])), *gains]


if __name__ == "__main__":
    main()
