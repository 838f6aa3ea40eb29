"""Kills a process that writes to an index, at random moments, and looks at what is left.

A trial: a process opens the index and upserts, replaces and deletes batches as fast as it can,
with snapshots all the time, in every fourth trial with a reindexing beside it. It says what it is
about to do and what was acknowledged, until SIGKILL. In every second trial the power goes too: the
WAL is cut to its length at the last acknowledged write, rows and graph to the last snapshot, or
some of their bytes are spoilt. Then another process opens the index: every acknowledged write must
be there, the one that was under way whole or not at all, and a search must find each item by its
own vector. With `--chain codes48` the rows are codes, with `--originals none` the record too.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, get_args

import numpy as np
import torch

from lathe.service.chains.names import RAW
from lathe.service.chains.registry import STARTERS
from lathe.service.index.embedded import maintenance
from lathe.service.index.embedded.index import EmbeddedIndex
from lathe.service.index.embedded.indexes import acquire_index
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.embedded.snapshot import read_snapshot
from lathe.service.index.protocol import Artifact
from lathe.service.index.query import Query
from lathe.service.index.reducer import read_artifact_files
from lathe.service.index.spec import IndexSpec, Originals
from lathe.service.jobs.kinds.reindex import ReindexJob
from lathe.service.settings import read_settings
from lathe.transforms.artifact import MANIFEST, TENSORS

WIDTH = 16
"""Dimensions of the vectors of an index without a chain."""
IDS = 400
"""Few enough that most writes replace something."""
LONGEST_SECONDS, LONGEST_WITH_CHAIN = 0.4, 1.6
"""Longest time until a kill; loading a chain takes a fraction of a second, and a reindexing must reach its cutover."""
TRIALS_ON_ONE_INDEX = 10

State = dict[str, int]
"""Each id's seed; its vector and metadata follow from that."""


@dataclass(frozen=True)
class Subject:
    """The kind of index that is tried: its settings, its chain, and the bytes of a row of each of its files."""

    spec: IndexSpec
    artifact: Artifact
    row_bytes: dict[str, int]

    @classmethod
    def of(cls, chain: str, originals: Originals) -> "Subject":
        """Build the subject for a chain that Lathe ships, or for `none`."""
        width, dimensions, artifact, compact = WIDTH, WIDTH, None, {"reduced.f32": 4 * WIDTH}
        if chain != RAW:
            artifact = read_artifact_files(STARTERS / chain / "1")
            manifest = json.loads(artifact[0])
            width, dimensions = manifest["input_dimensions"], manifest["output_dimensions"]
            octets = manifest["steps"][-1].get("bytes")
            compact = {"codes.u8": octets} if octets else {"reduced.f32": 4 * dimensions}
        name = RAW if chain == RAW else f"{chain}@1"
        space = "raw" if chain == RAW else "reduced"
        spec = IndexSpec(None, None, width, "raw", name, dimensions, space, m=4, ef_construction=20)
        spec = replace(spec, originals=originals)
        halves = {"originals.f16": 2 * width} if spec.has_originals else {}
        return cls(spec, artifact, {"labels.i64": 8} | halves | compact)

    def vector_of(self, seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        found = np.random.default_rng(seed).normal(size=self.spec.width)
        return (found / np.linalg.norm(found)).astype(np.float32)


@dataclass(frozen=True)
class Operation:
    """One write: ids with the seeds of their new vectors, or ids to delete."""

    kind: str
    items: State

    def applied(self, state: State) -> State:
        if self.kind == "upsert":
            return state | self.items
        return {item: seed for item, seed in state.items() if item not in self.items}


def main() -> None:
    """Run the trials, print their figures as JSON, and exit with 1 if anything was lost."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--trials", type=int, default=200)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--chain", default=RAW, help="a chain that Lathe ships, such as codes48, or none")
    options.add_argument("--originals", choices=get_args(Originals), default="float32")
    given = options.parse_args()
    torch.set_num_threads(1)  # a fork needs a process without threads
    figures = run_trials(Subject.of(given.chain, given.originals), given.trials, given.seed)
    print(json.dumps(figures))
    sys.exit(bool(figures["failures"]))


def run_trials(subject: Subject, trials: int, seed: int) -> dict[str, Any]:
    """Kill a writer so many times, and return counts and what was lost, if anything."""
    random_of = random.Random(seed)
    counted = ("writes_acknowledged", "interrupted", "power_lost", "reindexing", "adopted")
    figures: dict[str, Any] = {"trials": trials, "seed": seed, **dict.fromkeys(counted, 0), "failures": []}
    with tempfile.TemporaryDirectory() as home:
        state: State = {}
        for trial in range(trials):
            folder = Path(home) / "indexes" / "trial"
            if trial % TRIALS_ON_ONE_INDEX == 0:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                IndexRecord.create(folder / "record.db", subject.spec, subject.artifact).close()
                state = {}
            power, reindexing = trial % 2 == 1, trial % 4 == 2
            before = current_spec(folder).generation
            acknowledged, under_way, wal = killed_writer(subject, Path(home), folder, state, random_of, reindexing)
            for operation in acknowledged:
                state = operation.applied(state)
            if power:
                lose_power(subject, folder, wal, random_of)
            allowed = [state] if under_way is None else [state, under_way.applied(state)]
            found, problem = inspected(subject, folder, allowed)
            if problem is not None:
                figures["failures"].append({"trial": trial, "problem": problem})
            state = state if found is None else found
            figures["writes_acknowledged"] += len(acknowledged)
            figures["interrupted"] += under_way is not None
            figures["power_lost"] += power
            figures["reindexing"] += reindexing
            figures["adopted"] += current_spec(folder).generation != before
    return figures


def killed_writer(
    subject: Subject, home: Path, folder: Path, state: State, random_of: random.Random, reindexing: bool
) -> tuple[list[Operation], Operation | None, int]:
    """Let a process write until it is killed: what it was told is safe, what was under way, the WAL's length then."""
    reading, writing = os.pipe()
    longest = LONGEST_SECONDS if subject.artifact is None else LONGEST_WITH_CHAIN
    seed, seconds = random_of.getrandbits(32), random_of.uniform(0.005, longest)
    helper = forked(lambda: reindex_again_and_again(subject, home, folder)) if reindexing else None
    writer = forked(lambda: write_for_ever(subject, folder, state, seed, writing))
    os.close(writing)
    with os.fdopen(reading, "rb") as lines:
        first = lines.readline()
        time.sleep(seconds)
        for process in (writer, helper):
            if process is not None:
                os.kill(process, signal.SIGKILL)
                if os.WIFEXITED(os.waitpid(process, 0)[1]):
                    raise RuntimeError("a process ended before it was killed; its traceback is above")
        told = [json.loads(line) for line in (first + lines.read()).splitlines(keepends=True) if line.endswith(b"\n")]
    acknowledged: list[Operation] = []
    under_way: Operation | None = None
    wal = 0
    for line in told:
        if "wal" in line:
            if under_way is not None:
                acknowledged.append(under_way)
            under_way, wal = None, line["wal"]
        else:
            under_way = Operation(**line)
    return acknowledged, under_way, wal


def write_for_ever(subject: Subject, folder: Path, state: State, seed: int, told: int) -> NoReturn:
    random_of, present = random.Random(seed), dict(state)
    maintenance.SNAPSHOT_SECONDS, maintenance.SNAPSHOT_SHARE, maintenance.IDLE_SECONDS = 0.02, 0, 0.005
    index = opened(folder)
    index.start(maintenance.Maintainer(index).run)
    wal = folder / "record.db-wal"

    def tell(content: dict[str, Any]) -> None:
        os.write(told, json.dumps(content).encode() + b"\n")

    tell({"wal": wal.stat().st_size if wal.exists() else 0})
    while True:
        chosen = random_of.sample(range(IDS), random_of.randint(1, 60))
        kind = "delete" if random_of.random() < 0.25 else "upsert"
        operation = Operation(kind, {f"item {number}": random_of.getrandbits(30) for number in chosen})
        tell({"kind": operation.kind, "items": operation.items})
        if kind == "delete":
            index.delete(list(operation.items)).result()
        else:
            seeds = list(operation.items.values())
            vectors = np.stack([subject.vector_of(value) for value in seeds])
            index.upsert(list(operation.items), vectors, [{"seed": value} for value in seeds], None).result()
        present = operation.applied(present)
        tell({"wal": wal.stat().st_size})


def reindex_again_and_again(subject: Subject, home: Path, folder: Path) -> NoReturn:
    """In a process beside it: one new generation after the other, with another number of links."""
    settings = read_settings(home=home, job_threads=1)
    job = home / "job"
    job.mkdir(exist_ok=True)
    for name, content in zip((MANIFEST, TENSORS), subject.artifact or (), strict=False):
        (job / name).write_bytes(content)
    for number in range(10**6):
        spec = replace(current_spec(folder), generation=f"{os.getpid()}n{number}", m=4 + number % 3)
        asked = ReindexJob(index=folder.name, spec=spec, encoder=None, text_field="text")
        asked.run(job, settings, lambda _fraction, _message: None)
    raise AssertionError("killed before")


def lose_power(subject: Subject, folder: Path, wal: int, random_of: random.Random) -> None:
    """Undo what was not fsynced, and spoil some of what can be rebuilt, as a power failure does."""
    path = folder / "record.db-wal"
    if path.exists() and path.stat().st_size > wal > 0:
        os.truncate(path, wal)
    graphs = folder / f"graph-{current_spec(folder).generation}"
    try:
        rows = int(read_snapshot(graphs)["rows"])
    except (OSError, ValueError):
        rows = 0
    for name, row_bytes in subject.row_bytes.items():
        if (graphs / name).exists():
            os.truncate(graphs / name, rows * row_bytes)
    spoilt = random_of.choice([None, *subject.row_bytes, "snapshot.json", "graph"])
    for file in graphs.glob(f"{spoilt}*"):
        if file.stat().st_size:
            with file.open("r+b") as bytes_of:
                bytes_of.seek(random_of.randrange(file.stat().st_size))
                bytes_of.write(b"\xa5")


def inspected(subject: Subject, folder: Path, allowed: list[State]) -> tuple[State | None, str | None]:
    """Open the index in another process and return which of the allowed states it is in, or else what is wrong."""
    reading, writing = os.pipe()
    process = forked(lambda: inspect(subject, folder, allowed, writing))
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        content = answer.read()
    os.waitpid(process, 0)
    if not content:
        return None, "the process that opened the index died"
    found = json.loads(content)
    return found.get("state"), found.get("problem")


def inspect(subject: Subject, folder: Path, allowed: list[State], told: int) -> None:
    """Open the index, compare its state with those allowed, and write the outcome to a descriptor as JSON."""
    index = opened(folder)
    while index.generation.extend_graph(10_000, 1):
        pass
    labels, payloads = index.record.read_payloads_after(0, 10**9)
    state = {item: json.loads(metadata or b"{}")["seed"] for item, metadata in payloads}
    problem = None
    if state not in allowed:
        wrong = sorted(set(state.items()) ^ set(allowed[0].items()))[:5]
        problem = f"the record is in none of {len(allowed)} allowed states; it differs in {wrong}"
    elif state:
        queries = np.stack([subject.vector_of(seed) for seed in state.values()])
        hits = index.get_serving().search(Query(queries, 1))
        lost = [item for item, found in zip(state, hits, strict=True) if not found or found[0]["id"] != item]
        view = index.generation.rows.take_view()
        if lost:
            problem = f"{len(lost)} of {len(state)} items are not found by their own vector: {lost[:3]}"
        elif int(view.alive.sum()) != len(labels):
            problem = f"{int(view.alive.sum())} rows are alive, the record has {len(labels)} items"
    index.close()
    os.write(told, json.dumps({"state": state} | ({"problem": problem} if problem else {})).encode())


def opened(folder: Path) -> EmbeddedIndex:
    """Open the index, owned by this process, without its maintenance thread, and return it."""
    return EmbeddedIndex(folder.name, folder, acquire_index(folder, folder.name), 1, 1, no_texts)


def no_texts(_spec: IndexSpec, _texts: list[str]) -> NoReturn:
    """Raise `NotImplementedError`: the trials write vectors, and encode no texts."""
    raise NotImplementedError


def current_spec(folder: Path) -> IndexSpec:
    """Return the settings that the record of an index holds."""
    record = IndexRecord(folder / "record.db", read_only=True)
    try:
        return record.spec
    finally:
        record.close()


def forked(work: Callable[[], None]) -> int:
    """Run something in a forked process. This process must have no threads."""
    process = os.fork()
    if process == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return process


if __name__ == "__main__":
    main()
