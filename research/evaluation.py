"""The papers' evaluations on local data: the ladder of debiasing methods, means of few sentences, reducers.

Every part is an evaluation of `research.fitted_methods`. Raw vectors and scores stay in --work, where a
stopped run goes on; its seconds are added up. Means of few sentences go into the folder of the ladder, whose vectors
and scores they share.
"""

import sys
import time
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import parser, write_report
from benchmarks.starters import print_progress
from lathe.service.cli.evaluate import load_chain_methods
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.evaluation.encoders import RequestedEncoder
from lathe.training.evaluation.suites import Suite, open_suite
from research.encoders import list_variants
from research.few_sentences import FewSentences, compare_estimated_means, draw_estimation, summarize_estimation
from research.fitted_methods.evaluation import FittedRequest, FittedResults, evaluate_fitted
from research.paper_findings.findings import Findings, summarize
from research.paper_findings.grid import Grid
from research.paper_findings.plots import draw_all
from research.paper_findings.report import format_report
from research.paper_findings.report import write_report as write_evaluation

SIZES = [Fraction(1, share) for share in (2, 4, 8, 16)]
SENTENCES = (50, 500, 5000)
KEPT = {
    "ladder": {"Differences to raw vectors, in points": "ladder", "R2's gain and the norm of the mean": "gain-by-norm"},
    "few sentences": {"Means estimated from few sentences": "few-sentences"},
    "reducers": {"What reducers keep": "retention", "What is kept of the geometry, and scores": "geometry-and-scores"},
}
"""Pictures that are kept of each part, with the names of their files."""


def main() -> None:
    """Evaluate each part, print its tables, write the raw figures and pictures."""
    options = parser(__doc__)
    options.add_argument("--suite", required=True, help="a folder of data sets")
    options.add_argument("--few", default="", help="measure means of few sentences where names begin so")
    options.add_argument("--stsb", help="the folder of the STS Benchmark, to be scored whole")
    options.add_argument("--domain", help="a folder of data sets of one domain, and with --domain-corpus its sentences")
    options.add_argument("--domain-corpus", default="pydoc:", help="sentences of that domain, to fit reducers on")
    options.add_argument("--corpus", default="pydoc:", help="sentences to fit on")
    options.add_argument("--limit", type=int, default=300)
    options.add_argument("--processes", type=int, default=2)
    options.add_argument("--work", type=Path, default=Path("build/evaluation"))
    arguments = options.parse_args()
    torch.set_num_threads(arguments.processes)
    variants = list_variants(DEFAULT_ENCODER, "layers")
    if arguments.quick:
        variants = [one for way in ("mean", "cls") for one in list_variants(DEFAULT_ENCODER, f"layer6-{way}")]
    plain = FewSentences(
        suite=open_suite(arguments.suite),
        encoders=variants,
        out=arguments.work / "ladder",
        corpus=arguments.corpus,
        ladder=True,
        limit=arguments.limit,
        processes=arguments.processes,
    )
    few = [entry for entry in plain.suite.entries if entry.name.startswith(arguments.few)]
    requests = {
        "ladder": plain,
        "few sentences": replace(plain, suite=replace(plain.suite, entries=tuple(few)), sentences=SENTENCES),
        "reducers": replace(
            plain,
            encoders=[RequestedEncoder(DEFAULT_ENCODER)],
            out=arguments.work / "reducers",
            chains=load_chain_methods(["compact"]),
            ladder=False,
            sizes=SIZES,
        ),
    }
    if arguments.stsb:
        whole: Suite = open_suite(arguments.stsb)
        requests["STS Benchmark"] = replace(
            requests["reducers"], suite=whole, out=arguments.work / "stsb", chains=(), sizes=(), limit=None
        )
    if arguments.domain:
        requests["reducers in their domain"] = replace(
            requests["reducers"],
            suite=open_suite(arguments.domain),
            out=arguments.work / "domain",
            corpus=arguments.domain_corpus,
            sizes=SIZES[1:2],
        )
    figures = {}
    for name, request in requests.items():
        results, seconds = timed(request)
        findings, _ = write_evaluation(results)
        print(f"\n# {name}, {seconds / 60:.1f} min\n\n{format_report(results, findings)}")
        figures[name] = {"seconds": seconds} | condensed(results, findings)
        save_pictures(KEPT.get(name, {}), results, findings, arguments.out)
    print("raw figures:", write_report(arguments.out, "evaluation", figures), file=sys.stderr)


def timed(request: FittedRequest) -> tuple[FittedResults, float]:
    """Run an evaluation, and return it with its seconds, those of runs of it that were stopped included."""
    spent = request.out / f"seconds{len(getattr(request, 'sentences', ()))}"
    before = float(spent.read_text()) if spent.exists() else 0.0
    begun = time.monotonic()
    try:
        return evaluate_fitted(request, print_progress), before + time.monotonic() - begun
    finally:
        spent.write_text(str(before + time.monotonic() - begun))


def condensed(results: FittedResults, findings: Findings) -> dict[str, Any]:
    """Return an evaluation as JSON, without what mteb measures beside its main score."""
    estimation = compare_estimated_means(Grid(results))
    scores: dict[str, dict[str, dict[str, float | None]]] = {}
    for score in results.scores:
        value = None if score.score is None else round(score.score, 6)
        scores.setdefault(score.encoder, {}).setdefault(score.method, {})[score.task] = value
    return {
        "limit": results.request.limit,
        "corpus": Path(results.request.corpus).name,
        "read_corpus_sentences": results.corpus_rows,
        "tasks": {task.task: task.type or task.error for task in results.tasks},
        "mean_norms": {result.member.name: result.mean_norm for result in results.encoders},
        "intrinsic": {result.member.name: result.intrinsic for result in results.encoders},
        "sentences": [*summarize(findings), *summarize_estimation(estimation)],
        "findings": asdict(findings) | {"estimation": [asdict(row) for row in estimation]},
        "scores": scores,
    }


def save_pictures(kept: dict[str, str], results: FittedResults, findings: Findings, out: Path) -> None:
    """Write some pictures of a part."""
    out.mkdir(parents=True, exist_ok=True)
    drawn = draw_all(results, findings) | draw_estimation(compare_estimated_means(Grid(results)))
    for title, name in kept.items():
        if title in drawn:
            (out / f"{name}.svg").write_text(drawn[title] + "\n")


if __name__ == "__main__":
    main()
