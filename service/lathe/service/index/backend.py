"""Choice of the backend that stores the indexes: the state folder or Milvus.

A server opens the indexes with `open_indexes`. Commands read them with `describe_indexes` and `read_items`, which own
no index, so that a server goes on serving it.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from lathe.service.errors import ServiceError, convert_error
from lathe.service.home import Home
from lathe.service.index.embedded.backup import require_index
from lathe.service.index.embedded.index import EncodeTexts
from lathe.service.index.embedded.indexes import EmbeddedIndexes, list_index_folders
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.milvus.indexes import MilvusIndexes
from lathe.service.index.protocol import Artifact, Capabilities, Payload, SearchIndexes
from lathe.service.index.reducer import Vectors
from lathe.service.index.spec import IndexSpec, require_originals
from lathe.service.settings import Settings


def _refuse_texts(_spec: IndexSpec, _texts: list[str]) -> NoReturn:
    """Raise `NotImplementedError`: the encoder of processes that open indexes and write no texts."""
    raise NotImplementedError


def find_backend(settings: Settings) -> type[MilvusIndexes] | type[EmbeddedIndexes]:
    """Return the class of the backend: Milvus if the settings have its address, else the state folder."""
    return MilvusIndexes if settings.index_url else EmbeddedIndexes


def open_indexes(settings: Settings, home: Home, encode: EncodeTexts = _refuse_texts) -> SearchIndexes:
    """Return the indexes of the backend that the settings choose. An index is opened when it is first used.

    Args:
        settings: settings of the server.
        home: the state folder.
        encode: encodes texts with the encoder of an index; by default no texts can be encoded.
    """
    return find_backend(settings).open(settings, home, encode)


def get_capabilities(settings: Settings) -> Capabilities:
    """Return what the backend that the settings choose supports, without opening it."""
    return find_backend(settings).capabilities


def find_problem(settings: Settings, home: Home) -> str | None:
    """Try to list the indexes. Return the error message if their backend does not answer, else None."""
    with closing(open_indexes(settings, home)) as indexes:
        try:
            indexes.names()
        except ServiceError as error:
            return error.message
    return None


def describe_indexes(settings: Settings, home: Home) -> list[dict[str, Any]]:
    """Return a dict for each index: its name, counts and settings, or its name and error if it cannot be read.

    The indexes are read without owning them: another process may serve them meanwhile.
    """
    if get_capabilities(settings).in_state_folder:
        return [_describe_folder(folder) for folder in list_index_folders(home.indexes)]
    with closing(open_indexes(settings, home)) as indexes:
        return indexes.describe()


def _describe_folder(folder: Path) -> dict[str, Any]:
    """Return name, counts, settings and file size of the index in a folder, or its name and error if it cannot be read.

    The index's SQLite file is opened read-only.
    """
    try:
        with closing(IndexRecord(folder / "record.db", read_only=True)) as record:
            return {
                "name": folder.name,
                **record.count_items(),
                **record.spec.to_json(),
                "record_bytes": record.measure_bytes(),
            }
    except Exception as error:
        return {"name": folder.name, "error": convert_error(error).message}


@dataclass(frozen=True)
class StoredItems:
    """Items of an index that is opened without owning it.

    Attributes:
        batches: ids and metadata, and original vectors `(n, d)`, batch by batch.
    """

    spec: IndexSpec
    artifact: Artifact
    count: int
    batches: Iterator[tuple[list[Payload], Vectors]]


@contextmanager
def read_items(settings: Settings, home: Home, name: str, batch_rows: int) -> Iterator[StoredItems]:
    """Open an index for reading, and yield its settings, chain of transforms, number of items, and the items.

    The index is not owned: another process may serve it meanwhile. It is closed after the block.

    Raises:
        UnknownNameError: if the index does not exist.
        ConflictError: if it stores no original vectors.
    """
    if get_capabilities(settings).in_state_folder:
        require_index(home.indexes / name)
        with closing(IndexRecord(home.indexes / name / "record.db", read_only=True)) as record:
            require_originals(record.spec, "an export")
            spec = record.spec
            artifact = record.read_artifact(spec.chain)
            yield StoredItems(spec, artifact, record.count_items()["count"], record.scan(batch_rows))
        return
    with closing(open_indexes(settings, home)) as indexes:
        index = indexes.get(name)
        yield StoredItems(index.spec, index.read_artifact(), index.describe()["count"], index.scan(batch_rows))
