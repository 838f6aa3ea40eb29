"""The local replica of the chains and size routes in Redis, and what of it is out of date."""

import logging
from collections.abc import Callable
from functools import partial

from service.shared.damage import DAMAGED
from service.shared.places import SIZES, SharedPlaces
from service.shared.registry import SharedRegistry
from transforms.errors import ArtifactError

log = logging.getLogger(__name__)


class Copy:
    """Updater of the local replica; a chain that cannot be copied does not stop the others.

    Attributes:
        behind: what could not be copied, with the reason as a sentence and a function that tries again.
    """

    def __init__(self, registry: SharedRegistry, places: SharedPlaces) -> None:
        self.registry = registry
        self.places = places
        self.behind: dict[str, tuple[str, Callable[[], None]]] = {}

    def bring_up_to_date(self) -> None:
        """Copy all chains and size routes from Redis; if Redis is new, first write the local ones to it.

        Raises:
            UnavailableError: if Redis is unreachable, or its record is of a newer Lathe.
            OSError: if the local folder cannot be written.
        """
        self.behind.clear()
        self.registry.begin_record()
        for name in self.registry.names_anywhere():
            self.pull(name)
        self.attempt(SIZES, self.places.push)
        self.pull_places()

    def pull(self, name: str) -> None:
        """Copy a chain from Redis; a failure is noted in `behind`."""
        self.attempt(f"the chain {name}", partial(self.registry.pull, name))

    def pull_places(self) -> None:
        """Copy all size routes from Redis; a failure is noted in `behind`."""
        self.attempt(SIZES, self.places.pull)

    def try_again(self) -> None:
        """Try again to copy what is in `behind`, as the disk may have space by now."""
        for what, (_, pull) in list(self.behind.items()):
            self.attempt(what, pull)

    def attempt(self, what: str, pull: Callable[[], None]) -> None:
        """Call `pull`; note a failure in `behind` and log it if it is new, else remove the entry."""
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
        """Return a sentence for each thing that could not be copied."""
        return [sentence for sentence, _ in list(self.behind.values())]
