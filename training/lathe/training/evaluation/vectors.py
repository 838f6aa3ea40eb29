"""Vectors of texts by key, in memory or in two files that scoring processes map.

The files are of one run. That no text is encoded twice is up to the encoder, which stores its vectors.

folder/
├── keys.bin       16-byte BLAKE2b digest of each text with its prompt
└── vectors.f32    its vector, as the encoder returned it
"""

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from lathe.transforms.files import create_file, make_root

KEY_BYTES = 16
"""Number of bytes of a text's key."""
KEYS, VECTORS = "keys.bin", "vectors.f32"
"""Names of the two files."""


def text_key(text: str, prompt: str | None = None) -> bytes:
    """Return the 16-byte key, a hash, of the vector of a text with this prompt.
    No prompt and an empty prompt give the same key.
    """
    return hashlib.blake2b(f"{prompt or ''}\0{text}".encode(errors="surrogatepass"), digest_size=KEY_BYTES).digest()


class TextVectors:
    """Vectors of texts by key.

    Args:
        keys: key of each vector, see `text_key`.
        vectors: `(n, d)`, in memory or mapped from a file.

    Attributes:
        rows: row of each vector, by key.
    """

    def __init__(self, keys: Iterable[bytes], vectors: NDArray[np.float32]) -> None:
        self.rows = {key: row for row, key in enumerate(keys)}
        self.vectors = vectors

    @classmethod
    def open(cls, folder: Path, dimensions: int) -> Self:
        """Map the vectors that `write_vectors` wrote to a folder."""
        data = (folder / KEYS).read_bytes()
        keys = [data[start : start + KEY_BYTES] for start in range(0, len(data), KEY_BYTES)]
        if not keys:  # an empty file cannot be mapped
            return cls(keys, np.empty((0, dimensions), np.float32))
        return cls(keys, np.memmap(folder / VECTORS, np.float32, "r", shape=(len(keys), dimensions)))

    def __contains__(self, key: bytes) -> bool:
        """Return whether there is a vector for the key."""
        return key in self.rows

    def get(self, keys: Sequence[bytes]) -> NDArray[np.float32]:
        """Return the vectors `(n, d)` of keys, as a copy in memory.

        Raises:
            KeyError: if a key has no vector.
        """
        return np.asarray(self.vectors[[self.rows[key] for key in keys]])


def write_vectors(folder: Path, blocks: Iterable[tuple[Sequence[bytes], NDArray[np.float32]]]) -> None:
    """Write keys and vectors `(n, d)` to a folder, block by block, so that one block is in memory at a time.

    Keys must be distinct. Older files are replaced.
    """
    make_root(folder)
    with ExitStack() as files:
        for name in (KEYS, VECTORS):
            (folder / name).unlink(missing_ok=True)
        keys_file, vectors_file = (files.enter_context(create_file(folder / name)) for name in (KEYS, VECTORS))
        for keys, vectors in blocks:
            vectors_file.write(np.ascontiguousarray(vectors, np.float32).tobytes())
            keys_file.write(b"".join(keys))
