"""SQLite database of the vectors of texts, shared by fits, advice, imports and other commands.

The table `vectors` has the columns

    key        digest of the encoder, of all settings that change its vectors, and of the text; no text is stored
    vector     vector in float32
    tokens     number of tokens of the text
    digest     digest of key, vector and tokens, which shows damage
    space      fingerprint of the encoder
    stored_at  time of the insertion

If the file is too large, the oldest rows are deleted. Several processes share the file: the vectors of one call are
committed together, before the call returns them.
"""

import hashlib
import math
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lathe.training.encoder.spec import StoreSettings
from lathe.training.errors import UpstreamError
from lathe.transforms.files import create_file, make_root

SCHEMA_VERSION = 1
"""`user_version` of the file; a file of another program or version is refused."""

SCHEMA = """
CREATE TABLE vectors (
    id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, vector BLOB NOT NULL, tokens INTEGER NOT NULL,
    digest BLOB NOT NULL, space TEXT NOT NULL, stored_at REAL NOT NULL
);
"""

FILE_NAME = "vectors.db"
"""Name of the file in its folder."""

BUSY_SECONDS = 60.0
"""Seconds to wait for another process that writes."""

MAX_KEYS = 500
"""Maximum keys of one query; SQLite takes 999 or more."""

KEPT_SHARE = 0.9
"""Share of the maximum bytes that remains in use after the oldest rows of a full file were deleted."""

CHECKPOINT_PAGES = 10_000
"""Pages of 4 kB in the log between two checkpoints, which wait for the disk."""

BLOCKS = 64
"""Number of calls of `put` between two checks of the file's size."""


@dataclass(frozen=True)
class StoredVector:
    """Vector `(d,)` of a text, and the text's number of tokens."""

    vector: NDArray[np.float32]
    tokens: int


class VectorDatabase:
    """SQLite database of the vectors of texts, by key. It may be used from several threads and processes.

    Args:
        settings: folder and maximum bytes.

    Raises:
        UpstreamError: if the file is damaged, or of a later version or another program.
    """

    schema = SCHEMA
    contents = "the stored vectors"
    """What the file holds, for messages."""
    remedy = "and they are computed again"
    """What happens after the file was moved away, for messages."""

    def __init__(self, settings: StoreSettings) -> None:
        self.max_bytes = settings.max_bytes
        self.path: Path = settings.folder / FILE_NAME
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
        """Read the stored vector of each key, in the order of the keys. The entry of a missing or damaged row is None.

        Raises:
            UpstreamError: if the file cannot be read.
        """
        found: dict[bytes, StoredVector] = {}
        with self.guard, self._translate_errors():
            # In blocks: SQLite limits the number of parameters of a query.
            for start in range(0, len(keys), MAX_KEYS):
                block = keys[start : start + MAX_KEYS]
                marks = ",".join("?" * len(block))
                rows = self.connection.execute(
                    f"SELECT key, vector, tokens, digest FROM vectors WHERE key IN ({marks})", block
                )
                for key, vector, tokens, digest in rows:
                    if isinstance(vector, bytes) and digest == _digest_row(key, vector, tokens):
                        found[key] = StoredVector(np.frombuffer(vector, np.float32), tokens)
        return [found.get(key) for key in keys]

    def put(self, keys: Sequence[bytes], vectors: NDArray[np.float32], tokens: Sequence[int], fingerprint: str) -> None:
        """Store vectors and token counts by key, replacing equal keys. Beyond a maximum size, the oldest are deleted.

        If the file exceeds its maximum size, which is checked once in `BLOCKS` calls, the oldest rows are deleted.
        Stored rows survive a kill of the process, but a power failure may lose the last ones.

        Raises:
            UpstreamError: if the file cannot be written.
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
            # Also at the first call, so that commands with few calls keep the file small, too.
            self.stores += 1
            if self.stores % BLOCKS == 1:
                self._delete_oldest()

    def count(self) -> int:
        """Count the stored vectors."""
        with self.guard, self._translate_errors():
            found: int = self.connection.execute("SELECT count(*) FROM vectors").fetchone()[0]
        return found

    def _open(self) -> None:
        """Set the connection's journal mode, and create the tables in a new file. Another version or program raises.

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
                    raise UpstreamError(f"{self.path} is a database of another program: move the file away")
                for statement in self.schema.split(";"):
                    self.connection.execute(statement)
                self.connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            elif version != SCHEMA_VERSION:
                raise UpstreamError(
                    f"{self.path.name} with {self.contents} is of version {version}, and this Lathe reads "
                    f"{SCHEMA_VERSION}: use a later Lathe, or move the file away, {self.remedy}"
                )

    def _delete_oldest(self) -> None:
        """Delete the oldest rows if the pages in use exceed the maximum size, leaving `KEPT_SHARE` of that size.

        The file does not shrink, since freed pages are reused.
        """
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
        """Convert errors of SQLite within the block to an `UpstreamError` that names the file and says what to do."""
        what = f"{self.contents}, {self.path.name} in the state folder's {self.path.parent.name},"
        try:
            yield
        except sqlite3.ProgrammingError:
            raise UpstreamError(f"{what} are closed, because the encoder was stopped") from None
        except sqlite3.OperationalError as error:
            raise UpstreamError(f"{what} cannot be read or written: {error}") from None
        except sqlite3.DatabaseError as error:
            raise UpstreamError(
                f"{what} are damaged ({error}): restore the file from a backup, or move it away, {self.remedy}"
            ) from None


def _digest_row(key: bytes, vector: bytes, tokens: int) -> bytes:
    """Compute a digest of a row's key, token count and vector. `tokens` of a damaged row may be of any type."""
    return hashlib.blake2b(repr((key, tokens)).encode() + vector, digest_size=8).digest()
