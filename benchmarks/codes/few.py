"""Measures codes that are fitted on few documents, alone and joined by general vectors of the same encoder.

Run it as `python -m benchmarks.codes.few --vectors SET.ENCODER.npy … --general NAME.ENCODER.npy …`: each file holds
unit vectors of a data set by an encoder. `--queries SET.ENCODER.npy …` with `--data` adds the nDCG@10 of search tasks,
whose documents stand in the files of `--vectors` in the order of their corpus. Codes of 48 bytes are fitted on some
documents of one half and search the other. General vectors join any number of documents here; in a fit they join up to
`MAX_FEW_ROWS`. Differences are paired by query.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.codes.measure import average_paired, compute_ndcg
from benchmarks.codes.methods import Ids, Vectors, rank_best
from benchmarks.report import markdown_table, parser, write_report
from lathe.service.chains.registry import STARTERS
from lathe.training.datasets.folder import FolderDataSet
from lathe.training.fitting.fit import join_general_rows, sample_unit_rows
from lathe.transforms import TransformCoding
from lathe.transforms.artifact import FitDistribution

COUNTS = (20, 50, 100, 200, 350, 500, 1000, 2000, 5000, 20_000)
BUDGET, K, SEEDS = 48, 10, 3
SEARCHING, SEARCHED = 300, 2500
"""Documents of a half that search others of it, and the maximum number of these."""
GENERAL_ROWS = 1000
"""Number of general vectors, spread evenly over their file: a fit takes as many."""
STARTER = "starter chains"
"""Name of the vectors that are sampled from the Gaussian of the starter chains."""

Search = tuple[Vectors, Vectors, Callable[[Ids], NDArray[np.float64]]]
"""Documents, queries, and a function that returns the score of the ids found for each query."""


def search_neighbours(half: Vectors) -> Search:
    """Return a search of documents for others, whose score is the recall of the nearest by the vectors."""
    rows, queries = half[:-SEARCHING][:SEARCHED], half[-SEARCHING:]
    nearest = rank_best(queries @ rows.T, K)
    return rows, queries, lambda ids: (ids[:, :, None] == nearest[:, None]).any(axis=1).mean(axis=1)


def search_task(half: Vectors, places: NDArray[np.int64], path: Path, data: Path) -> Search:
    """Return a search task among the documents at some places of its corpus, whose score is nDCG@10.

    The queries of every split take part that have a relevant document there.
    """
    (folder,) = data.glob(f"*/{path.name.rsplit('.', 2)[0]}")
    contents, chosen = FolderDataSet(folder.name, "retrieval", folder), {int(row): i for i, row in enumerate(places)}
    keys = [str(row["_id"]) for row in contents.read_rows("corpus")]
    documents = {key: chosen[row] for row, key in enumerate(keys) if row in chosen}
    gains: dict[str, dict[int, int]] = {str(row["_id"]): {} for row in contents.read_rows("queries")}
    for split in contents.list_splits():
        for _, query, document, grade in contents.read_judgements(split):
            if grade > 0 and document in documents:
                gains[query][documents[document]] = grade
    judged = [i for i, grades in enumerate(gains.values()) if grades]
    return half, np.load(path)[judged], partial(compute_ndcg, gains=[grades for grades in gains.values() if grades])


def measure_file(
    path: Path, general: dict[str, Vectors], task: Path | None, data: Path, counts: tuple[int, ...]
) -> list[dict[str, Any]]:
    """Return the scores of codes fitted on few documents, and how far codes fitted with general vectors are ahead.

    There is a result for each seed and number of documents.
    """
    vectors = np.load(path).astype(np.float32)
    figures = []
    for seed in range(SEEDS):
        fitted, searched = np.array_split(np.random.default_rng(seed).permutation(len(vectors)), 2)
        searches = {"recall": search_neighbours(vectors[searched])}
        if task is not None:
            searches["ndcg"] = search_task(vectors[searched], searched, task, data)
        for count in (count for count in counts if count <= len(fitted)):
            rows = vectors[fitted[:count]]
            alone = {name: measure(rows, search) for name, search in searches.items()}
            figure: dict[str, Any] = {"seed": seed, "documents": count, "joined": {}}
            figure |= {name: float(scores.mean()) for name, scores in alone.items()}
            for name, others in general.items():
                joined, share = join_general_rows(rows, others)
                ahead = {key: average_paired(measure(joined, searches[key]) - alone[key]) for key in searches}
                figure["joined"][name] = {"share": share, "ahead": ahead}
            figures.append(figure)
    return figures


def measure(rows: Vectors, search: Search) -> NDArray[np.float64]:
    """Fit codes on rows, and return the score × 100 of each query that searches the codes of the documents."""
    documents, queries, score = search
    step = TransformCoding(BUDGET).fit(rows)
    return 100 * score(rank_best(step.score(queries, step.transform(documents)), K))


def summarize(by_file: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Average files and seeds for each encoder, number of documents, general vectors and measure.

    The intervals of files are independent. Those of seeds are averaged, since seeds share documents.
    """
    cells: dict[tuple[str, int, str, str], list[dict[str, Any]]] = {}
    for file, figures in by_file.items():
        for figure in figures:
            for name, joined in figure["joined"].items():
                for key, ahead in joined["ahead"].items():
                    cell = cells.setdefault((file.rsplit(".", 1)[1], figure["documents"], name, key), [])
                    cell.append({"file": file, "alone": figure[key], "share": joined["share"], **ahead})
    summary = []
    for (encoder, documents, name, key), rows in sorted(cells.items()):
        means = {field: float(np.mean([row[field] for row in rows])) for field in ("alone", "share", "mean", "ci95")}
        files = len({row["file"] for row in rows})
        means["ci95"] /= np.sqrt(files)
        summary.append({"encoder": encoder, "documents": documents, "general": name, "measure": key, "files": files})
        summary[-1] |= means
    return summary


def main() -> None:
    """Measure the files, print the table, and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--vectors", type=Path, nargs="+", required=True, help="files SET.ENCODER.npy")
    options.add_argument("--general", type=Path, nargs="+", required=True, help="files NAME.ENCODER.npy")
    options.add_argument("--queries", type=Path, nargs="*", default=[], help="files SET.ENCODER.npy")
    options.add_argument("--data", type=Path, default=Path(), help="folder with finance/ and general/")
    options.add_argument("--starter", help="ENCODER of the starter chains")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    by_file = {}
    for path in sorted(arguments.vectors):
        encoder = path.stem.rsplit(".", 1)[1]
        general = {}
        for file in (file for file in arguments.general if file.stem.rsplit(".", 1)[1] == encoder):
            rows = np.load(file)
            general[file.stem.rsplit(".", 1)[0]] = rows[np.linspace(0, len(rows) - 1, GENERAL_ROWS).astype(int)]
        if encoder == arguments.starter:
            general[STARTER] = sample_unit_rows(FitDistribution.load(STARTERS / "codes48" / "1").gaussian)
        task = next((file for file in arguments.queries if file.name == path.name), None)
        by_file[path.stem] = measure_file(
            path, general, task, arguments.data, COUNTS[:1] if arguments.quick else COUNTS
        )
        print(path.stem, flush=True)
    summary = summarize(by_file)
    lines = [
        [row["encoder"], str(row["documents"]), row["general"], row["measure"], f"{row['alone']:.1f}"]
        + [f"{row['mean']:+.2f} ± {row['ci95']:.2f}", f"{row['share']:.0%}", str(row["files"])]
        for row in summary
    ]
    header = ["encoder", "documents", "joined by", "measure", "alone", "joined − alone", "share", "files"]
    print(markdown_table(header, lines))
    print("raw figures:", write_report(arguments.out, "codes-few", {"summary": summary, "files": by_file}))


if __name__ == "__main__":
    main()
