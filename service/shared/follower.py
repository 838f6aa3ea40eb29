"""Keeps a replica's copy of what is shared up to date, and notices when Redis goes and comes back."""

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
"""How long Redis is asked to wait for news; the connection is known to live at least so often."""
AGAIN_SECONDS = 0.5
"""Between tries to reach a Redis that is gone."""
RETRY_SECONDS = 3.0
"""Between tries to copy what could not be copied, by default."""
FIRST_SECONDS = 3.0
"""How long a start waits for the first copy; then the service begins with what it has."""

log = logging.getLogger(__name__)


class Follower:
    """A thread that follows the record.

    The whole copy is made anew whenever Redis was out of reach, so that no change is missed; after that each change
    comes through a stream within milliseconds.

    Args:
        link: to Redis.
        copy: that is kept up to date.
        retry_seconds: between tries to copy what could not be copied.
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
        """Begin to follow; gives the first copy some time."""
        self.link.followed = True
        self.thread.start()
        self.tried.wait(FIRST_SECONDS)

    def stop(self) -> None:
        """Follow no longer."""
        self.stopping.set()
        if self.thread.is_alive():
            self.thread.join(timeout=5)
        self.client.close()

    def run(self) -> None:
        """Follow until told to stop, whatever happens to Redis."""
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
        """Copy everything; return where in the stream of changes that was begun."""
        newest: Any = self.client.xrevrange(CHANGES, count=1)
        self.copy.bring_up_to_date()
        self.retry_at = time.monotonic() + self.retry_seconds
        self.link.look_at_settings()
        return newest[0][0] if newest else "0-0"

    def follow(self, last: Any) -> Any:
        """Wait for changes and copy what changed; return the last one seen."""
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
