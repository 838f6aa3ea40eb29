"""Measure what the probability loses where only the scores of a search are known, as in other stores.

    python -m research.scores.outside --data FOLDER --work FOLDER --out research/results

Half of the queries are the log, on which the model is fitted and imitated. The others are searched. Weights are the
shipped ones, which were not learnt from these data sets.
"""

import sys
from collections import defaultdict

import numpy as np
import torch

from benchmarks.codes.data import EncodedData, make_data_parser
from benchmarks.report import markdown_table, write_report
from lathe.transforms.relevance import RelevanceModel, ScoreModel, measure_auroc
from lathe.transforms.relevance.report import measure_ece
from research.scores.data import SET_ASIDE, encode_search, list_encoders, read_texts
from research.scores.measure import Collection

SIZES = (1500, 500)
"""Maximum numbers of documents and queries."""

HALVINGS = 5

ENCODERS = ("MiniLM", "MiniLM layer 3")


def measure(collection: Collection) -> dict[str, list[float]]:
    """Return AUROC and calibration error of first hits, and AUROC of all others, by score."""
    found: dict[str, list[list[float]]] = defaultdict(list)
    for seed in range(HALVINGS):
        halving = collection.halve(seed)
        order = np.random.default_rng(HALVINGS + seed).permutation(len(halving.right))
        log, searched = order[: len(order) // 2], order[len(order) // 2 :]
        right, others = halving.relevant[searched, 0], halving.relevant[searched, 1:].ravel()
        predicted = {"(1 + cosine)/2": (1 + halving.searches["rows"].scores[searched].astype(np.float64)) / 2}
        for kind in ("queries", "rows"):
            searches = halving.searches[kind]
            fitted = searches.select(log) if kind == "queries" else collection.search_rows()
            model = RelevanceModel(collection.model.background, collection.model.references, kind).fit(fitted)
            imitation = ScoreModel.imitate(model, fitted)
            predicted[f"index, {kind}"] = model.predict_proba(searches.select(searched))
            predicted[f"scores, {kind}"] = imitation.predict_proba(searches.scores[searched])
        for name, probabilities in predicted.items():
            first = probabilities[:, 0]
            figures = [measure_auroc(first, right), measure_ece(first, right)]
            found[name].append([*figures, measure_auroc(probabilities[:, 1:].ravel(), others)])
    return {name: np.nanmean(figures, axis=0).tolist() for name, figures in found.items()}


def main() -> None:
    """Measure, print a table, write the raw figures."""
    arguments = make_data_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    encoders = list_encoders(arguments.encoders or arguments.work)
    names = SET_ASIDE[:1] if arguments.quick else SET_ASIDE
    found = {
        encoder: {
            name: measure(Collection(encode_search(data, read_texts(arguments.data, name, *SIZES)))) for name in names
        }
        for encoder in ENCODERS
        for data in [EncodedData(arguments.data, arguments.work, encoders[encoder])]
    }
    rows = [
        [encoder, score, *(f"{value:.3f}" for value in np.mean([figures[score] for figures in sets.values()], axis=0))]
        for encoder, sets in found.items()
        for score in next(iter(sets.values()))
    ]
    print(markdown_table(["encoder", "score", "AUROC", "ECE", "AUROC of others"], rows))
    print("raw figures:", write_report(arguments.out, "scores-outside", found), file=sys.stderr)


if __name__ == "__main__":
    main()
