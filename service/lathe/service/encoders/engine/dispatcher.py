"""The server's end of a worker process: texts leave the server here, and vectors come back.

admission queue ──► Dispatcher ──► WorkerProcess ══╗ socket
                        │                          ╠════════► `worker`, in the other process
futures of requests ◄───┴──────◄── Reply ◄═════════╝
"""

import socket
import struct
import threading
from collections import deque
from collections.abc import Sized
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

from lathe.service.encoders.engine import framing, metrics
from lathe.service.encoders.engine.admission_queue import NO_WAIT, AdmissionQueue, BatchWait
from lathe.service.encoders.engine.work import EncoderInfo, Part, PartResult, Reply
from lathe.service.errors import ServiceError, UnavailableError
from lathe.service.processes.program import ProcessStarter, Program, get_environment_without_keys
from lathe.training.encoder.devices import Agreement
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.errors import EncoderError, NotFiniteError, TooLongError, UnknownTokenError
from lathe.transforms.errors import ArtifactError

ERRORS: dict[str, type[Exception]] = {
    error.__name__: error for error in (TooLongError, NotFiniteError, UnknownTokenError, EncoderError, ArtifactError)
}
"""Exceptions that a worker may report as the request's fault, by name; all others are faults of the worker."""


@dataclass(frozen=True)
class EngineOptions:
    """How an encoder's workers are fed, replaced and unloaded.

    Attributes:
        workers: number of workers.
        ahead: messages sent to a worker before the first is answered; 2 keeps a GPU busy.
        timeout: seconds without a reply after which a worker is considered dead.
        retry_seconds: first and longest pause before a worker that ended before it was ready is started again.
        check_seconds: seconds between two checks of whether an idle worker is alive.
        unload_seconds: seconds without a request after which the encoder may be unloaded; 0 keeps it loaded.
        hold: whether requests for an unloaded encoder wait until it is loaded; otherwise they are refused.
        max_texts: maximum texts of a message, which is then not divided among idle workers; None for no maximum.
    """

    workers: int = 1
    ahead: int = 1
    timeout: float = 120.0
    retry_seconds: tuple[float, float] = (1.0, 60.0)
    check_seconds: float = 0.1
    unload_seconds: float = 0.0
    hold: bool = True
    max_texts: int | None = None


class EncoderWorker(Protocol):
    """A worker that encodes the texts a dispatcher sends it: a process with a model, or calls to an embeddings API."""

    def wait_ready(self) -> EncoderInfo:
        """Wait until texts can be encoded. Return the description of the encoder that encodes them.

        Raises:
            TrainingError: if the encoder cannot be loaded or reached.
        """

    def send(self, parts: list[Part]) -> None:
        """Send parts of requests to the worker, which encodes their texts.

        Raises:
            OSError: if the worker has ended.
        """

    def receive(self, seconds: float) -> Reply:
        """Wait for the reply to the earliest `send` that has none, and return it.

        Raises:
            OSError, EOFError: if the worker has ended.
        """

    def alive(self) -> bool:
        """Return whether the worker has not ended."""

    def stop(self) -> None:
        """End the worker. A thread that waits for its reply gets an error."""


@dataclass(frozen=True)
class WorkerOptions:
    """Options of a worker process.

    Attributes:
        device: torch device; None selects the best available.
        batch_tokens: maximum tokens of a batch, padding included; None selects by device.
        seconds: seconds without reading or writing after which a worker is considered dead.
    """

    device: str | None = None
    threads: int = 1
    batch_tokens: int | None = None
    seconds: float = 120.0


class WorkerProcess:
    """A process with a model that encodes texts, and that ends when this process does."""

    def __init__(self, spec: EncoderSpec, options: WorkerOptions, processes: ProcessStarter) -> None:
        """Start the worker process and send it the encoder's spec. It loads the model meanwhile.

        `wait_ready` waits for the model.

        Raises:
            OSError: if the system starts no more processes.
        """
        ours, theirs = socket.socketpair()
        threads = str(options.threads)
        # Thread pools read these variables once, when they are created, so they are set before the process starts.
        environment = get_environment_without_keys() | {
            "OMP_NUM_THREADS": threads,
            "RAYON_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "true",
        }
        try:
            with theirs:
                program = Program("lathe.service.encoders.engine.worker", (), environment, descriptor=theirs.fileno())
                self.process = processes.start(program)
        except OSError:
            ours.close()
            raise

        # A worker that stops in the middle of a message would block this thread for ever.
        limit = struct.pack("ll", int(options.seconds), 0)
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):  # of one read or write, within a message
            ours.setsockopt(socket.SOL_SOCKET, option, limit)
        self.connection = Connection(ours.detach())
        self.spec = spec
        try:
            framing.send(self.connection, {"spec": spec.to_json(), "options": asdict(options)})
        except OSError:
            self.stop()
            raise

    def wait_ready(self) -> EncoderInfo:
        """Wait, without a time limit, until the process has loaded the model. Return the description of the encoder.

        Raises:
            EncoderError: if the model cannot be loaded.
            OSError, EOFError: if the process ended.
        """
        self.connection.poll(None)  # a download may take its time
        head, _ = framing.receive(self.connection)
        if head["state"] == "failed":
            raise EncoderError(head["problem"])
        reply = head["encoder"]
        agreement = reply.pop("agreement")
        return EncoderInfo(
            spec=EncoderSpec(**reply.pop("spec")),
            agreement=None if agreement is None else Agreement(**agreement),
            **reply,
        )

    def send(self, parts: list[Part]) -> None:
        """Send parts of requests to the process, which encodes their texts.

        Raises:
            OSError: if the process has ended.
        """
        framing.send(self.connection, {"parts": [build_message(part) for part in parts]})

    def receive(self, seconds: float) -> Reply:
        """Wait for the worker's reply to the earliest message that has none, and return it.

        Errors that the worker reports of single parts are in the reply's `results`, and are not raised.

        Raises:
            TimeoutError: if there is no reply within `seconds`.
            OSError, EOFError: if the process has ended.
        """
        if not self.connection.poll(seconds):
            raise TimeoutError(f"no answer within {seconds:.0f} s")
        head, arrays = framing.receive(self.connection)
        remaining = iter(arrays)
        results: list[PartResult | Exception] = []
        for result in head["results"]:
            if "error" in result:
                results.append(_build_error(result, self.spec.name))
                continue
            vectors, tokens, cut = next(remaining), next(remaining), next(remaining)
            results.append(PartResult(vectors, next(remaining) if result["raw"] else None, tokens, cut))
        return Reply(results, [tuple(batch) for batch in head["batches"]], head["seconds"])

    def alive(self) -> bool:
        """Return whether the process is running."""
        return self.process.poll() is None

    def stop(self) -> None:
        """Kill the process and wait for its end. A thread that waits for its reply gets an error."""
        self.process.kill()
        self.process.wait()


class Dispatcher:
    """Sends texts from the admission queue to one worker, and passes the worker's vectors to the requests.

    Attributes:
        sent: parts of each message that the worker has not answered, earliest first.
        retiring: event that ends `run` once the worker has answered what it was sent.
    """

    def __init__(
        self,
        name: str,
        worker: EncoderWorker,
        queue: AdmissionQueue,
        peers: Sized,
        stopping: threading.Event,
        options: EngineOptions,
    ) -> None:
        """Store the arguments.

        `run` does the work.

        Args:
            name: name of the encoder.
            worker: worker, ready.
            queue: admission queue of the encoder.
            peers: dispatchers of all ready workers of the encoder, this one included.
            stopping: event that ends `run`.
            options: options of the engine.
        """
        self.name = name
        self.worker = worker
        self.queue = queue
        self.peers = peers
        self.stopping = stopping
        self.options = options
        self.sent: deque[list[Part]] = deque()
        self.retiring = threading.Event()

    def run(self, window_tokens: int) -> None:
        """Send queued texts to the worker, in messages of about `window_tokens` tokens, and pass the vectors on.

        It ends when `stopping` or `retiring` is set. Up to `options.ahead` messages are sent before the first is
        answered.

        Raises:
            OSError, EOFError: when the worker has ended, or does not reply in time.
        """
        wait = NO_WAIT
        while not self.stopping.is_set() and not (self.retiring.is_set() and not self.sent):
            parts = self._take(window_tokens, wait)
            if parts:
                self._send(parts)
            elif not self.sent and not self.worker.alive():
                raise EOFError

            # A reply is awaited only when no further message may be sent, or there is none to send.
            if self.sent and (not parts or len(self.sent) >= self.options.ahead):
                reply = self.worker.receive(self.options.timeout)
                self._deliver(self.sent[0], reply)
                # Removed only now: if the reply does not come, `fail_sent` must still find these parts.
                answered = self.sent.popleft()
                if self.options.max_texts is None:
                    wait = BatchWait.after_batch(answered, reply.seconds)

    def _take(self, window_tokens: int, wait: BatchWait) -> list[Part]:
        """Return queued parts of about `window_tokens` tokens. Wait for some only if the worker has nothing to do.

        The list is empty if nothing is queued, or once `retiring` is set.
        """
        if self.retiring.is_set():
            return []
        seconds = 0.0 if self.sent else self.options.check_seconds
        return self.queue.take(window_tokens, seconds, NO_WAIT if self.sent else wait, self.options.max_texts)

    def _send(self, parts: list[Part]) -> None:
        # Noted before it is sent, so that `fail_sent` answers these parts too if the worker has ended.
        """Send parts of requests to the worker, and record how long each request waited for its first one."""
        self.sent.append(parts)
        self.worker.send(parts)
        for part in parts:
            if part.rows[0] == part.work.order[0]:  # later parts wait for the request's own
                metrics.QUEUE_SECONDS.labels(self.name).observe(part.waited)

    def _deliver(self, parts: list[Part], reply: Reply) -> None:
        """Pass the vectors or error of each part in a worker's reply to the request, and update the metrics.

        The worker replies in the order of the parts.
        """
        self.queue.record_batch(sum(part.tokens for part in parts), reply.seconds, len(self.peers))
        metrics.observe_batches(self.name, reply)
        for part, result in zip(parts, reply.results, strict=True):
            if isinstance(result, Exception):
                part.work.fail(result)
            else:
                part.work.receive(part.rows, result)

    def fail_sent(self, error: Exception) -> None:
        """Answer all requests that the worker was sent and has not answered with this error."""
        for parts in list(self.sent):
            for part in parts:
                part.work.fail(error)


def build_message(part: Part) -> dict[str, Any]:
    """Return a part of a request as a dict that is sent to the worker as JSON.

    Its keys are `texts`, `positions` (of the texts in the request), `options`, `chain` and `keep_raw`.
    """
    work = part.work
    chain = None if work.chain is None else vars(work.chain) | {"folder": str(work.chain.folder)}
    return {
        "texts": [work.texts[row] for row in part.rows],
        "positions": part.positions,
        "options": vars(work.options),
        "chain": chain,
        "keep_raw": work.keep_raw,
    }


def _build_error(reply: dict[str, Any], name: str) -> Exception:
    """Return the exception that a worker's reply describes. `name` is the encoder's, for the message.

    An exception that is not in `ERRORS` becomes an `UnavailableError`.
    """
    if reply["error"] in ERRORS:
        return ERRORS[reply["error"]](reply["message"])
    return UnavailableError(f"the encoder {name} failed on this request ({reply['error']})", code="encoder_failed")


def build_crash_error(name: str) -> ServiceError:
    """Return the error that answers requests whose worker process ended unexpectedly."""
    return UnavailableError(
        f"the encoder {name} crashed on this request or one beside it; it is being restarted", code="encoder_crashed"
    )
