"""Raw encoder output on disk, found by its text: every method is evaluated from it.

<fingerprint>/
├── keys.bin       16 bytes of a BLAKE2b digest for each text with its prompt
└── vectors.f32    its vector, as the encoder gave it

Both files only grow, vectors first; what a killed run left half written is cut off.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from transforms.files import continue_file, make_root

KEY_BYTES = 16
KEYS, VECTORS = "keys.bin", "vectors.f32"


def text_key(text: str, prompt: str | None = None) -> bytes:
    """What a text is found by."""
    return hashlib.blake2b(f"{prompt or ''}\0{text}".encode(errors="surrogatepass"), digest_size=KEY_BYTES).digest()


class VectorStore:
    """The vectors of one encoder.

    Args:
        folder: made when something is added.
        dimensions: of a vector.
    """

    def __init__(self, folder: Path, dimensions: int) -> None:
        self.folder = folder
        self.dimensions = dimensions
        self.count = 0
        self.rows: dict[bytes, int] = {}
        self.read()

    def __len__(self) -> int:
        """Vectors."""
        return self.count

    def __contains__(self, key: bytes) -> bool:
        """Whether a text's vector is there."""
        return key in self.rows

    def read(self) -> None:
        """Look again at what is on disk."""
        keys = self.folder / KEYS
        data = keys.read_bytes() if keys.exists() else b""
        self.count = min(len(data) // KEY_BYTES, self.vector_rows())
        self.rows = {data[row * KEY_BYTES : (row + 1) * KEY_BYTES]: row for row in range(self.count)}

    def vector_rows(self) -> int:
        """Whole vectors on disk."""
        vectors = self.folder / VECTORS
        return vectors.stat().st_size // (4 * self.dimensions) if vectors.exists() else 0

    def add(self, keys: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        """Append vectors `(n, d)` of texts that are not there yet."""
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
        """Vectors `(n, d)`.

        Raises:
            KeyError: for a text that is not there.
        """
        if not keys:
            return np.empty((0, self.dimensions), np.float32)
        rows = [self.rows[key] for key in keys]
        stored = np.memmap(self.folder / VECTORS, np.float32, "r", shape=(self.vector_rows(), self.dimensions))
        return np.array(stored[rows])


class MemoryStore:
    """Vectors of texts as the store gives them, of an encoder that is forgotten afterwards."""

    def __init__(self, texts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        self.rows = {text_key(text): row for row, text in enumerate(texts)}
        self.vectors = vectors

    def get(self, keys: Sequence[bytes]) -> NDArray[np.float32]:
        """Vectors `(n, d)`."""
        return self.vectors[[self.rows[key] for key in keys]]
