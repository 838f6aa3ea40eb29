"""Learn the weights that ship, and measure probabilities on data sets and encoders that they were not learnt from.

    python -m research.scores --data FOLDER --encoders FOLDER --work FOLDER --out research/results [--ship]

Half of the queries, chosen at random, lose all their relevant documents; ten such halvings of each collection (a data
set under an encoder) are measured. Vectors are stored in the work folder. With `--ship`, the weights learnt from all
collections that are not set aside are written into the package.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import torch

from benchmarks.codes.data import EncodedData, make_data_parser
from benchmarks.report import markdown_table, write_report
from lathe.transforms.chain import Chain, parse_steps
from lathe.transforms.relevance.model import WEIGHTS
from research.scores.data import (
    CHOSEN_ON,
    DECODER_SETS,
    MULTILINGUAL,
    OTHER_SIZES,
    SET_ASIDE,
    SIZES,
    JudgedSearch,
    encode_search,
    list_encoders,
    read_texts,
)
from research.scores.measure import (
    KINDS,
    Collection,
    LeftOut,
    Measured,
    estimate_right_rate,
    learn,
    measure_baselines,
    measure_collection,
    measure_judged,
    predict,
    score_probabilities,
)

FORMS = {
    "int8": "int8",
    "one bit per dimension": "binary",
    "codes of 48 bytes": "codes:48",
    "R2": "r2",
    "PCA, 128 dimensions": "pca:128",
}
"""Steps of the stored vectors that are compared with floats."""

MIN_RIGHT = 0.05
"""Minimum share of right first hits of a collection that is counted in means: AUROC of fewer is chance."""

FORM_ENCODERS = ("MiniLM",)
"""Encoders whose vectors are stored in all forms."""


def main() -> None:
    """Measure, print tables, write the raw figures."""
    options = make_data_parser(__doc__)
    options.add_argument("--ship", action="store_true", help="write the weights into the package")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    names = ("general/covid_faq", "code/spider_sql") if arguments.quick else (*CHOSEN_ON, *SET_ASIDE, *MULTILINGUAL)
    encoders = list_encoders(arguments.encoders)
    wanted = arguments.encoder or list(encoders)

    collections, forms = [], []
    for encoder in (encoders[name] for name in wanted):
        data = EncodedData(arguments.data, arguments.work, encoder)
        for name in (name for name in names if not encoder.suffix or name in DECODER_SETS):
            search = encode_search(data, read_texts(arguments.data, name, *SIZES.get(encoder.name, OTHER_SIZES)))
            collections.append(measure_collection(Collection(search)))
            if encoder.name in FORM_ENCODERS and name in SET_ASIDE and not arguments.quick:
                forms += [(form, measure_collection(collection)) for form, collection in store(search)]
            print(encoder.name, name, file=sys.stderr)

    # Without a right hit there is no AUROC: an English encoder finds no Chinese sentence.
    collections = [measured for measured in collections if measured.right.any(1).all()]
    # Nothing is learnt from the data sets that are set aside.
    chosen = [measured for measured in collections if measured.name in CHOSEN_ON]
    rows = measure_all(chosen, collections, forms)
    if arguments.ship:
        WEIGHTS.write_bytes(orjson.dumps(learn_shipped(chosen), option=orjson.OPT_INDENT_2) + b"\n")
    print(format_tables(rows))
    figures = {"chosen_on": CHOSEN_ON, "set_aside": SET_ASIDE, "collections": rows}
    print("raw figures:", write_report(arguments.out, "scores", figures), file=sys.stderr)


def store(search: JudgedSearch) -> list[tuple[str, Collection]]:
    """Return the collection with its vectors stored in other forms, and one whose search misses a tenth of the rows."""
    stored = [("a tenth of the hits missed", Collection(search, missed=0.1))]
    for form, steps in FORMS.items():
        chain = Chain(parse_steps(steps)).fit(search.documents)
        queries = np.asarray(chain.transform_queries(search.queries), np.float32)
        stored.append((form, Collection(search, queries, np.asarray(chain.floats(search.documents), np.float32))))
    return stored


def measure_all(
    chosen: Sequence[Measured], collections: Sequence[Measured], forms: Sequence[tuple[str, Measured]]
) -> list[dict[str, Any]]:
    """Return the figures of each collection, with weights that were learnt without its data set and its encoder."""
    left_out = LeftOut(chosen)
    found = []
    for form, measured in [("floats", measured) for measured in collections] + list(forms):
        row: dict[str, Any] = {"name": measured.name, "encoder": measured.encoder, "form": form} | measured.sizes
        row |= measure_baselines(measured)
        for kind in KINDS:
            weights, rate = left_out.learn(measured, kind)
            probabilities = predict(measured.features[kind], weights)
            row[kind] = score_probabilities(probabilities, measured.relevant)
            if kind == "queries" and form == "floats":
                row["judged"] = measure_judged(measured, probabilities, weights)
                row["right_rate"] = estimate_right_rate(measured, weights, rate)
        found.append(row)
    return found


def learn_shipped(collections: Sequence[Measured]) -> dict[str, Any]:
    """Learn the weights that ship from all collections."""
    shipped = {}
    for kind in ("queries", "rows"):
        weights, rate = learn(collections, kind)
        shipped[kind] = {"weights": weights.round(4).tolist(), "first_rate": round(rate, 4)}
    return shipped


def format_tables(rows: list[dict[str, Any]]) -> str:
    """Return the tables of the page: each collection, means of the baselines, forms of storage."""
    floats = [row for row in rows if row["form"] == "floats"]
    header = ["data set", "encoder", "right", "cosine", "CSLS", *KINDS, "ECE queries", "ECE 200 judged"]
    cells = [
        [
            row["name"],
            row["encoder"],
            f"{row['right']:.2f}",
            f"{row['cosine']:.2f}",
            f"{row['csls']:.2f}",
            *(f"{row[kind]['auroc']:.2f}" for kind in KINDS),
            f"{row['queries']['ece']:.2f}",
            f"{row['judged']['ece']:.2f}" if row["judged"] else "",
        ]
        for row in floats
    ]
    groups = {
        "chosen on": CHOSEN_ON,
        "set aside": SET_ASIDE,
        "both": CHOSEN_ON + SET_ASIDE,
        "multilingual": MULTILINGUAL,
    }
    means = [
        [form, group, *format_means([row for row in rows if row["form"] == form and row["name"] in members])]
        for form in dict.fromkeys(row["form"] for row in rows)
        for group, members in groups.items()
        if any(row["form"] == form and row["name"] in members for row in rows)
    ]
    mean_header = ["form", "data sets", "collections", "cosine", *(f"AUROC {kind}" for kind in KINDS[:2]), "least gain",
                   "others", "skill", "ECE", "ECE rows", "ECE (1+c)/2", "ECE quantile"]  # fmt: skip
    return markdown_table(header, cells) + "\n\n" + markdown_table(mean_header, means)


def format_means(rows: list[dict[str, Any]]) -> list[str]:
    """Return the means of collections as cells, without those where hardly any hit is right."""
    rows = [row for row in rows if row["right"] >= MIN_RIGHT]

    def mean(values: list[float]) -> str:
        return f"{np.nanmean(values):.3f}"

    return [
        str(len(rows)),
        mean([row["cosine"] for row in rows]),
        *(mean([row[kind]["auroc"] for row in rows]) for kind in KINDS[:2]),
        f"{min(row['queries']['auroc'] - row['cosine'] for row in rows):+.3f}",
        *(mean([row["queries"][figure] for row in rows]) for figure in ("auroc_others", "skill", "ece")),
        mean([row["rows"]["ece"] for row in rows]),
        *(mean([row[figure] for row in rows]) for figure in ("ece_half_cosine", "ece_quantile")),
    ]


if __name__ == "__main__":
    main()
