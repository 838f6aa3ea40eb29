"""Create and write files and folders: atomically where asked, no more accessible than their folder, never via a link.

A file in a folder of mode 700 gets mode 600, a folder in it 700, whatever the umask; elsewhere the umask decides.
A new file replaces what has its name: a link is replaced, the link's target stays as it is. A file that is continued
must be a regular file without further hard links. Lathe's own JSON files may be damaged, or come from somebody else.
"""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
"""Permission bits that give access to the owner only."""
PIECE_BYTES = 1 << 20
"""Bytes of a piece of a file, 1 MiB."""
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
"""Flag of `os.open`: fail if the path is a symbolic link."""
NO_WAIT = getattr(os, "O_NONBLOCK", 0)
"""Flag of `os.open`: do not wait for a writer if the path is a pipe."""


def permissions_in(folder: Path) -> int:
    """Return the mode bits for a new subfolder of `folder`.

    They are 0o700 for the owner, and the bits of `folder` for group and others.
    """
    return PRIVATE_FOLDER | (folder.stat().st_mode & 0o077)


def expand_home(path: str | Path) -> Path:
    """Return the path with a leading `~` or `~USER` replaced by that home directory.

    Raises:
        ValueError: if the home directory is unknown: the user does not exist, or a container's has no `HOME`.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError(f"{path} is in a home directory that is unknown here; name a path without ~") from None


def create_file(path: Path, private: bool = False) -> BufferedRandom:
    """Create an empty file, and return it open for reading and writing bytes.

    A file or link that is there already is deleted first, but not what the link points to.

    Args:
        path: path of the file.
        private: whether the file gets mode 600 whatever the mode of its folder.

    Raises:
        OSError: if it cannot be created.
    """
    with suppress(FileNotFoundError):
        path.unlink()
    mode = PRIVATE_FILE if private else 0o666 & permissions_in(path.parent)
    # O_EXCL: fail if another process puts a file or a link there after the deletion.
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | NO_LINK, mode), "w+b")


def continue_file(path: Path, append: bool = False) -> BufferedRandom:
    """Open a file, created if missing, for reading and writing bytes, and keep the content. A link raises.

    Args:
        path: path of the file.
        append: whether every write goes to the end of the file.

    Raises:
        OSError: if it is a link, not a regular file, or has a second hard link, which may be another user's file.
    """
    flags = os.O_RDWR | os.O_CREAT | NO_LINK | NO_WAIT | (os.O_APPEND if append else 0)
    file = os.fdopen(os.open(path, flags, 0o666 & permissions_in(path.parent)), "r+b")
    # Asked of the open file, not of the path, so that nothing can be exchanged between check and use.
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        file.close()
        raise OSError(errno.EMLINK, "it is not a plain file with one name", path.name)

    return file


def read_plain_file(path: Path, max_bytes: int | None = None) -> bytes:
    """Read a regular file, following links, and return the bytes. A pipe, a device or too large a file raises.

    Args:
        path: path of the file.
        max_bytes: maximum bytes of the file; None for any number.

    Raises:
        OSError: if it cannot be read, is not a regular file, or is larger.
    """
    descriptor = os.open(path, os.O_RDONLY | NO_WAIT)
    try:
        with open_plain(descriptor, path.name) as file:
            return read_within(file, max_bytes)
    finally:
        os.close(descriptor)


def open_plain(descriptor: int, name: str) -> BufferedReader:
    """Return a stream that reads the regular file of an open descriptor. A folder, a pipe or a device raises.

    The stream has a duplicate of the descriptor, so that both are closed separately.

    Args:
        descriptor: descriptor that is open for reading.
        name: name of the file, for the error.

    Raises:
        OSError: for a folder, a pipe, a device or anything else that is not a regular file.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a plain file", name)
    return os.fdopen(os.dup(descriptor), "rb")


def read_within(file: BinaryIO, max_bytes: int | None) -> bytes:
    """Read an open file from its position to its end, and return the bytes. More than `max_bytes` bytes raise.

    `max_bytes` is the largest number allowed, or None for any.

    Raises:
        OSError: if there are more than `max_bytes`.
    """
    if max_bytes is None:
        return file.read()
    content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes:,} bytes")
    return content


def make_folder(path: Path, private: bool = False) -> None:
    """Create a folder and its missing parents, unless it exists. A link or a file in its place raises.

    Args:
        path: path of the folder.
        private: whether the folder gets mode 700 whatever the mode of its parent.

    Raises:
        NotADirectoryError: if it is a link or a file.
        OSError: if it cannot be created.
    """
    missing = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    for folder in reversed(missing):
        with suppress(FileExistsError):  # another process was quicker
            folder.mkdir(PRIVATE_FOLDER if private and folder == path else permissions_in(folder.parent))
    # Checked last: a link or a file counts as existing above, and another process may have put one there.
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory: a link or a file is in its place", path.name)


def make_root(path: Path) -> None:
    """Create a folder and its missing parents, unless the path is a folder already.

    A link to a folder counts as one, whereas `make_folder` refuses it.
    """
    if not path.is_dir():
        make_folder(path)


def write_synced(path: Path, payload: bytes, private: bool = False) -> None:
    """Write bytes to a new file, and fsync it.

    A file or link that is there already is deleted first, so a crash can lose the old content before the new one is
    written.
    """
    with create_file(path, private) as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())


def replace_synced(path: Path, payload: bytes, private: bool = False) -> None:
    """Replace the content of a file by the given bytes, atomically.

    Readers see either the old or the new content, even after a crash. The bytes are written to `.<name>` in the same
    folder and fsynced. That file is then renamed, or deleted after an error.
    """
    staging = path.with_name(f".{path.name}")
    try:
        write_synced(staging, payload, private)
        # After the fsync: a rename that reaches the disk before the data can leave an empty file after a power cut.
        staging.replace(path)
    except BaseException:
        staging.unlink(missing_ok=True)  # on a full disk it would keep the last bytes
        raise


def read_pieces(file: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of an open file as pieces of `PIECE_BYTES` bytes.

    The last piece may be shorter.
    """
    while piece := file.read(PIECE_BYTES):
        yield piece


def write_pieces(path: Path, pieces: Iterable[bytes]) -> str:
    """Write pieces of bytes to a file, in place of an existing one, and return the SHA-256 of the content.

    A file or link that is there already is deleted first. The new file is fsynced.
    """
    hashed = hashlib.sha256()
    with create_file(path) as file:
        for piece in pieces:
            hashed.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return hashed.hexdigest()


def sync_folder(path: Path) -> None:
    """Fsync a folder, so that the files created, renamed or deleted in it stay so after a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


MAX_DEPTH = 64
"""Maximum nesting depth of lists and objects. What Lathe writes has fewer than ten levels."""


def parse_json(content: bytes | str) -> Any:
    """Parse JSON text. Text that other JSON parsers may read differently raises.

    Raises:
        ValueError: if it is not JSON, nested more than `MAX_DEPTH` deep, or holds integers of more than 64 bits or lone
            surrogates.
    """
    try:
        parsed = json.loads(content)
    except RecursionError:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep") from None
    _check_portable(parsed)
    return parsed


def parse_json_object(content: bytes | str) -> dict[str, Any]:
    """Parse JSON text that holds an object, and return it as a dict.

    The checks of `parse_json` apply.

    Raises:
        ValueError: also if it is not an object.
    """
    parsed = parse_json(content)
    if not isinstance(parsed, dict):
        raise ValueError("it holds no JSON object")
    return parsed


def read_json_file(path: Path) -> Any:
    """Read a regular file that holds JSON text, and return the parsed value.

    The checks of `parse_json` apply.

    Raises:
        OSError: if it cannot be read, or is not a regular file.
        ValueError: if it is not such JSON.
    """
    return parse_json(read_plain_file(path))


def _check_portable(value: Any, depth: int = 0) -> None:
    """Raise `ValueError` unless other JSON parsers read a value alike: no deep nesting, long integers or surrogates.

    `depth` is the nesting depth of the value within the document.

    Raises:
        ValueError: if it has one of these, in a value or in an object's key.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")

    if isinstance(value, str):
        # A lone surrogate raises UnicodeEncodeError, a ValueError.
        value.encode()
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise ValueError("it holds an integer of more than 64 bits")
    elif isinstance(value, dict):
        for key, inner in value.items():
            key.encode()
            _check_portable(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _check_portable(inner, depth + 1)
