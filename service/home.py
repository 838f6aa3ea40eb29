"""The state folder.

$LATHE_HOME/
├── admin.key     the generated admin key, mode 600
├── encoders.json encoders added with `lathe encoders add`, see service.hosted
├── chains/       registry: <name>/<version>/, see service.registry
├── places.json   which chain answers which size
├── indexes/      <name>/, see service.index
├── shared/       this replica's copy of the chains and places in Redis, see service.shared
├── id            of this state folder, in the names of jobs only its owner can run
├── jobs/         <id>/: request, state, log and result of each job
└── vectors/      vectors of fits under way, and of foreign text
"""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from transforms.artifact import write_synced


@dataclass(frozen=True)
class Home:
    """Paths inside a state folder."""

    root: Path

    @property
    def chains(self) -> Path:
        """The registry."""
        return self.root / "chains"

    @property
    def places(self) -> Path:
        """Which chain answers which size."""
        return self.root / "places.json"

    @property
    def shared(self) -> Path:
        """The copy of what replicas share."""
        return self.root / "shared"

    @property
    def indexes(self) -> Path:
        """A folder for each index."""
        return self.root / "indexes"

    @property
    def jobs(self) -> Path:
        """A folder for each job."""
        return self.root / "jobs"

    @property
    def vectors(self) -> Path:
        """The workspace of fits."""
        return self.root / "vectors"

    @property
    def admin_key(self) -> Path:
        """The file with the generated key."""
        return self.root / "admin.key"

    @property
    def id(self) -> Path:
        """The file with the folder's id."""
        return self.root / "id"

    def problem(self) -> str | None:
        """Why the folder cannot be written, or None; makes it if it is missing."""
        probe = self.root / f".probe.{secrets.token_hex(4)}"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            return f"the state folder {self.root} cannot be written: {error.strerror}"
        return None

    def read_or_make_admin_key(self) -> str:
        """The generated admin key; made with mode 600 the first time.

        Raises:
            OSError: if it can be neither read nor written.
        """
        return read_or_make(self.admin_key, secrets.token_urlsafe(32))

    def read_or_make_id(self) -> str:
        """What tells this folder from others; errors as for the key."""
        return read_or_make(self.id, secrets.token_hex(8))


def read_or_make(path: Path, content: str) -> str:
    """A file's line; the first who asks for it writes it, with mode 600."""
    staging = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    if not path.exists():
        os.close(os.open(staging, os.O_CREAT | os.O_EXCL, 0o600))
        write_synced(staging, content.encode() + b"\n")
        try:
            os.link(staging, path)  # unlike a rename, never replaces another's
        except FileExistsError:
            pass
        finally:
            staging.unlink()
    return path.read_text().strip()
