"""What tells files, sources and the work on them apart."""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from training.encoders import Encoder
from training.local import local_file
from training.readers import BUILT_IN
from training.remote import RemoteFile, is_remote

if TYPE_CHECKING:
    from training.sources import Source

HASHED_BYTES = 64_000_000


def file_key(file: str) -> str:
    """What tells a file from another; by content if it is small, so that the same texts sent again are known."""
    if file in BUILT_IN:
        return digest(file, sys.version)
    if is_remote(file):
        return digest(*RemoteFile(file).key())
    path = Path(file)
    with local_file(file).open("rb") as opened:
        found = os.fstat(opened.fileno())
        if found.st_size <= HASHED_BYTES:
            return digest(path.name, hashlib.file_digest(opened, "sha256").hexdigest())
    return digest(str(path.absolute()), found.st_size, found.st_mtime_ns)


def source_key(source: "Source", encoder: Encoder | None) -> str:
    """What must be the same for a stopped run to go on at a row: files, field, encoder."""
    files = [file_key(file) for file in source.files]
    return digest(source.name, source.field, files, encoder.fingerprint if encoder else None)


def place_key(source: "Source", encoder: Encoder | None) -> str:
    """What must be the same for a stopped run's vectors to be looked at: where the files lie, field, encoder.

    A folder stays itself when files join it or leave it; a single file is known by what is in it,
    wherever a job put it.
    """
    place = source.place if source.is_folder else file_key(source.files[0])
    return digest(place, source.field, encoder.fingerprint if encoder else None)


def digest(*parts: object) -> str:
    """SHA-256 of parts that are JSON."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
