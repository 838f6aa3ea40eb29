"""Tables of PostgreSQL with the extension pgvector: indexes are exported to them, and their vectors are reduced there.

Every write is a transaction of one batch. An interrupted command leaves whole batches, and the same command completes
them. The comment of a column of vectors names their space, so that vectors of two spaces are never mixed in a column.
"""

from typing import Literal

VectorType = Literal["vector", "halfvec", "bit"]
"""Type of a column of vectors: floats of 4 bytes, of 2 bytes, or a bit for each dimension."""

FLOAT_TYPES: tuple[VectorType, ...] = ("vector", "halfvec")
"""Types of a column of floats."""

MAX_INDEXED: dict[VectorType, int] = {"vector": 2000, "halfvec": 4000, "bit": 64_000}
"""Maximum number of dimensions that an HNSW index of pgvector takes, by type."""
MAX_STORED = 16_000
"""Maximum number of dimensions of a column of `vector` or `halfvec`."""
