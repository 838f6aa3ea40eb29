"""Store of an encoder's vectors on disk, by text.

All methods are evaluated on these.

<fingerprint>/
├── keys.bin       16-byte BLAKE2b digest of each text with its prompt
└── vectors.f32    its vector, as the encoder returned it

Both files are only appended to, vectors first; incomplete data of a killed run is cut off.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lathe.transforms.files import continue_file, make_root

KEY_BYTES = 16
"""Number of bytes of a text's key."""
KEYS, VECTORS = "keys.bin", "vectors.f32"
"""File names in the store's folder."""


def text_key(text: str, prompt: str | None = None) -> bytes:
    """Return the 16-byte key, a hash, under which the vector of a text with this prompt is stored.
    No prompt and an empty prompt give the same key.
    """
    return hashlib.blake2b(f"{prompt or ''}\0{text}".encode(errors="surrogatepass"), digest_size=KEY_BYTES).digest()


class VectorStore:
    """Append-only store of one encoder's vectors on disk.

    Args:
        folder: folder of the store, created at the first `add`.
        dimensions: number of dimensions of a vector.

    Attributes:
        count: number of stored vectors.
        rows: row of each vector, by key.
    """

    def __init__(self, folder: Path, dimensions: int) -> None:
        self.folder = folder
        self.dimensions = dimensions
        self.count = 0
        self.rows: dict[bytes, int] = {}
        self.reload()

    def __len__(self) -> int:
        """Return the number of stored vectors."""
        return self.count

    def __contains__(self, key: bytes) -> bool:
        """Return whether there is a vector for the key."""
        return key in self.rows

    def reload(self) -> None:
        """Read the keys and the number of stored vectors from disk again into `rows` and `count`.
        Incomplete vectors and keys at the end are ignored.
        """
        keys = self.folder / KEYS
        data = keys.read_bytes() if keys.exists() else b""
        self.count = min(len(data) // KEY_BYTES, self._count_vectors())
        self.rows = {data[row * KEY_BYTES : (row + 1) * KEY_BYTES]: row for row in range(self.count)}

    def _count_vectors(self) -> int:
        """Return the number of complete vectors in the file, 0 if it is missing."""
        vectors = self.folder / VECTORS
        return vectors.stat().st_size // (4 * self.dimensions) if vectors.exists() else 0

    def add(self, keys: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        """Append vectors `(n, d)` and their keys to the store's files, synced to disk.
        The keys must be new and distinct.

        Incomplete data behind the last complete vector is overwritten.
        """
        make_root(self.folder)
        start = self.count
        for name, width, payload in (
            (VECTORS, 4 * self.dimensions, np.ascontiguousarray(vectors, np.float32).tobytes()),
            (KEYS, KEY_BYTES, b"".join(keys)),
        ):
            with continue_file(self.folder / name, append=True) as file:
                file.truncate(start * width)
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
        self.rows.update(zip(keys, range(start, start + len(keys)), strict=True))
        self.count += len(keys)

    def get(self, keys: Sequence[bytes]) -> NDArray[np.float32]:
        """Return the vectors `(n, d)` float32 of keys, as a copy in memory.

        Raises:
            KeyError: if a key has no vector.
        """
        if not keys:
            return np.empty((0, self.dimensions), np.float32)
        rows = [self.rows[key] for key in keys]
        stored = np.memmap(self.folder / VECTORS, np.float32, "r", shape=(self._count_vectors(), self.dimensions))
        return np.array(stored[rows])


class MemoryStore:
    """Store of vectors in memory, with the `get` of `VectorStore`, for encoders that are used only once.

    Args:
        texts: n texts, stored under their keys without a prompt.
        vectors: `(n, d)`.
    """

    def __init__(self, texts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        self.rows = {text_key(text): row for row, text in enumerate(texts)}
        self.vectors = vectors

    def get(self, keys: Sequence[bytes]) -> NDArray[np.float32]:
        """Return the vectors `(n, d)` of keys.

        Raises:
            KeyError: if one is missing.
        """
        return self.vectors[[self.rows[key] for key in keys]]
