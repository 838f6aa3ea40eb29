"""All indexes in a Milvus."""

import logging
import secrets
import threading
import time
from contextlib import suppress
from typing import Any

from lathe.service.chains.names import is_name, require_name
from lathe.service.errors import NotSupportedError, ServiceError, UnavailableError, UnknownNameError, convert_error
from lathe.service.index.milvus.client import CollectionGoneError, MilvusConnection
from lathe.service.index.milvus.collections import Catalogue, build_alias, create_collection
from lathe.service.index.milvus.index import MilvusIndex
from lathe.service.index.protocol import Artifact, Capabilities, Quality
from lathe.service.index.spec import IndexSpec
from lathe.service.settings import Settings

KNOWN_SECONDS = 1.0
"""Number of seconds for which a lookup in the catalogue is cached."""
CLAIM_SECONDS = 10.0
"""Default number of seconds after which a server that has not finished creating an index is taken for dead."""
POLL_SECONDS = 0.1
"""Number of seconds between checks whether another server's index is finished."""

log = logging.getLogger(__name__)


class MilvusIndexes:
    """All indexes in a Milvus, which any number of processes may use at once.

    Args:
        claim_seconds: time that another server is given to finish an index it creates.
    """

    capabilities = Capabilities(
        name="Milvus", in_state_folder=False, reindexing=False, ordered=False, backup_tool="milvus-backup"
    )

    def __init__(self, url: str, token: str, claim_seconds: float = CLAIM_SECONDS) -> None:
        self.connection = MilvusConnection(url, token)
        self.claim_seconds = claim_seconds
        self.catalogue = Catalogue(self.connection)
        self.opened: dict[str, MilvusIndex] = {}
        self.looked_up: dict[str, float] = {}
        self.changing = threading.Lock()
        self.ready = threading.Event()

    @classmethod
    def open(cls, settings: Settings, _home: object, _encode: object) -> "MilvusIndexes":
        """Return the indexes in the Milvus of the settings. Milvus is connected to when it is first called."""
        return cls(settings.index_url, settings.index_token)

    def is_open(self, name: str) -> bool:
        """Return False: every request asks the server of Milvus."""
        return False

    def warnings(self) -> list[str]:
        """Return a list with the reason why Milvus last could not be reached, or [] if it answered."""
        problem = self.connection.problem
        return [] if problem is None else [f"indexes: {self.connection.build_error(problem).message}"]

    def count_states(self) -> dict[str, int]:
        """Return `{"open": number of open indexes}`, for the metrics."""
        return {"open": len(self.opened)}

    def measure_quality(self) -> dict[str, Quality]:
        """Return nothing: Milvus searches and stores, and its users ask it."""
        return {}

    def start(self) -> None:
        """Start opening all indexes in a thread, and return at once."""
        threading.Thread(target=self.open_all, name="milvus", daemon=True).start()

    def open_all(self) -> None:
        """Open every index that can be opened, then set the event `ready`. Errors are logged, not raised.

        The other indexes are opened on demand.
        """
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
        """Close all indexes and the connection."""
        opened, self.opened = self.opened, {}
        for index in opened.values():
            index.close()
        self.connection.close()

    def names(self) -> list[str]:
        """Return the names of all indexes. Forget cached lookups, so that other servers' changes are seen."""
        self.looked_up.clear()
        return self.catalogue.list_names()

    def get(self, name: str) -> MilvusIndex:
        """Return the index of that name. Open it if it is not open here, or if another server created it again.

        It is looked up again after a second, or when its collection turns out missing. If another server has deleted or
        recreated it, the old one is closed here.

        Raises:
            UnknownNameError: if there is no such index.
            UnavailableError: if Milvus does not answer.
        """
        index = self.opened.get(name)
        fresh = time.monotonic() < self.looked_up.get(name, 0) + KNOWN_SECONDS
        if index is not None and not index.is_deleted and fresh:
            return index

        entry = self.catalogue.find(name) if is_name(name) else None
        if entry is None:
            self._close_index(name)
            known = ", ".join(self.names()) or "none yet"
            raise UnknownNameError(f"there is no index {name[:80]!r}; there are: {known}", param="name")
        with self.changing:
            index = self.opened.get(name)
            if index is None or index.collection != entry.collection:  # another server recreated it
                self._close_index(name)
                index = self.opened[name] = MilvusIndex(name, entry, self.connection, self.catalogue)
            self.looked_up[name] = time.monotonic()
            return index

    def _close_index(self, name: str) -> None:
        """Close an index that another server deleted or recreated, if it is open here. Its writes are not awaited."""
        index = self.opened.pop(name, None)
        if index is not None:
            index.close(wait=False)

    def create(self, name: str, spec: IndexSpec, artifact: Artifact) -> MilvusIndex:
        """Create an index with these settings and chain of transforms, or return the one of that name unchanged.

        If several servers create it at once, the one whose collection gets the index's alias succeeds.

        Raises:
            BadValueError: if no index can have that name.
            NotSupportedError: if Milvus does not support the settings.
        """
        require_name(name, "an index")
        if spec.originals != "float32":
            raise NotSupportedError(
                "an index in Milvus stores originals in float32; only embedded indexes store float16 or none",
                param="originals",
            )
        self.catalogue.create()
        if self.catalogue.find(name) is None:
            # A new, random name, which no collection or alias ever had.
            collection = f"{build_alias(name)}__{secrets.token_hex(6)}"
            create_collection(self.connection, collection, spec)
            claimed = self._claim_alias(name, collection)

            # Another server may have taken the alias over if this one was so slow that it seemed dead.
            if claimed and self.connection.call("describe_alias", build_alias(name))["collection_name"] == collection:
                self.catalogue.add(name, collection, spec, artifact)
            else:
                self.connection.call("drop_collection", collection)
        self.looked_up.pop(name, None)
        return self.get(name)

    def _claim_alias(self, name: str, collection: str) -> bool:
        """Let an index's alias name a new collection. Return False if another server finishes creating the index first.

        If another server has the alias but does not finish within `claim_seconds`, the alias is taken over.
        """
        try:
            self.connection.call("create_alias", collection, build_alias(name))
            return True
        except UnavailableError:
            self.connection.call("describe_alias", build_alias(name))  # raises if there is none: another error
        deadline = time.monotonic() + self.claim_seconds
        while time.monotonic() < deadline:
            if self.catalogue.find(name) is not None:
                return False
            time.sleep(POLL_SECONDS)
        self.connection.call("alter_alias", collection, build_alias(name))  # its owner died while creating the index
        return True

    def delete(self, name: str) -> None:
        """Delete an index permanently, after its accepted writes are finished.

        It is deleted first from the catalogue, so that no server finds it, then its collection.

        Raises:
            UnknownNameError: if there is no such index.
        """
        self.looked_up.pop(name, None)
        index, entry = self.get(name), self.catalogue.find(name)
        index.close()
        self._close_index(name)
        if entry is not None:
            self.catalogue.remove(name, entry)
            with suppress(ServiceError):  # there is none if the server that created it died
                self.connection.call("drop_alias", build_alias(name))
            with suppress(CollectionGoneError):
                self.connection.call("drop_collection", entry.collection)

    def require_owned(self, name: str) -> None:
        """Raise a `ServiceError` unless the index exists. Every server that reaches Milvus may change it."""
        self.get(name)

    def describe(self) -> list[dict[str, Any]]:
        """Return the settings, counts and state of each index, or name, state and error if it cannot be opened."""
        described: list[dict[str, Any]] = []
        for name in self.names():
            try:
                described.append(self.get(name).describe())
            except Exception as error:
                described.append({"name": name, "state": "unavailable", "error": convert_error(error).message})
        return described
