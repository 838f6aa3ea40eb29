"""Keys that identify the content of a source's files."""

import hashlib
import os
import sys
from pathlib import Path

from lathe.training.digests import digest
from lathe.training.sources.hub import is_hub
from lathe.training.sources.local import parse_local_path
from lathe.training.sources.readers import BUILT_IN
from lathe.training.sources.remote import RemoteFile, is_remote

HASHED_BYTES = 64_000_000
"""Maximum size in bytes of a local file whose content is hashed; larger ones are keyed by size and modification
time."""


def file_key(file: str) -> str:
    """Return a key that changes when a file's content changes.

    The key is a SHA-256 in hexadecimal. It is made of

    - name and content for a local file of up to `HASHED_BYTES`, so that a copy in another folder has the same key
    - path, size and modification time for a larger one
    - URL, size and version for a file at a URL
    - data set, commit, configuration, split and number for a file of the hub
    - the name and Python's version for a built-in source

    Raises:
        OSError: if a local file cannot be opened.
        SourceError: if a file at a URL is missing or out of reach.
    """
    if file in BUILT_IN:
        return digest(file, sys.version)
    if is_hub(file):
        return digest(file)  # it names the commit
    if is_remote(file):
        return digest(*RemoteFile(file).key())
    path = Path(file)
    with parse_local_path(file).open("rb") as opened:
        found = os.fstat(opened.fileno())
        if found.st_size <= HASHED_BYTES:
            return digest(path.name, hashlib.file_digest(opened, "sha256").hexdigest())
    return digest(str(path.absolute()), found.st_size, found.st_mtime_ns)
