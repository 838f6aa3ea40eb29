"""Files on other machines, by URLs that fsspec knows; it is imported, and the network touched, only for these."""

import io
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from training.errors import AccessError, SourceError

URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
WAITS = (0.5, 2.0)
"""Seconds between tries, where the file system does not have others in `retry_waits`."""
STREAM_BYTES = 1 << 20
VERSION_KEYS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "updated", "modified", "created")
"""What file systems call the thing that changes with a file, the surest first."""
T = TypeVar("T")


def is_remote(place: str) -> bool:
    """Whether what a user wrote is a URL."""
    return URL.match(place) is not None


@dataclass(frozen=True)
class RemoteFile:
    """A file at a URL."""

    url: str

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The last part of its name, with the dot."""
        return Path(self.name).suffix

    def open(self, mode: Any = "rb", /) -> IO[Any]:
        """Its bytes, read as they are asked for.

        Raises:
            SourceError: if it is not there or cannot be got at, now or while it is read.
        """
        files, path = file_system(self.url)
        waits = waits_of(files)
        file = patiently(self.url, lambda: files.open(path, "rb"), waits)
        return io.BufferedReader(Stream(self.url, file, waits), STREAM_BYTES)

    def info(self) -> dict[str, Any]:
        """What the file system says of it."""
        files, path = file_system(self.url)
        return patiently(self.url, lambda: dict(files.info(path)), waits_of(files))

    def fetch(self, folder: Path) -> Path:
        """A whole copy in a folder.

        Raises:
            SourceError: if it is not there or cannot be got at.
        """
        files, path = file_system(self.url)
        size, copy = self.info()["size"], folder / self.name

        def get() -> None:
            files.get_file(path, str(copy))
            if size is not None and copy.stat().st_size != size:
                raise OSError(f"{copy.stat().st_size:,} of {size:,} bytes came")

        patiently(self.url, get, waits_of(files))
        return copy

    def key(self) -> list[str]:
        """What tells the file from others, and from itself once it was changed."""
        info = self.info()
        version = next((str(info[name]) for name in VERSION_KEYS if info.get(name) is not None), "")
        return [self.url, str(info["size"]), version]


class Stream(io.RawIOBase):
    """A remote file's bytes; a read that fails is tried again where it was."""

    def __init__(self, url: str, file: Any, waits: Sequence[float]) -> None:
        self.url = url
        self.file = file
        self.waits = waits
        self.place = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Read some bytes.

        Raises:
            SourceError: if they cannot be got at.
        """

        def read() -> bytes:
            self.file.seek(self.place)
            return bytes(self.file.read(len(buffer)))

        found = patiently(self.url, read, self.waits)
        buffer[: len(found)] = found
        self.place += len(found)
        return len(found)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a place."""
        begin = 0 if whence == io.SEEK_SET else self.place if whence == io.SEEK_CUR else self.file.seek(0, io.SEEK_END)
        self.place = begin + offset
        return self.place

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            self.file.close()
        super().close()


def list_remote(url: str) -> tuple[bool, list[str]]:
    """Whether a URL is a folder, and the URLs of all files in it, in order; of a file its own.

    Raises:
        SourceError: if nothing is there or it cannot be got at.
    """
    files, path = file_system(url)
    waits = waits_of(files)
    if patiently(url, lambda: files.info(path), waits)["type"] != "directory":
        return False, [url]
    found = patiently(url, lambda: files.find(path), waits)
    shown = (file for file in sorted(found) if "/." not in file.removeprefix(path))
    return True, [files.unstrip_protocol(file) for file in shown]


def file_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it.

    Raises:
        AccessError: if it takes a package that is not installed, or nobody knows it.
    """
    try:
        from fsspec.core import url_to_fs
        from fsspec.registry import known_implementations
    except ImportError as error:
        raise AccessError(f"reading {url} needs fsspec: pip install 'lathe[remote]'") from error
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


def waits_of(files: Any) -> Sequence[float]:
    """Return the seconds to wait between tries on a file system: its own `retry_waits`, else `WAITS`."""
    found: Sequence[float] = getattr(files, "retry_waits", WAITS)
    return found


def patiently(url: str, call: Callable[[], T], waits: Sequence[float]) -> T:
    """Return the answer to a call over the network, which is tried once more after each wait.

    Raises:
        SourceError: if nothing is there.
        AccessError: if credentials are missing or refused, or the last try failed too.
    """
    for wait in (*waits, None):
        try:
            return call()
        except FileNotFoundError as error:
            raise SourceError(f"there is no file or folder {url}") from error
        except Exception as error:  # each protocol's library has errors of its own
            if isinstance(error, PermissionError) or "Credential" in type(error).__name__:
                raise AccessError(f"{url}: credentials are missing, or refused: {error}") from error
            if wait is None:
                raise AccessError(f"{url} cannot be reached, tried {len(waits) + 1} times: {error}") from error
            time.sleep(wait)
    raise AssertionError
