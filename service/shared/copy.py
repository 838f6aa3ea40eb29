"""This replica's copy of the chains and places in Redis, and what of it is behind."""

import logging
from collections.abc import Callable
from functools import partial

from service.shared.damage import DAMAGED
from service.shared.places import SIZES, SharedPlaces
from service.shared.registry import SharedRegistry
from transforms.errors import ArtifactError

log = logging.getLogger(__name__)


class Copy:
    """Brings the copy up to date; one chain that cannot be copied keeps no other from it.

    Attributes:
        behind: what could not be copied, with why and how to try again.
    """

    def __init__(self, registry: SharedRegistry, places: SharedPlaces) -> None:
        self.registry = registry
        self.places = places
        self.behind: dict[str, tuple[str, Callable[[], None]]] = {}

    def bring_up_to_date(self) -> None:
        """Copy all chains and places; where Redis is new, give it what is here.

        Raises:
            UnavailableError: without Redis, or if its record is of a newer Lathe.
            OSError: if the copy cannot be begun.
        """
        self.behind.clear()
        self.registry.begin_record()
        for name in self.registry.names_anywhere():
            self.pull(name)
        self.attempt(SIZES, self.places.push)
        self.pull_places()

    def pull(self, name: str) -> None:
        """Copy a chain."""
        self.attempt(f"the chain {name}", partial(self.registry.pull, name))

    def pull_places(self) -> None:
        """Copy all places."""
        self.attempt(SIZES, self.places.pull)

    def try_again(self) -> None:
        """Copy what is behind: there may be room on the disk by now."""
        for what, (_, pull) in list(self.behind.items()):
            self.attempt(what, pull)

    def attempt(self, what: str, pull: Callable[[], None]) -> None:
        """Copy something; a failure is said once, however often it is tried."""
        try:
            pull()
        except (ArtifactError, OSError) as error:
            if isinstance(error, ArtifactError):
                DAMAGED.labels("chain" if what != SIZES else "sizes").inc()
            if what not in self.behind:
                log.error("%s cannot be copied: %s; what was live stays", what, error)
            why = getattr(error, "strerror", None) or str(error)  # without the path, which is nobody else's business
            self.behind[what] = f"{what} cannot be copied from Redis: {why}; what was live stays", pull
        else:
            if self.behind.pop(what, None) is not None:
                log.info("%s is copied now", what)

    def warnings(self) -> list[str]:
        """What is behind, in sentences."""
        return [sentence for sentence, _ in list(self.behind.values())]
