"""Store of the vectors that an API answered: none is asked for twice, not even after a kill.

FOLDER/vectors.db
├── vectors   see `lathe.training.encoder.vector_database`
└── spaces    fingerprint, what is asked for, what the API states, dimensions, probe vectors, time they were compared
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
        fingerprint: fingerprint of the space.
        reported: what the API stated of the model.
        probes: vectors of the probe texts `(n, d)`.
        checked_at: Unix time in seconds when the probe vectors were last compared.
    """

    fingerprint: str
    reported: dict[str, str]
    probes: NDArray[np.float32]
    checked_at: float


class UpstreamStore(VectorDatabase):
    """Database of an API's vectors by key, and of their spaces."""

    schema = SCHEMA + SPACES
    contents = "the vectors of upstream encoders"
    remedy = "and its vectors are asked for again"

    def read_space(self, request_digest: str) -> StoredSpace | None:
        """Return the embedding space that was last confirmed for an address and request, or None if none is stored.

        `request_digest` is a digest of address and request.

        Raises:
            UpstreamError: if its row, or the file, is damaged.
        """
        return self._select_space("asked = ?", request_digest)

    def find_space(self, fingerprint: str) -> StoredSpace | None:
        """Return the embedding space with this fingerprint, as last confirmed at any address, or None.

        Raises:
            UpstreamError: if its row, or the file, is damaged.
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
        """Store a space with its vectors of the probe texts. For a stored space, update the time of comparison only."""
        reported, probes = orjson.dumps(space.reported).decode(), np.ascontiguousarray(space.probes, "<f4")
        with self.guard, self._translate_errors(), self.connection:
            self.connection.execute(
                "INSERT INTO spaces VALUES (?,?,?,?,?,?) "
                "ON CONFLICT (asked, fingerprint) DO UPDATE SET checked_at = excluded.checked_at",
                (space.fingerprint, request_digest, reported, probes.shape[1], probes.tobytes(), space.checked_at),
            )

    def delete_unconfirmed(self, fingerprint: str) -> int:
        """Delete the vectors of a space stored after the last comparison of its probe texts, and return their number.

        The probes also count as never compared, so that the next process compares them before it asks for a vector.
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


def _parse_space(fingerprint: str, reported: str, width: int, probes: bytes, checked_at: float) -> StoredSpace:
    """Return the embedding space (model, vectors of the probe texts, time of the check) in one row of the database.

    Raises:
        ValueError, TypeError, AttributeError: if it is damaged.
    """
    described = {str(name): str(value) for name, value in orjson.loads(reported).items()}
    vectors = np.frombuffer(probes, "<f4").reshape(-1, width)
    if not vectors.size or not np.isfinite(vectors).all() or not math.isfinite(checked_at):
        raise ValueError("its vectors or its time are not numbers")
    return StoredSpace(str(fingerprint), described, vectors, float(checked_at))
