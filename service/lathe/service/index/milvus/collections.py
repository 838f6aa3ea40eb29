"""Collection of an index: its fields, and the rows that items become."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from lathe.service.errors import TooLargeError
from lathe.service.index.fields import MAX_FIELDS, list_entries
from lathe.service.index.items import ID_CHARACTERS
from lathe.service.index.milvus.client import MilvusConnection
from lathe.service.index.milvus.expressions import DIGEST_BYTES, build_entries, build_ranges
from lathe.service.index.reducer import Vectors
from lathe.service.index.spec import IndexSpec

ID, METADATA, ENTRIES, RANGES, VECTOR, ORIGINAL = "id", "metadata", "entries", "ranges", "vector", "original"
"""Names of the fields of the collection."""
METRICS = {"cosine": "IP", "ip": "IP", "l2": "L2"}
"""Milvus's metric for each metric; cosine is the inner product, because the reduced vectors have length 1."""
BYTES_OF_A_CHARACTER = 4
"""Maximum number of bytes of a character in UTF-8."""
JSON_BYTES = 65_536
"""Milvus's limit for a JSON field, in bytes."""
MAX_NAMES = 4 * MAX_FIELDS
"""Capacity of the field `entries`, in digests per item."""

Row = dict[str, Any]
"""Values of one item, by field."""


def build_alias(index: str) -> str:
    """Return the unique Milvus alias of an index: other characters than letters and digits become hexadecimal."""
    return "lathe_" + "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):02x}" for c in index)


def generate_collection_name(index: str) -> str:
    """Return a new, random name for the collection of an index, which no collection or alias ever had."""
    return f"{build_alias(index)}__{secrets.token_hex(6)}"


def create_collection(connection: MilvusConnection, name: str, spec: IndexSpec) -> None:
    """Create the Milvus collection `name` for an index with these settings, with an HNSW graph.

    The graph is on the reduced vectors. The collection is read at strong consistency.
    """
    from pymilvus import DataType, MilvusClient

    schema = MilvusClient.create_schema(enable_dynamic_field=False)
    schema.add_field(ID, DataType.VARCHAR, is_primary=True, max_length=ID_CHARACTERS * BYTES_OF_A_CHARACTER)
    schema.add_field(METADATA, DataType.JSON)
    schema.add_field(
        ENTRIES, DataType.ARRAY, element_type=DataType.VARCHAR, max_capacity=MAX_NAMES, max_length=2 * DIGEST_BYTES
    )
    schema.add_field(RANGES, DataType.JSON)
    schema.add_field(VECTOR, DataType.FLOAT_VECTOR, dim=spec.dimensions)
    schema.add_field(ORIGINAL, DataType.FLOAT_VECTOR, dim=spec.width)
    indexes = MilvusClient.prepare_index_params()
    parameters = {"params": {"M": spec.m, "efConstruction": spec.ef_construction}}  # Milvus Lite reads no flat ones
    indexes.add_index(VECTOR, index_type="HNSW", metric_type=METRICS[spec.metric], params=parameters)
    indexes.add_index(ORIGINAL, index_type="FLAT", metric_type=METRICS[spec.metric])  # Milvus wants one; never searched
    connection.call("create_collection", name, schema=schema, index_params=indexes, consistency_level="Strong")


def build_rows(
    ids: Sequence[str],
    originals: Vectors,
    reduced: Vectors,
    metadata: Sequence[Mapping[str, Any] | None],
    payloads: Sequence[bytes | None],
) -> list[Row]:
    """Return items as rows for the Milvus collection, with vectors, metadata and the fields for filters.

    Args:
        ids: ids.
        originals: original vectors `(n, d)`.
        reduced: reduced vectors `(n, k)`.
        metadata: metadata of each item.
        payloads: the same metadata as JSON.

    Raises:
        TooLargeError: if the metadata exceed Milvus's limit.
        BadValueError: if the metadata have too many values.
    """
    rows = []
    for position, item in enumerate(ids):
        entries = list_entries(metadata[position] or {})
        ranges = build_ranges(entries)
        for content in (payloads[position] or b"", orjson.dumps(ranges)):
            if len(content) > JSON_BYTES:
                raise TooLargeError(
                    f"metadata[{position}] is larger than the {JSON_BYTES:,} bytes that Milvus stores and filters by",
                    param="metadata",
                )
        rows.append(
            {
                ID: item,
                METADATA: orjson.loads(payloads[position] or b"{}"),
                ENTRIES: build_entries(entries),
                RANGES: dict(ranges),
                VECTOR: reduced[position],
                ORIGINAL: originals[position],
            }
        )
    return rows


def stack_vectors(rows: Sequence[Mapping[str, Any]], field: str) -> Vectors:
    """Stack a vector field of the rows to a float32 matrix `(n, d)`."""
    return np.array([row[field] for row in rows], np.float32)
