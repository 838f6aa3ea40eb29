"""The connection to a Milvus: time limits, and errors in our words."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.errors import UnavailableError

if TYPE_CHECKING:
    from pymilvus import MilvusClient

CALL_SECONDS = 20.0
"""A call that has no answer by then is given up; pymilvus tries again until then."""
CONNECT_SECONDS = 5.0
NOT_FOUND = 100
"""Milvus's code for a collection there is not."""
NOT_LOADED = ("not loaded", "released", "load_state")
RETRY_AFTER = 1


class CollectionGoneError(Exception):
    """The collection was dropped by another server."""


class Connection:
    """A client that connects when it is first needed, and again after Milvus was gone.

    Args:
        url: `http://host:19530[/database]`, or a file of Milvus Lite.
        token: `user:password` or an API key; empty for none.
    """

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.token = token
        self.connecting = threading.Lock()
        self.connected: MilvusClient | None = None

    @property
    def client(self) -> "MilvusClient":
        """The client, connected.

        Raises:
            UnavailableError: without pymilvus, or if there is no Milvus.
        """
        with self.connecting:
            if self.connected is None:
                self.connected = self.connect()
            return self.connected

    def connect(self) -> "MilvusClient":
        """A new client."""
        try:
            from pymilvus import MilvusClient
        except ImportError:
            raise UnavailableError(
                "LATHE_INDEX_URL names a Milvus, and pymilvus is not installed: pip install 'lathe[milvus]'"
            ) from None
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs what it raises, and sets this when imported
        if "://" not in self.url:
            Path(self.url).parent.mkdir(parents=True, exist_ok=True)
        with in_our_words(self.shown):
            return MilvusClient(self.url, token=self.token, timeout=CONNECT_SECONDS, dedicated=True)

    def call(self, name: str, collection: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the client on a collection, within the time there is.

        A collection that Milvus does not hold in memory, as after it was started anew, is loaded first.

        Raises:
            CollectionGoneError: if there is none.
            UnavailableError: if Milvus does not answer, or cannot.
        """
        method: Callable[..., Any] = getattr(self.client, name)
        options.setdefault("timeout", CALL_SECONDS)
        with in_our_words(self.shown):
            try:
                return method(collection, *arguments, **options)
            except Exception as error:
                if not any(sign in str(error) for sign in NOT_LOADED):
                    raise
                self.client.load_collection(collection, timeout=CALL_SECONDS)
                return method(collection, *arguments, **options)

    @property
    def shown(self) -> str:
        """The address without what may be secret in it."""
        return self.url if "://" not in self.url else self.url.rpartition("@")[2].rpartition("//")[2]

    def close(self) -> None:
        """Let go of it."""
        with self.connecting:
            client, self.connected = self.connected, None
        if client is not None:
            client.close()


@contextmanager
def in_our_words(shown: str) -> Iterator[None]:
    """Turn pymilvus's errors into ours.

    Raises:
        CollectionGoneError: for a collection there is not.
        UnavailableError: for all others, with what Milvus says.
    """
    from pymilvus import MilvusException

    try:
        yield
    except MilvusException as error:
        if error.code == NOT_FOUND:
            raise CollectionGoneError from None
        raise UnavailableError(
            f"the Milvus at {shown} cannot do that now: {error.message}", code="milvus", retry_after=RETRY_AFTER
        ) from None
