"""Reindexing as a job: the next generation of an index, made beside the one that serves.

The record is read in this process and written by its owner alone; see `service.index.adoption`.
"""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from service.errors import ConflictError, UnavailableError
from service.home import Home
from service.index.adoption import CHAIN_FOLDER, MOVING, READY, REFUSED, VECTORS, lock_path, text_of
from service.index.bridge import fit_bridge
from service.index.generation import REPLAY_ROWS, Generation
from service.index.record import Record
from service.index.reducer import Reducer, Vectors
from service.index.rows import Labels, RowFile
from service.index.snapshot import save_snapshot
from service.index.spec import IndexSpec
from service.jobs.requests import FILE_OF_NEW_TEXTS, ReindexJob
from service.settings import Settings
from training.encoder.encoder import Encoder
from training.locks import lock_file
from transforms.artifact import MANIFEST, TENSORS
from transforms.beneath import read_beneath
from transforms.files import make_folder, replace_synced, write_synced
from transforms.progress import Progress

GRAPH_ROWS = 2048
PAIRS = 2500
ADOPTION_SECONDS = 600.0
"""How long a finished generation waits for the index's owner to take it up."""


class Reembedding:
    """The new encoder's vectors of an index's items, from their texts.

    Args:
        record: of the index.
        encoder: the new one.
        text_field: of the metadata that holds the texts.
        texts: by id, those given again; they go before the metadata's.
    """

    def __init__(self, record: Record, encoder: Encoder, text_field: str, texts: Mapping[str, str]) -> None:
        self.record = record
        self.encoder = encoder
        self.text_field = text_field
        self.texts = texts

    def after(self, label: int) -> tuple[Labels, Vectors]:
        """Labels and vectors of the next items.

        Raises:
            ConflictError: for an item without a text.
        """
        labels, payloads = self.record.payloads_after(label, REPLAY_ROWS)
        return labels, self.vectors(payloads)

    def vectors(self, payloads: list[tuple[str, bytes | None]]) -> Vectors:
        """Vectors `(n, d)` of items."""
        texts = [self.texts.get(item) or text_of(item, metadata, self.text_field) for item, metadata in payloads]
        return self.encoder.encode(texts).vectors if texts else np.empty((0, self.encoder.dimensions), np.float32)

    def pairs(self, spec: IndexSpec) -> tuple[Vectors, Vectors]:
        """New and old vectors of some items, spread over the index."""
        last = self.record.meta("last_label")
        wanted = np.unique(np.linspace(1, max(last, 1), PAIRS).astype(np.int64)).tolist()
        payloads = self.record.payloads(wanted)
        old = self.record.originals(list(payloads), spec)
        labels = [label for label in payloads if label in old]
        new = self.vectors([payloads[label] for label in labels])
        return new, np.array([old[label] for label in labels], np.float32).reshape(len(labels), spec.width)


def run_reindex(asked: ReindexJob, job: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
    """Make a generation as a job describes it, and wait until the index serves it.

    Raises:
        ConflictError: if the index's owner refuses it.
        UnavailableError: if no owner takes it up.
    """
    begun = time.monotonic()
    root = Home(settings.home).indexes / asked.index
    record = Record(root / "record.db", read_only=True)
    spec = asked.spec
    folder = root / f"graph-{spec.generation}"
    with lock_file(lock_path(folder)):
        make_folder(folder)
        made = make(asked, job, settings, record, spec, folder, on_progress)
        wait_until_adopted(record, spec, folder, on_progress)
    lock_path(folder).unlink(missing_ok=True)
    record.close()
    seconds = round(time.monotonic() - begun, 2)
    return {"index": asked.index, "chain": spec.chain, "space_id": spec.space_id, "rows": made, "seconds": seconds}


def make(
    asked: ReindexJob,
    job: Path,
    settings: Settings,
    record: Record,
    spec: IndexSpec,
    folder: Path,
    on_progress: Progress,
) -> int:
    """Rows, graph and snapshot of the new generation; gives its rows."""
    sequence, present = record.meta("sequence"), record.spec
    artifact = chain_files(job, folder, spec)
    generation = Generation(folder, spec, record, Reducer(spec, artifact), settings.job_threads)
    text_field, originals = None, None
    if asked.encoder is not None:
        text_field = asked.text_field
        on_progress(0.0, "loading the encoder")
        encoder = Encoder(asked.encoder, settings.device)
        reembedding = Reembedding(record, encoder, text_field, texts_given(job))
        replace_synced(folder / MOVING, json.dumps({"text_field": text_field}).encode())
        fit_bridge(*reembedding.pairs(present), spec, folder)
        originals = RowFile(folder / VECTORS, "float32", spec.width)
    total = max(record.counts()["count"], 1)
    read = reembedding.after if originals else lambda label: record.rows_after(label, REPLAY_ROWS, spec)
    share = 0.9 if originals else 0.3
    for labels, vectors in batches(generation, read):
        if originals is not None:
            rows = slice(generation.rows.count, generation.rows.count + len(labels))
            if rows.stop > len(originals.array):
                originals.reserve(int(1.5 * rows.stop))
            originals.array[rows] = vectors
        generation.append(labels, vectors)
        done = generation.rows.count
        on_progress(min(share * done / total, share), f"{done:,} of {total:,} rows through {spec.chain}")
    while more := generation.extend_graph(GRAPH_ROWS, settings.job_threads):
        linked = generation.covered
        on_progress(share + (0.97 - share) * linked / total, f"{linked:,} of {linked + more:,} rows in the graph")
    save_snapshot(generation)
    if originals is not None:
        originals.sync()
        originals.close()
    ready = {"spec": spec.json(), "sequence": sequence, "text_field": text_field}
    replace_synced(folder / READY, json.dumps(ready).encode())
    return generation.rows.count


def batches(generation: Generation, read: Any) -> Iterator[tuple[Labels, Vectors]]:
    """The items behind a generation's last row, until there are none."""
    while True:
        labels, vectors = read(generation.last_label)
        if not len(labels):
            return
        yield labels, vectors


def chain_files(job: Path, folder: Path, spec: IndexSpec) -> tuple[bytes, bytes] | None:
    """The chain that came with the job, kept beside the generation for its owner."""
    if spec.chain == "none":
        return None
    artifact = (read_beneath(job, MANIFEST), read_beneath(job, TENSORS))
    make_folder(folder / CHAIN_FOLDER)
    for name, payload in zip((MANIFEST, TENSORS), artifact, strict=True):
        write_synced(folder / CHAIN_FOLDER / name, payload)
    return artifact


def texts_given(job: Path) -> dict[str, str]:
    """Texts that came with the job, by id."""
    try:
        return dict(json.loads(read_beneath(job, FILE_OF_NEW_TEXTS)))
    except FileNotFoundError:
        return {}


def wait_until_adopted(record: Record, spec: IndexSpec, folder: Path, on_progress: Progress) -> None:
    """Wait until the index serves the generation."""
    deadline = time.monotonic() + ADOPTION_SECONDS
    while record.spec.generation != spec.generation:
        if (folder / REFUSED).exists():
            raise ConflictError(json.loads((folder / REFUSED).read_bytes())["error"])
        if time.monotonic() > deadline:
            raise UnavailableError("no server that owns the index took the new generation up: start it and try again")
        on_progress(0.98, "waiting for the index to change over")
        time.sleep(0.05)
