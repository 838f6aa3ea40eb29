"""What identifies a file of a source."""

import hashlib
import os
import sys
from pathlib import Path

from training.digests import digest
from training.sources.local import local_file
from training.sources.readers import BUILT_IN
from training.sources.remote import RemoteFile, is_remote

HASHED_BYTES = 64_000_000


def file_key(file: str) -> str:
    """Return what identifies a file: its content if it is small, so that the same texts sent again are recognized."""
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
