"""Types of columns of vectors, and their limits in pgvector."""

from typing import Literal

VectorType = Literal["vector", "halfvec", "bit"]
"""Type of a column of vectors: floats of 4 bytes, of 2 bytes, or a bit for each dimension."""

FLOAT_TYPES: tuple[VectorType, ...] = ("vector", "halfvec")
"""Types of a column of floats."""

MAX_INDEXED: dict[VectorType, int] = {"vector": 2000, "halfvec": 4000, "bit": 64_000}
"""Maximum number of dimensions that an HNSW index of pgvector takes, by type."""
MAX_STORED = 16_000
"""Maximum number of dimensions of a column of `vector` or `halfvec`."""
