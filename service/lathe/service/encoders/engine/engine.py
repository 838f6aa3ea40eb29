"""The life cycle of one encoder: a thread for each worker process starts it, feeds it and replaces it.

  Engine ──┬──► _Supervisor (thread) ──► worker process, and the `Dispatcher` that feeds it from the admission queue
           └──► _Supervisor (thread) ──► …

States: loading ──► ready ◄──► restarting     (a worker crashed and no other is ready)
            └─────► failed                    (the model cannot be loaded; retried with growing pauses)
        ready ──► idle ──► waking ──► ready   (unloaded because nobody asked or others need the memory; loaded again)
        stopped
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Literal

from lathe.service.encoders.engine import metrics
from lathe.service.encoders.engine.admission_queue import AdmissionQueue
from lathe.service.encoders.engine.dispatcher import Dispatcher, EncoderWorker, EngineOptions, build_crash_error
from lathe.service.encoders.engine.work import EncoderInfo
from lathe.service.errors import UnavailableError
from lathe.training.encoder.encoder import WINDOW_BATCHES
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.errors import EncoderError, TrainingError

State = Literal["loading", "ready", "restarting", "failed", "idle", "waking", "stopped"]

SERVING: tuple[State, ...] = ("ready", "idle", "waking")
"""States in which requests are answered, perhaps after the model is loaded again."""

log = logging.getLogger(__name__)


class Engine:
    """The workers of one encoder, its admission queue, and its state: loading, ready, failed, unloaded and so on.

    Attributes:
        info: what a worker loaded; None before the first was ready.
        problem: why the encoder is not ready; None while it is.
        settled: event that is set once the encoder was ready, or failed, for the first time.
        wanted: event that is clear while the encoder is to be unloaded.
        unloaded: whether it was unloaded, and is not ready again.
        last_used: time of the last request, in seconds of `time.monotonic`.
        load_seconds: seconds that the last load took; 1 before the first.
    """

    def __init__(
        self,
        spec: EncoderSpec,
        start_worker: Callable[[EncoderSpec], EncoderWorker],
        queue: AdmissionQueue,
        options: EngineOptions,
        make_room: "Callable[[Engine], None]" = lambda _engine: None,
        find_warning: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Store the configuration without starting anything.

        Args:
            spec: spec of the encoder.
            start_worker: starts a process that loads the encoder, or connects to its embeddings API.
            queue: admission queue of the requests.
            options: how the workers are fed, replaced and unloaded.
            make_room: called with the engine before it loads its model.
            find_warning: returns what is wrong although workers are ready, or None.
        """
        self.spec = spec
        self.start_worker = start_worker
        self.queue = queue
        self.options = options
        self.make_room = make_room
        self.find_warning = find_warning
        self.info: EncoderInfo | None = None
        self.problem: str | None = None
        self.settled = threading.Event()
        self.stopping = threading.Event()
        self.guard = threading.Lock()
        self.wanted = threading.Event()
        self.wanted.set()
        self.unloaded = False
        self.last_used = time.monotonic()
        self.load_seconds = 1.0
        self.queue.on_admit = self.wake
        self.ready_dispatchers: set[Dispatcher] = set()
        self.supervisors = [_Supervisor(self, number) for number in range(options.workers)]

    def start(self) -> None:
        """Start the threads that start the workers, which load the model. Return at once."""
        for supervisor in self.supervisors:
            supervisor.thread.start()

    def stop(self, seconds: float = 30.0) -> None:
        """Stop the encoder: finish accepted requests for up to `seconds`, fail the others, end the workers.

        The others are answered with an error.
        """
        deadline = time.monotonic() + seconds
        while self.ready_dispatchers and self.queue.texts and time.monotonic() < deadline:
            time.sleep(0.01)
        with self.guard:  # or `register` could open the queue again
            self.stopping.set()
            self.queue.close(self._build_stop_error)
            self.wanted.set()  # for supervisors that wait for it
        self.fail_unfinished()
        for supervisor in self.supervisors:  # all before waiting for one: together they close what they share
            supervisor.stop_worker()
        for supervisor in self.supervisors:
            supervisor.join()

    def wake(self) -> None:
        """Note that the encoder is used, and have it loaded again if it is unloaded. Return at once."""
        self.last_used = time.monotonic()
        self.wanted.set()

    def unload(self) -> bool:
        """End the workers to free their memory, unless the encoder is in use. Return whether they will end.

        Requests that come meanwhile have the encoder loaded again, and wait for that.
        """
        with self.guard:
            all_ready = len(self.ready_dispatchers) == len(self.supervisors)
            if self.stopping.is_set() or self.queue.texts or not all_ready or not self.wanted.is_set():
                return False
            self.wanted.clear()
            self.unloaded = True
            for dispatcher in self.ready_dispatchers:
                dispatcher.retiring.set()
        # The queue is not locked by `guard`, so a request may come between the check above and here.
        if self.queue.texts:  # of a request that was queued just before `wanted` was cleared
            self.wanted.set()
        log.info("the encoder %s is unloaded", self.spec.name)
        metrics.UNLOADS.labels(self.spec.name).inc()
        return True

    @property
    def model_bytes(self) -> int:
        """Bytes of the model's weights in all its workers, or 0 before the model was first loaded."""
        return 0 if self.info is None else self.info.model_bytes * len(self.supervisors)

    def fail_unfinished(self) -> None:
        """Answer all requests that were accepted and are not finished with an error."""
        error = self._build_stop_error()
        self.queue.fail_all(error)
        with self.guard:
            ready = list(self.ready_dispatchers)
        for dispatcher in ready:
            dispatcher.fail_sent(error)

    def _build_stop_error(self) -> UnavailableError:
        return UnavailableError(f"the encoder {self.spec.name} was stopped before this was done", code="stopped")

    @property
    def state(self) -> State:
        """State of the encoder: stopped, ready, waking, idle, failed, loading or restarting.

        It is `ready` if any worker is, else `failed` if there is a problem. Without a problem it is `loading` before
        any worker was ever ready, `restarting` after. An unloaded encoder is `idle`, and `waking` while it is loaded
        again.
        """
        if self.stopping.is_set():
            return "stopped"
        if self.ready_dispatchers:
            return "ready"
        if self.unloaded:
            return "waking" if self.wanted.is_set() else "idle"
        if self.problem:
            return "failed"
        return "loading" if self.info is None else "restarting"

    def get_ready_info(self) -> EncoderInfo:
        """Return the description of the loaded encoder, or raise `UnavailableError` while the encoder is not ready.

        If the encoder is unloaded and requests are held, the description is the one from before. If they are not held,
        it is loaded again from now on, and the error is raised.
        """
        info = self.info
        self.last_used = time.monotonic()
        if self.unloaded and info is not None:
            if self.options.hold:
                return info
            self.wake()
            raise UnavailableError(
                f"the encoder {self.spec.name} was unloaded and is being loaded again",
                code="not_ready",
                retry_after=max(1, math.ceil(self.load_seconds)),
            )
        if info is None or not self.ready_dispatchers:
            raise UnavailableError(self.problem or f"the encoder {self.spec.name} is {self.state}", code="not_ready")
        return info

    def register(self, dispatcher: Dispatcher, info: EncoderInfo) -> None:
        """Add a dispatcher whose worker is ready, set `info` to what the worker loaded, and open the admission queue.

        The problem is cleared, and `settled` is set. The queue of a stopping engine stays closed.

        Raises:
            EncoderError: if the model files changed while another worker is ready; if none is, that is only logged.
        """
        with self.guard:
            if self.info is not None and self.info.fingerprint != info.fingerprint:
                # Vectors of two versions of a model must not mix in one space.
                if self.ready_dispatchers:
                    raise EncoderError(f"the files of {self.spec.name} changed: restart the server or this encoder")
                log.warning("the files of %s changed; its vectors belong to another space now", self.spec.name)
                self.queue.fail_all(
                    UnavailableError(f"the files of {self.spec.name} changed; send the request again", code="changed")
                )
            self.info, self.problem, self.unloaded = info, None, False
            self.ready_dispatchers.add(dispatcher)
            if not self.stopping.is_set():
                self.queue.open()
        self.settled.set()

    def unregister(self, dispatcher: Dispatcher | None, problem: str | None) -> None:
        """Remove a dispatcher whose worker ended. If no worker is ready then, close the admission queue.

        Args:
            dispatcher: the dispatcher; None if the worker never was ready.
            problem: why the worker never was ready; None if it was. It is stored if no worker is ready, and sets
                `settled`.
        """
        with self.guard:
            if dispatcher is not None:
                self.ready_dispatchers.discard(dispatcher)
            if not self.ready_dispatchers:
                self.problem = problem or self.problem
                if problem is not None and self.unloaded:  # requests that are held would wait for long
                    self.unloaded = False
                    self.queue.close(partial(UnavailableError, problem, code="not_ready"))
                elif not self.stopping.is_set() and not self.unloaded:
                    self.queue.close(partial(build_crash_error, self.spec.name))
        if problem is not None:
            self.settled.set()


class _Supervisor:
    """Thread that keeps a worker process running.

    It starts the process, has a dispatcher feed it, and replaces it when it ends.
    """

    def __init__(self, engine: Engine, number: int) -> None:
        self.engine = engine
        self.number = number
        self.worker: EncoderWorker | None = None
        self.thread = threading.Thread(target=self.run, name=f"{engine.spec.name}-{number}", daemon=True)

    def stop_worker(self) -> None:
        """End the worker that runs now, if there is one."""
        worker = self.worker
        if worker is not None:
            worker.stop()

    def join(self) -> None:
        """Wait up to 10 s for the thread to end."""
        if self.thread.is_alive():
            self.thread.join(timeout=10)

    def run(self) -> None:
        """Run one worker after another until the engine stops, with longer pauses after each that never was ready.

        While the encoder is not wanted, no worker is started. All supervisors but number 0 first wait until one has
        loaded the encoder.
        """
        engine = self.engine
        pause, longest_pause = engine.options.retry_seconds
        if self.number > 0:  # one loads first, which may download the model or fail
            while engine.info is None and not engine.stopping.wait(0.05):
                pass

        while not engine.stopping.is_set():
            engine.wanted.wait()
            if engine.stopping.is_set():
                return
            problem = self._run_worker()
            if problem is not None:
                engine.stopping.wait(pause)
                pause = min(2 * pause, longest_pause)
                continue
            # This worker was ready, so the next failure begins with the shortest pause again.
            pause = engine.options.retry_seconds[0]
            if not engine.unloaded:
                metrics.WORKER_RESTARTS.labels(engine.spec.name).inc()

    def _run_worker(self) -> str | None:
        """Start a worker, dispatch texts to it until it ends, and stop it.

        Returns why the worker never became ready, or None if it did. Requests that it did not answer get an error. The
        end is logged, unless the engine is stopping or unloaded.
        """
        engine = self.engine
        dispatcher: Dispatcher | None = None
        problem: str | None = None
        try:
            # Once for all workers of the encoder: number 0 is the first to load.
            if self.number == 0:
                engine.make_room(engine)
            begun = time.monotonic()
            self.worker = engine.start_worker(engine.spec)
            if engine.stopping.is_set():
                raise EOFError
            info = self.worker.wait_ready()
            engine.load_seconds = time.monotonic() - begun
            dispatcher = Dispatcher(
                engine.spec.name, self.worker, engine.queue, engine.ready_dispatchers, engine.stopping, engine.options
            )
            engine.register(dispatcher, info)
            dispatcher.run(info.window_tokens or WINDOW_BATCHES * info.batch_tokens)
        except TrainingError as error:
            log.error("the encoder %s cannot be loaded: %s", engine.spec.name, error)
            problem = str(error)
        except Exception as error:  # any: if the thread ended, requests would wait forever
            if not engine.stopping.is_set():
                log.error("a worker of %s ended: %s", engine.spec.name, type(error).__name__)
            if dispatcher is None:
                problem = f"the process that loads {engine.spec.name} ended before it was ready"

        engine.unregister(dispatcher, problem)  # before the errors: who then asks again must not find it ready
        if dispatcher is not None:
            dispatcher.fail_sent(build_crash_error(engine.spec.name))
        if self.worker is not None:
            self.worker.stop()
        self.worker = None
        return problem
