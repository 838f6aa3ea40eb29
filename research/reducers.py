"""Learned and spectral reductions from one corpus to others: what they keep, what nesting costs, which loss.

Each pair names a source to fit on and one to measure on; where they are the same, on texts that
were kept aside. Every seed splits, samples and fits anew. Differences are paired by text.
"""

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.report import markdown_table, parser, write_report
from benchmarks.starters import print_progress
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.fitting.encoding import EncodedSource, encode_source
from lathe.training.fitting.split import split_heldout
from lathe.training.sources.source import open_source
from lathe.transforms import Chain, parse_steps
from lathe.transforms.quality import local_spearman_per_row
from lathe.transforms.statistics import unit_rows
from lathe.transforms.vectors import FloatArray

OURS, NESTED = "geopres:{k}", "geopres:{k},nested=true"
REDUCERS = (
    OURS,
    NESTED,
    "geopres:{k},steps=0",
    "pca:{k}",
    "pca:{k},center=none",
    "pca:{k},center=directions",
    "random_projection:{k}",
    "random_selection:{k}",
    "truncation:{k}",
    "geopres:{k},preset=paper,steps=200,batch=4096",
    "autoencoder:{k},steps=200,batch=4096",
)
PLAIN = (
    "geopres:{k}",
    "geopres:{k},preset=paper,steps=200,batch=4096",
    "pca:{k}",
    "pca:{k},center=none",
    "random_projection:{k}",
    "random_selection:{k}",
    "truncation:{k}",
    "autoencoder:{k},steps=200,batch=4096",
)
"""Those that are measured in two dimensions."""
LOSSES = (
    "geopres:{k},preset=paper,loss=positional,steps=300,batch=512",
    "geopres:{k},preset=paper,loss=angular,steps=300,batch=512",
    "geopres:{k},preset=paper,loss=spearman,steps=300,batch=512",
    OURS,
)
MEASURES = ("local_spearman", "recall_at_10", "recall_at_10_rescored_4x", "positional_stress")
K = 10
"""Neighbours that are looked for."""
MOST = 3000
"""Texts of a corpus that are measured."""
WANTED = 0.98
"""Recall whose oversampling is asked for."""


def main() -> None:
    """Measure, print tables, write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--pair", action="append", metavar="NAME=FIT>TEST", help="sources to fit and to measure on")
    options.add_argument("--dimensions", type=int, default=128, help="what the reducers reduce to")
    options.add_argument("--sizes", type=int, nargs="*", default=[8, 16, 32, 64, 96], help="smaller ones, for nesting")
    options.add_argument("--loss-sizes", type=int, nargs="*", default=[32, 128], help="to compare the losses at")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--plot", type=Path, help="a folder for a picture of the corpora in two dimensions")
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    pair_options = arguments.pair or ["built-in=pydoc:>pydoc:", "built-in, out_of_domain=pydoc:>pydoc:topics"]
    pairs = {name: tuple(pair.split(">")) for name, _, pair in (item.partition("=") for item in pair_options)}
    seeds, k = range(1 if arguments.quick else arguments.seeds), arguments.dimensions
    with tempfile.TemporaryDirectory() as folder:
        corpora = encoded(sorted({source for pair in pairs.values() for source in pair}), Path(folder))
        trials = Trials(corpora, 500 if arguments.quick else MOST)
        methods = [method.format(k=k) for method in REDUCERS if not (arguments.quick and "steps=200" in method)]
        figures: dict[str, Any] = {"seeds": len(seeds), "dimensions": k}
        figures["pairs"] = {name: trials.run(pair, methods, seeds, OURS.format(k=k)) for name, pair in pairs.items()}
        figures["nesting"] = {name: trials.nesting(pair, arguments.sizes, k, seeds) for name, pair in pairs.items()}
        if not arguments.quick:
            figures["losses"] = {
                f"{name}, {size}": trials.run(
                    pairs[name], [loss.format(k=size) for loss in LOSSES], seeds, OURS.format(k=size)
                )
                for name in [next(iter(pairs))]
                for size in arguments.loss_sizes
            }
        two = OURS.format(k=2)
        figures["two"] = {
            name: trials.run(
                pair, [m.format(k=2) for m in PLAIN if not arguments.quick or "steps=200" not in m], seeds, two
            )
            for name, pair in pairs.items()
        }
        print_all(figures)
        if arguments.plot:
            picture(corpora, arguments.plot / "two-dimensions.png")
    print("raw figures:", write_report(arguments.out, "reducers", figures), file=sys.stderr)


def encoded(sources: Sequence[str], folder: Path) -> dict[str, EncodedSource]:
    """Encode every source with the default encoder.

    Returns:
        The vectors by source.
    """
    encoder = Encoder(DEFAULT_ENCODER)
    return {
        source: encode_source(open_source(source), encoder, folder / str(i), print_progress)
        for i, source in enumerate(sources)
    }


class Trials:
    """Fits methods on sources and measures them, each fit once.

    Args:
        corpora: encoded texts by source.
        most: maximum number of texts to measure on.
    """

    def __init__(self, corpora: dict[str, EncodedSource], most: int) -> None:
        self.corpora = corpora
        self.most = most
        self.fitted: dict[tuple[str, str, int], tuple[Chain, float]] = {}

    def chain(self, source: str, method: str, seed: int) -> tuple[Chain, float]:
        """Fit a method on a source's rows, or take the fit from an earlier call.

        Returns:
            The chain, and the seconds that the fit took.
        """
        key = (source, method, seed)
        if key not in self.fitted:
            print_progress(0, f"fitting {method} on {source}, seed {seed}")
            corpus = self.corpora[source]
            fit_rows, _ = split_heldout(corpus.hashes, seed)
            begun = time.monotonic()
            chain = Chain(parse_steps(seeded(method, seed))).fit(np.array(corpus.vectors[fit_rows]))
            self.fitted[key] = chain, time.monotonic() - begun
        return self.fitted[key]

    def test_rows(self, pair: Sequence[str], seed: int) -> FloatArray:
        """Sample different texts to measure on.

        They are the held-out texts if the pair fits and tests on the same corpus, otherwise any texts of the second
        one.
        """
        corpus, (fit, test) = self.corpora[pair[1]], pair
        rows = split_heldout(corpus.hashes, seed)[1] if fit == test else np.unique(corpus.hashes, return_index=True)[1]
        chosen = np.random.default_rng(seed).permutation(rows)[: self.most]
        return np.array(corpus.vectors[np.sort(chosen)])

    def run(self, pair: Sequence[str], methods: Sequence[str], seeds: range, against: str) -> list[dict[str, Any]]:
        """Measure every method on one pair.

        Returns:
            For each method the means over the seeds, and its differences to `against`, paired by text.
        """
        measures: dict[str, list[dict[str, Any]]] = {}
        for seed in seeds:
            rows = self.test_rows(pair, seed)
            for method in dict.fromkeys([against, *methods]):
                chain, seconds = self.chain(pair[0], method, seed)
                measures.setdefault(method, []).append(measured(rows, chain.transform(rows)) | {"seconds": seconds})
        return [summary(method, measures[method], measures[against]) for method in methods]

    def nesting(self, pair: Sequence[str], sizes: Sequence[int], k: int, seeds: range) -> list[dict[str, Any]]:
        """Measure recall@10 of the nested map at every size.

        It is compared with a map that was fitted for that size alone, and with truncation.
        """
        rows_by_size = []
        for size in [*sizes, k]:
            recalls: list[dict[str, NDArray[np.float64]]] = []
            for seed in seeds:
                rows = self.test_rows(pair, seed)
                nested, _ = self.chain(pair[0], NESTED.format(k=k), seed)
                alone, _ = self.chain(pair[0], OURS.format(k=size), seed)
                outputs = {"nested": nested.transform(rows, dimensions=size), "alone": alone.transform(rows)}
                outputs["truncation"] = rows[:, :size]
                recalls.append({name: neighbour_ranks(rows, after)[0] for name, after in outputs.items()})
            means = {name: float(np.mean([s[name].mean() for s in recalls])) for name in recalls[0]}
            cost = [s["alone"] - s["nested"] for s in recalls]
            rows_by_size.append({"size": size} | means | {"cost": paired(cost)})
        return rows_by_size


def seeded(method: str, seed: int) -> str:
    """Add the seed to a method that takes one."""
    takes = method.startswith(("geopres", "random", "autoencoder"))
    return f"{method},seed={seed}" if takes else method


def measured(before: FloatArray, after: FloatArray) -> dict[str, Any]:
    """Compute every measure of every anchor `(n,)`.

    The result has also `curve`, the mean share of neighbours found, by oversampling.
    """
    after = unit_rows(torch.from_numpy(np.ascontiguousarray(after))).numpy()
    recall, rescored, curve, stress = neighbour_ranks(before, after)
    return {
        "local_spearman": local_spearman_per_row(before, after),
        "recall_at_10": recall,
        "recall_at_10_rescored_4x": rescored,
        "positional_stress": stress,
        "curve": curve,
    }


def neighbour_ranks(
    before: FloatArray, after: FloatArray
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Rank each anchor's true neighbours after a reduction.

    Returns:
        Four arrays: each anchor's recall@10 `(n,)`, its recall@10 with 40 candidates rescored `(n,)`, the mean recall
        by oversampling from 1 up, and each anchor's stress `(n,)`.
    """
    x, y = (unit_rows(torch.from_numpy(np.ascontiguousarray(a))) for a in (before, after))
    places, stress = [], []
    for start in range(0, len(x), 256):
        rows = slice(start, min(start + 256, len(x)))
        own_column = torch.arange(rows.start, rows.stop).unsqueeze(1)
        original, reduced = ((side[rows] @ side.T).scatter_(1, own_column, -2.0) for side in (x, y))
        nearest = original.topk(K, dim=1).indices
        ranks = reduced.argsort(dim=1, descending=True).argsort(dim=1)
        places.append(ranks.gather(1, nearest))
        errors = ((2 - 2 * original).clamp_(min=0).sqrt_() - (2 - 2 * reduced).clamp_(min=0).sqrt_()).square_()
        stress.append(errors.scatter_(1, own_column, 0).sum(1) / (len(x) - 1))
    place = torch.cat(places).numpy()
    curve = np.array([(place < K * oversampling).mean() for oversampling in range(1, len(x) // K)])
    recall, rescored = ((place < K * oversampling).mean(axis=1) for oversampling in (1, 4))
    return recall, rescored, curve, torch.cat(stress).double().numpy()


def summary(method: str, seen: list[dict[str, Any]], against: list[dict[str, Any]]) -> dict[str, Any]:
    """Average a method's measures over the seeds.

    Args:
        method: its steps, for the table.
        seen: the method's measures, seed by seed.
        against: those of the method that it is compared with, whose lead is in `behind`.
    """
    curve = np.mean([s["curve"] for s in seen], axis=0)
    reaches = np.flatnonzero(curve >= WANTED)
    means: dict[str, Any] = {
        "method": method,
        "seconds": float(np.mean([s["seconds"] for s in seen])),
        "oversampling_for_98": int(reaches[0]) + 1 if len(reaches) else None,
    }
    for measure in MEASURES:
        means[measure] = {
            "mean": float(np.mean([s[measure].mean() for s in seen])),
            "by_seed": [float(s[measure].mean()) for s in seen],
            "behind": paired([a[measure] - s[measure] for s, a in zip(seen, against, strict=True)]),
        }
    return means


def paired(differences: Sequence[NDArray[np.float64]]) -> dict[str, float]:
    """Compute the mean difference with half its 95 % interval.

    The interval is that over the texts of one seed, averaged. Seeds share texts, so that more of them do not narrow it.
    """
    widths = [1.96 * d.std(ddof=1) / np.sqrt(len(d)) for d in differences]
    return {"mean": float(np.mean([d.mean() for d in differences])), "ci95": float(np.mean(widths))}


def print_all(figures: dict[str, Any]) -> None:
    """Print every result as a table."""
    print("\r\033[K", end="", file=sys.stderr)
    tables = [*figures["pairs"].items(), *figures.get("losses", {}).items()]
    for name, rows in [*tables, *((f"{name}, two dimensions", rows) for name, rows in figures["two"].items())]:
        print(f"**{name}**\n\n{markdown_table(HEADER, list(cells(rows)))}\n")
    for name, rows in figures["nesting"].items():
        header = ["size", "nested", "fitted for it alone", "nesting costs", "truncation"]
        table = [
            [str(r["size"]), f"{r['nested']:.3f}", f"{r['alone']:.3f}"]
            + [f"{r['cost']['mean']:+.3f} ± {r['cost']['ci95']:.3f}", f"{r['truncation']:.3f}"]
            for r in rows
        ]
        print(f"**{name}, recall@10 by size**\n\n{markdown_table(header, table)}\n")


HEADER = ["steps", "local Spearman", "recall@10", "ours ahead by", "rescored 4×", "oversampling for .98", "stress"]


def cells(rows: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield one line of a table for each method."""
    for row in rows:
        ahead = row["recall_at_10"]["behind"]
        yield [
            f"`{row['method']}`",
            f"{row['local_spearman']['mean']:.3f}",
            f"{row['recall_at_10']['mean']:.3f}",
            f"{ahead['mean']:+.3f} ± {ahead['ci95']:.3f}",
            f"{row['recall_at_10_rescored_4x']['mean']:.3f}",
            str(row["oversampling_for_98"] or "–"),
            f"{row['positional_stress']['mean']:.1e}",
        ]


def picture(corpora: dict[str, EncodedSource], path: Path) -> None:
    """Plot all corpora in two dimensions, by maps that were fitted on all of them."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rng = np.random.default_rng(0)
    samples = {
        source: np.array(c.vectors[np.sort(rng.permutation(c.vectors.shape[0])[:2000])])
        for source, c in corpora.items()
    }
    rows = np.concatenate(list(samples.values()))
    methods = ("geopres:2,loss=positional", "geopres:2", "pca:2", "truncation:2")
    figure, axes = plt.subplots(1, len(methods), figsize=(4 * len(methods), 4), layout="constrained")
    for axis, method in zip(axes, methods, strict=True):
        chain = Chain(parse_steps(method), normalize=False).fit(rows)
        for source, vectors in samples.items():
            points = chain.transform(vectors[:600])
            axis.scatter(points[:, 0], points[:, 1], s=3, alpha=0.5, label=Path(source).parent.name or source)
        axis.set_title(method, fontsize=10)
        axis.set_xticks([])
        axis.set_yticks([])
    axes[0].legend(markerscale=3, fontsize=8, loc="best")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
