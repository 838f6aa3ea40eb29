"""Variations of Lathe's codes that were tried: what each finds of the neighbours, against the codes as they are.

    python -m research.codes.trials --data FOLDER --encoders FOLDER --work FOLDER --out research/results

Every variation keeps the bytes, the allocation and the norms of the codes; differences are paired by query.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from benchmarks.codes.data import CORPORA, EncodedData, list_encoders, make_data_parser
from benchmarks.codes.measure import QUERIES, K, average_paired
from benchmarks.codes.methods import Vectors
from benchmarks.report import markdown_table, write_report
from benchmarks.starters import print_progress
from lathe.transforms import Chain, TransformCoding, parse_steps
from lathe.transforms.codes import CodeDecoder
from lathe.transforms.codes.lloyd_max import build_normal_quantizer
from lathe.transforms.statistics import compute_query_metric_roots, moments_of

BUDGETS = (24, 48, 96)
CLUSTERING_STEPS = 10
"""Iterations of k-means for the codebook of a byte."""
SCALES = (0.9, 1.0, 1.1, 1.2, 1.35)
"""Factors of a vector's coordinates that are tried before they are quantized."""
STEPS, BATCH, ROWS = 600, 128, 2048
"""Steps of the learned map, and the queries and rows whose scores are compared in one."""
TEMPERATURE, LEARNING_RATE = 0.05, 1e-3
"""Temperature of the neighbours' distribution, and size of the first steps of Adam."""
VALIDATION_ROWS, VALIDATION_STEPS = 2000, 100
"""Training rows that choose among the states of the learned map, and steps between two looks at them."""

Scores = Callable[[Vectors, Vectors], NDArray[np.floating]]


def main() -> None:
    """Measure, print a table for each encoder, write the raw figures."""
    options = make_data_parser(__doc__)
    options.add_argument("--corpus", default=next(iter(CORPORA)), choices=list(CORPORA))
    arguments = options.parse_args()
    figures: dict[str, Any] = {"corpus": arguments.corpus, "encoders": {}}
    for encoder in list_encoders(arguments.encoders, arguments.encoder):
        vectors = EncodedData(arguments.data, arguments.work, encoder).corpus(arguments.corpus)
        rows = list(measure_variations(vectors, (48,) if arguments.quick else BUDGETS))
        figures["encoders"][encoder.name] = rows
        print(f"\n**{encoder.name}**\n")
        cells = [
            [
                str(r["budget"]),
                r["variation"],
                f"{r['recall_at_10']:.3f}",
                f"{r['gain']['mean']:+.4f} ± {r['gain']['ci95']:.4f}",
            ]
            for r in rows
        ]
        print(markdown_table(["bytes", "variation", "recall@10", "gain"], cells))
    print("raw figures:", write_report(arguments.out, "codes-trials", figures), file=sys.stderr)


def measure_variations(vectors: Vectors, budgets: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Yield the recall of every variation at every budget, and its gain over the codes as they are."""
    order = np.random.default_rng(0).permutation(len(vectors))
    corpus, train = vectors[order[: len(vectors) // 3]], vectors[order[len(vectors) // 3 :]]
    asked = corpus[:QUERIES]
    wanted = _neighbours(asked @ corpus.T)
    for budget in budgets:
        step = TransformCoding(budget, weighting=0.5).fit(train)
        base = None
        for name, scores in variations(step, train, budget).items():
            print_progress(0, f"{budget} bytes: {name}")
            found = _neighbours(scores(asked, corpus))
            recall = np.array([np.isin(w, f).mean() for w, f in zip(wanted, found, strict=True)])
            base = recall if base is None else base
            yield {
                "budget": budget,
                "variation": name,
                "recall_at_10": float(recall.mean()),
                "gain": average_paired(recall - base),
            }
        bits = entropy(step, corpus)
        print_progress(0, "")
        yield {
            "budget": budget,
            "variation": f"entropy coding: {bits / 8:.1f} bytes on average",
            "recall_at_10": float("nan") if base is None else float(base.mean()),
            "gain": {"mean": 0.0, "ci95": 0.0},
        }


def variations(step: TransformCoding, train: Vectors, budget: int) -> dict[str, Scores]:
    """Return the scoring functions of queries and corpus by the name of the variation, the codes as they are first."""
    debiased = Chain(parse_steps(f"r2,codes:{budget},weighting=0.5")).fit(train)
    return {
        "codes": lambda q, x: step.score(q, step.transform(x)),
        "debiased first (r2)": lambda q, x: debiased.transform_queries(q) @ debiased.floats(x).T,
        "queries coded too": lambda q, x: step.score_codes(step.transform(q), step.transform(x)),
        "best of five scales": lambda q, x: _score_values(step, q, scaled_values(step, x)),
        "codebook of each byte by k-means": clustered_bytes(step, train),
        "map learned through the quantizer": learned_map(step, train),
    }


def _neighbours(scores: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return the `K` best columns of each row of scores `(a, n)` but column i of row i, which is the query itself."""
    scores = np.array(scores, np.float32)
    scores[np.arange(len(scores)), np.arange(len(scores))] = -np.inf
    return np.argpartition(-scores, K, axis=1)[:, :K]


def _decoder_of(step: TransformCoding) -> CodeDecoder:
    """Return the decoder of a fitted step."""
    return CodeDecoder(step.mean, step.decoder, step.layout, step.norm, step.bytes)


def _score_values(step: TransformCoding, queries: Vectors, values: Tensor) -> NDArray[np.float32]:
    """Return the scores `(a, n)` of queries with coded coordinates `(m, n)`, norms restored."""
    encoded = torch.from_numpy(step.encode_queries(queries))
    return ((encoded[:, :-1] @ values) * _decoder_of(step).compute_norm_factors(values) + encoded[:, -1:]).numpy()


def _quantize(step: TransformCoding, y: Tensor) -> Tensor:
    """Return coordinates `(m, n)` at the nearest level of their quantizers."""
    rows = []
    for bits, row in zip(step.layout[0].tolist(), y, strict=True):
        quantizer = build_normal_quantizer(bits)
        cells = torch.bucketize(row, torch.from_numpy(quantizer.thresholds).to(row))
        rows.append(torch.from_numpy(quantizer.levels).to(row)[cells])
    return torch.stack(rows)


def scaled_values(step: TransformCoding, rows: Vectors) -> Tensor:
    """Quantize coordinates of rows `(n, d)` at several scales.

    Returns:
        Those that point most nearly as the row does.
    """
    x = torch.from_numpy(rows)
    y = step.coordinates(x)
    decoder = _decoder_of(step)
    best, error = torch.zeros_like(y), torch.full((len(x),), torch.inf)
    for scale in SCALES:
        values = _quantize(step, y * scale)
        decoded = (values * decoder.compute_norm_factors(values)).T @ step.decoder + step.mean
        own = (decoded - x).square().sum(1)
        best = torch.where(own < error, values, best)
        error = torch.minimum(error, own)
    return best


def clustered_bytes(step: TransformCoding, train: Vectors) -> Scores:
    """Replace the grid of every byte by 256 centroids of k-means that begins with the grid.

    Returns:
        Its scores.
    """
    moments = moments_of(train)
    _, inverse_root = compute_query_metric_roots(moments, step.weighting)
    deviations = 1 / np.linalg.norm(step.encoder.numpy() @ inverse_root, axis=1)
    weights = torch.from_numpy(deviations).float().unsqueeze(1)
    y = step.coordinates(torch.from_numpy(train)) * weights
    if bool((step.layout[0] + step.layout[2] > 8).any()):
        raise ValueError("coordinates cross bytes: no codebook of a byte")
    groups = [torch.nonzero(step.layout[1] == octet).squeeze(1) for octet in range(step.bytes)]
    levels = _decoder_of(step).build_level_table() * weights
    books = [_cluster(y[group].T, levels[group].T) for group in groups]

    def score(queries: Vectors, rows: Vectors) -> NDArray[np.float32]:
        own = step.coordinates(torch.from_numpy(rows)) * weights
        values = torch.empty_like(own)
        for group, book in zip(groups, books, strict=True):
            values[group] = book[torch.cdist(own[group].T, book).argmin(1)].T
        return _score_values(step, queries, values / weights)

    return score


def _cluster(points: Tensor, centroids: Tensor) -> Tensor:
    """Return the centroids `(256, k)` after some iterations of k-means on points `(n, k)`.

    Empty ones stay.
    """
    for _ in range(CLUSTERING_STEPS):
        nearest = torch.cdist(points, centroids).argmin(1)
        counts = torch.bincount(nearest, minlength=len(centroids)).unsqueeze(1)
        sums = torch.zeros_like(centroids).index_add_(0, nearest, points)
        centroids = torch.where(counts > 0, sums / counts.clamp(min=1), centroids)
    return centroids


def learned_map(step: TransformCoding, train: Vectors) -> Scores:
    """Train encoder and decoder by gradients straight through the quantizer, from the spectral ones.

    The loss is the KL divergence of the scores' distribution over rows from that of the full vectors. The state with
    the least loss on held-out training rows is taken, which may be the first.
    """
    random = torch.Generator().manual_seed(0)
    rows = torch.from_numpy(train)
    held, rows = rows[:VALIDATION_ROWS], rows[VALIDATION_ROWS:]
    learned = TransformCoding(step.bytes, weighting=step.weighting).fit(train)
    parameters = [torch.nn.Parameter(learned.encoder.clone()), torch.nn.Parameter(learned.decoder.clone())]
    # Rows of the encoder are small where deviations are large: steps relative to the rows' norms suit all.
    rates = [p.detach().norm(dim=1).mean().item() / p.shape[1] ** 0.5 for p in parameters]
    optimizer = torch.optim.Adam(
        [{"params": [p], "lr": LEARNING_RATE * rate} for p, rate in zip(parameters, rates, strict=True)]
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    encoder, decoder = parameters
    least, best = np.inf, (learned.encoder, learned.decoder)
    for number in range(STEPS + 1):
        if number % VALIDATION_STEPS == 0:
            with torch.no_grad():
                loss = float(_divergence(step, encoder, decoder, held[:500], held[500:]))
            if loss < least:
                least, best = loss, (encoder.detach().clone(), decoder.detach().clone())
        asked = rows[torch.randint(len(rows), (BATCH,), generator=random)]
        others = rows[torch.randint(len(rows), (ROWS,), generator=random)]
        optimizer.zero_grad()
        torch.autograd.backward(_divergence(step, encoder, decoder, asked, others))
        optimizer.step()
        schedule.step()
    learned.encoder, learned.decoder = best
    return lambda q, x: learned.score(q, learned.transform(x))


def _divergence(step: TransformCoding, encoder: Tensor, decoder: Tensor, asked: Tensor, rows: Tensor) -> Tensor:
    """Return the mean KL divergence of the distribution over rows by codes from that by full vectors."""
    y = encoder @ (rows - step.mean).T
    values = y + (_quantize(step, y.detach()) - y).detach()
    decoded = CodeDecoder(step.mean, decoder, step.layout, step.norm, step.bytes)
    residuals = values.T @ decoder
    factors = decoded.solve_norm_factors(residuals.square().sum(1), residuals @ step.mean)
    scores = asked @ (residuals * factors.unsqueeze(1) + step.mean).T
    true = asked @ rows.T
    return functional.kl_div(
        (scores / TEMPERATURE).log_softmax(1),
        (true / TEMPERATURE).log_softmax(1),
        log_target=True,
        reduction="batchmean",
    )


def entropy(step: TransformCoding, rows: Vectors) -> float:
    """Return the sum of the entropies of all coordinates' cells, in bits: what ideal entropy coding would take."""
    y = step.coordinates(torch.from_numpy(rows))
    total = 0.0
    for bits, row in zip(step.layout[0].tolist(), y, strict=True):
        cells = torch.bucketize(row, torch.from_numpy(build_normal_quantizer(bits).thresholds).to(row))
        shares = torch.bincount(cells, minlength=2**bits).double() / len(row)
        total -= float(torch.special.xlogy(shares, shares).sum()) / float(np.log(2))
    return total


if __name__ == "__main__":
    main()
