"""Store of the vectors that an API answered, so that no vector is requested twice, not even after a kill.

FOLDER/vectors.db
├── vectors   see `lathe.training.encoder.vector_database`
└── spaces    one row for each embedding space and address:
              fingerprint   fingerprint of the embedding space
              asked         digest of the address and of the settings that are sent with a call
              stated        what the API reports of its model, as JSON
              width         dimensions of the vectors
              probes        vectors of the probe texts
              checked_at    time when the probe vectors were last compared
"""

import math
import sqlite3
from dataclasses import dataclass

import numpy as np
import orjson
from numpy.typing import NDArray

from lathe.training.encoder.vector_database import SCHEMA, VectorDatabase

SPACES = """
CREATE TABLE spaces (
    fingerprint TEXT NOT NULL, asked TEXT NOT NULL, stated TEXT NOT NULL, width INTEGER NOT NULL,
    probes BLOB NOT NULL, checked_at REAL NOT NULL, PRIMARY KEY (asked, fingerprint)
);
"""


@dataclass(frozen=True)
class StoredSpace:
    """Embedding space of an API's vectors, with the vectors of the probe texts by which it is recognized.

    Attributes:
        fingerprint: fingerprint of the embedding space.
        reported: what the API reported of the model.
        probes: vectors of the probe texts `(n, d)`.
        checked_at: Unix time in seconds when the probe vectors were last compared.
    """

    fingerprint: str
    reported: dict[str, str]
    probes: NDArray[np.float32]
    checked_at: float


class UpstreamStore(VectorDatabase):
    """Database of an API's vectors by key, and of the embedding spaces of its vectors."""

    schema = SCHEMA + SPACES
    contents = "the vectors of upstream encoders"
    remedy = "and its vectors are requested again"

    def read_space(self, request_digest: str) -> StoredSpace | None:
        """Read the embedding space that was last confirmed for an address and request. None if no space is stored.

        Args:
            request_digest: digest of the address and request.

        Raises:
            UpstreamError: if the row of the space, or the file, is damaged.
        """
        return self._select_space("asked = ?", request_digest)

    def find_space(self, fingerprint: str) -> StoredSpace | None:
        """Find the embedding space with this fingerprint, as last confirmed at any address. None if it is not stored.

        Raises:
            UpstreamError: if the row of the space, or the file, is damaged.
        """
        return self._select_space("fingerprint = ?", fingerprint)

    def _select_space(self, condition: str, argument: str) -> StoredSpace | None:
        with self.guard, self._translate_errors():
            row = self.connection.execute(
                f"SELECT fingerprint, stated, width, probes, checked_at FROM spaces WHERE {condition} "
                "ORDER BY checked_at DESC LIMIT 1",
                (argument,),
            ).fetchone()
            if row is None:
                return None
            try:
                return _parse_space(*row)
            except (ValueError, TypeError, AttributeError) as error:
                raise sqlite3.DatabaseError(f"a row of spaces: {error}") from None

    def write_space(self, space: StoredSpace, request_digest: str) -> None:
        """Store an embedding space with its vectors of the probe texts.

        For a stored space, only `checked_at` is updated.
        """
        reported, probes = orjson.dumps(space.reported).decode(), np.ascontiguousarray(space.probes, "<f4")
        with self.guard, self._translate_errors(), self.connection:
            self.connection.execute(
                "INSERT INTO spaces VALUES (?,?,?,?,?,?) "
                "ON CONFLICT (asked, fingerprint) DO UPDATE SET checked_at = excluded.checked_at",
                (space.fingerprint, request_digest, reported, probes.shape[1], probes.tobytes(), space.checked_at),
            )

    def delete_unconfirmed(self, fingerprint: str) -> int:
        """Delete the vectors of an embedding space stored after its last comparison, and return the number of vectors.

        `checked_at` of the space becomes 0, so that the next process compares the probe texts before it requests
        vectors.
        """
        with self.guard, self._translate_errors(), self.connection:
            # Vectors stored after the last comparison may be of either model; older ones were confirmed by it.
            deleted = self.connection.execute(
                "DELETE FROM vectors WHERE space = ? AND stored_at >= "
                "(SELECT max(checked_at) FROM spaces WHERE fingerprint = ?)",
                (fingerprint, fingerprint),
            )
            self.connection.execute("UPDATE spaces SET checked_at = 0 WHERE fingerprint = ?", (fingerprint,))
            return deleted.rowcount


def _parse_space(fingerprint: str, reported: str, dimensions: int, probes: bytes, checked_at: float) -> StoredSpace:
    """Build the embedding space stored in one row of the database. A damaged row raises.

    Raises:
        ValueError, TypeError, AttributeError: if the row is damaged.
    """
    described = {str(name): str(value) for name, value in orjson.loads(reported).items()}
    vectors = np.frombuffer(probes, "<f4").reshape(-1, dimensions)
    if not vectors.size or not np.isfinite(vectors).all() or not math.isfinite(checked_at):
        raise ValueError("the vectors or the time are not numbers")
    return StoredSpace(str(fingerprint), described, vectors, float(checked_at))
