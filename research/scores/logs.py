"""Measure how many unjudged queries a log needs, with the shipped weights on data sets that they were not learnt from.

    python -m research.scores.logs --data FOLDER --encoders FOLDER --work FOLDER --out research/results

Half of the queries are the log, whose first ones are the references; the others are searched. The row that a query of
the log finds counts as in a log that is taken as it is, or is left out of the hubs of the rows that answer it.
"""

import sys
from collections import defaultdict

import numpy as np
import torch

from benchmarks.codes.data import EncodedData, make_data_parser
from benchmarks.report import markdown_table, write_report
from lathe.transforms.relevance import RelevanceModel, Searches, measure_auroc
from lathe.transforms.relevance.model import NEAREST, read_weights
from lathe.transforms.relevance.report import measure_ece
from research.scores.data import OTHER_SIZES, SET_ASIDE, encode_search, list_encoders, read_texts
from research.scores.measure import Collection

SIZES = (10, 20, 50, 100)
"""Numbers of references."""

HALVINGS = 3

ENCODERS = ("MiniLM", "e5-small")


def measure_logs(collection: Collection, found: dict[str, list[tuple[float, float]]]) -> None:
    """Append AUROC and calibration error of the first hits to the figures of each number and kind of references."""
    for seed in range(HALVINGS):
        halving = collection.halve(seed)
        searches, right = halving.searches["rows"], halving.right
        order = np.random.default_rng(HALVINGS + seed).permutation(len(right))
        log, searched = order[: len(right) // 2], order[len(right) // 2 :]
        cosines = searches.scores[searched, 0].astype(np.float64)
        found["cosine"].append(
            (measure_auroc(cosines, right[searched]), measure_ece((1 + cosines) / 2, right[searched]))
        )
        for size in SIZES:
            references = log[:size]
            of_rows = collection.cosines[references].T
            for kind, counted in (
                ("as it is", of_rows),
                ("without answers", np.where(collection.search.relevant[references].T, -1, of_rows)),
            ):
                hubs = np.sort(counted, axis=1)[:, -NEAREST:].mean(1)
                model = RelevanceModel(collection.model.background, collection.queries[references], "queries")
                hits = halving.rows[searched]
                tested = Searches(collection.queries[searched], searches.scores[searched], hubs[hits])
                probabilities = model.fit(tested).predict_proba(tested)[:, 0]
                figures = measure_auroc(probabilities, right[searched]), measure_ece(probabilities, right[searched])
                found[f"{size} queries, {kind}"].append(figures)


def main() -> None:
    """Measure, print a table, write the raw figures."""
    arguments = make_data_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    encoders = list_encoders(arguments.encoders)
    for encoder in (encoders[name] for name in ENCODERS):
        data = EncodedData(arguments.data, arguments.work, encoder)
        for name in SET_ASIDE[:1] if arguments.quick else SET_ASIDE:
            measure_logs(Collection(encode_search(data, read_texts(arguments.data, name, *OTHER_SIZES))), found)
    means = {log: np.mean(figures, axis=0).tolist() for log, figures in found.items()}
    print(markdown_table(["log", "AUROC", "ECE"], [[log, f"{a:.3f}", f"{e:.3f}"] for log, (a, e) in means.items()]))
    figures = {"weights": read_weights("queries")[0].tolist(), "means": means, "each": found}
    print("raw figures:", write_report(arguments.out, "scores-logs", figures), file=sys.stderr)


if __name__ == "__main__":
    main()
