"""A fit on millions of rows in many files: its memory as they grow, and what it reads again after a kill.

The rows are made from real ones: sentence vectors mixed in pairs, in random shares, at unit length. Memory is that of
the process alone (`RssAnon`), without the pages of files that the system keeps for it and takes back when it likes.
"""

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.incremental import real_vectors
from benchmarks.report import markdown_table, parser, write_report
from benchmarks.server import own_environment
from lathe.training.fitting.encoded_shards import POSITION, VECTORS
from lathe.transforms.vectors import FloatArray

POLL_SECONDS = 0.1
RUN_LATHE = "import sys; from lathe.service.cli.main import main; sys.argv[0] = 'lathe'; main()"


def main() -> None:
    """Measure, print a table, write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--source", default="pydoc:", help="texts that the rows are made from")
    options.add_argument("--rows", type=int, nargs="+", default=None, help="how many; the last is stopped and resumed")
    options.add_argument("--files", type=int, default=40, help="that they lie in")
    options.add_argument("--steps", default="r2,pca:128")
    options.add_argument("--work", type=Path, default=None, help="a folder with room for seven bytes a float")
    given = options.parse_args()
    counts = sorted(given.rows or ([50_000, 100_000] if given.quick else [100_000, 1_000_000, 10_000_000]))
    seeds = real_vectors(given.source, 2000 if given.quick else None)
    with tempfile.TemporaryDirectory(dir=given.work, prefix="lathe-streaming-") as scratch:
        figures = []
        for count in counts:
            folder = Path(scratch) / str(count)
            write_files(seeds, count, given.files, folder / "rows")
            figures.append(fitted(folder, given.steps, kill=count == counts[-1]) | {"rows": count})
            print(json.dumps(figures[-1]), file=sys.stderr)
    report(figures)
    about = {"width": seeds.shape[1], "files": given.files, "steps": given.steps, "fits": figures}
    print("raw figures:", write_report(given.out, "streaming", about), file=sys.stderr)


def write_files(seeds: FloatArray, count: int, files: int, folder: Path) -> None:
    """That many rows in files of float16, none of which is wholly in memory."""
    rng = np.random.default_rng(count)
    folder.mkdir(parents=True)
    sizes = np.full(files, count // files) + (np.arange(files) < count % files)
    for number, size in enumerate(sizes.tolist()):
        out = np.lib.format.open_memmap(folder / f"{number:04}.npy", "w+", np.float16, (size, seeds.shape[1]))
        for start in range(0, size, 16_384):
            wanted = min(16_384, size - start)
            one, other = seeds[rng.integers(len(seeds), size=(2, wanted))]
            share = rng.random((wanted, 1), np.float32)
            rows = share * one + (1 - share) * other
            out[start : start + wanted] = rows / np.linalg.norm(rows, axis=1, keepdims=True)


@dataclass
class Process:
    """`lathe fit` while it runs, watched."""

    child: subprocess.Popen[str]
    begun: float = field(default_factory=time.monotonic)
    said: list[str] = field(default_factory=list)
    peak: int = 0

    @classmethod
    def start(cls, folder: Path, steps: str) -> "Process":
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
        """Keep what it says of its progress."""
        assert self.child.stderr is not None
        for line in self.child.stderr:
            self.said.append(line.strip())

    def watch(self) -> bool:
        """Note its memory; whether it still runs."""
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
        """Wait for it; how long it took, how much memory, and the result."""
        while self.watch():
            pass
        assert self.child.stdout is not None
        result = self.child.stdout.read()
        if self.child.wait() != 0:
            sys.exit("\n".join(self.said[-5:]))
        certificate = json.loads(result)["certificate"]
        seconds = time.monotonic() - self.begun
        return {"seconds": seconds, "peak_bytes": self.peak, "n_fit": certificate["n_fit"]}


def fitted(folder: Path, steps: str, kill: bool) -> dict[str, Any]:
    """A fit; killed at half of its rows and started again, if so asked."""
    stopped = killed_at_half(folder, steps) if kill else {}
    process = Process.start(folder, steps)
    last = latest(folder, process) if kill else {}
    return process.end() | (resumed(stopped, last) if kill else {})


@dataclass(frozen=True)
class Written:
    """How far a shard is.

    Attributes:
        rows: that are vectors.
        at: when its file was last written, in nanoseconds.
    """

    rows: int
    at: int


def killed_at_half(folder: Path, steps: str) -> dict[Path, Written]:
    """Kill a fit when half of its rows are vectors; its shards as they were then."""
    process = Process.start(folder, steps)
    total = sum(len(np.load(file, mmap_mode="r")) for file in (folder / "rows").iterdir())
    while process.watch() and sum(shard.rows for shard in shards(folder).values()) < total / 2:
        pass
    process.child.send_signal(signal.SIGKILL)
    process.child.wait()
    return shards(folder)


def latest(folder: Path, process: Process) -> dict[Path, Written]:
    """The shards of a fit until they are complete; they are removed when it ends."""
    total = sum(len(np.load(file, mmap_mode="r")) for file in (folder / "rows").iterdir())
    found: dict[Path, Written] = {}
    while process.watch() and sum(shard.rows for shard in found.values()) < total:
        found = shards(folder)
    return found


def shards(folder: Path) -> dict[Path, Written]:
    """The shards that a fit has begun."""
    found = {}
    for position in (folder / "home" / "vectors").rglob(POSITION):
        try:
            rows = int(json.loads(position.read_text())["rows"])
            found[position.parent] = Written(rows, (position.parent / VECTORS).stat().st_mtime_ns)
        except (OSError, ValueError):
            continue  # it is being replaced
    return found


def resumed(before: dict[Path, Written], after: dict[Path, Written]) -> dict[str, Any]:
    """What the second run of a killed fit did to the shards of the first."""
    again = [shard for shard, written in before.items() if after[shard].at != written.at]
    finished = [shard for shard, written in before.items() if after[shard].rows == written.rows]
    return {
        "rows_before_the_kill": sum(written.rows for written in before.values()),
        "shards": len(after),
        "shards_before_the_kill": len(before),
        "finished_before_the_kill": len(finished),
        "finished_and_written_again": len(set(again) & set(finished)),
        "rows_of_the_second_run": sum(after[shard].rows - getattr(before.get(shard), "rows", 0) for shard in after),
    }


def report(figures: list[dict[str, Any]]) -> None:
    """Print the table, and what became of the one that was killed."""
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
