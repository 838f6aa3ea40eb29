"""Backups of an index: a copy of the record alone, because everything else is built from it.

<backup>/
├── record.db     the record at one moment, compacted
└── backup.json   {schema, index, count, sequence, spec, made_at, sha256}
"""

import hashlib
import json
import os
import secrets
import shutil
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lathe.service.chains.names import is_name, require_name
from lathe.service.errors import ConflictError, UnavailableError, UnknownNameError
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.embedded.restored_record import require_sound_record
from lathe.transforms.beneath import open_beneath, read_beneath
from lathe.transforms.files import create_file, make_folder, make_root, sync_folder, write_synced
from lathe.transforms.json_files import parse_json_object

MANIFEST = "backup.json"
"""Name of the manifest file."""
SCHEMA_VERSION = 1
"""Version of the backup format; newer ones are rejected."""
MAX_MANIFEST_BYTES = 1_000_000
"""Maximum bytes of the manifest, which has some hundred."""
COPIED_BYTES = 1 << 20
"""Buffer size for copying files, in bytes."""


def back_up_index(folder: Path, to: Path) -> dict[str, Any]:
    """Copy the record of an index at this moment into a new folder, while its owner may go on writing.

    The folder also gets a manifest, `backup.json`: schema, index, count, write number, settings, time and SHA-256.

    Returns:
        The manifest of the backup.

    Raises:
        UnknownNameError: if the index does not exist.
        ConflictError: if `to` exists.
        OSError, sqlite3.Error: if the backup cannot be written; nothing is left then.
    """
    require_index(folder)
    if to.exists():
        raise ConflictError(f"{to} exists; a backup is never overwritten")
    to = to.absolute()
    make_root(to.parent)
    staging = to.with_name(f".{to.name}.{secrets.token_hex(6)}")
    try:
        make_folder(staging, private=True)
        copy = staging / "record.db"
        create_file(copy).close()  # SQLite fills an empty file
        source = IndexRecord(folder / "record.db", read_only=True)
        try:
            source.writer.execute("VACUUM INTO ?", (str(copy),))  # one read transaction: consistent
        finally:
            source.close()
        with copy.open("r+b") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        copied = IndexRecord(copy, read_only=True)
        manifest = {
            "schema": SCHEMA_VERSION,
            "index": folder.name,
            "count": copied.count_items()["count"],
            "sequence": copied.read_meta("sequence"),
            "spec": copied.spec.to_json(),
            "made_at": datetime.now(UTC).isoformat(),
            "sha256": digest,
        }
        copied.close()
        write_synced(staging / MANIFEST, json.dumps(manifest, indent=1).encode())
        staging.rename(to)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    sync_folder(to.parent)
    return manifest


def restore_index(source: Path, root: Path, name: str | None = None) -> dict[str, Any]:
    """Create an index from a backup, after checking its SHA-256, its tables and all rows.

    A running server opens the index on demand.

    Args:
        source: folder of the backup.
        root: folder of all indexes.
        name: name of the new index; None for the original name.

    Returns:
        The manifest of the backup, with the new name and the number of items found.

    Raises:
        BadValueError: if no index can have that name.
        UnavailableError: if the backup is damaged or of a newer schema.
        ArtifactError: if the chain in its record is damaged.
        ConflictError: if an index of that name exists.
    """
    manifest = _read_backup_manifest(source)
    name = name or manifest["index"]
    require_name(name, "an index")
    if (root / name).exists():
        raise ConflictError(f"an index {name} exists: restore under another name, or delete it first")
    staging = root / f".{name}.{secrets.token_hex(6)}"
    try:
        make_root(root)
        make_folder(staging)
        copy = staging / "record.db"
        with open_beneath(source, "record.db") as stored, create_file(copy) as file:
            shutil.copyfileobj(stored, file, COPIED_BYTES)
        with copy.open("r+b") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != manifest["sha256"]:
                raise UnavailableError(f"the record of {source} was altered: its SHA-256 does not match")
        with closing(IndexRecord(copy)) as record:
            require_sound_record(record)
            count = record.count_items()["count"]
        with copy.open("r+b") as file:
            os.fsync(file.fileno())
        staging.rename(root / name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    sync_folder(root)
    return manifest | {"index": name, "count": count}


def require_index(folder: Path) -> None:
    """Raise `UnknownNameError` unless the folder is that of an index."""
    if not is_name(folder.name) or not (folder / "record.db").exists():
        raise UnknownNameError(f"there is no index {folder.name!r}", param="name")


def _read_backup_manifest(source: Path) -> dict[str, Any]:
    try:
        manifest = parse_json_object(read_beneath(source, MANIFEST, MAX_MANIFEST_BYTES))
    except FileNotFoundError:
        raise UnavailableError(f"there is no backup at {source}: {MANIFEST} is missing") from None
    except (OSError, ValueError) as error:
        raise UnavailableError(f"the manifest of {source} cannot be read: {error}") from error
    for field, kind in (("schema", int), ("index", str), ("sha256", str)):
        if type(manifest.get(field)) is not kind:
            raise UnavailableError(f"the manifest of {source} cannot be read: {field} must be of type {kind.__name__}")
    schema: int = manifest["schema"]
    if schema < 1:
        raise UnavailableError(f"the manifest of {source} is of schema {schema}; schemas begin with 1")
    if schema > SCHEMA_VERSION:
        raise UnavailableError(
            f"{source} is of schema {schema}, this Lathe reads up to {SCHEMA_VERSION}: upgrade Lathe"
        )
    return manifest
