"""Collections in a Milvus: one for each index, with its fields and rows, and the catalogue of all indexes.

The catalogue has the settings and chains of all indexes, in a collection of its own that every server reads.

An entry has a key, and a value of at most 65,535 bytes; longer ones are cut into parts:

index:<name>            {"collection", "spec", "artifact": [bytes of manifest, of tensors]}
chain:<collection>:<n>  part n of the artifact, in base64
note:<name>             progress of an import, stored by the last write
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from lathe.service.errors import TooLargeError, UnavailableError
from lathe.service.index.items import ID_CHARACTERS, MAX_FIELDS, list_entries
from lathe.service.index.milvus.client import CollectionGoneError, MilvusConnection
from lathe.service.index.milvus.expressions import DIGEST_BYTES, build_entries, build_ranges
from lathe.service.index.protocol import Artifact
from lathe.service.index.reducer import Vectors
from lathe.service.index.spec import IndexSpec, parse_spec

COLLECTION = "lathe_catalogue"
"""Name of the collection of the catalogue."""
PART_BYTES = 48_000
"""Size of a part of a chain, in bytes; its base64 fits into one value."""
INDEX, CHAIN, NOTE = "index:", "chain:", "note:"
"""Prefixes of the keys."""
DUMMY_VECTOR = [0.0, 0.0]
"""Dummy vector of every entry, because Milvus requires a vector in every collection."""


@dataclass(frozen=True)
class CatalogueEntry:
    """Entry of an index in the catalogue.

    Attributes:
        artifact_bytes: sizes of the chain's manifest and tensors in bytes; None for raw vectors.
    """

    collection: str
    spec: IndexSpec
    artifact_bytes: tuple[int, int] | None


class Catalogue:
    """Settings and chains of transforms of all indexes in a Milvus, stored in a collection of their own."""

    def __init__(self, connection: MilvusConnection) -> None:
        self.connection = connection

    def create(self) -> None:
        """Create the Milvus collection of the catalogue unless it exists."""
        if self.connection.call("has_collection", COLLECTION):
            return
        from pymilvus import DataType, MilvusClient

        schema = MilvusClient.create_schema(enable_dynamic_field=False)
        schema.add_field("key", DataType.VARCHAR, is_primary=True, max_length=512)
        schema.add_field("value", DataType.VARCHAR, max_length=65_535)
        schema.add_field("nothing", DataType.FLOAT_VECTOR, dim=len(DUMMY_VECTOR))
        indexes = MilvusClient.prepare_index_params()
        indexes.add_index("nothing", index_type="FLAT", metric_type="L2")
        self.connection.call(
            "create_collection", COLLECTION, schema=schema, index_params=indexes, consistency_level="Strong"
        )

    def list_names(self) -> list[str]:
        """Return the sorted names of all indexes in the Milvus, or [] if it has no catalogue."""
        try:
            rows = self.connection.call("query", COLLECTION, filter=f'key like "{INDEX}%"', output_fields=["key"])
        except CollectionGoneError:
            return []
        return sorted(row["key"].removeprefix(INDEX) for row in rows)

    def find(self, name: str) -> CatalogueEntry | None:
        """Return the catalogue's entry of an index (collection, settings, sizes of the chain's files), or None."""
        content = self.read_value(f"{INDEX}{name}")
        if content is None:
            return None
        sizes = content["artifact"]
        return CatalogueEntry(content["collection"], parse_spec(content["spec"]), tuple(sizes) if sizes else None)

    def add(self, name: str, collection: str, spec: IndexSpec, artifact: Artifact) -> None:
        """Store an index's chain of transforms, then the entry that makes the index visible to all servers."""
        # Parts are short enough for a value of Milvus, as base64 text.
        joined = b"" if artifact is None else b"".join(artifact)
        starts = range(0, len(joined), PART_BYTES)
        parts = [base64.b64encode(joined[start : start + PART_BYTES]).decode() for start in starts]
        self.write_values({f"{CHAIN}{collection}:{number}": part for number, part in enumerate(parts)})
        sizes = None if artifact is None else [len(file) for file in artifact]
        content = {"collection": collection, "spec": spec.to_json(), "artifact": sizes}
        self.write_values({f"{INDEX}{name}": orjson.dumps(content).decode()})

    def read_artifact(self, entry: CatalogueEntry) -> Artifact:
        """Return the manifest and tensors, as bytes, of an index's chain of transforms, or None for raw vectors.

        Raises:
            UnavailableError: if parts are missing, because the index is being deleted.
        """
        if entry.artifact_bytes is None:
            return None
        total = sum(entry.artifact_bytes)
        keys = [f"{CHAIN}{entry.collection}:{number}" for number in range(-(-total // PART_BYTES))]
        parts = {row["key"]: row["value"] for row in self._get_entries(keys)}
        if len(parts) < len(keys):
            raise UnavailableError(f"the chain of {entry.collection} is being deleted", code="closing")
        content = b"".join(base64.b64decode(parts[key]) for key in keys)
        return content[: entry.artifact_bytes[0]], content[entry.artifact_bytes[0] :]

    def remove(self, name: str, entry: CatalogueEntry) -> None:
        """Delete the entry and note of an index, so that no server finds it any more, then its chain of transforms."""
        count = 0 if entry.artifact_bytes is None else -(-sum(entry.artifact_bytes) // PART_BYTES)
        self.delete_values(f"{INDEX}{name}", f"{NOTE}{name}")
        if count:
            self.delete_values(*(f"{CHAIN}{entry.collection}:{number}" for number in range(count)))

    def read_value(self, key: str) -> Any:
        """Return the JSON value stored under a key, or None if the key or the whole catalogue is missing."""
        try:
            rows = self._get_entries([key])
        except CollectionGoneError:
            return None
        return orjson.loads(rows[0]["value"]) if rows else None

    def _get_entries(self, keys: Sequence[str]) -> list[dict[str, Any]]:
        return list(
            self.connection.call("query", COLLECTION, filter=_build_key_filter(keys), output_fields=["key", "value"])
        )

    def write_values(self, values: dict[str, str]) -> None:
        """Insert or replace values in the catalogue, given as `{key: JSON text}`."""
        if values:
            rows = [{"key": key, "value": value, "nothing": DUMMY_VECTOR} for key, value in values.items()]
            self.connection.call("upsert", COLLECTION, rows)

    def delete_values(self, *keys: str) -> None:
        """Delete the catalogue's entries with these keys. Unknown keys are ignored."""
        self.connection.call("delete", COLLECTION, filter=_build_key_filter(keys))


def _build_key_filter(keys: Sequence[str]) -> str:
    """Return the Milvus expression that selects entries by key. Keys are not quoted, since they are made of names."""
    return "key in [" + ", ".join(f'"{key}"' for key in keys) + "]"


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
    """Return the unique Milvus alias of an index. Characters other than letters and digits become hexadecimal."""
    return "lathe_" + "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):02x}" for c in index)


def create_collection(connection: MilvusConnection, name: str, spec: IndexSpec) -> None:
    """Create a Milvus collection for an index with these settings, with an HNSW graph over the reduced vectors.

    The collection is read at strong consistency.
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
    """Return a dict of Milvus's field values for each item: id, metadata, both vectors, and what filters compare.

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
    """Return one vector field of the rows as a float32 array `(n, d)`."""
    return np.array([row[field] for row in rows], np.float32)
