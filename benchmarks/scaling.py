"""Computes the cost of 10 million, 1 billion and 100 billion vectors from what the other benchmarks measured.

Measures nothing. Every rate is read from the raw figures, which the output names, and is an option; so is what no
benchmark measured: the machine. Encoding, moments and bytes grow linearly with the rows; what is trained on rows takes
as long on any number of them; a graph's time per row and per query grows between a logarithm and a power of its rows.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.rates import FULL, M, Rate, list_graphs, list_recalls, read_rates
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
"""Formats of vectors alone: description, bytes of a vector, and the method whose recall was measured."""


@dataclass(frozen=True)
class GrowingTime:
    """A time in core-µs that grows with the rows of a graph.

    Attributes:
        micros: time at `rows`.
        growth: exponent of a power law through the measured sizes.
        rows: largest number of rows that was measured.
    """

    micros: float
    growth: float
    rows: int = 100_000

    def at(self, rows: float) -> tuple[float, float]:
        """Return the time at a number of rows: by a logarithm, and by the power law.

        The logarithm touches the power law at the largest size that was measured.
        """
        times = math.log(rows / self.rows)
        return self.micros * max(1 + self.growth * times, 0), self.micros * math.exp(self.growth * times)

    def rows_within(self, micros: float) -> float:
        """Return the number of rows that take a time together, by the power law."""
        return float((micros * self.rows**self.growth / self.micros) ** (1 / (1 + self.growth)))


def declare_input(default: float, meaning: str) -> Any:
    """Declare an input of the computation, with its default and meaning."""
    return field(default=default, metadata={"help": meaning})


@dataclass(frozen=True)
class Inputs:
    """Inputs that the costs are computed from, each an option."""

    bfloat16: float = declare_input(math.nan, "texts a second and core in bfloat16")
    float32: float = declare_input(math.nan, "texts a second and core in float32")
    moments: float = declare_input(math.nan, "core-µs of a row's moments at 384 dimensions; grows with their square")
    trained: float = declare_input(
        math.nan, "seconds of a fit beside encoding (GeoPres, evaluation); the same for any rows"
    )
    ids: float = declare_input(math.nan, "bytes of an item in the record beside its vector: id, metadata, SQLite")
    beside: float = declare_input(math.nan, "bytes of memory of a row of a graph beyond those of its file")
    build_full: float = declare_input(math.nan, "core-µs to add a row to a graph at full width")
    build_full_growth: float = declare_input(math.nan, "exponent of its growth with the rows of the graph")
    build_compact: float = declare_input(math.nan, "likewise at compact width")
    build_compact_growth: float = declare_input(math.nan, "likewise")
    search_full: float = declare_input(math.nan, "core-µs of a query at recall@10 .95, full width")
    search_full_growth: float = declare_input(math.nan, "exponent of its growth with the rows of the graph")
    search_compact: float = declare_input(math.nan, "likewise at compact width, rescored")
    search_compact_growth: float = declare_input(math.nan, "likewise")
    cores: float = declare_input(32, "of a machine")
    memory: float = declare_input(256, "of a machine, GB")
    usable: float = declare_input(0.8, "share of the memory that a graph may fill")
    disk: float = declare_input(1.0, "GB a second that a machine reads")
    day: float = declare_input(24, "hours a day that a machine works")
    patience: float = declare_input(24, "hours after which one machine is no longer enough")


def compute_graph_bytes(dimensions: int, m: int = M) -> float:
    """Compute the bytes of a row in hnswlib's file: its vector, 2m links and their count, its label, and upper layers.

    The upper layers are preceded by their length. On average there are 1 / (m − 1) of them, of m links and their count
    each.
    """
    return 4 * dimensions + (8 * m + 4) + 8 + 4 + (4 * m + 4) / (m - 1)


def compute_encoding(rows: int, inputs: Inputs) -> dict[str, float]:
    """Compute the core-hours of encoding in both precisions, and the days of one machine in bfloat16."""
    hours = {dtype: rows / getattr(inputs, dtype) / HOUR for dtype in ("bfloat16", "float32")}
    return hours | {"days": hours["bfloat16"] / inputs.cores / inputs.day}


def compute_fitting(rows: int, inputs: Inputs, dimensions: int = FULL) -> dict[str, float]:
    """Compute the minutes of a fit on one machine: the pass over the vectors, and what is trained.

    The pass is as fast as cores or disk allow.
    """
    computed = rows * inputs.moments * (dimensions / FULL) ** 2 / 1e6 / inputs.cores
    read = rows * 4 * dimensions / GB / inputs.disk
    return {"pass": max(computed, read) / 60, "trained": inputs.trained / 60}


def compute_storage(rows: int, inputs: Inputs, dimensions: int) -> dict[str, Any]:
    """Compute the bytes of an index's parts, and the cost of building and searching it.

    The machines that hold its graph are counted too.
    """
    build, search = (
        get_growing_time(inputs, what, "full" if dimensions == FULL else "compact") for what in ("build", "search")
    )
    machines = math.ceil(rows / compute_max_rows(inputs, dimensions))
    return {
        "record": rows * (4 * FULL + inputs.ids),
        "rows": rows * (2 * FULL + 4 * dimensions + 8),
        "graph": rows * compute_graph_bytes(dimensions),
        "memory": rows * (compute_graph_bytes(dimensions) + inputs.beside),
        "machines": machines,
        "build_core_hours": [rows * micros / 1e6 / HOUR for micros in build.at(rows / machines)],
        "query_core_ms": [machines * micros / 1e3 for micros in search.at(rows / machines)],
    }


def compute_max_rows(inputs: Inputs, dimensions: int) -> float:
    """Compute the number of rows of a graph that one machine's memory holds."""
    return inputs.memory * GB * inputs.usable / (compute_graph_bytes(dimensions) + inputs.beside)


def list_limits(inputs: Inputs) -> list[tuple[str, float, str]]:
    """List up to how many vectors each engine is enough, and what comes then."""
    encoded = inputs.cores * inputs.patience * HOUR
    linked = inputs.cores / 2 * inputs.patience * HOUR * 1e6  # LATHE_JOB_THREADS is half the cores
    hours = f"{inputs.patience:g} h"
    return [
        (f"one process encodes within {hours}, float32", encoded * inputs.float32, "`--engine ray`"),
        (f"one process encodes within {hours}, bfloat16", encoded * inputs.bfloat16, "`--engine ray`"),
        ("one machine's memory holds the graph, full width", compute_max_rows(inputs, FULL), "compact, or Milvus"),
        ("one machine's memory holds the graph, compact", compute_max_rows(inputs, COMPACT), "Milvus"),
    ] + [
        (
            f"an index links all rows within {hours}, {width}",
            get_growing_time(inputs, "build", name).rows_within(linked),
            "Milvus",
        )
        for width, name in (("full width", "full"), ("compact", "compact"))
    ]


def get_growing_time(inputs: Inputs, what: str, width: str) -> GrowingTime:
    """Return a time of the inputs, by its name."""
    return GrowingTime(getattr(inputs, f"{what}_{width}"), getattr(inputs, f"{what}_{width}_growth"))


def compute_costs(inputs: Inputs, sizes: tuple[int, ...] = SIZES) -> list[dict[str, Any]]:
    """Compute all costs for each number of vectors."""
    return [
        {
            "vectors": rows,
            "encoding": compute_encoding(rows, inputs),
            "fitting": compute_fitting(rows, inputs),
            "full": compute_storage(rows, inputs, FULL),
            "compact": compute_storage(rows, inputs, COMPACT),
        }
        for rows in sizes
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute the costs, and print tables or JSON.

    Args:
        arguments: the command line; None takes that of the process.
    """
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--results", type=Path, default=RESULTS, help="folder of the raw figures")
    options.add_argument("--json", action="store_true", help="everything, unrounded, instead of tables")
    for input_ in fields(Inputs):
        default: float = getattr(Inputs(), input_.name)
        about = f"{input_.metadata['help']} ({'as measured' if math.isnan(default) else f'{default:g}'})"
        options.add_argument(
            f"--{input_.name.replace('_', '-')}", type=parse_positive, default=None, metavar="N", help=about
        )
    chosen = options.parse_args(arguments)
    rates = read_rates(chosen.results)
    chosen_inputs = {
        input_.name: getattr(chosen, input_.name)
        for input_ in fields(Inputs)
        if getattr(chosen, input_.name) is not None
    }
    inputs = replace(Inputs(), **({name: rate.value for name, rate in rates.items()} | chosen_inputs))
    origins = {
        input_.name: "given" if input_.name in chosen_inputs else describe_origin(rates.get(input_.name))
        for input_ in fields(Inputs)
    }
    figures = json.loads((chosen.results / "ann.json").read_text())["figures"]
    if chosen.json:
        checks = [[d, m, compute_graph_bytes(d, m), measured] for d, m, measured in list_graphs(figures)]
        everything = {"inputs": asdict(inputs), "from": origins, "graph_bytes": checks, "recall": list_recalls(figures)}
        print(json.dumps(everything | {"costs": compute_costs(inputs), "enough": list_limits(inputs)}, indent=1))
        return
    sections = [
        *format_tables(inputs),
        format_formats(list_recalls(figures)),
        format_inputs(inputs, origins),
        format_checks(list_graphs(figures)),
    ]
    print("\n\n".join(sections))


def parse_positive(text: str) -> float:
    """Parse a number above 0.

    Raises:
        argparse.ArgumentTypeError: for anything else.
    """
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def describe_origin(rate: Rate | None) -> str:
    """Describe where an input comes from."""
    return f"{rate.file}: {rate.key}" if rate else "assumed"


def format_tables(inputs: Inputs) -> list[str]:
    """Format the tables of times, of bytes, and of where each engine takes over."""
    times, parts = [], []
    for cost in compute_costs(inputs):
        name, encode, fit = format_amount(cost["vectors"]), cost["encoding"], cost["fitting"]
        hours = [format_amount(encode[dtype]) for dtype in ("bfloat16", "float32")]
        times.append(
            [
                name,
                *hours,
                format_duration(encode["days"]),
                f"{format_amount(fit['pass'])} + {format_amount(fit['trained'])}",
            ]
        )
        for width, dimensions in (("full", FULL), ("compact", COMPACT)):
            recalls = cost[width]
            cells = [format_size(recalls[part]) for part in ("record", "rows", "graph", "memory")]
            cells += [
                format_amount(recalls["machines"]),
                format_range(recalls["build_core_hours"]),
                format_range(recalls["query_core_ms"]),
            ]
            parts.append([name, f"{width}, {dimensions}", *cells])
    header = ["vectors", "encode: core-hours, bfloat16", "float32", f"{inputs.cores:g} cores, bfloat16"]
    kept_header = ["vectors", "width", "record", "rows", "graph", "its memory", "machines", "build: core-hours"]
    enough = [[what, format_amount(rows), then] for what, rows, then in list_limits(inputs)]
    return [
        markdown_table([*header, "fit there: minutes, pass + trained"], times),
        markdown_table([*kept_header, "a query: core-ms"], parts),
        markdown_table(["as long as", "up to vectors", "then"], enough),
    ]


def format_inputs(inputs: Inputs, origins: dict[str, str]) -> str:
    """Format every input with its origin as a table."""
    rows = [[f"`--{name.replace('_', '-')}`", f"{value:.4g}", origins[name]] for name, value in asdict(inputs).items()]
    return markdown_table(["input", "value", "from"], rows)


def format_formats(kept: dict[str, tuple[float, float]]) -> str:
    """Format the bytes of vectors alone, without ids, graph or originals, as a table."""
    rows = []
    for what, count, method in FORMATS:
        recall = " / ".join(f"{value:.3f}" for value in kept[method]) if method else "–"
        rows.append([what, f"{count:,}", *(format_size(count * number) for number in SIZES), recall])
    header = ["vectors alone", "bytes", *(format_amount(number) for number in SIZES), "recall@10, rescored 4×"]
    return markdown_table(header, rows)


def format_checks(measured: list[tuple[int, int, float]]) -> str:
    """Format the computed bytes of a graph beside the measured ones as a table."""
    rows = [[f"{d} floats, M {m}", f"{compute_graph_bytes(d, m):.1f}", f"{count:.1f}"] for d, m, count in measured]
    return markdown_table(["graph: bytes a vector", "computed", "measured"], rows)


def format_amount(value: float) -> str:
    """Format a number in two digits, with "million" or "billion"."""
    if value < 10:
        return f"{value:.2g}"
    rounded = round(value, 1 - math.floor(math.log10(value)))
    for unit, name in ((1e9, " billion"), (1e6, " million")):
        if rounded >= unit:
            return f"{rounded / unit:,.0f}{name}" if rounded >= 10 * unit else f"{rounded / unit:g}{name}"
    return f"{rounded:,.0f}"


def format_duration(days: float) -> str:
    """Format a number of days in minutes, hours or days."""
    minutes = days * 24 * 60
    if minutes < 120:
        return f"{format_amount(minutes)} min"
    return f"{format_amount(minutes / 60)} h" if days < 3 else f"{format_amount(days)} days"


def format_size(count: float) -> str:
    """Format a number of bytes in two digits or more."""
    unit, name = next(pair for pair in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (0, "MB")) if count >= pair[0])
    value = count / (unit or 1e6)
    return f"{value:.0f} {name}" if value >= 10 else f"{value:.1f} {name}"


def format_range(values: list[float]) -> str:
    """Format a range, or one number if both ends look alike."""
    return " to ".join(dict.fromkeys(format_amount(value) for value in sorted(values)))


if __name__ == "__main__":
    main()
