"""Connection to a Milvus: time limits, and conversion of pymilvus's errors."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lathe.service.errors import UnavailableError

if TYPE_CHECKING:
    from pymilvus import MilvusClient

CALL_SECONDS = 10.0
"""Time limit of a call in seconds, until which pymilvus retries."""
CONNECT_SECONDS = 5.0
"""Time limit of connecting, in seconds."""
AWAY_SECONDS = 1.0
"""Number of seconds after a failure during which calls fail at once; then a single caller tries again."""
RECONNECTING = {
    "grpc.initial_reconnect_backoff_ms": 200,
    "grpc.min_reconnect_backoff_ms": 200,
    "grpc.max_reconnect_backoff_ms": 1000,
    "grpc.keepalive_time_ms": 300_000,
}
"""Options of gRPC for reconnecting.

By default gRPC waits ever longer, up to two minutes, before it reconnects, and pings more often than servers like.
"""
NOT_FOUND = 100
"""Milvus's error code for a collection that does not exist."""
UNREACHABLE = 2
"""pymilvus's error code for a server that cannot be reached."""
NOT_LOADED = ("not loaded", "released", "load_state")
"""Parts of error messages that mean that a collection is not in memory."""


class CollectionGoneError(Exception):
    """Error for a collection that does not exist, because another server dropped it."""


class MilvusConnection:
    """Client of a Milvus that connects on first use, and again after Milvus was unreachable.

    Args:
        url: `http://host:19530[/database]`, or a file of Milvus Lite.
        token: `user:password` or an API key; empty for none.
    """

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.token = token
        self.changing = threading.Lock()
        self.connected: MilvusClient | None = None
        self.problem: str | None = None
        self.retry_at = 0.0

    def call(self, name: str, collection: str, *arguments: Any, **options: Any) -> Any:
        """Call the method `name` of the Milvus client on a collection, with a time limit, and return its result.

        A collection that Milvus does not hold in memory, for example after a restart, is loaded first.

        Raises:
            CollectionGoneError: if the collection does not exist.
            UnavailableError: if Milvus does not answer or reports another error.
        """
        options.setdefault("timeout", CALL_SECONDS)
        with self.translate_errors():
            client = self._get_client()
            method: Callable[..., Any] = getattr(client, name)
            try:
                return method(collection, *arguments, **options)
            except Exception as error:
                if not any(sign in str(error) for sign in NOT_LOADED):
                    raise
                client.load_collection(collection, timeout=CALL_SECONDS)
                return method(collection, *arguments, **options)

    def _get_client(self) -> "MilvusClient":
        """Return the Milvus client. Connect first if there is none. Call it in a block of `translate_errors`.

        Raises:
            UnavailableError: if pymilvus rejects the address.
        """
        with self.changing:
            if self.connected is not None:
                return self.connected
        try:
            made = self._connect()
        except ValueError as error:  # pymilvus rejects the address
            raise self._note_failure(str(error)) from None
        with self.changing:
            self.connected = self.connected or made
            return self.connected

    def _connect(self) -> "MilvusClient":
        from pymilvus import MilvusClient

        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs what it raises, and sets this when imported
        if "://" not in self.url:
            Path(self.url).parent.mkdir(parents=True, exist_ok=True)
        return MilvusClient(
            self.url, token=self.token, timeout=CONNECT_SECONDS, dedicated=True, grpc_options=RECONNECTING
        )

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Convert pymilvus's errors in the block to errors of this service, and note whether Milvus answered.

        While Milvus is unreachable, calls fail at once, and one caller a second tries again: waiting requests would
        hold threads that embedding needs too.

        Raises:
            CollectionGoneError: if a collection does not exist.
            UnavailableError: for every other error, with the message of Milvus; also without pymilvus.
        """
        with self.changing:
            if self.problem is not None:
                if time.monotonic() < self.retry_at:
                    raise self.build_error(self.problem)
                self.retry_at = time.monotonic() + CALL_SECONDS  # meanwhile other callers fail at once
        try:
            from grpc import RpcError
            from pymilvus import MilvusException
        except ImportError:
            raise UnavailableError(
                "LATHE_INDEX_URL names a Milvus, and pymilvus is not installed: pip install 'lathe-service[milvus]'"
            ) from None
        try:
            yield
        except RpcError as error:
            raise self._note_failure(f"it does not answer ({error.code().name})") from None
        except MilvusException as error:
            if error.code == NOT_FOUND:
                self._note_answer()
                raise CollectionGoneError from None
            if error.code == UNREACHABLE or not isinstance(error.code, int):
                raise self._note_failure(error.message) from None
            self._note_answer()
            raise self.build_error(error.message) from None
        self._note_answer()

    def _note_answer(self) -> None:
        with self.changing:
            self.problem = None

    def _note_failure(self, reason: str) -> UnavailableError:
        """Record why Milvus did not answer, so that calls fail at once for `AWAY_SECONDS`, and return the error."""
        with self.changing:
            self.problem, self.retry_at = reason, time.monotonic() + AWAY_SECONDS
        return self.build_error(reason)

    def build_error(self, reason: str) -> UnavailableError:
        """Return the error for a failed call, with the reason and the address of Milvus without credentials."""
        address = self.url if "://" not in self.url else self.url.rpartition("@")[2].rpartition("//")[2]
        return UnavailableError(
            f"the Milvus at {address} cannot answer this request: {reason}",
            code="milvus",
            retry_after=ceil(AWAY_SECONDS),
        )

    def close(self) -> None:
        """Close the client if it is connected."""
        with self.changing:
            client, self.connected = self.connected, None
        if client is not None:
            client.close()
