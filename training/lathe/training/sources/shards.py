"""Shards: ranges of rows of a source's files, each read and encoded independently, here or on another machine.

A file of a source is a string: a local path, a URL, a file of the hub, or the name of a built-in source. A local path
may be written `ROOT/./PATH`: the file is then opened only if no link leads out of ROOT. Paths in requests to a server
have this form, so that the process that opens the file later, perhaps on another machine, is restricted to the same
folder. Except for opening, both forms mean the same file.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from lathe.training.errors import OutsideSourceError, SourceError
from lathe.training.sources.hub import HubFile, is_hub
from lathe.training.sources.readers import BUILT_IN, FORMATS, detect_kind, find_format_key, find_spans, read_rows
from lathe.training.sources.remote import RemoteFile, is_remote
from lathe.training.sources.rows import Kind, Readable, RowBatch, Span, validate_rows
from lathe.transforms.beneath import OutsideError, list_beneath, open_beneath
from lathe.transforms.files import expand_home, make_folder

BATCH_ROWS = 1024
"""Rows of a batch when a source is read."""

SHARD_BATCHES = 64
"""Maximum batches of a shard. Shards consist of whole batches, so that a file gives the same batches whether its shards
are read separately or in one pass."""

FILE_SHARDS = 32
"""Number of shards up to which a shard has only one batch, so that many workers can share a file."""


@dataclass(frozen=True, kw_only=True)
class Shard(Span):
    """Range of rows of one file that are encoded together, by one worker.

    `dataclasses.asdict` converts it to a JSON-serializable dict.

    Attributes:
        file: a path, a URL, a file of a data set on the hub, or the name of a built-in source.
        key: the file's `file_key`, which identifies its content.
        width: kind of the file's rows: None for texts, or the number of dimensions of vectors.
        stop: index after the last row.
    """

    file: str
    key: str
    width: Kind
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


def inspect_file(file: str, field: str) -> tuple[list[Span], Kind]:
    """Find the spans of rows that divide a file into shards, and the kind of its rows.

    The kind is None for texts, or the number of dimensions of vectors. A file without rows has no spans and the kind
    None. A file of lines is read once. A remote file is downloaded if its format needs it.

    Raises:
        SourceError: if the file is damaged or cannot be reached.
    """
    with open_for_inspection(file) as inspected:
        spans = merge_into_shard_spans(find_spans(inspected, field, BATCH_ROWS))
        return spans, detect_kind(inspected, field) if spans else None


def merge_into_shard_spans(batches: list[Span]) -> list[Span]:
    """Merge the spans of consecutive batches into spans of shards of 1 to `SHARD_BATCHES` batches.

    The result depends only on the number of batches, so a file is always divided in the same way.
    """
    shard_batches = min(-(-len(batches) // FILE_SHARDS), SHARD_BATCHES) or 1
    shards = [batches[at : at + shard_batches] for at in range(0, len(batches), shard_batches)]
    return [replace(spans[0], stop=spans[-1].stop) for spans in shards]


def read_shards(file: Readable | HubFile, first: Shard, last: Shard, field: str) -> Iterator[RowBatch]:
    """Read consecutive shards of one file in one pass, and yield validated batches of up to `BATCH_ROWS` rows.

    A batch never holds rows of two shards.

    Args:
        file: the shards' file, or a local copy.
        first: first shard to read.
        last: last shard to read; may be the first.
        field: field, column or data set that holds the texts or vectors.

    Raises:
        SourceError: for the first row that cannot be read, or has another kind than the file.
    """
    span = Span(start=first.start, stop=last.stop, byte=first.byte, line=first.line)
    for raw in read_rows(file, field, BATCH_ROWS, span):
        yield validate_rows(raw, first.width)


def is_path(file: str) -> bool:
    """Return whether a file of a source is a path on this machine, not a URL, a hub file or a built-in source."""
    return not (is_remote(file) or is_hub(file) or file in BUILT_IN)


@contextmanager
def open_local_copy(file: str, folder: Path | None = None) -> Iterator[Readable | HubFile]:
    """Yield an object that opens a file. A file at a URL is downloaded first, and deleted after the block.

    Args:
        file: a path, a URL, a file of a data set on the hub, or the name of a built-in source.
        folder: folder for the copy, in a subfolder `fetched`, which is emptied first and deleted after the block; None
            uses a temporary folder.

    Raises:
        SourceError: if the file cannot be downloaded.
    """
    if is_hub(file):
        yield HubFile.parse(file)
    elif not is_remote(file):
        yield parse_local_path(file)
    elif folder is None:
        with TemporaryDirectory(prefix="lathe-") as copies:
            yield RemoteFile(file).fetch(Path(copies))
    else:
        copies_here = folder / "fetched"
        shutil.rmtree(copies_here, ignore_errors=True)  # a killed run may have left a copy
        make_folder(copies_here)
        try:
            yield RemoteFile(file).fetch(copies_here)
        finally:
            shutil.rmtree(copies_here, ignore_errors=True)


@contextmanager
def open_for_inspection(file: str) -> Iterator[Readable | HubFile]:
    """Yield an object that opens the file, to read its header or count its rows.

    A remote file is downloaded only if its format needs it.

    Raises:
        SourceError: if the file cannot be downloaded.
    """
    if is_remote(file) and FORMATS[find_format_key(file)].readable_remotely:
        yield RemoteFile(file)
    else:
        with open_local_copy(file) as path:
            yield path


MARK = "/./"
"""Separator between ROOT and PATH in a path that is restricted to ROOT."""


@dataclass(frozen=True)
class RootedFile:
    """File below a folder, which is opened only if neither its path nor a link leads out of the folder.

    Attributes:
        root: the folder; it may itself be a link.
        path: path of the file relative to the folder.
    """

    root: Path
    path: str

    @classmethod
    def parse(cls, written: str) -> "RootedFile | None":
        """Parse a path of the form `ROOT/./PATH`. The result is None for a plain path."""
        root, mark, path = written.partition(MARK)
        return cls(expand_home(root or "/"), path) if mark else None

    def __str__(self) -> str:
        """Return the path in the form `ROOT/./PATH`."""
        return f"{self.root}{MARK}{self.path}"

    @property
    def name(self) -> str:
        """File name without its folder."""
        return PurePosixPath(self.path).name

    @property
    def suffix(self) -> str:
        """File extension with the dot, such as `.gz`."""
        return PurePosixPath(self.path).suffix

    def open(self, mode: str = "rb", /) -> BufferedReader:
        """Open the file for reading bytes, whatever the mode. It raises what `open_beneath` raises."""
        return open_beneath(self.root, self.path)


def parse_local_path(written: str) -> Path | RootedFile:
    """Parse a local path into an object that can be opened: a `RootedFile` for `ROOT/./PATH`, else a `Path`."""
    return RootedFile.parse(written) or Path(written)


def display_path(written: str) -> str:
    """Return a path as error messages show it: PATH alone for `ROOT/./PATH`, any other path unchanged."""
    return written.partition(MARK)[2] or written


def list_local_files(place: str) -> tuple[bool, list[str]]:
    """Return whether a path is a folder, and the sorted paths of files below, or of the file. A missing path raises.

    A link that leads out of ROOT raises. Hidden files and files in hidden folders are left out. Paths below `ROOT/./`
    are returned in that form.

    Raises:
        OutsideSourceError: for `ROOT/./PATH`, if the path or a link below it leads out of ROOT.
        SourceError: if there is no such file or folder.
    """
    rooted = RootedFile.parse(place)
    try:
        files = _list_path(place) if rooted is None else list_beneath(rooted.root, rooted.path)
        if files is None and rooted is not None:
            rooted.open().close()
    except OutsideError as error:
        raise OutsideSourceError(f"{error.filename!r} leads out of the folder that may be read") from error
    except (OSError, ValueError):  # missing, an empty name, or the home of an unknown user
        known = " and ".join(BUILT_IN)
        raise SourceError(f"there is no file or folder {display_path(place)!r}; built in are {known}") from None

    if files is None:
        return False, [str(rooted or expand_home(place))]
    if rooted is not None:
        inside = [path for path in files if not _is_hidden(PurePosixPath(path).relative_to(PurePosixPath(rooted.path)))]
        return True, [str(RootedFile(rooted.root, path)) for path in inside]

    return True, files


def _list_path(place: str) -> list[str] | None:
    """List the sorted paths of files below a folder, without hidden files, None for a file. A missing path raises.

    Raises:
        FileNotFoundError: if there is neither a file nor a folder.
    """
    path = expand_home(place)
    if place and path.is_file():
        return None
    if not place or not path.is_dir():
        raise FileNotFoundError(place)
    return [str(file) for file in sorted(path.rglob("*")) if file.is_file() and not _is_hidden(file.relative_to(path))]


def _is_hidden(path: PurePosixPath | Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
