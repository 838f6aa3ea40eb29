"""Filling an index from a store that exists: what the chain costs there, then the rows, resumably."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from service.errors import BadValueError
from service.index.items import require_ids
from service.index.protocol import SearchIndex
from service.index.reducer import Reducer, Vectors, require_lengths
from service.index.spec import IndexSpec
from training.encoder.encoder import Encoder
from training.fitting.encoding import pace
from training.sources.kinds import Batch
from training.sources.raw import Record
from training.sources.source import Source
from transforms.progress import Progress
from transforms.quality import geometry_measures

SAMPLE_ROWS = 2000
NOTE = "import"
ID_FIELDS = ("id", "_id")
LINK_BYTES = 4


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
    """Which id each row gets, and what of it is metadata.

    Args:
        listed: a file with one id a line, or a .npy of whole numbers; None takes ids from the rows.
        field: of the rows; None tries `id`, then `_id`, then the row's number.
        total: rows of the source.

    Raises:
        BadValueError: for a list of another length, or with blank lines.
    """

    def __init__(self, listed: Path | None, field: str | None, total: int) -> None:
        self.listed = read_ids(listed) if listed else None
        self.field = field
        if self.listed is not None and len(self.listed) != total:
            raise BadValueError(f"there are {len(self.listed):,} ids for {total:,} rows", param="ids")

    def rows(self, batch: Batch, first: int, left_out: str, text_field: str | None) -> list[Row]:
        """The rows of a batch.

        A field `metadata` that holds an object, or its JSON, is taken for the metadata itself:
        `lathe index export` writes it so.

        Args:
            batch: of the source.
            first: number of its first row.
            left_out: the field that holds vectors or texts.
            text_field: where the index keeps texts; None if it does not.
        """
        records: list[Record] = batch.records or [{} for _ in range(len(batch))]
        rows = []
        for place, record in enumerate(records):
            field = self.field_of(record)
            item = self.id_of(record, field, first + place)
            rest = {key: value for key, value in record.items() if key not in (left_out, field)}
            nested = as_object(rest.get("metadata"))
            if nested is not None:
                del rest["metadata"]
                rest |= nested
            if text_field is not None and isinstance(batch.values, list):
                rest[text_field] = batch.values[place]
            rows.append(Row(item, orjson.loads(orjson.dumps(rest, default=str)) if rest else None))
        return rows

    def field_of(self, record: Mapping[str, Any]) -> str | None:
        """The field a row's id stands in; None if it is in none."""
        if self.listed is not None:
            return None
        return self.field or next((field for field in ID_FIELDS if field in record), None)

    def id_of(self, record: Mapping[str, Any], field: str | None, number: int) -> str:
        """The id of one row.

        Raises:
            BadValueError: if the row lacks the field, or has nothing in it.
        """
        if self.listed is not None:
            return self.listed[number]
        if field is None:
            return str(number)
        if record.get(field) is None:
            raise BadValueError(f"row {number} has no id in the field {field!r}", param="id_field")
        return str(record[field])


def read_ids(path: Path) -> list[str]:
    """One id a line, or the whole numbers of a .npy file.

    Raises:
        BadValueError: for a blank line, or an array of anything else.
    """
    if path.suffix == ".npy":
        numbers = np.load(path, allow_pickle=False)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise BadValueError(f"{path.name} must hold whole numbers (n,), not {numbers.dtype} {numbers.shape}", "ids")
        return [str(number) for number in numbers.tolist()]
    lines = path.read_text().splitlines()
    if not all(line.strip() for line in lines):
        blank = next(number for number, line in enumerate(lines, 1) if not line.strip())
        raise BadValueError(f"{path.name} line {blank} is blank; there must be one id a line", param="ids")
    return lines


def as_object(value: Any) -> dict[str, Any] | None:
    """An object, or the object that a text of JSON says; None for anything else."""
    if isinstance(value, str) and value.startswith("{"):
        with suppress(orjson.JSONDecodeError):
            value = orjson.loads(value)
    return value if isinstance(value, dict) else None


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
        quality=geometry_measures(sample, reduce(sample)),
        bytes_per_vector=sizes,
        graph_bytes={side: total * (size + 2 * LINK_BYTES * spec.m + 16) for side, size in sizes.items()},
    )


def fill(
    index: SearchIndex, source: Source, encoder: Encoder | None, ids: Ids, key: str, on_progress: Progress, zeros: bool
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
        {imported, left_out, replaced}: rows put in this run, zero rows left out, and items that were
        there under the same id.

    Raises:
        BadValueError: for an id that stands twice within a batch, and for rows that cannot be kept.
    """
    spec = index.spec
    note = index.note(NOTE) or {}
    done = int(note.get("rows", 0)) if note.get("key") == key else 0
    total, seen, put, left_out, replaced, begun = source.count(), 0, 0, 0, 0, time.monotonic()
    for batch in source.batches():
        first, seen = seen, seen + len(batch)
        if seen <= done:
            continue
        vectors = vectors_of(batch.values, encoder, spec)
        rows = ids.rows(batch, first, source.field, spec.text_field)
        kept = kept_rows(vectors, rows, spec, zeros)
        if kept:
            named, said = zip(*((rows[place].id, rows[place].metadata) for place in kept), strict=True)
            require_ids(named)
            written = index.upsert(named, vectors[kept], said, None, note={NOTE: {"key": key, "rows": seen}}).result()
            replaced += written.gone or 0
        put, left_out = put + len(kept), left_out + len(batch) - len(kept)
        on_progress(seen / max(total, 1), pace(seen, total, seen - done, time.monotonic() - begun))
    index.forget_note(NOTE)
    return {"imported": put, "left_out": left_out, "replaced": replaced}


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
    require_lengths(vectors)
    return vectors
