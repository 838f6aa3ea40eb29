"""What 10 million, 1 billion and 100 billion vectors cost, computed from what the other benchmarks measured.

Measures nothing. Every rate is read from the raw figures, which the output names, and is an option; so is what no
benchmark measured: the machine. Encoding, moments and bytes grow in a line with the rows; what is trained on rows takes
as long on any number of them; a graph's time per row and per query grows between a logarithm and a power of its rows.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.rates import FULL, M, Rate, graphs, read_rates, recalls
from benchmarks.report import markdown_table

RESULTS = Path(__file__).parent / "results"
SIZES = (10**7, 10**9, 10**11)
COMPACT = 128
HOUR = 3600
GB = 1e9
FORMATS = (
    ("float32, full width", 4 * FULL, None),
    ("float16, full width", 2 * FULL, None),
    ("`compact`, float32", 4 * COMPACT, "compact"),
    ("`int8`", FULL, "int8"),
    ("`geopres:128,int8`", COMPACT, "geopres:128,int8"),
    ("`binary`", FULL // 8, "binary"),
)
"""Vectors alone: what they are, bytes of one, and the method whose recall was measured."""


@dataclass(frozen=True)
class Growing:
    """A time in core-µs that grows with the rows of a graph.

    Attributes:
        micros: at `rows`.
        growth: exponent of a power law through the measured sizes.
        rows: the largest that was measured.
    """

    micros: float
    growth: float
    rows: int = 100_000

    def at(self, rows: float) -> tuple[float, float]:
        """At other rows: by the logarithm that touches the power law where it was measured, and by the power law."""
        times = math.log(rows / self.rows)
        return self.micros * max(1 + self.growth * times, 0), self.micros * math.exp(self.growth * times)

    def rows_within(self, micros: float) -> float:
        """How many rows take so long together, by the power law."""
        return float((micros * self.rows**self.growth / self.micros) ** (1 / (1 + self.growth)))


def given(default: float, meaning: str) -> Any:
    """An assumption, with what it means."""
    return field(default=default, metadata={"help": meaning})


@dataclass(frozen=True)
class Inputs:
    """Everything the costs are computed from; one option each."""

    bfloat16: float = given(math.nan, "texts a second and core in bfloat16")
    float32: float = given(math.nan, "texts a second and core in float32")
    moments: float = given(math.nan, "core-µs of a row's moments at 384 dimensions; grows with their square")
    trained: float = given(math.nan, "seconds of a fit beside encoding (GeoPres, evaluation); the same for any rows")
    ids: float = given(math.nan, "bytes of an item in the record beside its vector: id, metadata, SQLite")
    beside: float = given(math.nan, "bytes of memory of a row of a graph beyond those of its file")
    build_full: float = given(math.nan, "core-µs to add a row to a graph at full width")
    build_full_growth: float = given(math.nan, "exponent of its growth with the rows of the graph")
    build_compact: float = given(math.nan, "likewise at compact width")
    build_compact_growth: float = given(math.nan, "likewise")
    search_full: float = given(math.nan, "core-µs of a query at recall@10 .95, full width")
    search_full_growth: float = given(math.nan, "exponent of its growth with the rows of the graph")
    search_compact: float = given(math.nan, "likewise at compact width, rescored")
    search_compact_growth: float = given(math.nan, "likewise")
    cores: float = given(32, "of a machine")
    memory: float = given(256, "of a machine, GB")
    usable: float = given(0.8, "share of the memory that a graph may fill")
    disk: float = given(1.0, "GB a second that a machine reads")
    day: float = given(24, "hours a day that a machine works")
    patience: float = given(24, "hours after which one machine is no longer enough")


def graph_bytes(dimensions: int, m: int = M) -> float:
    """Bytes a row of hnswlib's file: its vector, 2m links and their count, its label, the length of what follows.

    What follows are on average 1 / (m − 1) upper layers, of m links and their count each.
    """
    return 4 * dimensions + (8 * m + 4) + 8 + 4 + (4 * m + 4) / (m - 1)


def encoding(rows: int, inputs: Inputs) -> dict[str, float]:
    """Core-hours in both precisions, and days of one machine in bfloat16."""
    hours = {dtype: rows / getattr(inputs, dtype) / HOUR for dtype in ("bfloat16", "float32")}
    return hours | {"days": hours["bfloat16"] / inputs.cores / inputs.day}


def fitting(rows: int, inputs: Inputs, dimensions: int = FULL) -> dict[str, float]:
    """Minutes of one machine: the pass over the vectors, as quick as cores or disk let it, and what is trained."""
    computed = rows * inputs.moments * (dimensions / FULL) ** 2 / 1e6 / inputs.cores
    read = rows * 4 * dimensions / GB / inputs.disk
    return {"pass": max(computed, read) / 60, "trained": inputs.trained / 60}


def keeping(rows: int, inputs: Inputs, dimensions: int) -> dict[str, Any]:
    """Bytes of an index's parts, machines that hold its graph, and what building and asking those costs."""
    build, search = (growing(inputs, what, "full" if dimensions == FULL else "compact") for what in ("build", "search"))
    machines = math.ceil(rows / most_rows(inputs, dimensions))
    return {
        "record": rows * (4 * FULL + inputs.ids),
        "rows": rows * (2 * FULL + 4 * dimensions + 8),
        "graph": rows * graph_bytes(dimensions),
        "memory": rows * (graph_bytes(dimensions) + inputs.beside),
        "machines": machines,
        "build_core_hours": [rows * micros / 1e6 / HOUR for micros in build.at(rows / machines)],
        "query_core_ms": [machines * micros / 1e3 for micros in search.at(rows / machines)],
    }


def most_rows(inputs: Inputs, dimensions: int) -> float:
    """Of a graph that one machine's memory holds."""
    return inputs.memory * GB * inputs.usable / (graph_bytes(dimensions) + inputs.beside)


def takeovers(inputs: Inputs) -> list[tuple[str, float, str]]:
    """Until how many vectors which is enough, and what comes then."""
    encoded = inputs.cores * inputs.patience * HOUR
    linked = inputs.cores / 2 * inputs.patience * HOUR * 1e6  # LATHE_JOB_THREADS is half the cores
    hours = f"{inputs.patience:g} h"
    return [
        (f"one process encodes within {hours}, float32", encoded * inputs.float32, "`--engine ray`"),
        (f"one process encodes within {hours}, bfloat16", encoded * inputs.bfloat16, "`--engine ray`"),
        ("one machine's memory holds the graph, full width", most_rows(inputs, FULL), "compact, or Milvus"),
        ("one machine's memory holds the graph, compact", most_rows(inputs, COMPACT), "Milvus"),
    ] + [
        (
            f"an index links all rows within {hours}, {width}",
            growing(inputs, "build", name).rows_within(linked),
            "Milvus",
        )
        for width, name in (("full width", "full"), ("compact", "compact"))
    ]


def growing(inputs: Inputs, what: str, width: str) -> Growing:
    """A time of the inputs, by its name."""
    return Growing(getattr(inputs, f"{what}_{width}"), getattr(inputs, f"{what}_{width}_growth"))


def costs(inputs: Inputs, sizes: tuple[int, ...] = SIZES) -> list[dict[str, Any]]:
    """All of it, for every number of vectors."""
    return [
        {
            "vectors": rows,
            "encoding": encoding(rows, inputs),
            "fitting": fitting(rows, inputs),
            "full": keeping(rows, inputs, FULL),
            "compact": keeping(rows, inputs, COMPACT),
        }
        for rows in sizes
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute, print tables or JSON, as the arguments ask; those of the process where none are given."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--results", type=Path, default=RESULTS, help="folder of the raw figures")
    options.add_argument("--json", action="store_true", help="everything, unrounded, instead of tables")
    for one in fields(Inputs):
        default: float = getattr(Inputs(), one.name)
        about = f"{one.metadata['help']} ({'as measured' if math.isnan(default) else f'{default:g}'})"
        options.add_argument(f"--{one.name.replace('_', '-')}", type=positive, default=None, metavar="N", help=about)
    chosen = options.parse_args(arguments)
    rates = read_rates(chosen.results)
    asked = {one.name: getattr(chosen, one.name) for one in fields(Inputs) if getattr(chosen, one.name) is not None}
    inputs = replace(Inputs(), **({name: rate.value for name, rate in rates.items()} | asked))
    origins = {one.name: "given" if one.name in asked else origin(rates.get(one.name)) for one in fields(Inputs)}
    figures = json.loads((chosen.results / "ann.json").read_text())["figures"]
    if chosen.json:
        checks = [[d, m, graph_bytes(d, m), measured] for d, m, measured in graphs(figures)]
        everything = {"inputs": asdict(inputs), "from": origins, "graph_bytes": checks, "recall": recalls(figures)}
        print(json.dumps(everything | {"costs": costs(inputs), "enough": takeovers(inputs)}, indent=1))
        return
    shown = [*tables(inputs), as_formats(recalls(figures)), as_inputs(inputs, origins), as_checks(graphs(figures))]
    print("\n\n".join(shown))


def positive(text: str) -> float:
    """A number above 0."""
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def origin(rate: Rate | None) -> str:
    """Where an input comes from."""
    return f"{rate.file}: {rate.key}" if rate else "assumed"


def tables(inputs: Inputs) -> list[str]:
    """Time, bytes, and where each engine takes over."""
    times, parts = [], []
    for cost in costs(inputs):
        name, encode, fit = amount(cost["vectors"]), cost["encoding"], cost["fitting"]
        hours = [amount(encode[dtype]) for dtype in ("bfloat16", "float32")]
        times.append([name, *hours, lasting(encode["days"]), f"{amount(fit['pass'])} + {amount(fit['trained'])}"])
        for width, dimensions in (("full", FULL), ("compact", COMPACT)):
            kept = cost[width]
            cells = [size(kept[part]) for part in ("record", "rows", "graph", "memory")]
            cells += [amount(kept["machines"]), between(kept["build_core_hours"]), between(kept["query_core_ms"])]
            parts.append([name, f"{width}, {dimensions}", *cells])
    header = ["vectors", "encode: core-hours, bfloat16", "float32", f"{inputs.cores:g} cores, bfloat16"]
    kept_header = ["vectors", "width", "record", "rows", "graph", "its memory", "machines", "build: core-hours"]
    enough = [[what, amount(rows), then] for what, rows, then in takeovers(inputs)]
    return [
        markdown_table([*header, "fit there: minutes, pass + trained"], times),
        markdown_table([*kept_header, "a query: core-ms"], parts),
        markdown_table(["as long as", "up to vectors", "then"], enough),
    ]


def as_inputs(inputs: Inputs, origins: dict[str, str]) -> str:
    """Every input, with where it comes from."""
    rows = [[f"`--{name.replace('_', '-')}`", f"{value:.4g}", origins[name]] for name, value in asdict(inputs).items()]
    return markdown_table(["input", "value", "from"], rows)


def as_formats(kept: dict[str, tuple[float, float]]) -> str:
    """Vectors alone, without ids, graph or originals."""
    rows = []
    for what, count, method in FORMATS:
        recall = " / ".join(f"{value:.3f}" for value in kept[method]) if method else "–"
        rows.append([what, f"{count:,}", *(size(count * number) for number in SIZES), recall])
    header = ["vectors alone", "bytes", *(amount(number) for number in SIZES), "recall@10, rescored 4×"]
    return markdown_table(header, rows)


def as_checks(measured: list[tuple[int, int, float]]) -> str:
    """The formula of a graph's bytes beside what was measured."""
    rows = [[f"{d} floats, M {m}", f"{graph_bytes(d, m):.1f}", f"{count:.1f}"] for d, m, count in measured]
    return markdown_table(["graph: bytes a vector", "computed", "measured"], rows)


def amount(value: float) -> str:
    """A number in two digits, as people say it."""
    if value < 10:
        return f"{value:.2g}"
    rounded = round(value, 1 - math.floor(math.log10(value)))
    for unit, name in ((1e9, " billion"), (1e6, " million")):
        if rounded >= unit:
            return f"{rounded / unit:,.0f}{name}" if rounded >= 10 * unit else f"{rounded / unit:g}{name}"
    return f"{rounded:,.0f}"


def lasting(days: float) -> str:
    """A time as people say it."""
    minutes = days * 24 * 60
    if minutes < 120:
        return f"{amount(minutes)} min"
    return f"{amount(minutes / 60)} h" if days < 3 else f"{amount(days)} days"


def size(count: float) -> str:
    """Bytes in two digits or more."""
    unit, name = next(pair for pair in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (0, "MB")) if count >= pair[0])
    value = count / (unit or 1e6)
    return f"{value:.0f} {name}" if value >= 10 else f"{value:.1f} {name}"


def between(values: list[float]) -> str:
    """A range, or the one number it is."""
    return " to ".join(dict.fromkeys(amount(value) for value in sorted(values)))


if __name__ == "__main__":
    main()
