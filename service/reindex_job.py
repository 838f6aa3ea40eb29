"""Reindexing as a job: builds the next generation of an index while the current one serves.

The index's database is only read in this process; its owner alone writes to it, see `service.index.adoption`.
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
"""Rows inserted into the graph between two progress reports."""
PAIRS = 2500
"""Items whose vectors of both encoders the bridge from the old to the new space is fitted on, at most."""
ADOPTION_SECONDS = 600.0
"""Seconds that a finished generation waits for the index's owner to cut over to it."""


class Reembedding:
    """Encoding of an index's items with a new encoder, from their texts.

    Args:
        record: database of the index.
        encoder: new encoder.
        text_field: field of the metadata that holds the texts.
        texts: texts sent again, by item id; preferred to those in the metadata.
    """

    def __init__(self, record: Record, encoder: Encoder, text_field: str, texts: Mapping[str, str]) -> None:
        self.record = record
        self.encoder = encoder
        self.text_field = text_field
        self.texts = texts

    def after(self, label: int) -> tuple[Labels, Vectors]:
        """Encode the next `REPLAY_ROWS` items after a label, and return their labels and vectors `(n, d)`.

        Raises:
            ConflictError: if an item has no text.
        """
        labels, payloads = self.record.payloads_after(label, REPLAY_ROWS)
        return labels, self.vectors(payloads)

    def vectors(self, payloads: list[tuple[str, bytes | None]]) -> Vectors:
        """Encode items, given as ids and metadata, to vectors `(n, d)`."""
        texts = [self.texts.get(item) or text_of(item, metadata, self.text_field) for item, metadata in payloads]
        return self.encoder.encode(texts).vectors if texts else np.empty((0, self.encoder.dimensions), np.float32)

    def pairs(self, spec: IndexSpec) -> tuple[Vectors, Vectors]:
        """Return new and old vectors, `(n, d)` and `(n, spec.width)`, of up to `PAIRS` items spread over the index."""
        last = self.record.meta("last_label")
        wanted = np.unique(np.linspace(1, max(last, 1), PAIRS).astype(np.int64)).tolist()
        payloads = self.record.payloads(wanted)
        old = self.record.originals(list(payloads), spec)
        labels = [label for label in payloads if label in old]
        new = self.vectors([payloads[label] for label in labels])
        return new, np.array([old[label] for label in labels], np.float32).reshape(len(labels), spec.width)


def run_reindex(asked: ReindexJob, job: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
    """Build a generation as the job describes, wait until the index serves it, and return the job's result.

    Raises:
        ConflictError: if the index's owner refuses the generation.
        UnavailableError: if no owner cuts over to it in time.
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
    """Write rows, graph and snapshot of the new generation to its folder, mark it ready, and return its number of rows.

    With a new encoder, also encode the items' texts, store the vectors, and fit the bridge between the two spaces.
    """
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
    """Yield labels and vectors of the items after the generation's last row, until `read` returns none."""
    while True:
        labels, vectors = read(generation.last_label)
        if not len(labels):
            return
        yield labels, vectors


def chain_files(job: Path, folder: Path, spec: IndexSpec) -> tuple[bytes, bytes] | None:
    """Copy the chain that came with the job to the generation's folder, for the index's owner; return its two files.

    Returns None if the index uses no chain.
    """
    if spec.chain == "none":
        return None
    artifact = (read_beneath(job, MANIFEST), read_beneath(job, TENSORS))
    make_folder(folder / CHAIN_FOLDER)
    for name, payload in zip((MANIFEST, TENSORS), artifact, strict=True):
        write_synced(folder / CHAIN_FOLDER / name, payload)
    return artifact


def texts_given(job: Path) -> dict[str, str]:
    """Return the texts that came with the job, by item id; empty if there are none."""
    try:
        return dict(json.loads(read_beneath(job, FILE_OF_NEW_TEXTS)))
    except FileNotFoundError:
        return {}


def wait_until_adopted(record: Record, spec: IndexSpec, folder: Path, on_progress: Progress) -> None:
    """Wait until the index serves the generation.

    Raises:
        ConflictError: if the index's owner refuses the generation.
        UnavailableError: after `ADOPTION_SECONDS`.
    """
    deadline = time.monotonic() + ADOPTION_SECONDS
    while record.spec.generation != spec.generation:
        if (folder / REFUSED).exists():
            raise ConflictError(json.loads((folder / REFUSED).read_bytes())["error"])
        if time.monotonic() > deadline:
            raise UnavailableError("no server that owns the index took the new generation up: start it and try again")
        on_progress(0.98, "waiting for the index to change over")
        time.sleep(0.05)
