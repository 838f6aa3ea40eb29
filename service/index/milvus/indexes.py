"""The indexes of a Milvus."""

import logging
import threading
from contextlib import suppress
from typing import Any

from service.errors import NotSupportedError, ServiceError, UnknownNameError, as_service_error
from service.index.milvus.catalogue import Catalogue
from service.index.milvus.client import CollectionGoneError, Connection
from service.index.milvus.collections import collection_name, create_collection
from service.index.milvus.index import MilvusIndex
from service.index.protocol import Artifact
from service.index.spec import IndexSpec
from service.names import is_name, require_name

log = logging.getLogger(__name__)


class MilvusIndexes:
    """As `Indexes`, for any number of processes at once.

    Args:
        url: of the Milvus, or a file of Milvus Lite.
        token: `user:password`, an API key, or empty.
    """

    needs_home = False

    def __init__(self, url: str, token: str) -> None:
        self.connection = Connection(url, token)
        self.catalogue = Catalogue(self.connection)
        self.opened: dict[str, MilvusIndex] = {}
        self.opening = threading.Lock()
        self.ready = threading.Event()

    def start(self) -> None:
        """Begin to open all there are; returns at once."""
        threading.Thread(target=self.open_all, name="milvus", daemon=True).start()

    def open_all(self) -> None:
        """Open all that can be; where there is no Milvus yet, they are opened when they are asked for."""
        try:
            for name in self.names():
                with suppress(ServiceError):
                    self.get(name)
        except ServiceError as error:
            log.warning("indexes: %s", error.message)
        except Exception:
            log.exception("the indexes in Milvus cannot be listed")
        self.ready.set()

    def close(self) -> None:
        """Let go of all."""
        opened, self.opened = self.opened, {}
        for index in opened.values():
            index.close()
        self.connection.close()

    def names(self) -> list[str]:
        """Indexes there are."""
        return self.catalogue.names()

    def get(self, name: str) -> MilvusIndex:
        """An index; looked up once, and again when its collection turns out to be gone.

        Raises:
            UnknownNameError: if there is none of that name.
            UnavailableError: if Milvus does not answer.
        """
        found = self.opened.get(name)
        if found is not None and not found.gone:
            return found
        entry = self.catalogue.find(name) if is_name(name) else None
        if entry is None:
            self.opened.pop(name, None)
            known = ", ".join(self.names()) or "none yet"
            raise UnknownNameError(f"there is no index {name[:80]!r}; there are: {known}", param="name")
        with self.opening:
            found = self.opened.get(name)
            if found is None or found.collection != entry.collection:  # another server made it anew
                found = self.opened[name] = MilvusIndex(name, entry, self.connection, self.catalogue)
            return found

    def create(self, name: str, spec: IndexSpec, artifact: Artifact) -> MilvusIndex:
        """A new index; one that is there already is kept as it is.

        Raises:
            BadValueError: for a name no index can have.
            NotSupportedError: for settings that Milvus has not.
        """
        require_name(name, "an index")
        if spec.originals != "float32":
            raise NotSupportedError(
                "an index in Milvus keeps its originals in float32; originals in float16 are for embedded ones",
                param="originals",
            )
        self.catalogue.create()
        with self.opening:
            if self.catalogue.find(name) is None:
                collection = collection_name(name)
                create_collection(self.connection, collection, spec)
                self.catalogue.add(name, collection, spec, artifact)
        return self.get(name)

    def delete(self, name: str) -> None:
        """Remove an index for good; from the moment it is out of the catalogue nobody finds it."""
        entry = self.catalogue.find(name)
        self.require_owned(name)
        with self.opening:
            index = self.opened.pop(name, None)
            if index is not None:
                index.close()
            if entry is not None:
                self.catalogue.remove(name, entry)
                with suppress(CollectionGoneError):
                    self.connection.call("drop_collection", entry.collection)

    def require_owned(self, name: str) -> None:
        """Raise unless there is such an index: whoever reaches Milvus may change it."""
        self.get(name)

    def describe(self) -> list[dict[str, Any]]:
        """All indexes; those that cannot be opened say why."""
        described: list[dict[str, Any]] = []
        for name in self.names():
            try:
                described.append(self.get(name).describe())
            except Exception as error:
                described.append({"name": name, "state": "unavailable", "error": as_service_error(error).message})
        return described
