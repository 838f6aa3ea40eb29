"""The local replica of the chains and size routes in Redis, and what of it is out of date."""

import logging
from collections.abc import Callable
from functools import partial

from lathe.service.redis.damage import DAMAGED
from lathe.service.redis.registry import SharedRegistry
from lathe.service.redis.size_routes import ROUTES_NAME, SharedSizeRoutes
from lathe.transforms.errors import ArtifactError

log = logging.getLogger(__name__)


class LocalReplica:
    """Updater of the local replica; a chain that cannot be copied does not stop the others.

    Attributes:
        failures: what could not be copied, with the reason as a sentence and a function that tries again.
    """

    def __init__(self, registry: SharedRegistry, size_routes: SharedSizeRoutes) -> None:
        self.registry = registry
        self.size_routes = size_routes
        self.failures: dict[str, tuple[str, Callable[[], None]]] = {}

    def bring_up_to_date(self) -> None:
        """Write chains and size routes that Redis lacks to it, then copy all from Redis; note failures in `failures`.

        Raises:
            UnavailableError: if Redis is unreachable, or its record is of a newer Lathe.
            OSError: if the local folder cannot be written.
        """
        self.failures.clear()
        self.registry.join_record()
        for name in self.registry.list_all_names():
            self.pull(name)
        self._attempt(ROUTES_NAME, self.size_routes.push)
        self.pull_size_routes()

    def pull(self, name: str) -> None:
        """Copy a chain from Redis; a failure is noted in `failures`."""
        self._attempt(f"the chain {name}", partial(self.registry.pull, name))

    def pull_size_routes(self) -> None:
        """Copy all size routes from Redis; a failure is noted in `failures`."""
        self._attempt(ROUTES_NAME, self.size_routes.pull)

    def retry(self) -> None:
        """Try again to copy what is in `failures`, as the disk may have space by now."""
        for what, (_, pull) in list(self.failures.items()):
            self._attempt(what, pull)

    def _attempt(self, what: str, pull: Callable[[], None]) -> None:
        """Call `pull`; note a failure in `failures` and log it if it is new, else remove the entry."""
        try:
            pull()
        except (ArtifactError, OSError) as error:
            if isinstance(error, ArtifactError):
                DAMAGED.labels("chain" if what != ROUTES_NAME else "sizes").inc()
            if what not in self.failures:
                log.error("%s cannot be copied: %s; the live version stays", what, error)
            why = getattr(error, "strerror", None) or str(error)  # without the path, which callers need not know
            self.failures[what] = f"{what} cannot be copied from Redis: {why}; the live version stays", pull
        else:
            if self.failures.pop(what, None) is not None:
                log.info("%s is copied now", what)

    def warnings(self) -> list[str]:
        """Return a sentence for each thing that could not be copied."""
        return [sentence for sentence, _ in list(self.failures.values())]
