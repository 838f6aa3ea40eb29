"""Reindexing as a job: builds the next generation of an index while the current one serves.

The index's record is only read in this process; its owner alone writes to it: see
`lathe.service.index.embedded.maintenance`.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, StringConstraints

from lathe.service.chains.names import RAW, is_name
from lathe.service.errors import ConflictError, UnavailableError
from lathe.service.home import Home
from lathe.service.index.bridge import fit_bridge
from lathe.service.index.embedded.calibration import Inputs, read_inputs
from lathe.service.index.embedded.generation import REPLAY_ROWS, Generation
from lathe.service.index.embedded.maintenance import CHAIN_FOLDER, MOVING, READY, REFUSED, VECTORS, build_lock_path
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.embedded.rows import Labels, RowFile
from lathe.service.index.embedded.snapshot import save_snapshot
from lathe.service.index.items import get_text
from lathe.service.index.reducer import Reducer, Vectors
from lathe.service.index.spec import IndexSpec
from lathe.service.jobs.job import FILE_OF_NEW_TEXTS
from lathe.service.jobs.kinds.calibrate import encode_inputs
from lathe.service.jobs.requests import JobRequest
from lathe.service.settings import Settings
from lathe.training.encoder.text_encoder import TextEncoder, with_document_prompt
from lathe.training.errors import NotFiniteError
from lathe.training.locks import lock_file
from lathe.training.settings import NAME_PATTERN
from lathe.transforms.artifact import MANIFEST, TENSORS
from lathe.transforms.beneath import read_beneath
from lathe.transforms.files import make_folder, parse_json_object, read_json_file, replace_synced, write_synced
from lathe.transforms.progress import Progress

GRAPH_ROWS = 2048
"""Rows inserted into the graph between two progress reports."""
PAIRS = 2500
"""Maximum number of items whose vectors of both encoders the alignment is fitted on."""
CUTOVER_SECONDS = 600.0
"""Seconds that a finished generation waits for the index's owner to cut over to it."""


@dataclass(frozen=True)
class Reembedding:
    """Encodes the texts of an index's items with a new encoder.

    Attributes:
        text_field: field of the metadata that holds the texts.
        texts: texts sent again, by item id; preferred to those in the metadata.
        on_encoded: called with the number of items of the present batch that are encoded.
    """

    record: IndexRecord
    encoder: TextEncoder
    text_field: str
    texts: Mapping[str, str]
    on_encoded: Callable[[int], None]

    def encode_after(self, label: int) -> tuple[Labels, Vectors]:
        """Encode the next `REPLAY_ROWS` items after a label (row number) as `(labels, vectors of shape (n, d))`.

        Raises:
            ConflictError: if an item has no text.
        """
        labels, payloads = self.record.read_payloads_after(label, REPLAY_ROWS)
        return labels, self._encode(payloads)

    def _encode(self, payloads: list[tuple[str, bytes | None]]) -> Vectors:
        """Encode the texts of items, given as (id, metadata) pairs, and return the vectors `(n, d)`."""
        texts = [self.texts.get(item) or get_text(item, metadata, self.text_field) for item, metadata in payloads]
        if not texts:
            return np.empty((0, self.encoder.dimensions), np.float32)
        try:
            return self.encoder.encode(texts, on_batch=self.on_encoded).vectors
        except NotFiniteError as error:
            raise error.at(f"the text of {payloads[error.position or 0][0]!r}") from None

    def sample_pairs(self, spec: IndexSpec) -> tuple[Vectors, Vectors]:
        """Encode a sample of up to `PAIRS` items, spread over the index, that have a stored vector.

        Args:
            spec: settings that the index serves now.

        Returns:
            `(new vectors (n, d), stored vectors (n, spec.width) of the same items)`.

        Raises:
            ConflictError: if an item has no text.
        """
        payloads = self.record.read_payloads(self.record.sample_labels(PAIRS))
        old = self.record.read_originals(list(payloads), spec)
        labels = [label for label in payloads if label in old]
        new = self._encode([payloads[label] for label in labels])
        return new, np.array([old[label] for label in labels], np.float32).reshape(len(labels), spec.width)


def _require_generation(spec: IndexSpec) -> IndexSpec:
    if not is_name(spec.generation):
        raise ValueError("no generation has this name")
    return spec


class ReindexJob(JobRequest):
    """Parameters of an index's next generation.

    `text_field` is the metadata field with the texts to encode.
    """

    index: Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
    spec: Annotated[IndexSpec, AfterValidator(_require_generation)]
    text_field: str

    def run(self, folder: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
        """Build the next generation of the index (rows and search graph) and wait until its server uses it.

        The generation is in a new folder. A lock file tells the index's owner that the job is alive.

        Returns:
            `{index, chain, space_id, rows, seconds}`.

        Raises:
            ConflictError: if an item has no text for the new encoder, or the index's owner refuses the generation.
            UnavailableError: if no owner cuts over to it within `CUTOVER_SECONDS`.
        """
        begun = time.monotonic()
        root = Home(settings.home).indexes / self.index
        record = IndexRecord(root / "record.db", read_only=True)
        spec = self.spec
        generation = root / f"graph-{spec.generation}"

        with lock_file(build_lock_path(generation)):
            make_folder(generation)
            rows = _build_generation(self, folder, settings, record, generation, on_progress)
            _wait_for_cutover(record, spec, generation, on_progress)
        build_lock_path(generation).unlink(missing_ok=True)
        record.close()

        seconds = round(time.monotonic() - begun, 2)
        return {"index": self.index, "chain": spec.chain, "space_id": spec.space_id, "rows": rows, "seconds": seconds}


def _build_generation(
    request: ReindexJob,
    job: Path,
    settings: Settings,
    record: IndexRecord,
    folder: Path,
    on_progress: Progress,
) -> int:
    """Write the new generation (chain, rows, search graph, snapshot) to its folder, and return its number of rows.

    The chain reduces the index's stored vectors or, with a new encoder, vectors encoded from the items' texts, which
    are stored too; an alignment between the two encoders' embedding spaces is then also fitted. Files tell the index's
    owner that new items need a text (only with a new encoder) and, at the end, that the generation is ready.
    """
    # Read before any row: rows deleted up to here are not in this generation, so their tombstones can go.
    sequence, served_spec, spec = record.read_meta("sequence"), record.spec, request.spec
    artifact = _copy_chain(job, folder, spec)
    generation = Generation(folder, spec, record, Reducer(spec, artifact), settings.job_threads)

    text_field, originals, encoder = None, None, None
    total = max(record.count_items()["count"], 1)
    # Share of the progress that the rows take: encoding is most of the time, reading stored vectors is not.
    share = 0.3 if request.encoder is None else 0.9

    def report(encoded: int) -> None:
        done = generation.rows.count + encoded
        on_progress(min(share * done / total, share), f"{done:,} of {total:,} rows through {spec.chain}")

    if request.encoder is not None:
        text_field = request.text_field
        on_progress(0.0, "loading the encoder")
        encoder = with_document_prompt(request.load_encoders(settings)["encoder"])
        reembedding = Reembedding(record, encoder, text_field, _read_new_texts(job), report)
        replace_synced(folder / MOVING, json.dumps({"text_field": text_field}).encode())
        fit_bridge(*reembedding.sample_pairs(served_spec), spec, folder)
        originals = RowFile(folder / VECTORS, "float32", spec.width)

    read_after = (
        reembedding.encode_after if originals else lambda label: record.read_rows_after(label, REPLAY_ROWS, spec)
    )
    for labels, vectors in _read_batches(generation, read_after):
        if originals is not None:
            rows = slice(generation.rows.count, generation.rows.count + len(labels))
            # Grown by half, so that the file is extended only a few times whatever the index's size.
            if rows.stop > len(originals.array):
                originals.reserve(int(1.5 * rows.stop))
            originals.array[rows] = vectors
        generation.append(labels, vectors)
        report(0)

    while unlinked := generation.extend_graph(GRAPH_ROWS, settings.job_threads):
        linked = generation.covered
        on_progress(share + (0.97 - share) * linked / total, f"{linked:,} of {linked + unlinked:,} rows in the graph")

    save_snapshot(generation)
    if originals is not None:
        originals.sync()

    _request_calibration(record, folder, served_spec, encoder)
    # Written last: the owner cuts over as soon as this file is there.
    ready = {"spec": spec.to_json(), "sequence": sequence, "text_field": text_field}
    replace_synced(folder / READY, json.dumps(ready).encode())
    return generation.rows.count


def _request_calibration(record: IndexRecord, folder: Path, served: IndexSpec, encoder: TextEncoder | None) -> None:
    """Let the owner calibrate the new generation with the queries of the old one, by another encoder if there is one.

    Without queries, or with vectors of queries that another encoder gave, rows search for rows.
    """
    inputs = read_inputs(record, served.space_id) or Inputs(folder.name)
    if encoder is not None:
        inputs.log = None
        encode_inputs(inputs, encoder)
    inputs.save(folder)


def _read_batches(generation: Generation, read_after: Any) -> Iterator[tuple[Labels, Vectors]]:
    """Yield `(labels, vectors)` of the index's items that come after the generation's last row, batch by batch.

    The caller appends each batch to the generation before it requests the next one. The iterator ends when no items are
    left.

    Args:
        generation: the generation.
        read_after: function from a label to the labels and vectors of the next items after it.
    """
    while True:
        labels, vectors = read_after(generation.last_label)
        if not len(labels):
            return
        yield labels, vectors


def _copy_chain(job: Path, folder: Path, spec: IndexSpec) -> tuple[bytes, bytes] | None:
    """Copy the chain's manifest and tensors from the job's folder to the new generation, and return them, or None."""
    if spec.chain == RAW:
        return None
    artifact = (read_beneath(job, MANIFEST), read_beneath(job, TENSORS))
    make_folder(folder / CHAIN_FOLDER)
    for name, payload in zip((MANIFEST, TENSORS), artifact, strict=True):
        write_synced(folder / CHAIN_FOLDER / name, payload)
    return artifact


def _read_new_texts(job: Path) -> dict[str, str]:
    try:
        return parse_json_object(read_beneath(job, FILE_OF_NEW_TEXTS))
    except FileNotFoundError:
        return {}


def _wait_for_cutover(record: IndexRecord, spec: IndexSpec, folder: Path, on_progress: Progress) -> None:
    """Wait until the index serves the new generation. Raise if its server refuses the generation or takes too long."""
    deadline = time.monotonic() + CUTOVER_SECONDS
    while record.spec.generation != spec.generation:
        if (folder / REFUSED).exists():
            raise ConflictError(str(read_json_file(folder / REFUSED)["error"]))
        if time.monotonic() > deadline:
            raise UnavailableError(
                "no server that owns the index cut over to the new generation: start it and try again"
            )
        on_progress(0.98, "waiting for the index to cut over")
        time.sleep(0.05)
