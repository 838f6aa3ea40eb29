"""Filling an index from a store that exists: what the chain costs there, then the rows, resumably."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from service.errors import BadValueError
from service.index.index import Index
from service.index.reducer import Reducer, Vectors
from service.index.spec import IndexSpec
from training.encoders import Encoder
from training.encoding import pace
from training.raw import Record
from training.readers import numbered_lines
from training.sources import Batch, Source
from transforms.certificate import fidelity
from transforms.transform import Progress

SAMPLE_ROWS = 2000
NOTE = "import"
ID_FIELDS = ("id", "_id")
LINK_BYTES = 4
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Row:
    """A row of the store: its id and what else it says."""

    id: str
    metadata: dict[str, Any] | None


@dataclass(frozen=True)
class Cost:
    """What a chain costs on the vectors of a store, measured on some of them.

    Attributes:
        rows: of the store.
        sampled: rows measured on, all different.
        quality: `local_spearman`, `recall_at_10`, `recall_at_10_rescored_4x`, `positional_stress`.
        bytes_per_vector: {before, after}: of a float32 original, and of what the graph holds.
        graph_bytes: {before, after}: of a graph over all rows of originals, and of reduced ones.
    """

    rows: int
    sampled: int
    quality: dict[str, float | None]
    bytes_per_vector: dict[str, int]
    graph_bytes: dict[str, int]


class Ids:
    """Which id each row gets.

    Args:
        listed: a file with one id a line; None takes them from the rows.
        field: of the rows; None tries `id`, then `_id`, then the row's number.
    """

    def __init__(self, listed: Path | None, field: str | None) -> None:
        self.listed = read_ids(listed) if listed else None
        self.field = field

    def rows(self, batch: Batch, first: int, left_out: str, text_field: str | None) -> list[Row]:
        """The rows of a batch.

        Args:
            batch: of the source.
            first: number of its first row.
            left_out: the field that holds vectors or texts.
            text_field: where the index keeps texts; None if it does not.
        """
        records: list[Record] = batch.records or [{} for _ in range(len(batch))]
        rows = []
        for place, record in enumerate(records):
            item = self.id_of(record, first + place)
            rest = {k: v for k, v in record.items() if k != left_out and k != self.field and k not in ID_FIELDS}
            if text_field is not None and isinstance(batch.values, list):
                rest[text_field] = batch.values[place]
            rows.append(Row(item, orjson.loads(orjson.dumps(rest, default=str)) if rest else None))
        return rows

    def id_of(self, record: Mapping[str, Any], number: int) -> str:
        """The id of one row.

        Raises:
            BadValueError: if the list is too short, or the row lacks the field.
        """
        if self.listed is not None:
            if number >= len(self.listed):
                raise BadValueError(f"the list of ids ends after {len(self.listed)}, the source goes on", param="ids")
            return self.listed[number]
        if self.field is not None and self.field not in record:
            raise BadValueError(f"row {number} has no field {self.field!r} to take its id from", param="id_field")
        found = record[self.field] if self.field else next((record[f] for f in ID_FIELDS if f in record), number)
        return str(found)


def read_ids(path: Path) -> list[str]:
    """One id a line, or the numbers of a .npy file."""
    if path.suffix == ".npy":
        return [str(number) for number in np.load(path, allow_pickle=False).tolist()]
    return [line.decode() for _, line in numbered_lines(path)]


def measure(source: Source, encoder: Encoder | None, spec: IndexSpec, reduce: Reducer, on_progress: Progress) -> Cost:
    """What the chain of a spec costs on the vectors of a source.

    Raises:
        BadValueError: for vectors of another width.
    """
    total = source.count()
    wanted = np.unique(np.linspace(0, max(total - 1, 0), SAMPLE_ROWS).astype(int))
    taken: list[Any] = []
    seen = 0
    for batch in source.batches():
        inside = wanted[(wanted >= seen) & (wanted < seen + len(batch))] - seen
        taken += [batch.values[place] for place in inside]
        seen += len(batch)
        on_progress(0.5 * min(seen / max(total, 1), 1), f"reading a sample, {seen:,} of {total:,} rows")
    on_progress(0.5, f"measuring {spec.chain} on {len(taken):,} rows")
    sample = np.unique(vectors_of(taken, encoder, spec), axis=0)
    sample = sample[sample.any(axis=1)]
    sizes = {"before": 4 * spec.width, "after": 4 * spec.dimensions}
    return Cost(
        rows=total,
        sampled=len(sample),
        quality=fidelity(sample, reduce(sample)),
        bytes_per_vector=sizes,
        graph_bytes={side: total * (size + 2 * LINK_BYTES * spec.m + 16) for side, size in sizes.items()},
    )


def fill(
    index: Index, source: Source, encoder: Encoder | None, ids: Ids, key: str, on_progress: Progress, zeros: bool
) -> dict[str, int]:
    """Put all rows of a source into an index; a stopped run goes on where it was.

    Args:
        index: to fill.
        source: of vectors, or of texts.
        encoder: for texts.
        ids: of the rows.
        key: what tells this import from another.
        on_progress: told rows done, rate and time left.
        zeros: leave out rows that are zero, instead of stopping there.

    Returns:
        {imported, left_out}: rows put in this run, and those left out: zero, or replaced later in the same batch.
    """
    spec = index.generation.spec
    note = index.record.meta(NOTE) or {}
    done = int(note.get("rows", 0)) if note.get("key") == key else 0
    total, seen, put, skipped, begun = source.count(), 0, 0, 0, time.monotonic()
    for batch in source.batches():
        first, seen = seen, seen + len(batch)
        if seen <= done:
            continue
        vectors = vectors_of(batch.values, encoder, spec)
        rows = ids.rows(batch, first, source.field, spec.text_field)
        kept = kept_rows(vectors, rows, spec, zeros)
        last = {rows[place].id: place for place in kept}  # of an id that stands twice, the later row stays
        kept = sorted(last.values())
        if kept:
            named, said = zip(*((rows[place].id, rows[place].metadata) for place in kept), strict=True)
            index.upsert(named, vectors[kept], said, None, note={NOTE: {"key": key, "rows": seen}}).result()
        put, skipped = put + len(kept), skipped + len(batch) - len(kept)
        on_progress(seen / max(total, 1), pace(seen, total, seen - done, time.monotonic() - begun))
    index.record.note({NOTE: None})
    return {"imported": put, "left_out": skipped}


def kept_rows(vectors: Vectors, rows: list[Row], spec: IndexSpec, zeros: bool) -> list[int]:
    """Places of the rows to keep.

    Raises:
        BadValueError: for a zero row where directions count and none may be left out.
    """
    if spec.metric != "cosine":
        return list(range(len(rows)))
    there = vectors.any(axis=1)
    if not there.all() and not zeros:
        item = rows[int((~there).argmax())].id
        raise BadValueError(f"the vector of {item!r} is zero and has no direction; --skip-zeros leaves such rows out")
    return [int(place) for place in np.flatnonzero(there)]


def vectors_of(values: Any, encoder: Encoder | None, spec: IndexSpec) -> Vectors:
    """Originals `(n, d)` of rows.

    Raises:
        BadValueError: for texts without an encoder, or vectors of another width.
    """
    if len(values) and isinstance(values[0], str):
        if encoder is None:
            raise BadValueError("texts need an encoder to become vectors", param="encoder")
        return encoder.encode(list(values)).vectors
    vectors: Vectors = np.asarray(values, np.float32).reshape(len(values), -1)
    if len(values) and vectors.shape[1] != spec.width:
        raise BadValueError(f"the index takes vectors {spec.width} wide, these are {vectors.shape[1]}", param="vectors")
    return vectors


def wait_for_graph(index: Index, on_progress: Progress) -> None:
    """Wait until the graph has every row."""
    while index.generation.graph is not None and index.generation.covered < index.generation.rows.count:
        linked, total = index.generation.covered, index.generation.rows.count
        on_progress(linked / total, f"{linked:,} of {total:,} rows in the graph")
        time.sleep(POLL_SECONDS)
