"""Snapshots: descriptions of how far rows and graph are on the disk, with checksums.

graph-<generation>/
├── labels.i64, originals.f16, …   see rows; what lies behind the snapshot's rows is ignored
├── graph.<rows>.<engine>          see graphs
└── snapshot.json                  {schema, space_id, rows, covered, graph, digests, written_at, sha256}

Nothing here is essential: whatever is missing or damaged is rebuilt from the record.
"""

import hashlib
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lathe.service.index.embedded.generation import Generation
from lathe.transforms.beneath import open_beneath, read_beneath
from lathe.transforms.files import create_file, parse_json_object, replace_synced, sync_folder

SNAPSHOT = "snapshot.json"
"""Name of the snapshot's description."""
SCHEMA_VERSION = 2
"""Version of the description; newer ones are ignored. In version 1, codes were stored as the floats they stand for."""
ROW_FILES = ("originals.f16", "reduced.f32", "codes.u8")
"""Names of files that the rows of only some generations have."""

REBUILT = "rows and graph were rebuilt from the record"
"""End of a note about a generation that cannot be used as it is."""

log = logging.getLogger(__name__)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


FIELDS: dict[str, Callable[[Any], bool]] = {
    "schema": _is_count,
    "rows": _is_count,
    "covered": _is_count,
    "graph": lambda value: value is None or isinstance(value, str),
    "digests": lambda value: isinstance(value, dict) and all(isinstance(digest, str) for digest in value.values()),
    "written_at": lambda value: type(value) in (int, float) and math.isfinite(value),
}
"""Function that tells whether a value is valid, for each field of the description that is used."""


class Snapshots:
    """Time and size of the last snapshot of an index, by which unchanged rows and graphs are not written again.

    Attributes:
        written_at: Unix time of the last snapshot; None if there is none.
        saved: numbers of rows, and of rows in the graph, in the last snapshot.
    """

    def __init__(self) -> None:
        self.written_at: float | None = None
        self.saved = (0, 0)

    def remember(self, content: Mapping[str, Any]) -> None:
        """Set time and numbers of rows from a snapshot's description, which is the content of `snapshot.json`."""
        self.written_at, self.saved = content["written_at"], (content["rows"], content["covered"])

    def write(self, generation: Generation) -> None:
        """Write the rows and the graph to disk as a snapshot, unless neither has grown since the last one.

        Raises:
            OSError: if it cannot be written; the previous snapshot stays.
        """
        if self.saved != (generation.rows.count, generation.covered):
            self.remember(save_snapshot(generation))

    def compute_age(self) -> float | None:
        """Return the number of seconds since the last snapshot, or None if there is none."""
        return None if self.written_at is None else round(max(time.time() - self.written_at, 0.0), 1)


def save_snapshot(generation: Generation) -> dict[str, Any]:
    """Write a generation's rows and graph to disk, and return the content of `snapshot.json`.

    The content has the numbers of rows, and checksums. Files of older snapshots are deleted. The caller must make sure
    that the graph is not extended meanwhile.
    """
    folder, rows, graph = generation.folder, generation.rows.count, generation.graph
    generation.rows.sync()
    digests = generation.rows.compute_digests(rows)
    name = None
    if graph is not None and graph.covered:
        name = f"graph.{generation.covered}.{graph.engine}"
        staging = folder / f".{name}"
        with create_file(staging) as file:
            graph.save(file)
            os.fsync(file.fileno())
            file.seek(0)
            digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
        staging.replace(folder / name)

    content = {
        "schema": SCHEMA_VERSION,
        "space_id": generation.spec.space_id,
        "rows": rows,
        "covered": generation.covered,
        "graph": name,
        "digests": digests,
        "written_at": time.time(),
    }
    sealed = content | {"sha256": compute_content_digest(content)}
    # Written last: until then, the snapshot is the previous one, whose files are still there.
    replace_synced(folder / SNAPSHOT, json.dumps(sealed).encode())
    sync_folder(folder)

    unused = {*ROW_FILES} - digests.keys()
    for old in (*folder.glob("graph.*.*"), *folder.glob(".graph.*.*"), *(folder / file for file in unused)):
        if old.name != name:
            old.unlink(missing_ok=True)
    return sealed


def restore_snapshot(generation: Generation) -> dict[str, Any] | None:
    """Load a generation's rows and graph from its last snapshot, as far as their checksums match.

    Whatever does not match is left empty, and a message is added to `generation.notes`.

    Returns:
        Content of `snapshot.json`, in which `covered` is the number of rows in the loaded graph. None if the rows are
            not loaded.
    """
    try:
        content = read_snapshot(generation.folder)
    except FileNotFoundError:
        content = None
        if generation.record.read_meta("last_label"):
            generation.notes.append("there was no snapshot: rows and graph are rebuilt from the record")
    except (OSError, ValueError) as error:
        content = None
        generation.notes.append(f"the snapshot cannot be read ({error}): rows and graph are rebuilt from the record")
    if content is None:
        return None

    rows, digests = generation.rows, content["digests"]
    # The graph has rows by number, so it is of no use unless the rows are those of the snapshot.
    problem = _find_rows_problem(generation, content)
    if problem is not None:
        for file in rows.files:
            file.forget_digest()
        generation.notes.append(f"{problem}: rows and graph are rebuilt from the record")
        return None

    rows.restore(content["rows"])
    if generation.graph is not None and content["graph"] is not None:
        problem = _load_graph(generation, content, digests[content["graph"]])
        if problem is not None:
            generation.notes.append(f"the graph {problem}: it is rebuilt, searches are exact meanwhile")
    return content | {"covered": generation.covered}


def _find_rows_problem(generation: Generation, content: dict[str, Any]) -> str | None:
    rows, digests = generation.rows, content["digests"]
    if content.get("space_id", generation.spec.space_id) != generation.spec.space_id:
        return f"the snapshot is of another chain, in the space {content['space_id']}"
    if not {file.path.name for file in rows.files} <= digests.keys():
        return f"the snapshot has no {rows.compact.path.name}"
    if min(len(file.array) for file in rows.files) < content["rows"]:
        return "the rows' checksums do not match"
    if any(digest != digests[name] for name, digest in rows.compute_digests(content["rows"]).items()):
        return "the rows' checksums do not match"
    return None


def read_snapshot(folder: Path) -> dict[str, Any]:
    """Read `snapshot.json` of a generation, verify its checksum and fields, and return it without the checksum.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it was altered, or is of a newer schema.
    """
    content = parse_json_object(read_beneath(folder, SNAPSHOT))
    sealed = content.pop("sha256", None)
    if sealed != compute_content_digest(content):
        raise ValueError("its checksum does not match")

    for field, is_valid in FIELDS.items():
        if field not in content or not is_valid(content[field]):
            raise ValueError(f"its {field} is {content.get(field)!r:.80}")
    if content["schema"] > SCHEMA_VERSION:
        raise ValueError(f"it is of schema {content['schema']}")
    if content["graph"] is not None and content["graph"] not in content["digests"]:
        raise ValueError("it has no checksum of its graph")
    return content


def compute_content_digest(content: dict[str, Any]) -> str:
    """Return the SHA-256, in hexadecimal, of a snapshot's description as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _load_graph(generation: Generation, content: dict[str, Any], digest: str) -> str | None:
    """Load the graph file of a snapshot and return None, or return a phrase that says why it was not loaded.

    It is not loaded unless its SHA-256 is `digest`.
    """
    assert generation.graph is not None
    if not str(content["graph"]).endswith(f".{generation.graph.engine}"):
        return f"is of another engine than {generation.graph.engine}"
    try:
        with open_beneath(generation.folder, content["graph"]) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == digest:
                generation.load_graph(file, content["covered"])
                return None
    except Exception as error:  # the engines' libraries raise errors of any kind for files that are not theirs
        log.warning("the graph %s cannot be loaded: %r", content["graph"], error)
    return "was missing or damaged"


def open_generation(
    index: str, folder: Path, create: Callable[[], Generation]
) -> tuple[Generation, dict[str, Any] | None]:
    """Open a generation from its snapshot, and append rows for items that the record has after it.

    If the result disagrees with the record, or the files cannot be used, the folder is deleted and the generation is
    rebuilt from the record. Its notes, which say what was rebuilt, are logged.

    Args:
        index: name of the index, for the log.
        folder: folder of the generation.
        create: function that returns the generation without rows, with its files open.

    Returns:
        The generation, and the description of its snapshot; None if there is none that holds its rows.
    """
    notes: list[str] | None = None
    restored: dict[str, Any] | None = None
    try:
        generation = create()
        restored = restore_snapshot(generation)
        generation.replay()
        if generation.rows.count - generation.rows.dead != generation.record.count_items()["count"]:
            notes = [*generation.notes, f"snapshot and record disagreed: {REBUILT}"]
    except OSError as error:
        notes = [f"{Path(error.filename or folder).name}: {error.strerror}; {REBUILT}"]

    if notes is not None:
        restored = None
        shutil.rmtree(folder, ignore_errors=True)
        generation = create()
        generation.notes.extend(notes)
        generation.replay()

    for note in generation.notes:
        log.warning("index %s: %s", index, note)
    return generation, restored
