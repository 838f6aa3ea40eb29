"""Measures the papers' claims about debiasing and reduction on encoders of five families, on real tasks.

    python -m research.evidence --encoders FOLDER --suite FOLDER --corpus FILE

Encoders are those of `families.py`; a folder that is missing is an error. Every method is fitted on sentences of the
corpus, without labels, and never on a task. Nothing is tuned. A stopped run goes on where it was: vectors and scores
stay in --work. Scores are those of mteb, on at most --limit rows of a data set, the same ones for every encoder.
"""

import gzip
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.report import parser, write_report
from lathe.training.evaluation.suites import open_suite
from research.evaluation import condensed, timed
from research.evidence.families import FAMILIES, MAX_TOKENS, request_layers, request_model
from research.evidence.requests import LAYER_TASKS, SHARES, LayerDebiasing, LossComparison, Reduction
from research.evidence.tables import Figures, build_debiasing_table, build_losses_table, build_retention_table
from research.evidence.unnormalized import PaperReduction, build_tables
from research.fitted_methods.evaluation import FittedRequest
from research.paper_findings.report import format_report
from research.paper_findings.report import write_report as write_evaluation

SIZES = [Fraction(1, share) for share in SHARES]
TABLES: dict[str, Callable[[Figures], str]] = {
    "debiasing": build_debiasing_table,
    "reducers": build_retention_table,
    "losses": build_losses_table,
    "layers": build_debiasing_table,
    "unnormalized": build_tables,
}
PARTS = tuple(TABLES)
CORPUS_SEED = 0


def main() -> None:
    """Evaluate each part family by family, print its tables, and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--encoders", type=Path, required=True, help="folder of the encoders' folders")
    options.add_argument("--suite", required=True, help="a folder of data sets")
    options.add_argument("--corpus", type=Path, required=True, help="FILE.jsonl.gz of sentences to fit on")
    options.add_argument("--sentences", type=int, default=2500, help="number of sentences of it that are used")
    options.add_argument("--only", choices=PARTS, action="append", help="leave the other parts out")
    options.add_argument("--family", action="append", help="leave the other families out")
    options.add_argument("--names", default="", help="leave data sets out whose names do not begin so")
    options.add_argument("--limit", type=int, default=60)
    options.add_argument("--geopres-steps", type=int, default=5000, help="of the paper's recipe")
    options.add_argument("--geopres-batch", type=int, default=2048, help="of the paper's recipe")
    options.add_argument("--processes", type=int, default=1)
    options.add_argument("--work", type=Path, default=Path("build/evidence"))
    options.add_argument("--name", default="evidence", help="of the raw figures")
    arguments = options.parse_args()
    torch.set_num_threads(arguments.processes)
    arguments.work.mkdir(parents=True, exist_ok=True)
    corpus = draw_sentences(arguments.corpus, arguments.sentences, arguments.work)
    families = [family for family in FAMILIES if arguments.family is None or family.name in arguments.family]
    models = [request_model(family, arguments.encoders, arguments.work / "encoders") for family in families]
    pairs = list(zip(families, models, strict=True))
    few = [one for family, model in pairs if not family.is_language_model for one in request_layers(family, model)]
    many = [one for family, model in pairs if family.is_language_model for one in request_layers(family, model)]
    suite = open_suite(arguments.suite)
    named = [entry for entry in suite.entries if entry.name.startswith(arguments.names)]
    english = tuple(entry for entry in named if entry.language == "en")  # which is all that most of them know
    suite = replace(suite, entries=english)
    quick = replace(suite, entries=tuple(entry for entry in english if entry.task in LAYER_TASKS))
    shared: dict[str, Any] = {
        "suite": suite,
        "out": arguments.work / "scores",
        "corpus": str(corpus),
        "limit": arguments.limit,
        "processes": arguments.processes,
    }
    training = {"steps": arguments.geopres_steps, "batch": arguments.geopres_batch}
    requests = {
        "debiasing": FittedRequest(encoders=[*models, *few], ladder=True, **shared),
        "reducers": Reduction(encoders=models, sizes=SIZES, **shared),
        "losses": LossComparison(encoders=models, sizes=SIZES, **shared),
        "layers": LayerDebiasing(encoders=many, ladder=True, **shared | {"suite": quick}),
        "unnormalized": PaperReduction(encoders=models, sizes=SIZES, training=training, **shared),
    }
    figures: dict[str, Any] = {"max_tokens": MAX_TOKENS, "sentences": arguments.sentences}
    for name in arguments.only or PARTS:
        if name == "unnormalized":
            figures["training of the paper's GeoPres"] = training
        results, seconds = timed(requests[name])
        findings, _ = write_evaluation(results)
        print(f"\n# {name}, {seconds / 60:.1f} min\n\n{format_report(results, findings)}")
        figures[name] = {"seconds": seconds, "problems": list(results.problems)} | condensed(results, findings)
        print(TABLES[name](figures[name]))
    print("raw figures:", write_report(arguments.out, arguments.name, figures), file=sys.stderr)


def draw_sentences(corpus: Path, count: int, work: Path) -> Path:
    """Write `count` lines of a compressed corpus, drawn with a fixed seed, and return the file."""
    path = work / f"{corpus.name.partition('.')[0]}-{count}.jsonl"
    if not path.exists():
        with gzip.open(corpus, "rt") as file:
            lines = file.readlines()
        drawn = np.sort(np.random.default_rng(CORPUS_SEED).permutation(len(lines))[:count])
        path.write_text("".join(lines[row] for row in drawn))
    return path


if __name__ == "__main__":
    main()
