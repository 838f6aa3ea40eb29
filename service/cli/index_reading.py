"""Indexes as commands read them: most without owning them, so that a server goes on serving."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from service.cli.options import state
from service.errors import NotSupportedError, as_service_error
from service.home import Home
from service.index.backend import open_indexes
from service.index.backup import require_there
from service.index.protocol import Payload
from service.index.record import Record
from service.index.reducer import Vectors

EXPORTED_ROWS = 1024


@contextmanager
def items_of(name: str) -> Iterator[tuple[int, Iterator[tuple[list[Payload], Vectors]]]]:
    """How many items an index has, and they, some at a time; an embedded one is only read, so its server goes on."""
    settings, home = state()
    if settings.index_url:
        indexes = open_indexes(settings, home, no_texts)
        try:
            index = indexes.get(name)
            yield index.describe()["count"], index.scan(EXPORTED_ROWS)
        finally:
            indexes.close()
        return
    require_there(home.indexes / name)
    record = Record(home.indexes / name / "record.db", read_only=True)
    try:
        yield record.counts()["count"], record.scan(EXPORTED_ROWS)
    finally:
        record.close()


def embedded_home() -> Home:
    """The state folder, if indexes are kept there.

    Raises:
        NotSupportedError: if a Milvus keeps them.
    """
    settings, home = state()
    if settings.index_url:
        raise NotSupportedError("LATHE_INDEX_URL names a Milvus, which is backed up by its own tools (milvus-backup)")
    return home


def described_in_milvus() -> list[dict[str, Any]]:
    """What the Milvus says of its indexes."""
    indexes = open_indexes(*state(), no_texts)
    try:
        return indexes.describe()
    finally:
        indexes.close()


def record_of(item: str, metadata: bytes | None, columns: bool) -> dict[str, Any]:
    """An item as a row of a file; in columns its metadata is JSON, for a column has one type."""
    said = (metadata or b"{}").decode()
    return {"id": item, "metadata": said if columns else json.loads(said)}


def described(folder: Path) -> dict[str, Any]:
    """What an index's record says, without owning it."""
    try:
        record = Record(folder / "record.db", read_only=True)
        try:
            spec, counts = record.spec, record.counts()
            return {"name": folder.name, **counts, **spec.json(), "record_bytes": record.file_bytes()}
        finally:
            record.close()
    except Exception as error:
        return {"name": folder.name, "error": as_service_error(error).message}


def no_texts(_spec: Any, _texts: Any) -> NoReturn:
    """Commands embed before they write; an index that is opened here need not."""
    raise NotImplementedError
