"""A file of keys, as a secret is mounted into a container."""

from dataclasses import dataclass, field
from pathlib import Path

KEY_VARIABLES = frozenset({"LATHE_API_KEYS", "LATHE_API_KEYS_FILE", "LATHE_ADMIN_KEYS", "LATHE_ADMIN_KEYS_FILE"})
"""Where a server finds its keys; no process that it starts needs to know."""


@dataclass(frozen=True)
class KeyFile:
    """The keys of a file, read once at start.

    Attributes:
        path: of the file.
        keys: one a line; blank lines and those that begin with # are no keys.
    """

    path: Path
    keys: tuple[str, ...] = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> "KeyFile":
        """Read a file.

        Raises:
            ValueError: if it cannot be read or holds no key; the message quotes nothing of what is in it.
        """
        try:
            lines = path.read_text(encoding="utf-8-sig").split("\n")
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not text in UTF-8") from None
        keys = tuple(key for line in lines if (key := line.strip()) and not key.startswith("#"))
        if not keys:
            raise ValueError(f"{path} holds no key: write one on each line")
        return cls(path, keys)
