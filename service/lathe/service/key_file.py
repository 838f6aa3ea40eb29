"""Files that hold keys, as secrets are mounted into containers."""

from dataclasses import dataclass, field
from pathlib import Path

KEY_VARIABLES = frozenset({"LATHE_API_KEYS", "LATHE_API_KEYS_FILE", "LATHE_ADMIN_KEYS", "LATHE_ADMIN_KEYS_FILE"})
"""Environment variables that hold keys or name files with keys; processes that a server starts do not get them."""


@dataclass(frozen=True)
class KeyFile:
    """A file of keys and its content, read once at start.

    Attributes:
        path: path of the file.
        keys: its keys, one per line; blank lines and lines that begin with # are skipped.
    """

    path: Path
    keys: tuple[str, ...] = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> "KeyFile":
        """Read a file of keys and close it.

        Raises:
            ValueError: if the file cannot be read or holds no key; the message quotes nothing of its content.
        """
        try:
            lines = path.read_text(encoding="utf-8-sig").split("\n")
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not UTF-8 text") from None
        keys = tuple(key for line in lines if (key := line.strip()) and not key.startswith("#"))
        if not keys:
            raise ValueError(f"{path} holds no key: write one key on each line")
        return cls(path, keys)
