"""Local files: plain paths, and `ROOT/./PATH` for a file that is only opened if no link leads out of ROOT.

Paths in requests to a server are written `ROOT/./PATH`, so that the process that opens the file later, perhaps on
another machine, is restricted to the same folder. For everything but opening, both forms mean the same file.
"""

from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path, PurePosixPath

from lathe.training.errors import OutsideSourceError, SourceError
from lathe.training.sources.readers import BUILT_IN
from lathe.transforms.beneath import OutsideError, list_beneath, open_beneath
from lathe.transforms.files import expand_home

MARK = "/./"
"""Separator between ROOT and PATH in a path that is restricted to ROOT."""


@dataclass(frozen=True)
class RootedFile:
    """File below a folder, which nothing outside of the folder is opened for.

    Each opening fails if the path, or a link along it, leads out of the folder.

    Attributes:
        root: the folder; it may itself be a link.
        path: path of the file relative to the folder.
    """

    root: Path
    path: str

    @classmethod
    def parse(cls, written: str) -> "RootedFile | None":
        """Parse `ROOT/./PATH`.

        The result is None for a plain path.
        """
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
        """Open the file for reading bytes, whatever the mode.

        Raises what `lathe.transforms.beneath.open_beneath` raises.
        """
        return open_beneath(self.root, self.path)


def parse_local_path(written: str) -> Path | RootedFile:
    """Return a local path as an object to open: a `RootedFile` for `ROOT/./PATH`, else a `Path`."""
    return RootedFile.parse(written) or Path(written)


def display_path(written: str) -> str:
    """Return a path as error messages show it: PATH alone for `ROOT/./PATH`."""
    return written.partition(MARK)[2] or written


def list_local(place: str) -> tuple[bool, list[str]]:
    """Return whether a path is a folder, and the sorted paths of all files below it. For a file, the list holds just
    its own path.

    Hidden files and those in hidden folders are left out. Paths below `ROOT/./` are returned in that form.

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
    except (OSError, ValueError):  # missing, no name at all, the home of a user there is not
        known = " and ".join(BUILT_IN)
        raise SourceError(f"there is no file or folder {display_path(place)!r}; built in are {known}") from None

    if files is None:
        return False, [str(rooted or expand_home(place))]
    if rooted is not None:
        inside = [path for path in files if not _is_hidden(PurePosixPath(path).relative_to(PurePosixPath(rooted.path)))]
        return True, [str(RootedFile(rooted.root, path)) for path in inside]

    return True, files


def _list_path(place: str) -> list[str] | None:
    """Return the sorted paths of all files below a folder, without hidden ones. The result is None if the path is a
    file.

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
