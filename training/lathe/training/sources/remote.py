"""Remote files at URLs that fsspec supports, with retries.

fsspec is imported, and the network used, only for such files.
"""

import io
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from lathe.training.errors import AccessError, SourceError

URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
"""Pattern of the beginning of a URL, `scheme://`."""

RETRY_WAITS = (0.5, 2.0)
"""Seconds to wait before each retry, unless the file system has an attribute `retry_waits`."""

STREAM_BYTES = 1 << 20
"""Bytes of the read buffer of a remote file."""

VERSION_KEYS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "updated", "modified", "created")
"""Names under which file systems report a version that changes with the file's content, the most reliable first."""

T = TypeVar("T")


def is_remote(place: str) -> bool:
    """Return whether a path is a URL, `scheme://…`."""
    return URL.match(place) is not None


@dataclass(frozen=True)
class RemoteFile:
    """File at a URL that fsspec can open."""

    url: str

    @property
    def name(self) -> str:
        """Last part of the URL."""
        return self.url.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """File extension with the dot."""
        return Path(self.name).suffix

    def open(self, mode: Any = "rb", /) -> IO[Any]:
        """Open the remote file, and return a buffered stream of its bytes, which are downloaded as they are read.

        Failed reads are retried. `mode` is ignored.

        Raises:
            SourceError: if the file is missing or cannot be reached, now or during a read.
        """
        files, path = _open_file_system(self.url)
        waits = _retry_waits(files)
        file = _call_with_retries(self.url, lambda: files.open(path, "rb"), waits)
        return io.BufferedReader(_Stream(self.url, file, waits), STREAM_BYTES)

    def info(self) -> dict[str, Any]:
        """Request the file's metadata, as fsspec reports it, such as `size` and a version.

        Raises:
            SourceError: if the file is missing or cannot be reached.
        """
        files, path = _open_file_system(self.url)
        return _call_with_retries(self.url, lambda: dict(files.info(path)), _retry_waits(files))

    def fetch(self, folder: Path) -> Path:
        """Download the whole file into a folder, with retries, and return the path. An incomplete copy raises.

        A copy that is still incomplete after the last retry raises. Failed and incomplete downloads are retried.

        Raises:
            SourceError: if the file is missing or cannot be reached, or the copy is incomplete after all retries.
        """
        files, path = _open_file_system(self.url)
        size, copy = self.info()["size"], folder / self.name

        def get() -> None:
            files.get_file(path, str(copy))
            if size is not None and copy.stat().st_size != size:
                raise OSError(f"only {copy.stat().st_size:,} of {size:,} bytes were downloaded")

        _call_with_retries(self.url, get, _retry_waits(files))
        return copy

    def key(self) -> list[str]:
        """Return the URL, size and version of the file, which together identify its content.

        The version is '' if the file system reports none.

        Raises:
            SourceError: if the file is missing or cannot be reached.
        """
        info = self.info()
        version = next((str(info[name]) for name in VERSION_KEYS if info.get(name) is not None), "")
        return [self.url, str(info["size"]), version]


class _Stream(io.RawIOBase):
    """Unbuffered, seekable stream of a remote file. A failed read is retried at the same position."""

    def __init__(self, url: str, file: Any, waits: Sequence[float]) -> None:
        self.url = url
        self.file = file
        self.waits = waits
        self.position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Download bytes into the buffer, with retries, and return the number of bytes, 0 at the end of the file.

        Raises:
            SourceError: if the read still fails after the last retry.
        """

        def read() -> bytes:
            # A failed read may have moved the position.
            self.file.seek(self.position)
            return bytes(self.file.read(len(buffer)))

        content = _call_with_retries(self.url, read, self.waits)
        buffer[: len(content)] = content
        self.position += len(content)

        return len(content)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if whence == io.SEEK_SET:
            begin = 0
        elif whence == io.SEEK_CUR:
            begin = self.position
        else:
            begin = self.file.seek(0, io.SEEK_END)

        self.position = begin + offset
        return self.position

    def close(self) -> None:
        if not self.closed:
            self.file.close()
        super().close()


def list_remote_files(url: str) -> tuple[bool, list[str]]:
    """Return whether a URL is a folder, and the sorted URLs of the files in it, or of the file, without hidden files.

    For a file, the list holds only its own URL. Hidden files and files in hidden folders are left out.

    Raises:
        SourceError: if there is no such file or folder, or it cannot be reached.
    """
    files, path = _open_file_system(url)
    waits = _retry_waits(files)
    if _call_with_retries(url, lambda: files.info(path), waits)["type"] != "directory":
        return False, [url]
    listed = _call_with_retries(url, lambda: files.find(path), waits)
    visible = (file for file in sorted(listed) if "/." not in file.removeprefix(path))
    return True, [files.unstrip_protocol(file) for file in visible]


def _open_file_system(url: str) -> tuple[Any, str]:
    """Open the fsspec file system of a URL, with the path in it. An unknown protocol or a missing package raises.

    Raises:
        AccessError: if fsspec or the protocol's package is not installed, or the protocol is unknown.
    """
    try:
        from fsspec.core import url_to_fs
        from fsspec.registry import known_implementations
    except ImportError as error:
        raise AccessError(f"reading {url} needs fsspec: pip install 'lathe-training[remote]'") from error

    protocol = url.partition("://")[0]
    try:
        files, path = url_to_fs(url)
    except ImportError as error:
        package = known_implementations.get(protocol, {}).get("class", "fsspec").partition(".")[0]
        needed = f"pip install {package}" if package != "fsspec" else str(error)
        raise AccessError(f"reading {protocol}:// needs a package that is not installed: {needed}") from error
    except ValueError as error:
        raise AccessError(f"{url} cannot be read: {error}") from error

    return files, str(path)


def _retry_waits(files: Any) -> Sequence[float]:
    waits: Sequence[float] = getattr(files, "retry_waits", RETRY_WAITS)
    return waits


def _call_with_retries(url: str, call: Callable[[], T], waits: Sequence[float]) -> T:
    """Call a function of the network, and again after each of the `waits` on failure. A missing file raises at once.

    A missing file and refused credentials are not retried.

    Raises:
        SourceError: if the file is missing.
        AccessError: if credentials are missing or refused, or the last retry failed.
    """
    # None marks the last attempt, after which the error is raised instead of waiting.
    for wait in (*waits, None):
        try:
            return call()
        except FileNotFoundError as error:
            raise SourceError(f"there is no file or folder {url}") from error
        except Exception as error:  # each protocol's library has its own error classes
            if isinstance(error, PermissionError) or "Credential" in type(error).__name__:
                raise AccessError(f"{url}: credentials are missing, or refused: {error}") from error
            if wait is None:
                raise AccessError(f"{url} cannot be reached, tried {len(waits) + 1} times: {error}") from error
            time.sleep(wait)

    raise AssertionError
