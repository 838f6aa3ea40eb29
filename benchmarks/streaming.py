"""Measures a fit on millions of rows in many files: its memory as they grow, and what it reads again after a kill.

The rows are made from real ones: sentence vectors mixed in pairs, in random shares, at unit length. Memory is that of
the process alone (`RssAnon`), without the pages of files that the system caches for it and may drop.
"""

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import markdown_table, parser, write_report
from benchmarks.server import own_environment
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.fitting.encoded_shards import POSITION, VECTORS
from lathe.training.sources.source import open_source
from lathe.transforms.vectors import FloatArray

POLL_SECONDS = 0.1
RUN_LATHE = "import sys; from lathe.service.cli.main import main; sys.argv[0] = 'lathe'; main()"


def main() -> None:
    """Measure, print the table, and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--source", default="pydoc:", help="texts that the rows are made from")
    options.add_argument("--rows", type=int, nargs="+", default=None, help="how many; the last is stopped and resumed")
    options.add_argument("--files", type=int, default=40, help="that they lie in")
    options.add_argument("--steps", default="r2,pca:128")
    options.add_argument("--work", type=Path, default=None, help="a folder with room for seven bytes a float")
    arguments = options.parse_args()
    counts = sorted(arguments.rows or ([50_000, 100_000] if arguments.quick else [100_000, 1_000_000, 10_000_000]))
    seeds = load_vectors(arguments.source, 2000 if arguments.quick else None)
    with tempfile.TemporaryDirectory(dir=arguments.work, prefix="lathe-streaming-") as scratch:
        figures = []
        for count in counts:
            folder = Path(scratch) / str(count)
            write_files(seeds, count, arguments.files, folder / "rows")
            figures.append(run_fit(folder, arguments.steps, kill=count == counts[-1]) | {"rows": count})
            print(json.dumps(figures[-1]), file=sys.stderr)
    print_report(figures)
    about = {"width": seeds.shape[1], "files": arguments.files, "steps": arguments.steps, "fits": figures}
    print("raw figures:", write_report(arguments.out, "streaming", about), file=sys.stderr)


def load_vectors(source: str, most: int | None) -> FloatArray:
    """Encode the distinct texts of a source `(n, d)`, in its order.

    Args:
        source: the source.
        most: maximum number of texts, spread over the source; None for all.
    """
    batches = (batch.values for batch in open_source(source).batches())
    texts = list(dict.fromkeys(text for text in chain.from_iterable(batches) if isinstance(text, str) and text))
    chosen = np.linspace(0, len(texts) - 1, min(most or len(texts), len(texts))).astype(int)
    return Encoder(DEFAULT_ENCODER).encode([texts[i] for i in chosen]).vectors


def write_files(seeds: FloatArray, count: int, files: int, folder: Path) -> None:
    """Write rows to files of float16, none of which is wholly in memory."""
    rng = np.random.default_rng(count)
    folder.mkdir(parents=True)
    sizes = np.full(files, count // files) + (np.arange(files) < count % files)
    for number, size in enumerate(sizes.tolist()):
        out = np.lib.format.open_memmap(folder / f"{number:04}.npy", "w+", np.float16, (size, seeds.shape[1]))
        for start in range(0, size, 16_384):
            batch_rows = min(16_384, size - start)
            first_rows, second_rows = seeds[rng.integers(len(seeds), size=(2, batch_rows))]
            share = rng.random((batch_rows, 1), np.float32)
            rows = share * first_rows + (1 - share) * second_rows
            out[start : start + batch_rows] = rows / np.linalg.norm(rows, axis=1, keepdims=True)


@dataclass
class FitProcess:
    """A `lathe fit` while it runs, with its memory and messages."""

    child: subprocess.Popen[str]
    begun: float = field(default_factory=time.monotonic)
    said: list[str] = field(default_factory=list)
    peak: int = 0

    @classmethod
    def start(cls, folder: Path, steps: str) -> "FitProcess":
        """Start a fit on the files of a folder."""
        arguments = ["fit", "--name", "streamed", "--steps", steps, "--source", str(folder / "rows"), "--json"]
        started = cls(
            subprocess.Popen(
                [sys.executable, "-P", "-c", RUN_LATHE, *arguments],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=own_environment(folder / "home"),
            )
        )  # fmt: skip
        threading.Thread(target=started.listen, daemon=True).start()
        return started

    def listen(self) -> None:
        """Store the messages of its progress."""
        assert self.child.stderr is not None
        for line in self.child.stderr:
            self.said.append(line.strip())

    def watch(self) -> bool:
        """Update the peak of its memory.

        Returns:
            Whether it still runs.
        """
        time.sleep(POLL_SECONDS)
        if self.child.poll() is not None:
            return False
        try:
            status = Path(f"/proc/{self.child.pid}/status").read_text()
        except OSError:
            return False
        anonymous = next((line for line in status.splitlines() if line.startswith("RssAnon")), "RssAnon: 0 kB")
        self.peak = max(self.peak, int(anonymous.split()[1]) * 1024)
        return True

    def end(self) -> dict[str, Any]:
        """Wait for its end, and return its seconds, its memory and the fitted rows."""
        while self.watch():
            pass
        assert self.child.stdout is not None
        result = self.child.stdout.read()
        if self.child.wait() != 0:
            sys.exit("\n".join(self.said[-5:]))
        certificate = json.loads(result)["certificate"]
        seconds = time.monotonic() - self.begun
        return {"seconds": seconds, "peak_bytes": self.peak, "n_fit": certificate["n_fit"]}


def run_fit(folder: Path, steps: str, kill: bool) -> dict[str, Any]:
    """Run a fit, with `kill` after another was killed at half of its rows."""
    stopped = kill_at_half(folder, steps) if kill else {}
    process = FitProcess.start(folder, steps)
    last_shards = watch_shards(folder, process) if kill else {}
    return process.end() | (compare_shards(stopped, last_shards) if kill else {})


@dataclass(frozen=True)
class ShardState:
    """Progress of a shard.

    Attributes:
        rows: number of rows that are encoded.
        at: time of the last write to its file, in nanoseconds.
    """

    rows: int
    at: int


def kill_at_half(folder: Path, steps: str) -> dict[Path, ShardState]:
    """Kill a fit when half of its rows are encoded, and return its shards at that moment."""
    process = FitProcess.start(folder, steps)
    total = sum(len(np.load(file, mmap_mode="r")) for file in (folder / "rows").iterdir())
    while process.watch() and sum(shard.rows for shard in list_shards(folder).values()) < total / 2:
        pass
    process.child.send_signal(signal.SIGKILL)
    process.child.wait()
    return list_shards(folder)


def watch_shards(folder: Path, process: FitProcess) -> dict[Path, ShardState]:
    """Watch the shards of a fit until they are complete, and return them, as they are removed when it ends."""
    total = sum(len(np.load(file, mmap_mode="r")) for file in (folder / "rows").iterdir())
    shards: dict[Path, ShardState] = {}
    while process.watch() and sum(shard.rows for shard in shards.values()) < total:
        shards = list_shards(folder)
    return shards


def list_shards(folder: Path) -> dict[Path, ShardState]:
    """List the shards that a fit has begun, by their folders."""
    shards = {}
    for position in (folder / "home" / "vectors").rglob(POSITION):
        try:
            rows = int(json.loads(position.read_text())["rows"])
            shards[position.parent] = ShardState(rows, (position.parent / VECTORS).stat().st_mtime_ns)
        except (OSError, ValueError):
            continue  # it is being replaced
    return shards


def compare_shards(before: dict[Path, ShardState], after: dict[Path, ShardState]) -> dict[str, Any]:
    """Compare the shards of a killed fit with those of its second run."""
    rewritten = [shard for shard, written in before.items() if after[shard].at != written.at]
    finished = [shard for shard, written in before.items() if after[shard].rows == written.rows]
    return {
        "rows_before_the_kill": sum(written.rows for written in before.values()),
        "shards": len(after),
        "shards_before_the_kill": len(before),
        "finished_before_the_kill": len(finished),
        "finished_and_written_again": len(set(rewritten) & set(finished)),
        "rows_of_the_second_run": sum(after[shard].rows - getattr(before.get(shard), "rows", 0) for shard in after),
    }


def print_report(figures: list[dict[str, Any]]) -> None:
    """Print the table, and what the second run of the killed fit did."""
    header = ["rows", "fitted on", "s", "rows a second", "peak MB"]
    rows = [
        [
            f"{f['rows']:,}",
            f"{f['n_fit']:,}",
            f"{f['seconds']:.0f}",
            f"{f['rows'] / f['seconds']:,.0f}",
            f"{f['peak_bytes'] / 1e6:.0f}",
        ]
        for f in figures
    ]
    print(markdown_table(header, rows))
    last = figures[-1]
    print(
        f"the last was killed after {last['rows_before_the_kill']:,} rows in {last['shards_before_the_kill']} shards: "
        f"of {last['finished_before_the_kill']} finished ones {last['finished_and_written_again']} were written again, "
        f"and {last['rows_of_the_second_run']:,} rows were left to do"
    )


if __name__ == "__main__":
    main()
