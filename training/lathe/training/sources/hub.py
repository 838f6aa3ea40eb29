"""Data sets of the Hugging Face hub, streamed with the library `datasets`.

The library is imported only if such a data set is used.

    hf:DATASET[@REVISION][/CONFIG][:SPLIT]   a source as the user writes it; DATASET may be the path of a local folder
    hf:DATASET@COMMIT/CONFIG:SPLIT/I-of-N    one of the N files of that source, pinned to a commit

No code of a data set is run: `datasets` reads the data files, and only files of the formats in `HUB_FORMATS`.
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from textwrap import shorten
from typing import Any

from lathe.training.errors import AccessError, EmptyError, SourceError
from lathe.training.sources.parquet import TableRecords, count_parquet
from lathe.training.sources.remote import RemoteFile, is_remote
from lathe.training.sources.rows import WHOLE, Kind, RawBatch, Span, detect_batch_kind, validate_rows
from lathe.transforms.files import expand_home

HUB = "hf:"
"""Prefix of a source that is a data set of the hub."""

HUB_FORMATS = ("arrow", "csv", "json", "parquet", "text")
"""Formats of data files that are read, as `datasets` names them."""

WRITTEN = re.compile(r"hf:(?P<dataset>[^:#]+?)(:(?P<split>[\w.-]+))?")
"""Pattern of a source as the user writes it, without the field."""

PINNED = re.compile(
    r"hf:(?P<dataset>.+)@(?P<commit>[0-9a-f]+)/(?P<config>[^/]+):(?P<split>[\w.-]+)/(?P<number>\d+)-of-(?P<count>\d+)"
)
"""Pattern of one file of a source, pinned to a commit."""

NETWORK_LIBRARIES = {"aiohttp", "httpx", "httpx2", "huggingface_hub", "requests"}
"""Packages whose errors mean that the hub cannot be reached, not that a file is damaged."""

REASON_CHARACTERS = 400
"""Maximum characters of another library's error message that our messages quote: some list every known suffix."""

COUNT_ROWS = 16_384
"""Rows of a batch when rows are only counted."""


def is_hub(written: str) -> bool:
    """Return whether a source or file of texts is a data set of the hub: written `hf:…`, but not `hf://…`."""
    return written.startswith(HUB) and not written.startswith("hf://")


@dataclass(frozen=True)
class HubFile:
    """One file of a split of a data set on the hub, or one part of a split that `datasets` streams as a file.

    Attributes:
        dataset: id on the hub, or the absolute path of a local folder.
        commit: commit on the hub; for a local folder, a digest of its files' paths and modification times.
        config: name of the configuration.
        split: name of the split.
        number: index of the file in the split.
        count: number of the split's files.
    """

    dataset: str
    commit: str
    config: str
    split: str
    number: int = 0
    count: int = 1

    @classmethod
    def parse(cls, pinned: str) -> "HubFile":
        """Parse the string form of a hub file, `hf:DATASET@COMMIT/CONFIG:SPLIT/I-of-N`."""
        match = PINNED.fullmatch(pinned)
        assert match is not None
        dataset, commit, config, split, number, count = match.groups()
        return cls(dataset, commit, config, split, int(number), int(count))

    def __str__(self) -> str:
        """Return the string form of the file, which `parse` reads."""
        return f"{HUB}{self.dataset}@{self.commit}/{self.config}:{self.split}/{self.number:05}-of-{self.count:05}"

    @property
    def location(self) -> str:
        """The data set, configuration and split as `hf:…`, without the commit.

        The location stays the same when the data set changes.
        """
        return f"{HUB}{self.dataset}/{self.config}:{self.split}"

    @property
    def source_name(self) -> str:
        """Name of the data set, configuration and split, with the commit.

        A local folder is named without its path and without a commit.
        """
        dataset = self.dataset_folder.name if self.dataset_folder else f"{self.dataset}@{self.commit}"
        return f"{dataset}/{self.config}:{self.split}"

    @property
    def name(self) -> str:
        """Name of the file for messages."""
        return f"{self.source_name}/{self.number:05}-of-{self.count:05}"

    @property
    def dataset_folder(self) -> Path | None:
        """Local folder that is the data set, or None for a data set on the hub."""
        return Path(self.dataset) if self.dataset.startswith("/") else None

    def stream(self) -> Any:
        """Open the file as a `datasets.IterableDataset` of Arrow tables, whose rows are streamed and not stored."""
        return _load_split(replace(self, number=0))[1].shard(self.count, self.number).with_format("arrow")

    def count_rows(self) -> int:
        """Count the rows of the file, from the footer of a parquet file, or by streaming any other file once.

        Raises:
            SourceError: if the file is damaged or cannot be reached.
        """
        with _convert_errors(self.name):
            builder, _ = _load_split(replace(self, number=0))
            files = builder.config.data_files[self.split]
            if builder.info.builder_name == "parquet" and len(files) == self.count:
                file = files[self.number]
                return count_parquet(RemoteFile(file) if is_remote(file) else Path(file), "")
            return sum(len(table) for table in self.stream().iter(COUNT_ROWS))


def list_hub_files(written: str) -> list[str]:
    """List the files of a split of a hub data set, written `hf:…`. Other formats or several unnamed splits raise.

    The files are in string form, with the current commit. A missing data set, configuration or split raises. The
    content of a file named by its commit does not change. If the data set has one split only, that split is the
    default.

    Raises:
        AccessError: if `datasets` is not installed, the hub cannot be reached or is switched off by `HF_HUB_OFFLINE`,
            or the data set needs other credentials.
        SourceError: if there is no such data set, configuration or split, no split is named although there are several,
            or the files are of another format.
    """
    match = WRITTEN.fullmatch(written)
    if match is None:
        raise SourceError(f"{written!r} is not a data set of the hub: write hf:DATASET/CONFIG:SPLIT#FIELD")

    with _convert_errors(written):
        dataset, commit, config = _find_dataset(match["dataset"])
        # Only the description is read here; rows are streamed later.
        builder = _load_builder(dataset, commit, config)
        if builder.info.builder_name not in HUB_FORMATS:
            raise SourceError(
                f"{written} has files of the format {builder.info.builder_name}; allowed are {', '.join(HUB_FORMATS)}"
            )

        splits = builder.as_streaming_dataset()
        split: str = match["split"] or (next(iter(splits)) if len(splits) == 1 else "")
        if split not in splits:
            what = f"has no split {split!r}" if split else "has several splits"
            raise SourceError(f"{written} {what}; it has {', '.join(splits)}. Name one as hf:DATASET/CONFIG:SPLIT")

        count = splits[split].num_shards
        file = HubFile(dataset, commit or _folder_digest(builder), builder.config.name, split, count=count)
        return [str(replace(file, number=number)) for number in range(count)]


def read_hub(file: HubFile, field: str, rows: int, span: Span) -> Iterator[RawBatch]:
    """Yield a span's rows from a file of a hub data set in batches of up to `rows`. A missing column raises.

    Batches hold the values of the column `field`, and the whole rows as dicts.

    Raises:
        AccessError: if the hub cannot be reached.
        SourceError: if the file is damaged or lacks the column `field`; the message lists the columns.
    """
    with _convert_errors(file.name):
        row = span.start
        for table in file.stream().skip(span.start).iter(rows):
            if field not in table.column_names:
                columns = ", ".join(table.column_names)
                raise SourceError(f"{file.name} has no column {field!r}; it has {columns}. Name one as hf:…#COLUMN")

            records = TableRecords(table.slice(0, None if span.stop is None else span.stop - row), file.name)
            if len(records):
                numbers = range(row + 1, row + 1 + len(records))
                yield RawBatch(file.name, "row", numbers, records.list_values(field), records)

            row += len(records)
            if row == span.stop:
                return


_KINDS: dict[tuple[HubFile, str], Kind] = {}
"""Kind of the rows by split and field. All files of a split have the same columns, so only one file is read."""


def detect_hub_kind(file: HubFile, field: str) -> Kind:
    """Return whether a hub file holds texts (None) or vectors (dimensions), by the first row. A file of no rows raises.

    The result is cached for all files of the split.

    Raises:
        EmptyError: if the file has no rows.
        SourceError: if the file is damaged or lacks the field.
    """
    key = replace(file, number=0), field
    if key not in _KINDS:
        first = next(read_hub(file, field, 1, WHOLE), None)
        if first is None:
            raise EmptyError(f"{file.name} holds no rows")
        validate_rows(first, detect_batch_kind(first))
        _KINDS[key] = detect_batch_kind(first)

    return _KINDS[key]


def _find_dataset(written: str) -> tuple[str, str, str | None]:
    """Find a data set on the hub or in a folder, and return id, commit, and configuration or None. Raise if missing.

    `written` is `DATASET[@REVISION][/CONFIG]`. The configuration is None if not named. `A/B` is the data set B of the
    user A, or else the configuration B of the data set A. A name that begins with `/`, `.` or `~` is a local folder,
    perhaps with a configuration; the hub is not asked, and the commit is ''.

    Raises:
        AccessError: if `HF_HUB_OFFLINE` is set, or the hub cannot be reached.
        SourceError: if there is no such data set or revision.
    """
    if written.startswith(("/", ".", "~")):
        folder, config = _find_folder(expand_home(written).resolve())
        return folder, "", config

    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    if constants.HF_HUB_OFFLINE:
        raise AccessError(
            f"hf:{written} needs the network: unset HF_HUB_OFFLINE, or name a local folder as hf:./FOLDER"
        )

    # `A/B` is ambiguous: the hub is asked for a data set of that name first.
    revision, candidates = _parse_dataset(written)
    for dataset, config in candidates:
        try:
            info = HfApi().dataset_info(dataset, revision=revision)
        except (RepositoryNotFoundError, HFValidationError):
            continue
        except RevisionNotFoundError:
            raise SourceError(f"the data set {dataset} has no revision {revision!r}") from None
        return info.id, str(info.sha), config or None

    raise SourceError(
        f"the hub has no data set {candidates[0][0]}, or it is private: set HF_TOKEN to a token that may read it"
    )


def _parse_dataset(written: str) -> tuple[str | None, list[tuple[str, str]]]:
    """Parse `DATASET[@REVISION][/CONFIG]` into the revision and the possible pairs of data set and configuration.

    The revision is None if not named. Without a revision the name can be ambiguous; the pairs are in the order to try
    them.
    """
    name, at, after = written.partition("@")
    if at:
        revision, _, config = after.partition("/")
        return revision, [(name, config)]

    first, *following = name.split("/", 2)
    if not following:
        return None, [(first, "")]

    return None, [(f"{first}/{following[0]}", "/".join(following[1:])), (first, "/".join(following))]


def _find_folder(path: Path) -> tuple[str, str | None]:
    """Split the path of a local data set into folder and configuration or None. A missing folder raises.

    The configuration is None if the path is the folder itself. The last part of the path is a configuration if the
    README.md of the parent folder lists it, or if the path is not a folder.

    Raises:
        SourceError: if there is no such folder.
    """
    from huggingface_hub import DatasetCard

    card = path.parent / "README.md"
    listed = DatasetCard.load(card).data.to_dict().get("configs") or [] if card.is_file() else []
    if path.is_dir() and path.name not in [config.get("config_name") for config in listed]:
        return str(path), None
    if not path.parent.is_dir():
        raise SourceError(f"there is no folder {str(path)!r} with a data set")

    return str(path.parent), path.name


def _load_builder(dataset: str, commit: str, config: str | None) -> Any:
    """Load the `datasets.DatasetBuilder` of a configuration, None for the default. A missing configuration raises.

    A missing configuration, or several without a default, raises an error that lists them.

    Raises:
        SourceError: if there is no such configuration, or no default one; the message lists the configurations.
    """
    from datasets import get_dataset_config_names, load_dataset_builder

    path = dataset if dataset.startswith("/") else f"hf://datasets/{dataset}"
    try:
        return load_dataset_builder(path, config, revision=commit or None)
    except ValueError as error:
        names = get_dataset_config_names(path, revision=commit or None)
        if config in names or len(names) == 1 and not config:
            raise  # the error has another cause
        what = f"has no configuration {config!r}" if config else "has several configurations"
        raise SourceError(
            f"{dataset} {what}; it has {', '.join(names)}. Name one as hf:DATASET/CONFIG:SPLIT"
        ) from error


@lru_cache(64)
def _load_split(file: HubFile) -> tuple[Any, Any]:
    """Load the `datasets` builder and the streaming data set of a hub file's split. The last 64 splits are cached."""
    folder = file.dataset_folder
    builder = _load_builder(file.dataset, "" if folder else file.commit, file.config)
    return builder, builder.as_streaming_dataset(file.split)


def _folder_digest(builder: Any) -> str:
    """Compute a digest of the paths, sizes and modification times of a local data set's files, instead of a commit."""
    files = sorted(file for files in builder.config.data_files.values() for file in files)
    stamps = [(file, stat.st_size, stat.st_mtime_ns) for file in files for stat in [Path(file).stat()]]
    return hashlib.sha256(repr(stamps).encode()).hexdigest()[:16]


@contextmanager
def _convert_errors(name: str) -> Iterator[None]:
    """Convert errors of `datasets`, Arrow and the hub's client in the block to `SourceError` or `AccessError`.

    The error names the source. It is an `AccessError` if the hub cannot be reached or refuses the credentials. A
    `SourceError` passes unchanged.

    Raises:
        AccessError: if `datasets` is not installed, the hub cannot be reached, or it refuses the credentials.
        SourceError: for any other error.
    """
    try:
        yield
    except SourceError:
        raise
    except ImportError as error:
        raise AccessError(
            f"reading {name} needs datasets: pip install 'lathe-training[finetuning]' ({error})"
        ) from error
    except Exception as error:  # errors of a format's library, Arrow, the hub's client or the network
        reason = shorten(str(error), REASON_CHARACTERS)
        if "is a gated dataset" in reason or type(error).__name__ == "GatedRepoError":
            raise AccessError(f"{name} is gated: accept its terms on the hub, and set HF_TOKEN: {reason}") from error
        library = type(error).__module__.partition(".")[0]
        if isinstance(error, ConnectionError | TimeoutError) or library in NETWORK_LIBRARIES:
            raise AccessError(f"{name} cannot be reached: {reason}") from error
        raise SourceError(f"{name} cannot be read: {reason}") from error
