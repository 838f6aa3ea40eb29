"""The connection to a Milvus: time limits, and errors in our words."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.errors import UnavailableError

if TYPE_CHECKING:
    from pymilvus import MilvusClient

CALL_SECONDS = 10.0
"""A call that has no answer by then is given up; pymilvus tries again until then."""
CONNECT_SECONDS = 5.0
AWAY_SECONDS = 1.0
"""So long after Milvus did not answer nobody asks again, and then one caller does: the others are told at once."""
RECONNECTING = {
    "grpc.initial_reconnect_backoff_ms": 200,
    "grpc.min_reconnect_backoff_ms": 200,
    "grpc.max_reconnect_backoff_ms": 1000,
    "grpc.keepalive_time_ms": 300_000,
}
"""gRPC would wait ever longer, to two minutes, before it finds Milvus back; and ping more often than servers like."""
NOT_FOUND = 100
"""Milvus's code for a collection there is not."""
UNREACHABLE = 2
"""pymilvus's for a server there is not."""
NOT_LOADED = ("not loaded", "released", "load_state")


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
        self.changing = threading.Lock()
        self.connected: MilvusClient | None = None
        self.away: str | None = None
        self.ask_again = 0.0

    def call(self, name: str, collection: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the client on a collection, within the time there is.

        A collection that Milvus does not hold in memory, as after it was started anew, is loaded first.

        Raises:
            CollectionGoneError: if there is none.
            UnavailableError: if Milvus does not answer, or cannot.
        """
        options.setdefault("timeout", CALL_SECONDS)
        with self.asking():
            client = self.client()
            method: Callable[..., Any] = getattr(client, name)
            try:
                return method(collection, *arguments, **options)
            except Exception as error:
                if not any(sign in str(error) for sign in NOT_LOADED):
                    raise
                client.load_collection(collection, timeout=CALL_SECONDS)
                return method(collection, *arguments, **options)

    def client(self) -> "MilvusClient":
        """The client, connected; only for use within `asking`."""
        with self.changing:
            if self.connected is not None:
                return self.connected
        try:
            made = self.connect()
        except ValueError as error:  # an address that only pymilvus finds to be none
            raise self.gone_away(str(error)) from None
        with self.changing:
            self.connected = self.connected or made
            return self.connected

    def connect(self) -> "MilvusClient":
        """A new client."""
        from pymilvus import MilvusClient

        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs what it raises, and sets this when imported
        if "://" not in self.url:
            Path(self.url).parent.mkdir(parents=True, exist_ok=True)
        return MilvusClient(
            self.url, token=self.token, timeout=CONNECT_SECONDS, dedicated=True, grpc_options=RECONNECTING
        )

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Turn pymilvus's errors into ours; while Milvus is away, one caller a second finds out whether it still is.

        Requests hold a thread while they wait, and threads embed too.

        Raises:
            CollectionGoneError: for a collection there is not.
            UnavailableError: for all other errors, with what Milvus says; without pymilvus.
        """
        with self.changing:
            if self.away is not None:
                if time.monotonic() < self.ask_again:
                    raise self.unavailable(self.away)
                self.ask_again = time.monotonic() + CALL_SECONDS  # the others wait for what this one finds
        try:
            from grpc import RpcError
            from pymilvus import MilvusException
        except ImportError:
            raise UnavailableError(
                "LATHE_INDEX_URL names a Milvus, and pymilvus is not installed: pip install 'lathe[milvus]'"
            ) from None
        try:
            yield
        except RpcError as error:
            raise self.gone_away(f"it does not answer ({error.code().name})") from None
        except MilvusException as error:
            if error.code == NOT_FOUND:
                self.is_back()
                raise CollectionGoneError from None
            if error.code == UNREACHABLE or not isinstance(error.code, int):
                raise self.gone_away(error.message) from None
            self.is_back()
            raise self.unavailable(error.message) from None
        self.is_back()

    def is_back(self) -> None:
        """It answered."""
        with self.changing:
            self.away = None

    def gone_away(self, reason: str) -> UnavailableError:
        """It did not."""
        with self.changing:
            self.away, self.ask_again = reason, time.monotonic() + AWAY_SECONDS
        return self.unavailable(reason)

    def unavailable(self, reason: str) -> UnavailableError:
        """What callers are told; of the address, nothing that may be secret."""
        place = self.url if "://" not in self.url else self.url.rpartition("@")[2].rpartition("//")[2]
        return UnavailableError(
            f"the Milvus at {place} cannot do that now: {reason}", code="milvus", retry_after=ceil(AWAY_SECONDS)
        )

    def close(self) -> None:
        """Let go of it."""
        with self.changing:
            client, self.connected = self.connected, None
        if client is not None:
            client.close()
