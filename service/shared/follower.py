"""The replicator: keeps the local replica of shared state up to date, and notices when Redis fails and returns."""

import logging
import threading
import time
from typing import Any

from redis import exceptions as redis_errors

from service.errors import UnavailableError
from service.names import is_name
from service.shared.copy import Copy
from service.shared.link import RedisLink, as_unavailable, connect
from service.shared.record import CHANGES, IDENTITY

BLOCK_SECONDS = 1.0
"""Seconds that a read of the change stream blocks; the connection is thus checked at least as often."""
AGAIN_SECONDS = 0.5
"""Seconds between attempts to reach Redis."""
RETRY_SECONDS = 3.0
"""Default seconds between attempts to copy what could not be copied."""
FIRST_SECONDS = 3.0
"""Maximum seconds that startup waits for the first copy; then the service starts with what it has."""

log = logging.getLogger(__name__)


class Follower:
    """The replicator thread, which copies each change in Redis to the local replica.

    Everything is copied whenever Redis was unreachable, so that no change is missed; after that each change arrives
    through a stream within milliseconds.

    Args:
        link: connection to Redis.
        copy: updates the local replica.
        retry_seconds: seconds between attempts to copy what could not be copied.
    """

    def __init__(self, link: RedisLink, copy: Copy, retry_seconds: float = RETRY_SECONDS) -> None:
        self.link = link
        self.copy = copy
        self.retry_seconds = retry_seconds
        self.retry_at = 0.0
        self.client = connect(link.url, 2 * BLOCK_SECONDS)
        self.stopping = threading.Event()
        self.tried = threading.Event()
        self.thread = threading.Thread(target=self.run, name="redis", daemon=True)

    def start(self) -> None:
        """Start the thread, and wait up to `FIRST_SECONDS` for its first attempt to copy everything."""
        self.link.followed = True
        self.thread.start()
        self.tried.wait(FIRST_SECONDS)

    def stop(self) -> None:
        """End the thread, waiting up to 5 s, and close the connection."""
        self.stopping.set()
        if self.thread.is_alive():
            self.thread.join(timeout=5)
        self.client.close()

    def run(self) -> None:
        """Copy everything, then each change, until the thread is stopped; start over after any error."""
        while not self.stopping.is_set():
            try:
                self.client.ping()
                self.link.mark_answering()
                last = self.catch_up()
                self.link.mark_up()
                self.tried.set()
                while not self.stopping.is_set() and self.link.up:
                    self.copy.registry.require_mine(self.client.get(IDENTITY))
                    last = self.follow(last)
            except UnavailableError as error:
                self.link.mark_down(error.message, error.code)
            except redis_errors.RedisError as error:
                self.link.mark_down(as_unavailable(error).message)
            except OSError as error:
                self.link.mark_down(f"this replica's copy of the chains cannot be written: {error.strerror}")
            except Exception:
                log.exception("following Redis failed; trying again")
                self.link.mark_down("this replica's copy of the chains cannot be brought up to date; the log says why")
            self.tried.set()
            self.stopping.wait(AGAIN_SECONDS)

    def catch_up(self) -> Any:
        """Copy everything, and return the position in the change stream from which to read on."""
        newest: Any = self.client.xrevrange(CHANGES, count=1)
        self.copy.bring_up_to_date()
        self.retry_at = time.monotonic() + self.retry_seconds
        self.link.look_at_settings()
        return newest[0][0] if newest else "0-0"

    def follow(self, last: Any) -> Any:
        """Wait up to `BLOCK_SECONDS` for changes, copy what changed, and return the last stream position read."""
        found: Any = self.client.xread({CHANGES: last}, block=int(1000 * BLOCK_SECONDS))
        changes = [change for _, stream in found for change in stream]
        names = {content[b"chain"].decode(errors="replace") for _, content in changes if b"chain" in content}
        for name in sorted(filter(is_name, names)):
            self.copy.pull(name)
        if changes:
            self.copy.pull_places()
            last = changes[-1][0]
        if time.monotonic() >= self.retry_at:
            self.copy.try_again()
            self.retry_at = time.monotonic() + self.retry_seconds
        return last
