"""Unloading of encoders: idle ones, and the least recently used where memory is short."""

import logging
import threading
import time
from collections.abc import Callable, Iterable

from lathe.service.encoders.engine.engine import Engine
from lathe.training.thread_problem import ThreadProblem

CHECK_SECONDS = 1.0
"""Longest time between two checks."""

ROOM_SECONDS = 10.0
"""Seconds that a load waits for the memory of encoders that are being unloaded."""

log = logging.getLogger(__name__)


class Residency:
    """Thread that unloads encoders.

    It runs only if something limits how long they stay loaded.

    Args:
        list_engines: returns the engines of all served encoders.
        max_bytes: maximum bytes of the weights of all loaded encoders; 0 for no limit.
    """

    def __init__(self, list_engines: Callable[[], Iterable[Engine]], max_bytes: int) -> None:
        self.list_engines = list_engines
        self.max_bytes = max_bytes
        self.stopping = threading.Event()
        self.unexpected = ThreadProblem("unloading encoders")
        self.guard = threading.Lock()
        self.thread = threading.Thread(target=self._run, name="residency", daemon=True)

    def start(self) -> None:
        """Start the thread if some encoder may be unloaded and it does not run. Safe to call again.

        Called again when an encoder is added.
        """
        limited = self.max_bytes or any(engine.options.unload_seconds for engine in self.list_engines())
        if limited and not self.thread.is_alive():
            self.thread.start()

    def stop(self) -> None:
        """End the thread and wait for it, if it was started."""
        self.stopping.set()
        if self.thread.is_alive():
            self.thread.join(timeout=2 * CHECK_SECONDS)

    def find_problem(self) -> str | None:
        """Return a message if unloading fails or the loaded encoders exceed the memory limit, else None."""
        if self.unexpected.message is not None:
            return self.unexpected.message
        total = sum(engine.model_bytes for engine in self.list_engines() if engine.ready_dispatchers)
        if not self.max_bytes or total <= self.max_bytes:
            return None
        return f"the loaded encoders have {total:,} bytes of weights, more than LATHE_MODEL_BYTES, {self.max_bytes:,}"

    def _run(self) -> None:
        while not self.stopping.wait(self._choose_pause()):
            with self.unexpected.watch():
                self.unload_idle()
                self.unload_beyond_limit()

    def _choose_pause(self) -> float:
        """Return the seconds until the next check: at most a tenth of the shortest time that an encoder may be idle."""
        limits = [engine.options.unload_seconds for engine in self.list_engines() if engine.options.unload_seconds]
        return min([CHECK_SECONDS, *(max(limit / 10, 0.01) for limit in limits)])

    def unload_idle(self) -> None:
        """Unload each encoder that was not used for its `unload_seconds`."""
        now = time.monotonic()
        for engine in self.list_engines():
            if engine.options.unload_seconds and now - engine.last_used >= engine.options.unload_seconds:
                engine.unload()

    def unload_beyond_limit(self, wanted: Engine | None = None) -> list[Engine]:
        """Unload the least recently used encoders until the rest fits the memory limit. Return those unloaded.

        Encoders that are at work are left. The one used last, or `wanted`, stays, even if it alone exceeds the limit.

        Args:
            wanted: encoder that is about to be loaded again; its bytes count too.

        Returns:
            The engines of the unloaded encoders.
        """
        if not self.max_bytes:
            return []
        with self.guard:
            loaded = [engine for engine in self.list_engines() if engine is not wanted and engine.ready_dispatchers]
            loaded = [engine for engine in loaded if engine.wanted.is_set()]  # others are being unloaded
            loaded = [engine for engine in loaded if engine.spec.upstream is None]  # an API takes no memory here
            total = sum(engine.model_bytes for engine in loaded) + (wanted.model_bytes if wanted else 0)
            unloaded = []

            by_use = sorted(loaded, key=lambda engine: engine.last_used)
            # The one used last stays loaded, unless another is about to be loaded in its place.
            for engine in by_use if wanted else by_use[:-1]:
                if total <= self.max_bytes:
                    break
                if engine.unload():
                    total -= engine.model_bytes
                    unloaded.append(engine)
            return unloaded

    def make_room(self, engine: Engine) -> None:
        """Unload other encoders so that `engine`, which is loaded again, fits the limit. Waits until they are gone."""
        unloaded = self.unload_beyond_limit(engine)
        # An unloaded encoder may be loaded again with new workers: only those that it has now must be gone.
        leaving = [(evicted, frozenset(evicted.ready_dispatchers)) for evicted in unloaded]
        deadline = time.monotonic() + ROOM_SECONDS
        while any(workers & evicted.ready_dispatchers for evicted, workers in leaving) and time.monotonic() < deadline:
            time.sleep(0.01)
