"""Checks what `lathe evaluate` says of one search data set: is B better than A, and with which interval?

Every comparison in evaluation.json is computed again without mteb and without Lathe's statistics: the search and
nDCG@10 with NumPy, the interval with scipy, by a paired t-test and by a paired bootstrap of the queries. The vectors
are those that the evaluation stored; some texts are encoded again with sentence-transformers to check these.

python -m benchmarks.verdicts --evaluated build/compared --data data/nl2bash --model adapted=build/adapted/model
"""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.report import markdown_table, parser, write_report
from lathe.service.cli.evaluate import load_chain_methods
from lathe.service.cli.options import load_encoder, load_state
from lathe.transforms.chain import build_leading_query_maps

Vectors = NDArray[np.float32]
CANDIDATES = 40
RESAMPLES = 10_000
SAMPLE = 64
"""Number of texts that are encoded again."""


class Search:
    """Data set of a folder: documents, test queries, and gains of documents by query."""

    def __init__(self, folder: Path) -> None:
        self.documents = {row["_id"]: row for row in _read_lines(folder, "corpus")}
        texts = {row["_id"]: row["text"] for row in _read_lines(folder, "queries")}
        self.gains: dict[str, dict[str, float]] = {}
        for line in (folder / "qrels" / "test.tsv").read_text().splitlines()[1:]:
            query, document, gain = line.split("\t")
            self.gains.setdefault(query, {})[document] = float(gain)
        self.queries = {key: texts[key] for key in sorted(self.gains)}

    @property
    def passages(self) -> list[str]:
        """Texts of the documents, with their titles as mteb joins them."""
        return [f"{row.get('title') or ''} {row['text']}".strip() for row in self.documents.values()]

    def measure(self, ranked: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return nDCG@10 of each query from the positions of its best ten documents, `(queries, 10)`."""
        discounts, keys = 1 / np.log2(np.arange(2, 12)), list(self.documents)
        scores = []
        for judged, row in zip((self.gains[query] for query in self.queries), ranked, strict=True):
            gained = np.array([judged.get(keys[position], 0.0) for position in row])
            best = np.sort(list(judged.values()))[::-1][:10]
            scores.append(float(gained @ discounts) / float(best @ discounts[: len(best)]))
        return np.array(scores)


def main() -> None:
    """Compute every comparison again, print the table and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--evaluated", type=Path, required=True, help="folder that `lathe evaluate --out` named")
    options.add_argument("--data", type=Path, required=True, help="the data set: corpus, queries and qrels/test.tsv")
    options.add_argument("--model", action="append", default=[], help="NAME=FOLDER of an encoder")
    arguments = options.parse_args()
    evaluation = json.loads((arguments.evaluated / "evaluation.json").read_text())
    search = Search(arguments.data)
    settings, _ = load_state()
    models = dict(_split(arguments.model))

    @cache
    def score(encoder: str, label: str) -> NDArray[np.float64]:
        opened = load_encoder(settings, models.get(encoder, encoder))
        queries = opened.encode(list(search.queries.values())).vectors
        documents = opened.encode(search.passages).vectors
        return search.measure(rank(queries, documents, label))

    rows, figures = [], []
    for comparison in evaluation["comparisons"]:
        (verdict,) = comparison["verdicts"]
        systems = comparison["baseline"], comparison["compared"]
        before, after = (score(system["encoder"], system["label"]) for system in systems)
        figures.append(check_comparison(comparison, verdict, before, after))
        rows.append(format_row(comparison, figures[-1]))
    print(markdown_table(["compared with the baseline", "Lathe", "paired t, scipy", "bootstrap, scipy"], rows))
    encoded = {name: encode_again(settings, search, model) for name, model in models.items()}
    print("smallest cosine of Lathe's vectors with those of sentence-transformers:", encoded)
    whole = {"decision": evaluation["decision"], "checks": figures, "cosines": encoded, "limit": evaluation["limit"]}
    print("raw figures:", write_report(arguments.out, "verdicts", whole), file=sys.stderr)


def rank(queries: Vectors, documents: Vectors, label: str) -> NDArray[np.int64]:
    """Return the positions of the ten nearest documents of each query, `(queries, 10)`, after a chain.

    A label "NAME rescored" ranks the chain's forty nearest documents again by the vectors before it.
    """
    if label == "control":
        return _nearest(queries @ documents.T, 10)
    name, _, rescored = label.partition(" ")
    (method,) = load_chain_methods([name])
    chain = method.chain
    assert chain is not None
    cosines = np.asarray(chain.transform_queries(queries)) @ _unit(np.asarray(chain.floats(documents))).T
    if not rescored:
        return _nearest(cosines, 10)
    leading = build_leading_query_maps(chain)
    originals = queries if leading is None else np.asarray(leading.transform_queries(queries))
    candidates = _nearest(cosines, CANDIDATES)
    exact = np.einsum("qd,qcd->qc", originals, documents[candidates])
    return np.take_along_axis(candidates, _nearest(exact, 10), axis=1)


def check_comparison(
    comparison: dict[str, Any], verdict: dict[str, Any], before: NDArray[np.float64], after: NDArray[np.float64]
) -> dict[str, Any]:
    """Compare the difference and intervals of Lathe with those of scipy, in points."""
    differences = 100 * (after - before)
    test = stats.ttest_rel(after, before).confidence_interval(0.95) if np.ptp(differences) > 0 else None
    resampled = stats.bootstrap(
        (differences,), np.mean, n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    return {
        "baseline": comparison["baseline"],
        "compared": comparison["compared"],
        "sentence": comparison["sentence"],
        "queries": len(differences),
        "lathe": verdict["difference"] | {"scores": verdict["scores"], "units": verdict["units"]},
        "numpy": {
            "value": float(differences.mean()),
            "scores": [100 * float(scores.mean()) for scores in (before, after)],
        },
        "paired t": None if test is None else [100 * float(test.low), 100 * float(test.high)],
        "bootstrap": [float(resampled.low), float(resampled.high)],
    }


def format_row(comparison: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Format a comparison as cells of a table."""
    lathe, test = found["lathe"], found["paired t"]
    names = [f"{one['encoder']}, {one['label']}" for one in (comparison["compared"], comparison["baseline"])]
    value = f"{found['numpy']['value']:+.2f}"
    shown = [f"{value} [{low:+.2f}, {high:+.2f}]" for low, high in (test or (0, 0), found["bootstrap"])]
    interval = f"{lathe['value']:+.2f} [{lathe['low'] or 0:+.2f}, {lathe['high'] or 0:+.2f}]"
    return [" – ".join(names), interval, *shown]


def encode_again(settings: Any, search: Search, model: str) -> float:
    """Return the smallest cosine between Lathe's vectors and those of sentence-transformers, over some queries."""
    from sentence_transformers import SentenceTransformer

    texts = list(search.queries.values())[:SAMPLE]
    ours = load_encoder(settings, model).encode(texts).vectors
    encoded = SentenceTransformer(model, device="cpu").encode(texts, normalize_embeddings=True)
    return float((ours * encoded).sum(axis=1).min())


def _nearest(scores: Vectors, count: int) -> NDArray[np.int64]:
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


def _unit(rows: Vectors) -> Vectors:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def _split(models: list[str]) -> list[tuple[str, str]]:
    return [model.partition("=")[::2] for model in models]


def _read_lines(folder: Path, name: str) -> list[dict[str, Any]]:
    import gzip

    path = folder / f"{name}.jsonl"
    data = path.read_bytes() if path.exists() else gzip.decompress((folder / f"{name}.jsonl.gz").read_bytes())
    return [json.loads(line) for line in data.splitlines()]


if __name__ == "__main__":
    main()
