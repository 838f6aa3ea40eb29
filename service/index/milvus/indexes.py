"""The indexes of a Milvus."""

import logging
import threading
import time
from contextlib import suppress
from typing import Any

from service.errors import NotSupportedError, ServiceError, UnavailableError, UnknownNameError, as_service_error
from service.index.milvus.catalogue import Catalogue
from service.index.milvus.client import CollectionGoneError, Connection
from service.index.milvus.collections import alias_of, collection_name, create_collection
from service.index.milvus.index import MilvusIndex
from service.index.protocol import Artifact
from service.index.spec import IndexSpec
from service.names import is_name, require_name

KNOWN_SECONDS = 1.0
"""So long what the catalogue said of an index is believed."""
CLAIM_SECONDS = 10.0
"""A server that makes an index has made it by then, or died; the default."""
POLL_SECONDS = 0.1

log = logging.getLogger(__name__)


class MilvusIndexes:
    """As `Indexes`, for any number of processes at once.

    Args:
        url: of the Milvus, or a file of Milvus Lite.
        token: `user:password`, an API key, or empty.
        claim_seconds: that another server is given to finish an index it makes.
    """

    needs_home = False

    def __init__(self, url: str, token: str, claim_seconds: float = CLAIM_SECONDS) -> None:
        self.connection = Connection(url, token)
        self.claim_seconds = claim_seconds
        self.catalogue = Catalogue(self.connection)
        self.opened: dict[str, MilvusIndex] = {}
        self.looked_up: dict[str, float] = {}
        self.changing = threading.Lock()
        self.ready = threading.Event()

    def warnings(self) -> list[str]:
        """What Milvus last said of why it cannot answer; nothing while it does."""
        away = self.connection.away
        return [] if away is None else [f"indexes: {self.connection.unavailable(away).message}"]

    def states(self) -> dict[str, int]:
        """How many indexes are open."""
        return {"open": len(self.opened)}

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
        """Indexes there are; whoever lists them sees what other servers did until then."""
        self.looked_up.clear()
        return self.catalogue.names()

    def get(self, name: str) -> MilvusIndex:
        """An index; looked up again after a second, and when its collection turns out to be gone.

        Raises:
            UnknownNameError: if there is none of that name.
            UnavailableError: if Milvus does not answer.
        """
        found = self.opened.get(name)
        if found is not None and not found.gone and time.monotonic() < self.looked_up.get(name, 0) + KNOWN_SECONDS:
            return found
        entry = self.catalogue.find(name) if is_name(name) else None
        if entry is None:
            self.let_go(name)
            known = ", ".join(self.names()) or "none yet"
            raise UnknownNameError(f"there is no index {name[:80]!r}; there are: {known}", param="name")
        with self.changing:
            found = self.opened.get(name)
            if found is None or found.collection != entry.collection:  # another server made it anew
                self.let_go(name)
                found = self.opened[name] = MilvusIndex(name, entry, self.connection, self.catalogue)
            self.looked_up[name] = time.monotonic()
            return found

    def let_go(self, name: str) -> None:
        """Forget an index that is no more."""
        found = self.opened.pop(name, None)
        if found is not None:
            found.close(wait=False)

    def create(self, name: str, spec: IndexSpec, artifact: Artifact) -> MilvusIndex:
        """A new index; one that is there already is kept as it is.

        Of several servers at once, one makes it: the one whose collection gets the index's alias.

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
        if self.catalogue.find(name) is None:
            collection = collection_name(name)
            create_collection(self.connection, collection, spec)
            if self.claim(name, collection) and self.holds(name, collection):
                self.catalogue.add(name, collection, spec, artifact)
            else:
                self.connection.call("drop_collection", collection)
        self.looked_up.pop(name, None)
        return self.get(name)

    def holds(self, name: str, collection: str) -> bool:
        """Whether a collection still is the index's: a server that was held up may have been taken for dead."""
        return bool(self.connection.call("describe_alias", alias_of(name))["collection_name"] == collection)

    def claim(self, name: str, collection: str) -> bool:
        """Make a collection the index's; false if another server was quicker and has made it."""
        try:
            self.connection.call("create_alias", collection, alias_of(name))
            return True
        except UnavailableError:
            self.connection.call("describe_alias", alias_of(name))  # if there is none, that was not the reason
        deadline = time.monotonic() + self.claim_seconds
        while time.monotonic() < deadline:
            if self.catalogue.find(name) is not None:
                return False
            time.sleep(POLL_SECONDS)
        self.connection.call("alter_alias", collection, alias_of(name))  # of a server that died while it made it
        return True

    def delete(self, name: str) -> None:
        """Remove an index for good; from the moment it is out of the catalogue nobody finds it."""
        self.looked_up.pop(name, None)
        index, entry = self.get(name), self.catalogue.find(name)
        index.close()
        self.let_go(name)
        if entry is not None:
            self.catalogue.remove(name, entry)
            with suppress(ServiceError):  # there is none, if it was made by a server that died
                self.connection.call("drop_alias", alias_of(name))
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
