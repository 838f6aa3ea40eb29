"""Which encoders are in memory: versions of trained encoders that are served, and the unloading of idle encoders.

Served are the live version of each name, versions that indexes use, and versions asked for. Unloaded are idle
encoders, and the least recently used where memory is short.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable

from lathe.service.encoder_settings import split_trained_name
from lathe.service.encoders.embedder import Embedder
from lathe.service.encoders.engine.engine import SERVING, Engine
from lathe.service.settings import Settings
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.thread_problem import ThreadProblem

POLL_SECONDS = 1.0
"""Seconds between two checks of which versions are live, which commands and jobs change too."""

log = logging.getLogger(__name__)


class TrainedServing:
    """Thread that starts and stops the engines of trained encoders as versions become live.

    A name goes on to be answered by its last version until the engine of the new one is ready.

    Args:
        settings: settings of the server.
        embedder: served encoders, to which engines are added.
        make_engine: builds an engine, without starting it.
        list_index_encoders: returns the names of the encoders that indexes use; None while that is not known yet.
        changing: held while engines are added or removed.
        on_start: called after an engine was added.
    """

    def __init__(
        self,
        settings: Settings,
        embedder: Embedder,
        make_engine: Callable[[EncoderSpec], Engine],
        list_index_encoders: Callable[[], Iterable[str] | None],
        changing: threading.Lock,
        on_start: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.embedder = embedder
        self.make_engine = make_engine
        self.list_index_encoders = list_index_encoders
        self.changing = changing
        self.on_start = on_start
        self.requested: set[str] = set()
        self.stopped: set[str] = set()
        self.stopping = threading.Event()
        self.unexpected = ThreadProblem("serving trained encoders")
        self.thread = threading.Thread(target=self._run, name="trained", daemon=True)

    def start(self) -> None:
        """Start the engines of live versions, and the thread."""
        self.update()
        self.thread.start()

    def stop(self) -> None:
        """Stop the thread. The engines stay, as all engines are stopped together."""
        self.stopping.set()
        if self.thread.is_alive():
            self.thread.join(timeout=5)

    def _run(self) -> None:
        while not self.stopping.wait(POLL_SECONDS):
            with self.unexpected.watch():
                self.update()

    def update(self) -> None:
        """Start the engines of needed versions, let names stand for live versions, and stop unneeded engines.

        Only engines of trained encoders are stopped.
        """
        live = {spec.name.partition("@")[0]: spec for spec in self.settings.trained.list_live(self.settings.dtype)}
        in_indexes = self.list_index_encoders()
        needed = {spec.name: spec for spec in live.values()}
        for name in {*(in_indexes or ()), *self.requested}:
            if "@" in name and (spec := self.settings.trained.find(name, self.settings.dtype)) is not None:
                needed[name] = spec

        for name, spec in needed.items():
            if name not in self.stopped:
                self._start_engine(spec)
        self._update_aliases(live)

        # While it is not known what indexes use, nothing is stopped.
        if in_indexes is not None:
            kept = needed.keys() | set(self.embedder.aliases.values())
            for name in list(self.embedder.engines):
                if name not in kept and "@" in name and split_trained_name(name) is not None:
                    self._stop_engine(name)

    def request(self, spec: EncoderSpec) -> Engine:
        """Serve a version of a trained encoder until it is forgotten, and return its engine.

        The engine may still be loading the model.
        """
        self.requested.add(spec.name)
        self.stopped.discard(spec.name)
        self._start_engine(spec)
        return self.embedder.engines[spec.name]

    def forget(self, name: str) -> None:
        """Serve a version no longer, whatever uses it, until it is requested again. Its engine is not stopped here."""
        self.requested.discard(name)
        self.stopped.add(name)

    def _update_aliases(self, live: dict[str, EncoderSpec]) -> None:
        """Let each name stand for the live version once that is ready, and until then for the version before.

        If the version before is not served, the live version takes the name at once.
        """
        engines, aliases = self.embedder.engines, {}
        for name, spec in live.items():
            engine = engines.get(spec.name)
            last = self.embedder.aliases.get(name)
            if engine is not None and (engine.state in SERVING or last not in engines):
                aliases[name] = spec.name
            elif last in engines:
                aliases[name] = str(last)
        self.embedder.aliases = aliases  # replaced as a whole, because other threads read it

    def _start_engine(self, spec: EncoderSpec) -> None:
        with self.changing:
            if spec.name not in self.embedder.engines:
                self.embedder.add(self.make_engine(spec))
                self.on_start()

    def _stop_engine(self, name: str) -> None:
        with self.changing:
            engine = self.embedder.remove(name) if name in self.embedder.engines else None
        if engine is not None:
            engine.stop(self.settings.shutdown_seconds)


CHECK_SECONDS = 1.0
"""Longest time between two checks."""

ROOM_SECONDS = 10.0
"""Seconds that a load waits for the memory of encoders that are being unloaded."""


class Residency:
    """Thread that unloads encoders which are idle, or which exceed the memory limit together.

    It runs only if there is such a limit, or an encoder has a limit of idle time.

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
        """Return a message if unloading fails, or if the loaded encoders exceed the memory limit. Else return None."""
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
        """Return the seconds until the next check: at most 1, and at most a tenth of the shortest allowed idle time."""
        limits = [engine.options.unload_seconds for engine in self.list_engines() if engine.options.unload_seconds]
        return min([CHECK_SECONDS, *(max(limit / 10, 0.01) for limit in limits)])

    def unload_idle(self) -> None:
        """Unload each encoder that was not used for its `unload_seconds`."""
        now = time.monotonic()
        for engine in self.list_engines():
            if engine.options.unload_seconds and now - engine.last_used >= engine.options.unload_seconds:
                engine.unload()

    def unload_beyond_limit(self, wanted: Engine | None = None) -> list[Engine]:
        """Unload the least recently used encoders until the others fit the memory limit, and return the unloaded ones.

        Encoders that are at work are left. The one used last, or `wanted`, stays, even if it alone exceeds the limit.

        Args:
            wanted: encoder that is about to be loaded again; its bytes count too.
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
        """Unload other encoders so that `engine` fits the memory limit.

        Waits up to 10 s until the workers of these encoders are gone.
        """
        unloaded = self.unload_beyond_limit(engine)
        # An unloaded encoder may be loaded again with new workers: only those that it has now must be gone.
        leaving = [(evicted, frozenset(evicted.ready_dispatchers)) for evicted in unloaded]
        deadline = time.monotonic() + ROOM_SECONDS
        while any(workers & evicted.ready_dispatchers for evicted, workers in leaving) and time.monotonic() < deadline:
            time.sleep(0.01)
