"""Sources of texts or vectors, read in batches so that they need not fit in memory, and hashes of their content."""

import hashlib
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Literal

import numpy as np

from lathe.training.errors import AccessError, EmptyError, SourceError
from lathe.training.settings import BadShards
from lathe.training.sources.hub import HubFile, is_hub, list_hub_files
from lathe.training.sources.readers import BUILT_IN, FORMATS, detect_kind, find_format_key, read_rows
from lathe.training.sources.remote import RemoteFile, is_remote, list_remote_files
from lathe.training.sources.rows import Kind, RawBatch, RowBatch, Span, detect_batch_kind, format_kind, validate_rows
from lathe.training.sources.shards import (
    BATCH_ROWS,
    Shard,
    display_path,
    inspect_file,
    list_local_files,
    open_for_inspection,
    open_local_copy,
    parse_local_path,
)
from lathe.training.workspace import digest
from lathe.transforms.files import expand_home
from lathe.transforms.vectors import FloatArray

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """Shards of a source of texts or vectors, in order, and the files that are left out.

    Attributes:
        shards: shards in the order of the source.
        empty: names of files without rows.
        left_out: names of damaged files that are left out, with the reasons.
    """

    shards: list[Shard] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """Source of texts or vectors, such as a file, a folder, a URL or a data set of the hub.

    Sources are written as one of

    - `file.jsonl[.gz]` (field `text`, or `#field`), `file.txt[.gz]` (one text a line), `file.parquet#column`,
      `file.npy` (vectors), `file.faiss` (an index that stores uncompressed vectors), or a folder of such files
    - any of these at a URL that fsspec supports (`s3://bucket/folder/#field`)
    - `pydoc:` (docstrings of the Python installation) and `pydoc:topics` (its language reference)
    - `hf:dataset/config:split#field`, a data set of the Hugging Face hub, see `lathe.training.sources.hub`

    A field that holds lists of numbers makes it a source of vectors. `ROOT/./PATH` is a path that is refused if a link
    leads out of ROOT.

    Attributes:
        written: the source as the user wrote it.
        field: field, column or data set that holds the texts or vectors.
        files: paths, URLs, files of the hub or the name of a built-in source, in order.
        bad_shards: whether a damaged file raises (`refuse`) or is left out (`skip`).

    Example:
        >>> from lathe.training import open_source
        >>> source = open_source("pydoc:topics")
        >>> source.kind(), source.files
        ('texts', ('pydoc:topics',))
    """

    written: str
    field: str
    files: tuple[str, ...]
    bad_shards: BadShards = "refuse"

    @property
    def location(self) -> str:
        """Absolute path or URL of the source's file or folder, without the field.

        The location does not depend on how the user wrote the path.
        """
        if self.written in BUILT_IN:
            return self.written

        place, _ = split_field(self.written)
        if is_hub(place):
            return HubFile.parse(self.files[0]).location
        if is_remote(place):
            return place.rstrip("/")

        path = expand_home(place)
        return str(path.parent.resolve() / path.name if path.is_file() else path.resolve())

    @property
    def name(self) -> str:
        """Name of the source in certificates and metadata: the file or folder name, without its path."""
        if is_hub(self.written):
            return HubFile.parse(self.files[0]).source_name
        return self.written if self.written in BUILT_IN else PurePosixPath(self.location).name

    def format_file_name(self, file: str) -> str:
        """Return a file's name for messages: its path relative to the source's folder.

        If the file is the only one, it is the name of the source.
        """
        return self._find_relative_path(file) or self.name

    @property
    def _is_folder(self) -> bool:
        return bool(self._find_relative_path(self.files[0]))

    def _find_relative_path(self, file: str) -> str:
        """Return the path of a file relative to the source's folder, or '' if the source is the file itself."""
        if is_hub(file):
            return HubFile.parse(file).name.removeprefix(f"{self.name}/")
        inside = file if is_remote(file) or file in BUILT_IN else str(Path(file).parent.resolve() / Path(file).name)
        return "/".join(PurePosixPath(inside).parts[len(PurePosixPath(self.location).parts) :])

    def content_key(self, encoder: str | None) -> str:
        """Compute a hash of the source's name, its files' content, its field and an encoder.

        A run resumes at a row only if the hash is the same. Local files of up to `HASHED_BYTES` are read; see
        `file_key`.

        Args:
            encoder: key of the encoder, see `Encoder.vectors_key`; None for vectors without an encoder.
        """
        return digest(self.name, self.field, [file_key(file) for file in self.files], encoder)

    def workspace_key(self, encoder: str | None) -> str:
        """Compute the key of the workspace folder that stores the vectors of the source.

        The key is a hash of the folder's location or the file's content, the field and an encoder. A folder is
        identified by its location, so that its key stays the same when files are added or removed. A single file is
        identified by its content, wherever it is.

        Args:
            encoder: key of the encoder, see `Encoder.vectors_key`; None for vectors without an encoder.
        """
        return digest(self.location if self._is_folder else file_key(self.files[0]), self.field, encoder)

    def batches(self, rows: int = BATCH_ROWS, require_finite: bool = True) -> Iterator[RowBatch]:
        """Yield all rows of the source in order, in validated batches of up to `rows`. A row of another kind raises.

        Remote files are downloaded one after the other. Damaged files raise, whatever `bad_shards` says.

        Raises:
            SourceError: for a row that cannot be read or is of another kind than the first, for vectors with different
                dimensions, and with `require_finite` for vectors that are not finite; the message names file and row.
        """
        kind: Kind = None
        begun = False
        for raw in self.raw_batches(rows):
            if not begun:
                kind, begun = detect_batch_kind(raw), True
            yield validate_rows(raw, kind, require_finite)

    def read_all(self) -> list[str] | FloatArray:
        """Read all rows of the source into memory, and return texts, or vectors `(n, d)` in float32.

        Raises:
            SourceError: as `batches`.
        """
        texts: list[str] = []
        vectors: list[FloatArray] = []
        for batch in self.batches():
            if isinstance(batch.values, list):
                texts += batch.values
            else:
                vectors.append(batch.values)
        return np.concatenate(vectors).astype(np.float32, copy=False) if vectors else texts

    def raw_batches(self, rows: int) -> Iterator[RawBatch]:
        """Read all rows of the source in order, and yield batches of up to `rows` rows that are not validated.

        Raises:
            SourceError: if a file cannot be read.
        """
        for file in self.files:
            with open_local_copy(file) as path:
                yield from read_rows(path, self.field, rows)

    def detect_kind(self, by_header: bool = False) -> Kind:
        """Detect whether the source holds texts (None) or vectors (dimensions), by the first row. An empty one raises.

        If damaged files are skipped, every file is inspected, and the kind of most rows is returned if files differ.
        Built-in sources are not read.

        Args:
            by_header: whether to read only the header of a parquet file, because a row can decompress to gigabytes. The
                kind of vectors in parquet is then 1.

        Raises:
            SourceError: if the source is empty or cannot be read.
        """
        if self.written in BUILT_IN:  # reading them takes seconds
            return None

        kinds: set[Kind] = set()
        left_out: dict[str, str] = {}
        for file in self.files:
            try:
                with open_for_inspection(file) as inspected:
                    kinds.add(detect_kind(inspected, self.field, by_header))
            except EmptyError:
                continue
            except SourceError as error:
                self.record_or_raise(file, error, left_out)
                continue

            if self.bad_shards == "refuse":
                break

        if not kinds:
            raise self._build_no_rows_error(left_out)

        return kinds.pop() if len(kinds) == 1 else self.plan().shards[0].width

    def kind(self) -> Literal["texts", "vectors"]:
        """Detect whether the source holds "texts" or "vectors", by its header or its first row.

        Servers call this, so it does not decompress rows of parquet files.

        Raises:
            SourceError: if the source is empty or cannot be read.
        """
        return "texts" if self.detect_kind(by_header=True) is None else "vectors"

    def count(self) -> int:
        """Count the rows. Files of lines are read once.

        Raises:
            SourceError: if a file is damaged or cannot be reached.
        """
        return sum(span.rows or 0 for file in self.files for span in inspect_file(file, self.field)[0])

    def plan(self, damaged: Mapping[str, str] = MappingProxyType({})) -> Plan:
        """Divide the source's files into shards, and find empty and damaged files. Damaged files raise, unless skipped.

        A damaged file raises, unless `bad_shards` is `skip`. A source without rows raises. Files of lines are read once
        to count their rows. Files whose rows are of another kind than most rows of the source count as damaged. Remote
        files are downloaded if their format needs it.

        Args:
            damaged: names of files known to be damaged, with the reasons; they are left out.

        Returns:
            The shards with the names of the files that are empty or damaged.

        Raises:
            SourceError: at a damaged file, unless such files are skipped; and if no file is left.
            AccessError: if a file cannot be reached.
        """
        plan = Plan(left_out=dict(damaged))
        contents: dict[str, tuple[list[Span], Kind]] = {}
        for file in self.files:
            if self.format_file_name(file) in damaged:
                continue

            try:
                spans, kind = inspect_file(file, self.field)
            except SourceError as error:
                self.record_or_raise(file, error, plan.left_out)
                continue

            if spans:
                contents[file] = spans, kind
            else:
                plan.empty.append(self.format_file_name(file))

        if not contents:
            raise self._build_no_rows_error(plan.left_out)

        # The kind of most rows is known only after all files are inspected.
        majority = _find_majority_kind(contents.values())
        for file, (spans, kind) in contents.items():
            if kind == majority:
                key = file_key(file)
                plan.shards.extend(Shard(file=file, key=key, width=kind, **asdict(span)) for span in spans)
            else:
                problem = f"{self.format_file_name(file)}: {format_kind(kind)} in a source of {format_kind(majority)}"
                self.record_or_raise(file, SourceError(problem), plan.left_out)

        return plan

    def record_or_raise(self, file: str, error: SourceError, left_out: dict[str, str]) -> None:
        """Record in `left_out` why a file is damaged, in place, or raise the error if damaged files are not skipped.

        An `AccessError` is always raised, because it does not mean that the file is damaged.

        Args:
            file: path or URL of the file.
            error: why the file cannot be used.
            left_out: reasons by file name.
        """
        if self.bad_shards == "refuse" or isinstance(error, AccessError):
            raise error
        name = self.format_file_name(file)
        reason = str(error).replace(f"{Path(file).parent}/", "")
        left_out[name] = reason.removeprefix(f"{name}: ").removeprefix(f"{PurePosixPath(name).name}: ")

    def _build_no_rows_error(self, left_out: Mapping[str, str]) -> SourceError:
        """Build the error for a source without usable rows, which names the first damaged file if there is one."""
        for name, reason in left_out.items():
            return SourceError(f"no file of {self.name} can be used; the first is {name}: {reason}")
        return SourceError(f"the source {display_path(self.written)!r} is empty")


def _find_majority_kind(contents: Iterable[tuple[list[Span], Kind]]) -> Kind:
    """Return the kind that most rows of a source have (texts, or dimensions of vectors), the first in case of a tie."""
    rows: Counter[Kind] = Counter()
    for spans, kind in contents:
        rows[kind] += sum(span.rows or 0 for span in spans)
    return rows.most_common(1)[0][0]


def split_field(written: str) -> tuple[str, str]:
    """Split a source of texts or vectors, written `PLACE#FIELD`, into place and field. Without a field, it is ''.

    A path that exists as it is written has no field, because names of files and folders may contain `#`.
    """
    place, _, field = written.partition("#")
    if field and not is_hub(place) and not is_remote(place):
        with suppress(OSError, ValueError):  # an empty name, or the home of an unknown user
            if expand_home(written).exists():
                return written, ""
            longer, _, last = written.rpartition("#")
            if expand_home(longer).exists():
                return longer, last

    return place, field


def open_source(written: str, bad_shards: BadShards = "refuse") -> Source:
    """Parse a source as a user writes it, and list the files, which are not read. Raise without a file of known format.

    An object store or the hub is asked for the list of files. Files of a folder that are not data, such as README.txt,
    are left out, with a log message.

    Raises:
        SourceError: if there is no such file or folder, it has no file of a known format, or it cannot be reached.
    """
    if written in BUILT_IN:
        return Source(written, "", (written,), bad_shards)

    place, field = split_field(written)
    if is_hub(place):
        return Source(written, field or "text", tuple(list_hub_files(place)), bad_shards)

    is_folder, listed = list_remote_files(place) if is_remote(place) else list_local_files(place)
    files = tuple(file for file in listed if find_format_key(file))
    if is_folder:
        files = _select_data_files(display_path(place), files)
    if not files:
        what = "the folder {} has no file of a known format" if is_folder else "the file {} is not of a known format"
        raise SourceError(f"{what.format(display_path(place))}; allowed are {', '.join(FORMATS)}")

    return Source(written, field or "text", files, bad_shards)


NOTES = ("readme", "license", "licence", "notice", "changelog", "metadata", "dataset_info")
"""Names, without suffix, of files that describe a folder's data."""


def _select_data_files(folder: str, files: tuple[str, ...]) -> tuple[str, ...]:
    """Select the files of a folder that hold its rows, and log once which files are left out.

    Left out are notes such as README.txt and metadata.jsonl, files whose names begin with `_`, and text files among
    files of another format. If the folder has only such files, they hold the rows.
    """
    paths = {file: PurePosixPath(file) for file in files}
    data = [
        file for file, path in paths.items() if path.name[0] != "_" and path.name.split(".")[0].lower() not in NOTES
    ]
    if any(not find_format_key(file).startswith(".txt") for file in data):
        data = [file for file in data if not find_format_key(file).startswith(".txt")]
    if not data or len(data) == len(files):
        return files
    _log_left_out(folder, tuple(path.name for file, path in paths.items() if file not in set(data)))
    return tuple(data)


@cache
def _log_left_out(folder: str, names: tuple[str, ...]) -> None:
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    log.warning("%s: left out %s%s; name a file itself to read it", folder, ", ".join(names[:5]), more)


HASHED_BYTES = 64_000_000
"""Maximum size in bytes of a local file whose content is hashed. Larger files are identified by size and modification
time."""


def file_key(file: str) -> str:
    """Compute a hexadecimal SHA-256 that changes when a file's content changes.

    A local file of up to `HASHED_BYTES` is identified by name and content, so that a copy in another folder has the
    same key. The key of other files is made of

    - path, size and modification time for a larger local file
    - URL, size and version for a file at a URL
    - data set, commit, configuration, split and number for a file of the hub
    - the name and Python's version for a built-in source

    Raises:
        OSError: if a local file cannot be opened.
        SourceError: if a file at a URL is missing or cannot be reached.
    """
    if file in BUILT_IN:
        return digest(file, sys.version)
    if is_hub(file):
        return digest(file)  # it names the commit
    if is_remote(file):
        return digest(*RemoteFile(file).key())

    path = Path(file)
    # Size and content come from the same opened file, in case another file replaces it.
    with parse_local_path(file).open("rb") as opened:
        status = os.fstat(opened.fileno())
        if status.st_size <= HASHED_BYTES:
            return digest(path.name, hashlib.file_digest(opened, "sha256").hexdigest())

    return digest(str(path.absolute()), status.st_size, status.st_mtime_ns)
