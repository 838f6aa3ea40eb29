"""Which set of versions a Redis holds, and transactions that change it.

Every change is one transaction: a version exists in Redis with all its files or not at all.
"""

import json
import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from redis.client import Pipeline

from lathe.service.errors import UnavailableError
from lathe.service.redis.connection import RedisConnection
from lathe.service.redis.version_record import IDENTITY, SCHEMA, parse_identity
from lathe.transforms.files import make_root, read_plain_file, replace_synced

IDENTITY_FILE = ".identity"
TOKEN_SECONDS = 60
"""Seconds for which a transaction's token is kept, by which a repeated transaction is recognized."""

log = logging.getLogger(__name__)
T = TypeVar("T")


class SharedRecord:
    """The set of versions in Redis, of which a folder is the local copy.

    Args:
        root: folder of the local copy, which stores the id of its record.
    """

    def __init__(self, connection: RedisConnection, root: Path) -> None:
        self.connection = connection
        self.root = root

    @property
    def identity(self) -> str | None:
        """Id of the set of versions in Redis that the local folder is a copy of, or None before its first copy."""
        try:
            return read_plain_file(self.root / IDENTITY_FILE).decode()
        except FileNotFoundError:
            return None

    def require_same_identity(self, content: Any) -> None:
        """Raise `UnavailableError` unless Redis holds the set of versions that the local folder is a copy of.

        Args:
            content: the record as read from Redis; None if there is none.
        """
        if content is None or parse_identity(content) != self.identity:
            raise UnavailableError("Redis holds other versions than before: try again", code="redis_unreachable")

    def transaction(self, change: Callable[[Pipeline], T], *keys: str) -> T:
        """Run `change` as one atomic Redis transaction that is committed at most once. Return its result.

        Redis must hold this record. The transaction leaves a token in Redis for `TOKEN_SECONDS`, by which a repetition
        after a lost reply is recognized.

        Args:
            change: reads, calls `multi`, and queues the writes; may be called several times.
            keys: keys that it reads, which are watched.

        Raises:
            UnavailableError: if Redis is unreachable, or holds no record or another record. The replicator copies
                another record within a second, so the caller may try again.
        """
        token, outcomes = f"lathe:change:{secrets.token_hex(8)}", list[T]()

        def check_and_change(pipe: Pipeline) -> T:
            if pipe.exists(token):  # an earlier attempt was committed, and only its reply was lost
                pipe.multi()
                return outcomes[-1]
            self.require_same_identity(pipe.get(IDENTITY))
            outcomes.append(change(pipe))
            pipe.set(token, 1, ex=TOKEN_SECONDS)
            return outcomes[-1]

        return self.connection.transaction(check_and_change, IDENTITY, *keys)

    def join(self, grace_seconds: float) -> None:
        """Start the set of versions in a Redis that has none, or join the one there. Store its id in the folder.

        A Redis without a record is new, or has lost its data. If the folder is a copy of another record, it is
        renamed, because its versions may be nowhere else.

        Args:
            grace_seconds: seconds that a new folder waits before it starts a record, so that folders with versions go
                first.

        Raises:
            UnavailableError: if Redis is unreachable, or its record is of a newer Lathe.
        """
        local_id = self.identity
        if local_id is None:
            with self.connection.reached() as client:
                # Replicas that have versions start the record at once, and then keep them; this one has none to keep.
                if not client.exists(IDENTITY):
                    time.sleep(grace_seconds)

        def change(pipe: Pipeline) -> str:
            content: Any = pipe.get(IDENTITY)
            pipe.multi()
            if content is not None:
                return parse_identity(content)
            new_id = local_id or secrets.token_hex(16)
            pipe.set(IDENTITY, json.dumps({"id": new_id, "schema": SCHEMA}))
            return new_id

        redis_id = self.connection.transaction(change, IDENTITY)
        if local_id not in (None, redis_id):
            self._set_aside_folder(str(local_id))
        if local_id != redis_id:
            make_root(self.root)
            replace_synced(self.root / IDENTITY_FILE, redis_id.encode())

    def _set_aside_folder(self, identity: str) -> None:
        """Rename the local folder, which is a copy of another Redis, so that its versions are kept but not served.

        The new name is logged.
        """
        renamed = self.root.with_name(f"{self.root.name}-{identity[:8]}-{secrets.token_hex(4)}")
        self.root.rename(renamed)
        log.error(
            "this Redis holds other versions than before: the copy of the earlier ones was kept in %s", renamed.name
        )
