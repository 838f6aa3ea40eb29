"""Recounts raw figures as the papers' tables and figures do, without encoding or scoring anything.

    python -m research.evidence.recount --raw research/results --out research/results

The figures are those of `python -m research.evidence`, `python -m research.evaluation` and the comparison of
domains. Runs with other data sets or row limits are counted apart, never together.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.report import markdown_table, parser, write_report
from lathe.training.reporting.text import format_interval
from research.evidence.figures import draw_differences, draw_norms
from research.evidence.tables import build_debiasing_table, compute_noise, merge_runs, select_encoders
from research.paper_findings.statistics import MIN_RESAMPLED_PAIRS, Correlation, correlate

Figures = Mapping[str, Any]
"""Part of the raw figures: findings, and scores by encoder, method and task."""

MODELS = ("evidence", "evidence-language-models")
"""Names of the reports on whole models, which are of one protocol."""
EVERY = "all models and layers"
"""Name of the run that has the whole models and the layers of one protocol."""
METHODS = ("R1", "R2")
MIN_NORM = 0.5
"""‖μ‖ from which the mean-bias paper expects a gain."""


@dataclass(frozen=True)
class Effects:
    """What a method changes on one encoder, in one family of tasks.

    Attributes:
        encoder: name of the encoder.
        norm: ‖μ‖.
        noise: ‖μ‖ that is expected by chance from as many sentences.
        t: paired t by method.
        sigma: σ_cell by method (Eq. 12 of the mean-bias paper).
        share: R2's σ_cell divided by the sum of its absolute values over all encoders.
    """

    encoder: str
    norm: float
    noise: float
    t: Mapping[str, float]
    sigma: Mapping[str, float]
    share: float


@dataclass(frozen=True)
class Variance:
    """Two-way analysis of variance of mean scores, encoders by suites, without repetition.

    The interaction of encoder and suite is the residual.

    Attributes:
        sums: sum of squares by source.
        f: F by factor.
        p: p by factor.
        shares: share of the sum of squares by source.
    """

    sums: Mapping[str, float]
    f: Mapping[str, float]
    p: Mapping[str, float]
    shares: Mapping[str, float]


def main() -> None:
    """Recount all raw figures, print tables, write the recounts and two pictures."""
    options = parser(__doc__)
    options.add_argument("--raw", type=Path, default=Path("research/results"), help="folder of the raw figures")
    arguments = options.parse_args()
    runs = read_runs(arguments.raw)
    found: dict[str, Any] = {"tasks": {name: len(run["tasks"]) for name, run in runs.items()}}
    print(build_debiasing_table(runs["families"]))
    print(f"\n{build_debiasing_table(runs[EVERY])}\n\n{build_norms_table(runs)}")
    for name, figures in runs.items():
        effects = {family: list_effects(figures, family) for family in ("Retrieval", "Classification")}
        found[name] = {
            "effects": {family: [asdict(one) for one in rows] for family, rows in effects.items()},
            "R2 ahead of R1": {family: count_ahead(rows) for family, rows in effects.items()},
            "correlation with the norm": {key: asdict(one) for key, one in correlate_gains(figures).items()},
        }
        print(f"\n**{name}, retrieval**\n\n{build_effects_table(effects['Retrieval'])}\n")
        print(f"{json.dumps(found[name]['R2 ahead of R1'])}\n")
        print(build_correlation_table(correlate_gains(figures)))
    rankings = json.loads((arguments.raw / "domains.json").read_bytes())["rankings"]
    means = next(ranking["means"] for ranking in rankings if ranking["type"] == "all types")
    found["variance of the averages"] = asdict(analyse_averages(np.array(means).T))
    print(f"\n{json.dumps(found['variance of the averages'])}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    drawn = {name: run for name, run in runs.items() if name != EVERY}
    (arguments.out / "evidence-norms.svg").write_text(draw_norms(drawn) + "\n")
    (arguments.out / "evidence-differences.svg").write_text(draw_differences(runs["families"]) + "\n")
    print("raw figures:", write_report(arguments.out, "evidence-recount", found), file=sys.stderr)


def read_runs(folder: Path) -> dict[str, Figures]:
    """Read the runs of debiasing that are counted apart: whole models, layers of each model, and both together.

    The layers of all-MiniLM-L6-v2 were measured on other data sets and rows. A model is the last of its layers.
    """
    reports = [read_figures(folder, name)["debiasing"] for name in MODELS]
    models = merge_runs(reports)
    together = merge_runs([*reports, read_figures(folder, "evidence-layers")["layers"]])
    runs = {"families": models, "layers of all-MiniLM-L6-v2": read_figures(folder, "evaluation")["ladder"]}
    for model in models["mean_norms"]:
        inner = [name for name in together["mean_norms"] if name.startswith(f"{model}:")]
        if len(inner) >= MIN_RESAMPLED_PAIRS:
            runs[f"layers of {model}"] = select_encoders(together, [*inner, model])
    return runs | {EVERY: together}


def read_figures(folder: Path, name: str) -> Figures:
    """Read the figures of a report."""
    figures: Figures = json.loads((folder / f"{name}.json").read_bytes())["figures"]
    return figures


def list_effects(figures: Figures, family: str) -> list[Effects]:
    """List R1's and R2's effects in a family of tasks, encoder by encoder, largest ‖μ‖ first (Tables 4 and 5)."""
    cells = {(cell["encoder"], cell["label"]): cell["families"][family] for cell in figures["findings"]["cells"]}
    sentences = figures.get("read_corpus_sentences") or figures["corpus_sentences"]
    total = sum(abs(cells[encoder, "R2"]["sigma_cell"]) for encoder in figures["mean_norms"])
    rows = []
    for encoder, norm in figures["mean_norms"].items():
        tests = {method: cells[encoder, method] for method in METHODS}
        t = {method: test["t"] or 0.0 for method, test in tests.items()}
        sigma = {method: test["sigma_cell"] for method, test in tests.items()}
        rows.append(Effects(encoder, norm, compute_noise(norm, sentences), t, sigma, sigma["R2"] / total))
    return sorted(rows, key=lambda row: -row.norm)


def count_ahead(rows: Sequence[Effects]) -> dict[str, int]:
    """Count the encoders on which R2's t, and its σ_cell, is above R1's."""
    return {
        "t": sum(bool(row.t["R2"] > row.t["R1"]) for row in rows),
        "sigma": sum(bool(row.sigma["R2"] > row.sigma["R1"]) for row in rows),
        "encoders": len(rows),
    }


def correlate_gains(figures: Figures) -> dict[str, Correlation]:
    """Correlate the gains of R1 and R2 with ‖μ‖ over encoders, over all of them and over those with a large ‖μ‖.

    The gains are t and σ_cell in classification (Figures 1 and 5), t in retrieval, and the mean difference in points
    (Figure 4). Sets of fewer than five encoders are left out.
    """
    cells = {(cell["encoder"], cell["label"]): cell for cell in figures["findings"]["cells"]}
    found = {}
    for least in (0.0, MIN_NORM):
        encoders = [encoder for encoder, norm in figures["mean_norms"].items() if norm >= least]
        if len(encoders) < MIN_RESAMPLED_PAIRS:
            continue
        norms = np.array([figures["mean_norms"][encoder] for encoder in encoders])
        for method in METHODS:
            some = [cells[encoder, method] for encoder in encoders]
            gains = {
                "classification t": [cell["families"]["Classification"]["t"] or 0.0 for cell in some],
                "classification σ": [cell["families"]["Classification"]["sigma_cell"] for cell in some],
                "retrieval t": [cell["families"]["Retrieval"]["t"] or 0.0 for cell in some],
                "points": [cell["difference"]["value"] for cell in some],
            }
            for name, values in gains.items():
                limit = f", ‖μ‖ ≥ {least}" if least else ""
                if (correlation := correlate(norms, np.array(values))) is not None:
                    found[f"{method}, {name}{limit}"] = correlation
    return found


def analyse_averages(means: Any) -> Variance:
    """Analyse the variance of mean scores over all types `(encoders, suites)` (FinMTEB's Table 13, row "Average")."""
    whole = means - means.mean()
    encoder, suite = whole.mean(axis=1, keepdims=True), whole.mean(axis=0, keepdims=True)
    sums = {
        "encoder": float((encoder**2).sum() * means.shape[1]),
        "suite": float((suite**2).sum() * means.shape[0]),
        "residual": float(((whole - encoder - suite) ** 2).sum()),
    }
    degrees = {"encoder": means.shape[0] - 1, "suite": means.shape[1] - 1}
    rest = degrees["encoder"] * degrees["suite"]
    f = {name: sums[name] / degrees[name] / (sums["residual"] / rest) for name in degrees}
    p = {name: float(stats.f.sf(f[name], degrees[name], rest)) for name in degrees}
    return Variance(sums, f, p, {name: value / sum(sums.values()) for name, value in sums.items()})


def build_effects_table(rows: Sequence[Effects]) -> str:
    """Build the mean-bias paper's Tables 4 and 5 in one: t and σ of R1 and R2, and shares of the sum of R2's |σ|."""
    header = ["encoder", "‖μ‖", "by chance", "t, R1", "t, R2", "σ, R1", "σ, R2", "share of R2's σ"]
    cells = [
        [row.encoder, f"{row.norm:.2f}", f"{row.noise:.3f}"]
        + [f"{value:+.2f}" for value in (row.t["R1"], row.t["R2"], row.sigma["R1"], row.sigma["R2"])]
        + [f"{row.share:+.0%}"]
        for row in rows
    ]
    return markdown_table(header, cells)


def build_correlation_table(correlations: Mapping[str, Correlation]) -> str:
    """Build the table of the correlations of gains with ‖μ‖, with 95 % intervals over encoders."""
    rows = [
        [name, str(one.n), format_interval(one.pearson), format_interval(one.spearman)]
        for name, one in correlations.items()
    ]
    return markdown_table(["gain", "encoders", "r", "ρ"], rows)


def build_norms_table(runs: Mapping[str, Figures]) -> str:
    """Build the table of r of R2's gains with ‖μ‖, run by run, with 95 % intervals over encoders."""
    gains = ("points", "classification t", "retrieval t")
    rows = []
    for name, run in runs.items():
        found = correlate_gains(run)
        written = [format_interval(found[f"R2, {gain}"].pearson) for gain in gains if f"R2, {gain}" in found]
        if written:
            rows.append([name, str(len(run["mean_norms"])), *written])
    return markdown_table(["encoders", "number", *(f"r with {gain}" for gain in gains)], rows)


if __name__ == "__main__":
    main()
