"""Shards: stretches of a source's files, each to be read and encoded by itself, here or on another machine."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from training.sources.kinds import Batch, Kind, checked
from training.sources.local import local_file
from training.sources.raw import Readable, Span
from training.sources.readers import FORMATS, file_format, first_kind, read_rows, spans_of
from training.sources.remote import RemoteFile, is_remote
from transforms.files import make_folder

BATCH_ROWS = 1024
SHARD_BATCHES = 64
"""At most; whole batches, so that a file's batches are the same whether its shards are read apart or in one go."""
FILE_SHARDS = 32
"""What a file is cut into before its shards grow past a batch: so many workers share even a small one."""


@dataclass(frozen=True, kw_only=True)
class Shard(Span):
    """Rows of one file; small, and as JSON by `dataclasses.asdict`.

    Attributes:
        file: a path, a URL, or the name of a built-in source.
        key: what tells the file from all others, and from itself once it was changed.
        width: what the file holds: None is texts, a number vectors of that width.
        stop: the row after the last.
    """

    file: str
    key: str
    width: Kind
    stop: int

    @property
    def rows(self) -> int:
        """How many."""
        return self.stop - self.start


def contents(file: str, field: str) -> tuple[list[Span], Kind]:
    """What a file holds: its rows in spans of a shard, and what they are; no spans if it is empty.

    Raises:
        SourceError: if it is damaged.
    """
    with looked_at(file) as found:
        spans = joined(spans_of(found, field, BATCH_ROWS))
        return spans, first_kind(found, field) if spans else None


def joined(batches: list[Span]) -> list[Span]:
    """Spans of a batch each as spans of a shard, by their number alone: the same file is always cut alike."""
    most = min(-(-len(batches) // FILE_SHARDS), SHARD_BATCHES) or 1
    together = [batches[at : at + most] for at in range(0, len(batches), most)]
    return [replace(spans[0], stop=spans[-1].stop) for spans in together]


def read_shards(file: Readable, first: Shard, last: Shard, field: str) -> Iterator[Batch]:
    """The batches of consecutive shards of one file, none across two shards.

    Args:
        file: or its copy.
        first: where to begin.
        last: where to end; may be the first.
        field: of the rows.

    Raises:
        SourceError: naming the first row that cannot be read, or is not of the file's kind.
    """
    span = Span(start=first.start, stop=last.stop, byte=first.byte, line=first.line)
    for raw in read_rows(file, field, BATCH_ROWS, span):
        yield checked(raw, first.width)


@contextmanager
def at_hand(file: str, folder: Path | None = None) -> Iterator[Readable]:
    """A file to read: itself, or a copy of one that is elsewhere, in a folder of its own, removed afterwards.

    Raises:
        SourceError: if it cannot be fetched.
    """
    if not is_remote(file):
        yield local_file(file)
    elif folder is None:
        with TemporaryDirectory(prefix="lathe-") as copies:
            yield RemoteFile(file).fetch(Path(copies))
    else:
        copies_here = folder / "fetched"
        shutil.rmtree(copies_here, ignore_errors=True)  # a killed run may have left one
        make_folder(copies_here)
        try:
            yield RemoteFile(file).fetch(copies_here)
        finally:
            shutil.rmtree(copies_here, ignore_errors=True)


@contextmanager
def looked_at(file: str) -> Iterator[Readable]:
    """A file to look into; one that is elsewhere is fetched only if its format takes that."""
    if is_remote(file) and FORMATS[file_format(file)].far:
        yield RemoteFile(file)
    else:
        with at_hand(file) as path:
            yield path
