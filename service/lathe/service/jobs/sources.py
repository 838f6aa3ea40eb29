"""The source of a job: a path the server may read, or texts or vectors sent with the request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lathe.service.codec import as_vectors, dump_npy
from lathe.service.errors import BadValueError, ForbiddenError, UnknownNameError
from lathe.service.jobs.job import FILE_OF_TEXTS, FILE_OF_VECTORS
from lathe.training.errors import OutsideSourceError, SourceError
from lathe.training.fitting.requests import MIN_DISTINCT_ROWS, RowSource
from lathe.training.journal import serialize_lines
from lathe.training.sources.hub import is_hub
from lathe.training.sources.readers import BUILT_IN
from lathe.training.sources.remote import is_remote
from lathe.training.sources.shards import RootedFile
from lathe.training.sources.source import open_source

MAX_COUNTED = 1000
"""Maximum number of vectors whose distinct rows are counted before the job begins."""

PATHS = ("folder", "jsonl", "corpus")
"""Settings of a training's source, target or evaluation that hold a path."""


@dataclass(frozen=True)
class JobSource:
    """A checked source as a job reads it.

    Attributes:
        path: path for `open_source`; the name of a file in the job's folder for data sent with the request.
        texts: whether it holds texts instead of vectors.
        dimensions: dimensions of vectors sent with the request; None if unknown.
        distinct: number of distinct rows sent with the request; None if there are too many to count, or for a path.
        files: contents of the files to store in the job's folder, by name.
    """

    path: str
    texts: bool
    dimensions: int | None = None
    distinct: int | None = None
    files: dict[str, bytes] = field(default_factory=dict)

    def check_distinct(self, operation: str) -> None:
        """Raise `BadValueError` if fewer than `MIN_DISTINCT_ROWS` distinct rows were sent, which `operation` needs.

        Rows that were not counted pass.
        """
        if self.distinct is not None and self.distinct < MIN_DISTINCT_ROWS:
            needed = f"{operation} needs at least {MIN_DISTINCT_ROWS} different rows"
            raise BadValueError(f"{needed}, the source has {self.distinct}", param="source")


def receive_source(source: RowSource, data_root: Path | None) -> JobSource:
    """Check the source of a request. Texts and vectors become files, and a path must lie in the data root.

    A path may also be a built-in source. It is opened to find out whether it holds texts or vectors.

    Raises:
        ServiceError, SourceError: if the source cannot be used.
    """
    if source.texts is not None:
        content = _serialize_texts(source.texts)
        return JobSource(FILE_OF_TEXTS, True, distinct=len(set(source.texts)), files={FILE_OF_TEXTS: content})
    if source.vectors is not None:
        vectors = as_vectors(source.vectors, max_rows=len(source.vectors) + 1)
        few = len(vectors) <= MAX_COUNTED
        distinct = len({row.tobytes() for row in vectors}) if few else None
        return JobSource(FILE_OF_VECTORS, False, vectors.shape[1], distinct, {FILE_OF_VECTORS: dump_npy(vectors)})
    path = resolve_allowed_path(str(source.path), data_root)
    return JobSource(path, open_source(path).kind() == "texts")


def _serialize_texts(texts: list[str]) -> bytes:
    if not texts:
        raise BadValueError("source.texts must not be empty", param="source.texts")
    for index, text in enumerate(texts):
        if not text.strip():
            raise BadValueError(f"source.texts[{index}] is an empty text", param="source.texts")
    return serialize_lines({"text": text} for text in texts)


def resolve_allowed_path(written: str, data_root: Path | None, field: str = "source.path") -> str:
    """Check that a path lies in the data root, and return it as `open_source` reads it. Built-in names pass.

    No link may lead out of the data root, neither now nor when the job opens the path.

    Args:
        written: the path.
        data_root: folder that paths may lie in; None allows none.
        field: field of the request that names the path, for errors.

    Raises:
        BadValueError: for a data set of the hub, `hf:…`; nothing that a request names is fetched.
        ForbiddenError: if the path is outside the data root, is a URL, or there is no data root.
        UnknownNameError: if there is no such file.
    """
    if written in BUILT_IN:
        return written
    if is_hub(written):
        raise BadValueError(
            "the server reads no data sets from the hub: read it with a command, such as lathe fit --source hf:…, "
            "or put its files into the server's data folder",
            param=field,
        )
    if data_root is None:
        raise ForbiddenError(
            "paths are off on this server: set LATHE_DATA_ROOT to the folder they may lie in", param=field
        )
    if is_remote(written.partition("#")[0]):
        raise ForbiddenError("the server reads no URLs: put the file into its data folder", param=field)
    try:
        # A `RootedFile` refuses links that lead out each time it is opened, also by the job.
        return open_source(str(RootedFile(data_root, _make_relative(data_root, written)))).written
    except OutsideSourceError as error:
        raise ForbiddenError(f"{written[:80]!r} lies outside the server's data folder: {error}", field) from None
    except SourceError:
        raise UnknownNameError(
            f"there is no source {written[:80]!r} in the server's data folder", param=field
        ) from None


def _make_relative(data_root: Path, path: str) -> str:
    """Make a path relative to the data root if it begins with that folder. Other paths are unchanged."""
    for root in (data_root, data_root.resolve()):
        if path.startswith(f"{root}/"):
            return path[len(f"{root}/") :].lstrip("/")
    return path


def resolve_allowed_folder(written: str, data_root: Path | None, field: str) -> str:
    """Check that a data set's folder or file lies in the data root, and return its absolute path.

    No link in it may lead out of the data root.

    Args:
        written: the path, relative to the data root or absolute.
        data_root: folder that paths may lie in; None allows none.
        field: field of the request that names the path, for errors.

    Raises:
        BadValueError: if the path cannot be read.
        ForbiddenError: if the path or a link leads out of the data root, or there is no data root.
        UnknownNameError: if there is no such folder or file.
    """
    if data_root is None:
        raise ForbiddenError(
            "paths are off on this server: set LATHE_DATA_ROOT to the folder they may lie in", param=field
        )
    root = data_root.resolve()
    try:
        path = (root / _make_relative(data_root, written)).resolve()
        if not path.is_relative_to(root):
            raise ForbiddenError(f"{written[:80]!r} lies outside the server's data folder", field)
        if not path.exists():
            raise UnknownNameError(f"there is no {written[:80]!r} in the server's data folder", param=field)
        for link in path.rglob("*"):
            if link.is_symlink() and not link.resolve().is_relative_to(root):
                raise ForbiddenError(f"{written[:80]!r} has a link that leads out of the server's data folder", field)
    except (ValueError, OSError, RuntimeError) as error:  # NUL, a name that is too long, links in a circle
        reason = getattr(error, "strerror", None) or str(error).partition(":")[0]
        raise BadValueError(f"{written[:80]!r} is not a path that can be read: {reason}", param=field) from None
    return str(path)


def locate_data_sets(job: Mapping[str, Any], data_root: Path | None) -> dict[str, Any]:
    """Replace the paths of a training's settings by checked absolute paths. Data sets of the hub are refused.

    Raises:
        BadValueError: for a data set of the hub.
        ForbiddenError: for a path outside of the data root.
        UnknownNameError: for a path that does not exist.
    """
    located = dict(job)
    located["sources"] = [
        _locate_section(source, f"job.sources.{number}", data_root) for number, source in enumerate(job["sources"])
    ]
    for name in ("target", "evaluate"):
        if job.get(name) is not None:
            located[name] = _locate_section(job[name], f"job.{name}", data_root)
    return located


def _locate_section(section: dict[str, Any], field: str, data_root: Path | None) -> dict[str, Any]:
    """Replace the paths of a source, target or evaluation by checked absolute paths. Refuse data sets of the hub."""
    if section.get("hub") is not None:
        raise BadValueError(
            "the server reads no data sets from the hub: train with the command lathe train, or put the files of the "
            "data set into the server's data folder",
            param=f"{field}.hub",
        )
    paths = {name: section[name] for name in PATHS if section.get(name) is not None}
    return section | {
        name: resolve_allowed_folder(str(path), data_root, f"{field}.{name}") for name, path in paths.items()
    }
