"""The state folder.

$LATHE_HOME/
├── admin.key     the generated admin key, mode 600
├── encoders.json encoders added with `lathe encoders add`, see service.hosted
├── chains/       registry: <name>/<version>/, see service.registry
├── places.json   which chain answers which size
├── indexes/      <name>/, see service.index
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
        staging = self.admin_key.with_name(f".admin.key.{secrets.token_hex(4)}")
        if not self.admin_key.exists():
            os.close(os.open(staging, os.O_CREAT | os.O_EXCL, 0o600))
            write_synced(staging, secrets.token_urlsafe(32).encode() + b"\n")
            try:
                os.link(staging, self.admin_key)  # unlike a rename, never replaces another's key
            except FileExistsError:
                pass
            finally:
                staging.unlink()
        return self.admin_key.read_text().strip()
