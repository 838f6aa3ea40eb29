"""Files on this machine: plain paths, and ROOT/./PATH for one that no link may lead out of ROOT.

What a server is asked to read is written ROOT/./PATH, so that whoever opens it later, perhaps in another process or on
another machine, is bound to the same folder. To everything but opening, both mean the same file.
"""

from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path, PurePosixPath

from training.errors import OutsideSourceError, SourceError
from training.sources.readers import BUILT_IN
from transforms.beneath import OutsideError, list_beneath, open_beneath

MARK = "/./"


@dataclass(frozen=True)
class RootedFile:
    """A file below a folder, opened there each time without leaving it."""

    root: Path
    path: str

    @classmethod
    def parse(cls, written: str) -> "RootedFile | None":
        """Read ROOT/./PATH; None for a plain path."""
        root, mark, path = written.partition(MARK)
        return cls(Path(root or "/").expanduser(), path) if mark else None

    def __str__(self) -> str:
        return f"{self.root}{MARK}{self.path}"

    @property
    def name(self) -> str:
        """Name without its folder."""
        return PurePosixPath(self.path).name

    @property
    def suffix(self) -> str:
        """Last part of its name, with the dot."""
        return PurePosixPath(self.path).suffix

    def open(self, mode: str = "rb", /) -> BufferedReader:
        """Open it for reading bytes; errors as `transforms.beneath.open_beneath`."""
        return open_beneath(self.root, self.path)


def local_file(written: str) -> Path | RootedFile:
    """Return the file that a path names."""
    return RootedFile.parse(written) or Path(written)


def shown(written: str) -> str:
    """Return how errors call a file or folder: of ROOT/./PATH the path alone."""
    return written.partition(MARK)[2] or written


def list_local(place: str) -> tuple[bool, list[str]]:
    """Return whether a path is a folder, and the paths of all files in it, in order; of a file its own.

    Raises:
        OutsideSourceError: for ROOT/./PATH, if anything there leads out of ROOT.
        SourceError: if nothing is there.
    """
    rooted = RootedFile.parse(place)
    try:
        found = _list_path(place) if rooted is None else list_beneath(rooted.root, rooted.path)
        if found is None and rooted is not None:
            rooted.open().close()
    except OutsideError as error:
        raise OutsideSourceError(f"{error.filename!r} leads out of the folder that may be read") from error
    except (OSError, ValueError, RuntimeError):  # missing, no name at all, the home of a user there is not
        known = " and ".join(BUILT_IN)
        raise SourceError(f"there is no file or folder {shown(place)!r}; built in are {known}") from None
    if found is None:
        return False, [str(rooted or Path(place).expanduser())]
    if rooted is not None:
        inside = [path for path in found if not is_hidden(PurePosixPath(path).relative_to(PurePosixPath(rooted.path)))]
        return True, [str(RootedFile(rooted.root, path)) for path in inside]
    return True, found


def _list_path(place: str) -> list[str] | None:
    """Return the paths of all files in a folder; None for a file.

    Raises:
        OSError: if there is neither.
    """
    path = Path(place).expanduser()
    if place and path.is_file():
        return None
    if not place or not path.is_dir():
        raise FileNotFoundError(place)
    return [str(file) for file in sorted(path.rglob("*")) if file.is_file() and not is_hidden(file.relative_to(path))]


def is_hidden(path: PurePosixPath | Path) -> bool:
    """Return whether any part of a path starts with a dot."""
    return any(part.startswith(".") for part in path.parts)
