"""A file by which a worker shows that it sees the folder the vectors go to."""

import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from training.errors import EngineError

NAME = ".seen-by-workers"


@dataclass(frozen=True)
class Token:
    """What was written into a folder, by this process, for others to find.

    Attributes:
        file: where.
        secret: what; a folder of the same name on another disk does not hold it.
    """

    file: Path
    secret: str

    @classmethod
    def put_into(cls, folder: Path) -> "Token":
        """Write one."""
        token = cls(folder.absolute() / NAME, secrets.token_hex())
        token.file.write_text(token.secret)
        return token

    def require_seen(self) -> None:
        """Raise `EngineError`, naming this machine, unless it sees the folder and can write there."""
        try:
            seen = self.file.read_text() == self.secret and os.access(self.file.parent, os.W_OK)
        except OSError:
            seen = False
        if not seen:
            raise EngineError(
                f"{socket.gethostname()} cannot write where the vectors go, {self.file.parent}: "
                "LATHE_HOME must lie in a folder that all nodes share"
            )
