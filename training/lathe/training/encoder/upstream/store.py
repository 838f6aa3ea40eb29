"""Store of the vectors that an API answered, in SQLite: none is asked for twice, not even after a kill.

FOLDER/vectors.db
├── vectors   key, vector in float32, tokens, digest of all three, time        the oldest are deleted for space
└── spaces    fingerprint, what is asked for, what the API states, width, probe vectors, time they were compared

Processes share the file: each commit is one call's answer, before its vectors are given to anyone.
"""

import hashlib
import math
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import orjson
from numpy.typing import NDArray

from lathe.training.encoder.spec import StoreSettings
from lathe.training.errors import UpstreamError
from lathe.transforms.files import create_file, make_root

SCHEMA_VERSION = 1
"""`user_version` of the file; another program's or a later version's is refused."""

SCHEMA = """
CREATE TABLE vectors (
    id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, vector BLOB NOT NULL, tokens INTEGER NOT NULL,
    digest BLOB NOT NULL, space TEXT NOT NULL, stored_at REAL NOT NULL
);
CREATE TABLE spaces (
    fingerprint TEXT NOT NULL, asked TEXT NOT NULL, stated TEXT NOT NULL, width INTEGER NOT NULL,
    probes BLOB NOT NULL, checked_at REAL NOT NULL, PRIMARY KEY (asked, fingerprint)
);
"""

BUSY_SECONDS = 60.0
"""Seconds to wait for another process that writes."""

MAX_KEYS = 500
"""Maximum keys of one query; SQLite takes 999 or more."""

KEPT_SHARE = 0.9
"""Share of the maximum bytes to which the rows of a full file are reduced, oldest first."""

CHECKPOINT_PAGES = 10_000
"""Pages of 4 kB in the log between two checkpoints, which wait for the disk."""

BLOCKS = 64
"""Number of stored answers between two checks of the file's size."""


@dataclass(frozen=True)
class StoredVector:
    """Vector `(d,)` that an API answered for a text, and the text's number of tokens."""

    vector: NDArray[np.float32]
    tokens: int


@dataclass(frozen=True)
class StoredSpace:
    """Vector space of an API's vectors.

    Attributes:
        fingerprint: fingerprint of the space.
        stated: what the API stated of the model.
        probes: vectors of the probe texts `(n, d)`.
        checked_at: Unix time in seconds when the probe vectors were last compared.
    """

    fingerprint: str
    stated: dict[str, str]
    probes: NDArray[np.float32]
    checked_at: float


class UpstreamStore:
    """Store of vectors by key, and of their spaces; usable from several threads and processes.

    Args:
        settings: folder and maximum bytes.

    Raises:
        UpstreamError: if the file is damaged, or of a later version or another program.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self.max_bytes = settings.max_bytes
        self.path = settings.folder / "vectors.db"
        self.guard = threading.Lock()
        self.stores = 0
        make_root(settings.folder)
        if not self.path.exists():
            create_file(self.path, private=True).close()
        with self._translate_errors():
            self.connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, check_same_thread=False)
            try:
                self._open()
            except BaseException:
                self.connection.close()
                raise

    def close(self) -> None:
        """Close the file."""
        with self.guard:
            self.connection.close()

    def get(self, keys: Sequence[bytes]) -> list[StoredVector | None]:
        """Return the stored vector of each key, in order; None where there is none, or its row is damaged."""
        found: dict[bytes, StoredVector] = {}
        with self.guard, self._translate_errors():
            for start in range(0, len(keys), MAX_KEYS):
                some = keys[start : start + MAX_KEYS]
                marks = ",".join("?" * len(some))
                rows = self.connection.execute(
                    f"SELECT key, vector, tokens, digest FROM vectors WHERE key IN ({marks})", some
                )
                for key, vector, tokens, digest in rows:
                    if isinstance(vector, bytes) and digest == _digest_row(key, vector, tokens):
                        found[key] = StoredVector(np.frombuffer(vector, np.float32), tokens)
        return [found.get(key) for key in keys]

    def put(self, keys: Sequence[bytes], vectors: NDArray[np.float32], tokens: Sequence[int], fingerprint: str) -> None:
        """Store vectors `(n, d)` of a space by their keys; delete the oldest rows if the file exceeds its maximum size.

        A kill loses none of them afterwards; a power cut may lose the last ones.
        """
        now = time.time()
        rows = []
        for key, vector, count in zip(keys, vectors, tokens, strict=True):
            payload = np.ascontiguousarray(vector, np.float32).tobytes()
            rows.append((key, payload, int(count), _digest_row(key, payload, int(count)), fingerprint, now))
        with self.guard, self._translate_errors(), self.connection:
            self.connection.executemany(
                "INSERT OR REPLACE INTO vectors (key, vector, tokens, digest, space, stored_at) VALUES (?,?,?,?,?,?)",
                rows,
            )
            self.stores += 1
            if self.stores % BLOCKS == 1:
                self._delete_oldest()

    def read_space(self, asked: str) -> StoredSpace | None:
        """Return the space that was last compared for `asked`, a digest of address and request, or None.

        Raises:
            UpstreamError: if its row, or the file, is damaged.
        """
        return self._select_space("asked = ?", asked)

    def find_fingerprint(self, fingerprint: str) -> StoredSpace | None:
        """Return the space of a fingerprint as it was last compared at any address, or None.

        It raises what `read_space` raises.
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

    def write_space(self, space: StoredSpace, asked: str) -> None:
        """Store a space, or the time of its last comparison if it is stored; the first probe vectors are kept."""
        stated, probes = orjson.dumps(space.stated).decode(), np.ascontiguousarray(space.probes, "<f4")
        with self.guard, self._translate_errors(), self.connection:
            self.connection.execute(
                "INSERT INTO spaces VALUES (?,?,?,?,?,?) "
                "ON CONFLICT (asked, fingerprint) DO UPDATE SET checked_at = excluded.checked_at",
                (space.fingerprint, asked, stated, probes.shape[1], probes.tobytes(), space.checked_at),
            )

    def delete_unconfirmed(self, fingerprint: str) -> int:
        """Delete the vectors of a space that were stored after its probes were last compared; return their number.

        The probes also count as never compared, so that the next process compares them before it asks for a vector.
        """
        with self.guard, self._translate_errors(), self.connection:
            deleted = self.connection.execute(
                "DELETE FROM vectors WHERE space = ?1 AND stored_at >= "
                "(SELECT max(checked_at) FROM spaces WHERE fingerprint = ?1)",
                (fingerprint,),
            )
            self.connection.execute("UPDATE spaces SET checked_at = 0 WHERE fingerprint = ?", (fingerprint,))
            return deleted.rowcount

    def count(self) -> int:
        """Return the number of stored vectors."""
        with self.guard, self._translate_errors():
            found: int = self.connection.execute("SELECT count(*) FROM vectors").fetchone()[0]
        return found

    def _open(self) -> None:
        """Set the journal mode, and create the tables in a new file.

        Raises:
            UpstreamError: if the file is of another version, or of another program.
        """
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        self.connection.execute("PRAGMA synchronous = NORMAL")  # a kill loses nothing; a power cut the last answers
        with self.connection:
            self.connection.execute("BEGIN IMMEDIATE")  # two processes may open a new file
            version = self.connection.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                if self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    raise UpstreamError(f"{self.path} is a database of another program: move it away")
                for statement in SCHEMA.split(";"):
                    self.connection.execute(statement)
                self.connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            elif version != SCHEMA_VERSION:
                raise UpstreamError(
                    f"{self.path.name} of upstream encoders is of version {version}, and this Lathe reads "
                    f"{SCHEMA_VERSION}: use a later Lathe, or move the file away, and its vectors are asked for again"
                )

    def _delete_oldest(self) -> None:
        """Delete the oldest rows if the pages in use exceed the maximum; freed pages are used again."""
        pages, free, size = (
            self.connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        used = (pages - free) * size
        if used > self.max_bytes:
            count = self.connection.execute("SELECT count(*) FROM vectors").fetchone()[0]
            self.connection.execute(
                "DELETE FROM vectors WHERE id IN (SELECT id FROM vectors ORDER BY id LIMIT ?)",
                (math.ceil(count * (1 - KEPT_SHARE * self.max_bytes / used)),),
            )

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Convert errors of SQLite in the block to an `UpstreamError` that names the file and says what to do."""
        what = f"the vectors of upstream encoders, {self.path.name} in the state folder's upstream,"
        try:
            yield
        except sqlite3.ProgrammingError:
            raise UpstreamError(f"{what} are closed, because the encoder was stopped") from None
        except sqlite3.OperationalError as error:
            raise UpstreamError(f"{what} cannot be read or written: {error}") from None
        except sqlite3.DatabaseError as error:
            raise UpstreamError(
                f"{what} are damaged ({error}): restore the file from a backup, or move it away, and its vectors are "
                "asked for again"
            ) from None


def _parse_space(fingerprint: str, stated: str, width: int, probes: bytes, checked_at: float) -> StoredSpace:
    """Build a space from the values of its row.

    Raises:
        ValueError, TypeError, AttributeError: if it is damaged.
    """
    described = {str(name): str(value) for name, value in orjson.loads(stated).items()}
    vectors = np.frombuffer(probes, "<f4").reshape(-1, width)
    if not vectors.size or not np.isfinite(vectors).all() or not math.isfinite(checked_at):
        raise ValueError("its vectors or its time are no numbers")
    return StoredSpace(str(fingerprint), described, vectors, float(checked_at))


def _digest_row(key: bytes, vector: bytes, tokens: int) -> bytes:
    """Return a digest of a row, by which a damaged one is recognized; `tokens` of a damaged row may be of any type."""
    return hashlib.blake2b(repr((key, tokens)).encode() + vector, digest_size=8).digest()
