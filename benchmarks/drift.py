"""Drift figures for traffic of the same kind, of other domains and other languages, and the cost of observing.

The threshold is chosen on some data sets and shown on others. `--data` is a folder of data sets (`finance/fiqa_qa`, …),
each a folder of JSON lines; without it only the cost is measured, on built-in texts.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.drift_cost import measure_cost
from benchmarks.report import markdown_table, parser, write_report
from lathe.service.chains.registry import STARTERS
from lathe.service.monitoring.drift import Tally
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.sources.source import open_source
from lathe.transforms import Chain, parse_steps, recall_at_k
from lathe.transforms.artifact import FitDistribution
from lathe.transforms.chain import retained_subspace
from lathe.transforms.statistics import Subspace
from lathe.transforms.vectors import FloatArray

GENERAL = ("general/clinc_wiki_sentences", "general/wikisplit_sentences", "general/wikitext2_sentences")
FINANCE = ("finance/earnings_call_sentences",)
CHOOSING = (
    *("general/ag_news", "general/dbpedia_mini", "general/msmarco_mini", "general/quora_pairs", "general/sst2"),
    *("general/sts13", "code/mbpp", "code/stackoverflow_titles", "finance/banking77"),
    *("multilingual/tatoeba_de_en", "multilingual/tatoeba_ja_en", "multilingual/tatoeba_ru_en"),
)
"""Data sets that the threshold is chosen on."""

SHOWN = {
    "other domain": ("finance/earnings_call_sentences", "finance/financial_phrasebank", "finance/fiqa_qa"),
    "general": ("general/stsb",),
    "other language": tuple(f"multilingual/stsb_{language}" for language in ("de", "es", "fr", "ja", "zh")),
}
FIELDS = ("text", "sentence1", "anchor", "query")
FILES = ("corpus", "sentences", "test", "pairs", "train")
ROWS, TESTED = 1000, 400
MAX_CHARACTERS = 1000
MIN_GAIN = 0.02
"""Recall@10 that a refit must add to be worthwhile; of 400 rows chance makes half as much."""


@dataclass(frozen=True)
class Subject:
    """A chain with the rows it was fitted on, and held-out and unseen rows of the same source."""

    name: str
    chain: Chain
    fitted: FloatArray
    heldout: FloatArray
    unseen: FloatArray

    @property
    def reference(self) -> FitDistribution:
        """Fit distribution of the chain's rows."""
        return FitDistribution.measure(self.fitted, self.heldout, retained_subspace(self.chain))


def main() -> None:
    """Measure, print the tables, and write the raw figures."""
    arguments = read_options()
    figures: dict[str, Any] = {}
    if arguments.data:
        vectors = EncodedSets(
            arguments.data, arguments.vectors or Path(tempfile.mkdtemp()), 300 if arguments.quick else 1500
        )
        figures = measure_domains(vectors, 2 if arguments.quick else arguments.seeds)
        print_figures(figures)
    if not arguments.no_cost:
        figures["cost"] = measure_cost(8 if arguments.quick else arguments.blocks)
        print(format_cost_table(figures["cost"]))
    print("raw figures:", write_report(arguments.out, "drift", figures), file=sys.stderr)


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, help="the folder of data sets")
    options.add_argument("--vectors", type=Path, help="where encoded sets are kept for the next run")
    options.add_argument("--seeds", type=int, default=10, help="draws of rows")
    options.add_argument("--blocks", type=int, default=120, help="of requests with, and without, of each kind")
    options.add_argument("--no-cost", action="store_true", help="leave the cost out")
    return options.parse_args()


class EncodedSets:
    """Data sets, each encoded once and stored in a folder."""

    def __init__(self, data: Path, folder: Path, most: int) -> None:
        self.data, self.folder, self.most = data, folder, most
        self.encoder: Encoder | None = None

    def of(self, names: Sequence[str], most: int | None = None) -> FloatArray:
        """Return the vectors of some data sets, one after another.

        At most `most` texts are taken of each, spread over it.
        """
        return np.concatenate([self.of_one(name, most or self.most) for name in names])

    def of_one(self, name: str, most: int) -> FloatArray:
        """Return the vectors of one data set, loading or encoding them."""
        path = self.folder / f"{name.replace('/', '-')}-{most}.npy"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            print(f"encoding {name}", file=sys.stderr)
            self.encoder = self.encoder or Encoder(replace(DEFAULT_ENCODER, dtype="float32"))
            texts = list(dict.fromkeys(self.texts(name)))
            chosen = np.linspace(0, len(texts) - 1, min(most, len(texts))).astype(int)
            np.save(path, self.encoder.encode([texts[i][:MAX_CHARACTERS] for i in chosen]).vectors)
        return np.asarray(np.load(path))

    def texts(self, name: str) -> Iterator[str]:
        """Yield the texts of a data set from the first of `FILES` and of `FIELDS` that it has."""
        folder = self.data / name
        file = next(p for stem in FILES for p in (folder / f"{stem}.jsonl", folder / f"{stem}.jsonl.gz") if p.exists())
        for field in FIELDS:
            try:
                batches = [batch.values for batch in open_source(f"{file}#{field}").batches()]
            except Exception:  # a field these rows do not have
                continue
            yield from (str(text) for values in batches for text in values if str(text).strip())
            return


def measure_domains(vectors: EncodedSets, seeds: int) -> dict[str, Any]:
    """Measure the figures of every chain for every data set, and what a refit would gain."""
    subjects = [*build_general_subjects(vectors), build_finance_subject(vectors)]
    chosen = [row for subject in subjects[1:] for row in measure_refits(subject, vectors)]
    shown = []
    for subject in subjects:
        reference, subspace = subject.reference, retained_subspace(subject.chain)
        sets = {("same", "held out"): subject.unseen}
        for kind, names in SHOWN.items():
            sets |= {(kind, n): vectors.of([n]) for n in names if not (subject.name == "finance" and n in FINANCE)}
        for (kind, name), rows in sets.items():
            shown.append(
                {"chain": subject.name, "kind": kind, "set": name} | measure_samples(reference, subspace, rows, seeds)
            )
    threshold = choose_threshold([row for row in chosen if row["chain"] == "compact"])
    return {"rows": ROWS, "seeds": seeds, "choosing": chosen, "worth": MIN_GAIN, "threshold": threshold, "shown": shown}


def choose_threshold(chosen: list[dict[str, Any]]) -> float | None:
    """Return the value half way between the farthest set before any refit is worthwhile and the nearest where one is.

    The result is None if a refit on the nearest set is worthwhile, or on none.
    """
    by_distance = sorted(chosen, key=lambda row: row["out_of_domain"])
    first = next((at for at, row in enumerate(by_distance) if row["gain"] > MIN_GAIN), 0)
    near, far = by_distance[first - 1], by_distance[first]
    return round((near["out_of_domain"] + far["out_of_domain"]) / 2, 2) if first else None


def build_general_subjects(vectors: EncodedSets) -> list[Subject]:
    """Load the shipped chains, with the sentences they were fitted on.

    Some of these are held out, as traffic of the same kind.
    """
    rows = shuffle_rows(vectors.of(GENERAL, 12_000))
    third = len(rows) // 6
    parts = rows[2 * third :], rows[:third], rows[third : 2 * third]
    return [Subject(name, Chain.load(STARTERS / name / "1"), *parts) for name in ("debias", "compact")]


def build_finance_subject(vectors: EncodedSets) -> Subject:
    """Fit a chain on earnings calls."""
    rows = shuffle_rows(vectors.of(FINANCE, 6000))
    third = len(rows) // 6
    fitted = rows[2 * third :]
    chain = Chain(parse_steps(f"r2,pca:{min(128, len(fitted) // 4)}")).fit(fitted)
    return Subject("finance", chain, fitted, rows[:third], rows[third : 2 * third])


def shuffle_rows(rows: FloatArray) -> FloatArray:
    """Shuffle rows, in the same order each time."""
    return rows[np.random.default_rng(0).permutation(len(rows))]


def measure_samples(
    reference: FitDistribution, subspace: Subspace | None, rows: FloatArray, seeds: int
) -> dict[str, Any]:
    """Measure the figures of single-row requests in a sample for each seed.

    Returns:
        The mean of each figure, and half its 95 % interval.
    """
    samples = []
    for seed in range(seeds):
        chosen = np.random.default_rng(seed).integers(0, len(rows), ROWS)
        samples.append(
            flatten_figures(Tally.from_requests(reference, subspace, list(rows[chosen][:, None])).to_json(reference))
        )
    return {
        name: {"mean": float(np.mean(values)), "ci95": float(1.96 * np.std(values, ddof=1))}
        for name in samples[0]
        if None not in (values := [figures[name] for figures in samples])
    }


def flatten_figures(figures: dict[str, Any]) -> dict[str, Any]:
    """Return the figures that are numbers, each under one name."""
    names = ("out_of_domain", "noise", "mean_cosine", "odd_norms")
    return {name: figures[name] for name in names} | {
        f"{name}_{side}": figures[name][side] for name in ("mean_norm", "outside") for side in ("live", "fitted")
    }


def measure_refits(subject: Subject, vectors: EncodedSets) -> list[dict[str, Any]]:
    """Measure how many neighbours a refit adds on each data set that the threshold is chosen on.

    The figures have the set's mean percentile too.
    """
    reference = subject.reference
    old = Chain(parse_steps("r2,pca:128")).fit(subject.fitted)
    rows_of_table = []
    for name in ("held out", *CHOOSING):
        rows = shuffle_rows(subject.unseen if name == "held out" else vectors.of([name]))
        fitted, tested = rows[:-TESTED][:ROWS], rows[-TESTED:]
        new = Chain(parse_steps("r2,pca:128")).fit(fitted)
        recalls = [recall_at_k(tested, chain.transform(tested), 10) for chain in (old, new)]
        ranks = Tally.from_requests(reference, None, list(rows[:, None])).out_of_domain
        rows_of_table.append(
            {"chain": subject.name, "set": name, "out_of_domain": ranks}
            | {"recall_at_10": recalls[0], "recall_at_10_refit": recalls[1], "gain": recalls[1] - recalls[0]}
        )
    return rows_of_table


def print_figures(figures: dict[str, Any]) -> None:
    """Print the figures as tables."""
    rows = [
        [r["chain"], r["set"], f"{r['out_of_domain']:.2f}", f"{r['recall_at_10']:.3f}", f"{r['gain']:+.3f}"]
        for r in sorted(figures["choosing"], key=lambda r: (r["chain"], r["out_of_domain"]))
    ]
    print(markdown_table(["chain", "set", "out of domain", "recall@10", "a refit gains"], rows), "\n")
    print(f"threshold: {figures['threshold']}\n")
    print(
        markdown_table(["chain", "traffic", "out of domain", "cos μ", "‖μ‖", "outside"], build_traffic_rows(figures)),
        "\n",
    )


def build_traffic_rows(figures: dict[str, Any]) -> list[list[str]]:
    """Build the rows of the table of traffic."""
    lines = []
    for row in figures["shown"]:
        intervals = {
            name: f"{row[name]['mean']:.2f} ± {row[name]['ci95']:.2f}" for name in ("out_of_domain", "mean_cosine")
        }
        sides = {
            name: f"{row[f'{name}_fitted']['mean']:.2f} → {row[f'{name}_live']['mean']:.2f}"
            for name in ("mean_norm", "outside")
        }
        labels = [row["chain"], f"{row['kind']}: {row['set'].rpartition('/')[2]}"]
        lines.append(
            [*labels, intervals["out_of_domain"], intervals["mean_cosine"], sides["mean_norm"], sides["outside"]]
        )
    return lines


def format_cost_table(cost: list[dict[str, Any]]) -> str:
    """Format the cost of observing for a request as a table."""
    lines = [
        [str(c["texts"]), c["cache"], f"{c['off_ms']:.3f}", f"{c['on_ms']:.3f}"]
        + [f"{100 * c['overhead']:+.1f} % ({100 * c['low']:+.1f} to {100 * c['high']:+.1f})"]
        for c in cost
    ]
    return markdown_table(["texts", "cache", "off, ms", "on, ms", "overhead"], lines)


if __name__ == "__main__":
    main()
