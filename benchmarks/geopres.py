"""Benchmark of GeoPres: a step against torch.cdist and autograd, a whole fit against the paper's preset, memory.

A step is everything from a batch and a weight to loss and gradient, the original distances too. The memory is that of
long streams. The last line printed is the smallest ratio of the two sides' times.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.report import markdown_table, parser, write_report
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.sources.source import open_source
from lathe.transforms import GeoPres
from lathe.transforms.learned.losses import positional_loss, prefix_losses
from lathe.transforms.quality import local_spearman_per_row, positional_stress, recall_per_row
from lathe.transforms.statistics import unit_rows
from lathe.transforms.vectors import FloatArray

PARTS = ("step", "fit", "stream")
MEMORY = """
import sys, torch
from benchmarks.geopres import SIDES, make_batch_and_weight, measure_megabytes_above
torch.set_num_threads(int(sys.argv[4]))
x, weight = make_batch_and_weight(None, int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[5]))
SIDES[sys.argv[1]](x[:64], weight)
print(measure_megabytes_above(lambda: SIDES[sys.argv[1]](x, weight)))
"""
STREAM = """
import json, sys
import numpy as np
from benchmarks.geopres import measure_megabytes_above
from lathe.transforms import GeoPres
vectors = np.load(sys.argv[1], mmap_mode="r")
GeoPres(16, steps=2).fit(vectors[:5000])
print(measure_megabytes_above(lambda: GeoPres(32, **json.loads(sys.argv[2])).fit(vectors)))
"""


def main() -> None:
    """Measure, print the tables, and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--vectors", type=Path, help=".npy of unit vectors to use instead of the built-in texts'")
    options.add_argument("--device", default="cpu", help="of the steps: cpu or cuda")
    options.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of every side")
    options.add_argument("--only", choices=PARTS, action="append", help="leave the other parts out")
    options.add_argument("--rows", type=int, nargs="+", default=[5000, 20_000], help="of a step's batch")
    options.add_argument("--stream-rows", type=int, default=10_000_000)
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    parts, figures = arguments.only or PARTS, {"threads": arguments.threads, "device": arguments.device}
    if "fit" in parts:
        figures["fit"] = measure_fits(
            load_vectors(arguments.vectors, 2000 if arguments.quick else 110_000), arguments.quick
        )
        print_fit(figures["fit"])
    if "stream" in parts:
        figures["stream"] = measure_stream(100_000 if arguments.quick else arguments.stream_rows)
        print_stream(figures["stream"])
    if "step" in parts:
        shapes = [(rows, 384, 128) for rows in ([1000] if arguments.quick else arguments.rows)]
        shapes += [(20_000, 1024, 256)] if arguments.device != "cpu" else []
        repeats = 2 if arguments.quick else 5
        figures["step"] = [
            measure_step(arguments.vectors, *shape, arguments.device, repeats, arguments.threads) for shape in shapes
        ]
        print_steps(figures["step"])
    print("raw figures:", write_report(arguments.out, "geopres", figures), file=sys.stderr)
    if "step" in parts:
        print(f"ratio: {min(figure['ratio'] for figure in figures['step']):.2f}")


def load_vectors(path: Path | None, most: int) -> NDArray[np.float32]:
    """Load the vectors of a file, or encode the built-in texts, `(n, d)`."""
    if path is not None:
        return np.array(np.load(path, mmap_mode="r")[:most], dtype=np.float32)
    texts = [t for batch in open_source("pydoc:").batches() for t in batch.values if isinstance(t, str)]
    return Encoder(DEFAULT_ENCODER).encode(texts[:most]).vectors


def make_batch_and_weight(path: Path | None, m: int, d: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make unit rows `(m, d)` and the initial weight `(k, d)` of a linear layer.

    The rows are those of the file, if it has vectors of that many dimensions, else random ones.
    """
    generator = torch.Generator().manual_seed(0)
    if path is not None and d == np.load(path, mmap_mode="r").shape[1]:
        rows = torch.from_numpy(load_vectors(path, m))
    else:  # as anisotropic as embeddings are
        rows = torch.randn(m, d, generator=generator) * torch.arange(1, d + 1) ** -0.5 + 0.02
    weight = (2 * torch.rand(k, d, generator=generator) - 1) / d**0.5
    return unit_rows(rows), weight


def compute_by_tiles(x: torch.Tensor, weight: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Compute the loss of GeoPres Eq. 1 and its gradient in closed form, as Lathe does."""
    losses, gradient = prefix_losses(positional_loss, x, weight, [len(weight)], [1.0], normalized=False)
    return losses[0], gradient


def compute_by_cdist(x: torch.Tensor, weight: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Compute the same loss and gradient by torch.cdist and autograd."""
    weight = weight.clone().requires_grad_()
    distances, reduced_distances = torch.cdist(x, x), torch.cdist(y := x @ weight.T, y)
    loss = (distances - reduced_distances).square().sum() / (len(x) * (len(x) - 1))
    loss.backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    return float(loss.detach()), weight.grad


SIDES = {"tiles": compute_by_tiles, "cdist": compute_by_cdist}


def measure_step(path: Path | None, m: int, d: int, k: int, device: str, repeats: int, threads: int) -> dict[str, Any]:
    """Time a step on both sides, alternating after one step to warm up.

    Returns:
        Seconds, agreement of the gradients, and on a CPU the memory above the data.
    """
    x, weight = (tensor.to(device) for tensor in make_batch_and_weight(path, m, d, k))
    times: dict[str, list[float]] = {name: [] for name in SIDES}
    gradients = {}
    for turn in range(repeats + 1):
        for name, side in SIDES.items():
            begun = time.perf_counter()
            _, gradients[name] = side(x, weight)
            wait_for_device(device)
            # The first turn warms up.
            if turn:
                times[name].append(time.perf_counter() - begun)
    exact = gradients["cdist"]
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    products = m * m * (d + 3 * k) / 2  # multiply-adds: half of all pairs' products, twice, and all the pulls
    figure = {
        "m": m,
        "from": d,
        "to": k,
        "seconds": times,
        "ratio": medians["cdist"] / medians["tiles"],
        "gradient_difference": float((gradients["tiles"] - exact).abs().max() / exact.abs().max()),
        "of_gemm_ceiling": products / medians["tiles"] / measure_ceiling(device),
    }
    if device == "cpu":
        arguments = [str(m), str(d), str(threads), str(k)]
        figure["mb"] = {name: float(read_output([sys.executable, "-c", MEMORY, name, *arguments])) for name in SIDES}
    return figure


def measure_ceiling(device: str, size: int = 4096) -> float:
    """Return the multiply-adds per second of a large float32 product, the most that the device can do."""
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    durations = []
    for _ in range(6):
        begun = time.perf_counter()
        a @ b
        wait_for_device(device)
        durations.append(time.perf_counter() - begun)
    return size**3 / min(durations[1:])


def measure_megabytes_above(work: Callable[[], Any]) -> float:
    """Return the peak of anonymous memory during a call, above what the process had before."""

    def anonymous() -> float:
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) / 1024

    def watch() -> None:
        while not done.wait(0.002):
            readings.append(anonymous())

    done, readings = threading.Event(), [anonymous()]
    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return max(readings) - readings[0]


def wait_for_device(device: str) -> None:
    """Wait until a GPU has finished."""
    if device != "cpu":
        torch.cuda.synchronize()


def measure_fits(vectors: NDArray[np.float32], quick: bool) -> dict[str, Any]:
    """Fit GeoPres to a quarter of the dimensions: by default, nested, and by the paper's preset.

    The paper's preset gets ten times the time.
    """
    order = np.random.default_rng(0).permutation(len(vectors))
    heldout = vectors[order[: len(vectors) // 11][:5000]]
    rows = vectors[np.sort(order[len(vectors) // 11 :])]
    k = vectors.shape[1] // 4
    ours, seconds = time_fit(GeoPres(k), rows)
    nested, nested_seconds = time_fit(GeoPres(k, nested=True), rows)
    batch = 500 if quick else 20_000
    # The difference of two fits is the time of four steps, without what a fit does once.
    few, more = (time_fit(GeoPres(k, preset="paper", batch=batch, steps=n), rows)[1] for n in (2, 6))
    steps = max(4, int(10 * seconds / ((more - few) / 4)))
    paper, paper_seconds = time_fit(GeoPres(k, preset="paper", batch=batch, steps=steps), rows)
    sides = {"lathe": ours, "lathe, nested": nested, "paper": paper}
    times = {"lathe": seconds, "lathe, nested": nested_seconds, "paper": paper_seconds}
    sides_figures: list[dict[str, Any]] = [
        {"preset": name, "seconds": times[name], "record": getattr(side.training_log, "as_json", dict)()}
        | measure_quality(heldout, side.transform(heldout))
        for name, side in sides.items()
    ]
    return {"rows": len(rows), "from": vectors.shape[1], "to": k, "heldout": len(heldout), "sides": sides_figures}


def time_fit(geopres: GeoPres, rows: FloatArray) -> tuple[GeoPres, float]:
    """Fit GeoPres, and return it with the seconds that took."""
    begun = time.perf_counter()
    return geopres.fit(rows), time.perf_counter() - begun


def measure_quality(before: FloatArray, after: FloatArray) -> dict[str, Any]:
    """Measure what a reduction retains, with 95 % intervals over rows, and the stress of unit vectors."""
    unit = unit_rows(torch.from_numpy(after)).numpy()
    anchors = {
        "local_spearman": local_spearman_per_row(before, after),
        "recall_at_10": recall_per_row(before, after, 10),
        "recall_at_10_rescored_4x": recall_per_row(before, after, 10, oversampling=4),
    }
    measures: dict[str, Any] = {
        name: {"mean": float(values.mean()), "ci95": float(1.96 * values.std(ddof=1) / len(values) ** 0.5)}
        for name, values in anchors.items()
    }
    return measures | {"positional_stress": positional_stress(before, unit)}


def measure_stream(rows: int, width: int = 64) -> list[dict[str, Any]]:
    """Measure the megabytes above the interpreter while fitting on a file much larger than a batch."""
    figures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors.npy"
        file = np.lib.format.open_memmap(path, "w+", np.float32, (rows, width))
        generator = np.random.default_rng(0)
        for start in range(0, rows, 100_000):
            part = file[start : start + 100_000]
            part[:] = generator.standard_normal(part.shape, np.float32) * np.arange(1, width + 1) ** -0.5
        file.flush()
        del file
        for parameters in ({"steps": 20}, {"preset": "paper", "steps": 2}):
            begun = time.monotonic()
            # In a process of its own, whose memory nothing before has raised.
            mb = float(read_output([sys.executable, "-c", STREAM, str(path), json.dumps(parameters)]))
            figures.append(
                {"rows": rows, "width": width, "file_mb": rows * width * 4 / 1e6, "above_mb": mb}
                | {"parameters": parameters, "seconds": time.monotonic() - begun}
            )
    return figures


def read_output(command: list[str]) -> str:
    """Run a command and return its stdout."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def print_steps(figures: list[dict[str, Any]]) -> None:
    """Print the steps as a table."""
    header = [
        "rows",
        "from",
        "to",
        "cdist + autograd s",
        "tiles s",
        "ratio",
        "gradients differ by",
        "of GEMM ceiling",
        "MB",
    ]
    rows = []
    for figure in figures:
        seconds = {name: statistics.median(runs) for name, runs in figure["seconds"].items()}
        memory = " / ".join(f"{figure['mb'][name]:.0f}" for name in ("cdist", "tiles")) if "mb" in figure else "–"
        rows.append(
            [f"{figure['m']:,}", str(figure["from"]), str(figure["to"]), f"{seconds['cdist']:.2f}"]
            + [f"{seconds['tiles']:.2f}", f"{figure['ratio']:.1f} ×", f"{figure['gradient_difference']:.0e}"]
            + [f"{figure['of_gemm_ceiling']:.0%}", memory]
        )
    print(markdown_table(header, rows), "\n")


def print_fit(figure: dict[str, Any]) -> None:
    """Print the fits as a table."""
    header = ["preset", "seconds", "steps", "local Spearman", "recall@10", "rescored 4×", "stress"]
    rows = []
    for side in figure["sides"]:
        means = [side[name]["mean"] for name in ("local_spearman", "recall_at_10", "recall_at_10_rescored_4x")]
        cells = [*(f"{mean:.3f}" for mean in means), f"{side['positional_stress']:.2e}"]
        record = side["record"]
        steps = f"{record['steps']} of {record['recipe']['steps']}"  # fewer where patience ended
        rows.append([side["preset"], f"{side['seconds']:.0f}", steps, *cells])
    print(f"{figure['rows']:,} rows, {figure['from']} → {figure['to']}\n")
    print(markdown_table(header, rows), "\n")


def print_stream(figures: list[dict[str, Any]]) -> None:
    """Print the streams as a table."""
    rows = [
        [
            json.dumps(f["parameters"]),
            f"{f['rows']:,}",
            f"{f['file_mb']:,.0f}",
            f"{f['above_mb']:.0f}",
            f"{f['seconds']:.0f}",
        ]
        for f in figures
    ]
    print(markdown_table(["parameters", "rows", "file MB", "MB above the interpreter", "seconds"], rows), "\n")


if __name__ == "__main__":
    main()
