"""Replacement of stored vectors that are not their texts', and how to undo it.

FILE.jsonl has a line for each row: `{"store": …, "id": …, "old": [vector], "new": [vector]}`. It is complete before
the first row is written, and a row is written only if it still has the vector that the file names.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from lathe.service.errors import BadValueError, ConflictError
from lathe.training.checkup.spaces import (
    MOST,
    SAME,
    StoreEncoder,
    compute_cosines,
    find_document_prompt,
    require_dimensions,
)
from lathe.training.checkup.store import Store
from lathe.training.journal import Journal
from lathe.transforms.progress import Progress
from lathe.transforms.quality.metrics import normalized_rows

BATCH_ROWS = 1000
"""Number of texts that are encoded between two entries of the file."""


def find_changes(store: Store, encoder: StoreEncoder, file: Path, on_progress: Progress) -> int:
    """Encode all texts of a store again, write the rows with another vector to a new file, and return their number.

    Args:
        store: the store, whose rows are all read into memory.
        encoder: encoder that the rows should be of.
        file: path of the file.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        ConflictError: if nearly all rows differ, or the file exists.
        EncoderError: if the encoder gives vectors of another number of dimensions than the rows have.
        InputError: if vectors of the store cannot be replaced.
    """
    if file.exists():
        raise ConflictError(f"{file} exists, and may be what undoes an earlier run: name another file", param="fix")
    store.replace(())  # raises before texts are encoded for nothing
    rows = store.read(sys.maxsize)
    texts = rows.texts or []
    chosen = [row for row, text in enumerate(texts) if text and text.strip()]
    changes: Journal[dict[str, Any]] = Journal(file, dict)
    prompt, count = find_document_prompt(encoder), 0
    for start in range(0, len(chosen), BATCH_ROWS):
        batch = chosen[start : start + BATCH_ROWS]
        fresh = encoder.encode([texts[row] or "" for row in batch], prompt)
        require_dimensions(encoder, fresh, rows.vectors)
        stored = normalized_rows(np.nan_to_num(rows.vectors[batch]), np.float32).numpy()
        cosines = compute_cosines(stored, fresh)
        entries = [
            {
                "store": store.name,
                "id": rows.ids[batch[row]],
                "old": rows.vectors[batch[row]].tolist(),
                "new": fresh[row].tolist(),
            }
            for row in np.flatnonzero(~(cosines >= SAME))  # the cosine of too large a vector is NaN
        ]
        changes.append(entries)
        count += len(entries)
        on_progress((start + len(batch)) / len(chosen), f"{start + len(batch):,} texts encoded again")
    if chosen and count >= MOST * len(chosen):
        file.unlink(missing_ok=True)
        raise ConflictError(
            f"{count:,} of {len(chosen):,} rows have another vector than their text: name the right --encoder, --chain "
            "and --texts; lathe migrate encodes a whole table again",
            param="fix",
        )
    return count


def write_changes(store: Store, file: Path, undo: bool = False) -> tuple[int, int]:
    """Write the new vectors of a file's rows to the store, or with `undo` the old ones.

    Returns:
        Number of rows written, and number of rows in the file. Rows that have changed meanwhile are left as they are.

    Raises:
        BadValueError: if there is no such file, or it holds something else or rows of another store.
    """
    journal: Journal[dict[str, Any]] = Journal(file, dict, strict=True)
    entries = journal.read()
    if not entries or any({"store", "id", "old", "new"} - entry.keys() for entry in entries):
        raise BadValueError(f"{file} does not hold rows of a lathe checkup --fix", param="undo")
    if (other := entries[0]["store"]) != store.name:
        raise BadValueError(f"{file} holds rows of {other}, not of {store.name}", param="undo")
    before, after = ("new", "old") if undo else ("old", "new")
    changes = [(entry["id"], entry[before], entry[after]) for entry in entries if None not in entry[after]]
    return store.replace(changes), len(entries)
