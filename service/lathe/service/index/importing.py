"""Import of the rows of an existing vector store into an index: their ids, metadata and vectors.

add_rows            reads a source batch by batch, and writes each batch to the index
  ├── Ids           ids and metadata of the rows of a batch, from a list of ids or from fields of the rows
  │     └── format_id   value of an id field as text
  └── load_vectors  vectors of the rows of a batch; texts are encoded

An import that was stopped is resumed after its last batch. The effect of the chain of transforms on retrieval is
measured before the import, see `lathe.service.index.import_cost`.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import orjson

from lathe.service.errors import BadValueError
from lathe.service.index.items import require_ids
from lathe.service.index.protocol import SearchIndex
from lathe.service.index.reducer import Vectors, require_finite_norms
from lathe.service.index.spec import IndexSpec
from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import NotFiniteError
from lathe.training.fitting.encoding import format_progress
from lathe.training.sources.lines import explain_encoding, read_numbered_lines
from lathe.training.sources.rows import Record, RowBatch
from lathe.training.sources.source import Source
from lathe.transforms.progress import Progress

NOTE = "import"
"""Key of the note that stores the progress of an import."""
ID_FIELDS = ("id", "_id")
"""Fields in which the id of a row is looked for, in this order."""


class Ids:
    """Assignment of ids to the rows of a source of texts or vectors, and of their other fields to metadata.

    Args:
        listed: file with one id per line, or a .npy file of integers; None to take ids from the rows.
        field: field that holds the id; None tries `id`, then `_id`, then uses the row number.
        total: number of rows of the source.

    Raises:
        BadValueError: if the number of listed ids is not `total`, or the list has blank lines or an id twice.
    """

    def __init__(self, listed: Path | None, field: str | None, total: int) -> None:
        self.listed = _read_ids(listed) if listed else None
        self.field = field
        if self.listed is not None and len(self.listed) != total:
            raise BadValueError(f"there are {len(self.listed):,} ids for {total:,} rows: each needs one", param="ids")
        require_ids(self.listed or [])

    def build_rows(
        self, batch: RowBatch, first: int, vector_field: str, text_field: str | None
    ) -> tuple[list[str], list[dict[str, Any] | None]]:
        """Build the ids of a batch's rows, and the metadata of each row. The metadata is None for a row without fields.

        All fields but the id and the vector become metadata; values that JSON lacks become text. If a field `metadata`
        holds an object, or its JSON text, its fields are merged in, because `lathe index export` writes items in this
        form.

        Args:
            batch: batch of the source.
            first: row number of the batch's first row, from 0.
            vector_field: field with the vectors or texts, which is left out of the metadata.
            text_field: metadata field in which a batch's texts are stored; None if they are not stored.

        Raises:
            BadValueError: if an id is missing or of another type, or a value cannot be stored as metadata.
        """
        records: Sequence[Record] = batch.records or [{} for _ in range(len(batch))]
        items: list[str] = []
        metadata: list[dict[str, Any] | None] = []
        for position, record in enumerate(records):
            field = self._find_id_field(record)
            items.append(self._get_id(record, field, first + position))
            fields = {key: value for key, value in record.items() if key not in (vector_field, field)}
            nested = _parse_object(fields.get("metadata"))
            if nested is not None:
                del fields["metadata"]
                fields |= nested
            if text_field is not None and isinstance(batch.values, list):
                fields[text_field] = batch.values[position]
            metadata.append(_write_metadata(first + position, fields) if fields else None)
        return items, metadata

    def _find_id_field(self, record: Mapping[str, Any]) -> str | None:
        """Return the field of a row that holds the id, or None if the ids are listed or the row has no such field."""
        if self.listed is not None:
            return None
        return self.field or next((field for field in ID_FIELDS if field in record), None)

    def _get_id(self, record: Mapping[str, Any], field: str | None, number: int) -> str:
        """Return the id of row `number`: from the list, from the field, or else the number. An invalid id raises."""
        if self.listed is not None:
            return self.listed[number]
        if field is None:
            return str(number)
        try:
            return format_id(record.get(field))
        except ValueError as error:
            raise BadValueError(
                f"row {number + 1:,}: the id in the field {field!r} is {error}", param="id_field"
            ) from None


MAX_EXACT = 2**53
"""Number up to which a float holds every whole number exactly."""


def format_id(value: Any) -> str:
    """Convert an id from a table to text: a text unchanged, a whole number in digits, a UUID, bytes as UTF-8.

    A float is accepted if it is a whole number below 2^53, because tables with missing values store ids as floats.

    Raises:
        ValueError: for any other value; the message describes the value.
    """
    match value:
        case str():
            return value
        case bool() | None:
            raise ValueError("missing" if value is None else f"{value}, which is neither a text nor a number")
        case int():
            return str(value)
        case float() if value.is_integer() and abs(value) < MAX_EXACT:
            return str(int(value))
        case float():
            raise ValueError(f"{value}, which is not a whole number below 2^53: write ids as texts")
        case Decimal() if value.is_finite() and value == value.to_integral_value():
            return str(int(value))
        case UUID():
            return str(value)
        case bytes():
            return _decode_bytes(value)
        case _:
            raise ValueError(f"a {type(value).__name__}: write ids as texts")


def _decode_bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ValueError("bytes that are not UTF-8: write them as text") from None


def _write_metadata(number: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a row's fields to a dict of JSON values. Bytes are decoded as UTF-8, dates and others become text.

    Raises:
        BadValueError: for values that cannot be converted, such as bytes that are not UTF-8; the message names the row.
    """

    def convert(value: Any) -> str:
        return _decode_bytes(value) if isinstance(value, bytes) else str(value)

    try:
        content = orjson.dumps(fields, default=convert, option=orjson.OPT_SERIALIZE_NUMPY)
    except (orjson.JSONEncodeError, TypeError) as error:
        reason = error.__cause__ or error
        raise BadValueError(f"row {number + 1:,}: the metadata holds {reason}", param="metadata") from None
    metadata: dict[str, Any] = orjson.loads(content)
    return metadata


def _read_ids(path: Path) -> list[str]:
    """Read the ids in a file as texts: one a line, or the integers of a .npy array. Other content raises.

    Raises:
        BadValueError: for a blank line, a line that is not UTF-8, or an array that does not hold integers `(n,)`.
    """
    if path.suffix == ".npy":
        numbers = np.load(path, allow_pickle=False)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise BadValueError(f"{path.name} must hold whole numbers (n,), not {numbers.dtype} {numbers.shape}", "ids")
        return [str(number) for number in numbers.tolist()]
    ids: list[str] = []
    for number, line in read_numbered_lines(path):
        if number > len(ids) + 1:
            raise BadValueError(f"{path.name} line {len(ids) + 1} is blank; there must be one id a line", param="ids")
        try:
            ids.append(line.decode())
        except UnicodeDecodeError as error:
            raise BadValueError(f"{path.name}: {explain_encoding(line, error)}", param="ids") from None
    return ids


def _parse_object(value: Any) -> dict[str, Any] | None:
    """Return `value` if it is a dict, or the dict that it encodes if it is JSON text, else None."""
    if isinstance(value, str) and value.startswith("{"):
        with suppress(orjson.JSONDecodeError):
            value = orjson.loads(value)
    return value if isinstance(value, dict) else None


def add_rows(
    index: SearchIndex,
    source: Source,
    encoder: TextEncoder | None,
    ids: Ids,
    key: str,
    on_progress: Progress,
    skip_zeros: bool,
) -> dict[str, int]:
    """Add all rows of a source of texts or vectors to an index in batches, resuming an earlier run.

    If rows have the same id, the last is kept, and the others count as replaced. Each batch stores the progress in the
    index as a note, so that a run that was stopped resumes after its last batch. The note is deleted at the end.

    Args:
        index: index to fill.
        source: vectors or texts.
        encoder: encoder of the texts; None for vectors.
        ids: assigns ids and metadata.
        key: identifies this import; only an import with the same key is resumed.
        on_progress: called with progress in [0, 1] and a message.
        skip_zeros: whether to skip zero vectors instead of raising.

    Returns:
        `{imported, left_out, replaced}`: the numbers of rows added in this run, of zero vectors skipped, and of items
        that were replaced by rows with the same id.

    Raises:
        BadValueError: if a row cannot be stored.
        NotFiniteError: if the encoder gives NaN or inf for a text; the batches before it stay in the index.
    """
    spec = index.spec
    note = index.read_note(NOTE) or {}
    skipped = int(note.get("rows", 0)) if note.get("key") == key else 0
    total, seen, added, left_out, replaced, begun = source.count(), 0, 0, 0, 0, time.monotonic()

    for batch in source.batches():
        first, seen = seen, seen + len(batch)
        if seen <= skipped:  # the batches are the same in every run
            continue
        items, metadata = ids.build_rows(batch, first, source.field, spec.text_field)
        try:
            vectors = load_vectors(batch.values, encoder, spec)
        except NotFiniteError as error:
            raise error.at(f"the text of {items[error.position or 0]!r}") from None

        kept = _select_rows(vectors, items, spec, skip_zeros)
        if kept:
            # Of rows with the same id, the last is kept, as if they were written one after another.
            row_of_id = {items[position]: position for position in kept}
            rows = list(row_of_id.values())
            require_ids(list(row_of_id))
            kept_metadata = [metadata[position] for position in rows]
            # The note is stored by the same write as the batch, so that a resumed run continues after this batch.
            progress = {NOTE: {"key": key, "rows": seen}}
            written = index.upsert(list(row_of_id), vectors[rows], kept_metadata, None, note=progress).result()
            replaced += (written.removed or 0) + len(kept) - len(rows)
        added, left_out = added + len(kept), left_out + len(batch) - len(kept)
        on_progress(seen / max(total, 1), format_progress(seen, total, seen - skipped, time.monotonic() - begun))
    index.delete_note(NOTE)
    return {"imported": added, "left_out": left_out, "replaced": replaced}


def _select_rows(vectors: Vectors, items: list[str], spec: IndexSpec, skip_zeros: bool) -> list[int]:
    """Return the positions of the rows to import.

    For cosine, zero vectors are left out or raise; else all rows are taken.

    Raises:
        BadValueError: for cosine, if a vector is zero and `skip_zeros` is false.
    """
    if spec.metric != "cosine":
        return list(range(len(items)))
    nonzero = vectors.any(axis=1)
    if not nonzero.all() and not skip_zeros:
        item = items[int((~nonzero).argmax())]
        raise BadValueError(f"the vector of {item!r} is zero, so it has no cosine; skip such rows with --skip-zeros")
    return [int(position) for position in np.flatnonzero(nonzero)]


def load_vectors(values: Any, encoder: TextEncoder | None, spec: IndexSpec) -> Vectors:
    """Return the vectors `(n, d)` of rows of a source, before any chain. Texts are encoded.

    Other dimensions than the index has, and texts without an encoder, raise.

    Raises:
        BadValueError: if there are texts and no encoder, or the vectors have other dimensions than the index's or norms
            that are not finite.
        NotFiniteError: if the encoder gives NaN or inf for a text.
    """
    if len(values) and isinstance(values[0], str):
        if encoder is None:
            raise BadValueError("the source holds texts, which need an encoder: name one", param="encoder")
        return encoder.encode(list(values)).vectors
    vectors: Vectors = np.asarray(values, np.float32).reshape(len(values), -1)
    if len(values) and vectors.shape[1] != spec.width:
        raise BadValueError(
            f"the index takes vectors of {spec.width} dimensions, not {vectors.shape[1]}", param="vectors"
        )
    require_finite_norms(vectors)
    return vectors
