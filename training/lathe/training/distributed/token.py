"""Token file by which a worker proves that it sees the folder for the vectors."""

import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from lathe.training.errors import EngineError

NAME = ".seen-by-workers"
"""Name of the token file."""


@dataclass(frozen=True)
class Token:
    """Random secret that this process wrote to a folder, for workers to read back.

    Attributes:
        file: path of the token file.
        secret: content of the file; a folder with the same path on another disk does not hold it.
    """

    file: Path
    secret: str

    @classmethod
    def write(cls, folder: Path) -> "Token":
        """Write a token file with a new secret into a folder, and return the token."""
        token = cls(folder.absolute() / NAME, secrets.token_hex())
        token.file.write_text(token.secret)
        return token

    def require_seen(self) -> None:
        """Raise `EngineError`, naming this machine, unless it can read the secret and write to the folder."""
        try:
            seen = self.file.read_text() == self.secret and os.access(self.file.parent, os.W_OK)
        except OSError:
            seen = False
        if not seen:
            raise EngineError(
                f"{socket.gethostname()} cannot write where the vectors go, {self.file.parent}: "
                "LATHE_HOME must lie in a folder that all nodes share"
            )
