"""Serving of trained encoders: the live version of each name, versions that indexes use, and versions asked for."""

import logging
import threading
from collections.abc import Callable, Iterable

from lathe.service.encoders.embedder import Embedder
from lathe.service.encoders.engine.engine import SERVING, Engine
from lathe.service.settings import Settings
from lathe.service.trained_specs import split_trained_name
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
        """Start engines that are needed, let names stand for live versions that are ready, and stop other engines."""
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
            for name in self._list_served():
                if name not in kept:
                    self._stop_engine(name)

    def request(self, spec: EncoderSpec) -> Engine:
        """Serve a version until it is asked to stop, and return its engine, which may still load the model."""
        self.requested.add(spec.name)
        self.stopped.discard(spec.name)
        self._start_engine(spec)
        return self.embedder.engines[spec.name]

    def forget(self, name: str) -> None:
        """Do not serve a version any more, whatever uses it, until it is requested again."""
        self.requested.discard(name)
        self.stopped.add(name)

    def _list_served(self) -> list[str]:
        return [name for name in self.embedder.engines if "@" in name and split_trained_name(name) is not None]

    def _update_aliases(self, live: dict[str, EncoderSpec]) -> None:
        """Let each name stand for its live version once that is ready, or at once if no version of it is served."""
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
