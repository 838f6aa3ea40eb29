"""Files that hold keys, as secrets are mounted into containers."""

import errno
import os
import select
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

from lathe.transforms.files import NO_WAIT, read_plain_file

KEY_VARIABLES = frozenset(
    f"LATHE_{kind}_KEYS{suffix}" for kind in ("API", "ADMIN", "READ_ONLY") for suffix in ("", "_FILE")
)
"""Environment variables that hold keys or name files with keys; processes that a server starts do not get them."""

MAX_KEY_FILE_BYTES = 1_000_000
"""Maximum bytes of a file of keys, which are 20,000 keys of 43 characters."""

WAIT_SECONDS = 5.0
"""Maximum number of seconds to wait for keys that come through a pipe."""


@dataclass(frozen=True)
class KeyFile:
    """A file of keys and its content, read once at start.

    Attributes:
        path: path of the file.
        keys: its keys, one per line; blank lines and lines that begin with # are skipped.
    """

    path: Path
    keys: tuple[str, ...] = field(repr=False)

    @classmethod
    def read(cls, path: Path, seconds: float = WAIT_SECONDS) -> "KeyFile":
        """Read the keys in a file, one on each line, and return them with the file's path.

        It may be a pipe that another process fills now, as of `--api-keys-file <(command)`; devices are refused.

        Args:
            path: path of the file.
            seconds: maximum time to wait for what comes through a pipe.

        Raises:
            ValueError: if the file cannot be read or holds no key; the message quotes nothing of its content.
        """
        try:
            lines = _read_keys(path, seconds).decode("utf-8-sig").split("\n")
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not UTF-8 text") from None
        keys = tuple(key for line in lines if (key := line.strip()) and not key.startswith("#"))
        if not keys:
            raise ValueError(f"{path} holds no key: write one key on each line")
        return cls(path, keys)


def _read_keys(path: Path, seconds: float) -> bytes:
    """Return the bytes of a file, or of a pipe until its writer closes it, waiting at most `seconds`.

    Raises:
        OSError: if it cannot be read, is neither a file nor a pipe, is too large, or nothing more comes in time.
    """
    if not stat.S_ISFIFO(path.stat().st_mode):
        return read_plain_file(path, MAX_KEY_FILE_BYTES)
    descriptor = os.open(path, os.O_RDONLY | NO_WAIT)  # else opening would wait for a writer
    try:
        return _read_pipe(descriptor, time.monotonic() + seconds)
    finally:
        os.close(descriptor)


def _read_pipe(descriptor: int, deadline: float) -> bytes:
    """Return the bytes that come through a pipe until its writer closes it. Raise `OSError` after `deadline`."""
    content = b""
    while select.select([descriptor], [], [], max(deadline - time.monotonic(), 0))[0]:
        part = os.read(descriptor, MAX_KEY_FILE_BYTES + 1)
        content += part
        if not part:
            return content
        if len(content) > MAX_KEY_FILE_BYTES:
            raise OSError(errno.EFBIG, f"it is larger than {MAX_KEY_FILE_BYTES:,} bytes")
    raise OSError(errno.ETIMEDOUT, "it is a pipe that its writer does not close")
