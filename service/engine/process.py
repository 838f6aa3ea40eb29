"""A worker process, as the server sees it."""

import socket
import struct
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

from service.engine import wire
from service.engine.options import WorkerOptions
from service.engine.work import Part, Result
from service.errors import ServiceError, UnavailableError
from service.processes.program import ProcessStarter, Program, environment_without_keys
from training.encoder.encoder import find_prompt
from training.encoder.precision import Agreement
from training.encoder.spec import EncoderSpec
from training.errors import EncoderError, TooLongError
from transforms.errors import ArtifactError

ERRORS: dict[str, type[Exception]] = {error.__name__: error for error in (TooLongError, EncoderError, ArtifactError)}
"""What a worker may say was wrong with a request; anything else is its own fault."""


@dataclass(frozen=True)
class EncoderInfo:
    """What a worker tells of the encoder it loaded."""

    spec: EncoderSpec
    fingerprint: str
    dimensions: int
    max_length: int
    prompts: dict[str, str]
    default_prompt_name: str | None
    device: str
    batch_tokens: int
    agreement: Agreement | None

    @property
    def name(self) -> str:
        """What users call it."""
        return self.spec.name

    def describe(self) -> dict[str, Any]:
        """The same as JSON; `cosine_to_float32` over some short and long texts, None where it was not measured."""
        found = asdict(self)
        spec, near = found.pop("spec"), found.pop("agreement")
        described: dict[str, Any] = spec | found | {"cosine_to_float32": near}
        return described

    def prompt(self, prompt_name: str | None) -> str | None:
        """The text of a prompt; as `Encoder.prompt`."""
        return find_prompt(self.name, self.prompts, self.default_prompt_name if prompt_name is None else prompt_name)


@dataclass(frozen=True)
class Reply:
    """What came back for some parts: a result or an error for each, and the batches it took.

    Attributes:
        batches: rows, tokens and tokens with padding of each pass through the model.
        seconds: the worker was busy.
    """

    results: list[Result | Exception]
    batches: list[tuple[int, int, int]]
    seconds: float


class WorkerProcess:
    """A process of its own with a model in it; ends when this one does."""

    def __init__(self, spec: EncoderSpec, options: WorkerOptions, processes: ProcessStarter) -> None:
        """Start it; the model loads until `wait_ready`.

        Args:
            spec: the encoder.
            options: how it runs.
            processes: starts it.

        Raises:
            OSError: if the system starts no more processes.
        """
        ours, theirs = socket.socketpair()
        threads = str(options.threads)
        environment = environment_without_keys() | {
            "OMP_NUM_THREADS": threads,
            "RAYON_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "true",
        }
        try:
            with theirs:
                program = Program("service.engine.worker", (), environment, descriptor=theirs.fileno())
                self.process = processes.start(program)
        except OSError:
            ours.close()
            raise
        limit = struct.pack("ll", int(options.seconds), 0)
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):  # of one read or write, within a message
            ours.setsockopt(socket.SOL_SOCKET, option, limit)
        self.connection = Connection(ours.detach())
        self.spec = spec
        try:
            wire.send(self.connection, {"spec": asdict(spec), "options": asdict(options)})
        except OSError:
            self.stop()
            raise

    def wait_ready(self) -> EncoderInfo:
        """What it loaded.

        Raises:
            EncoderError: if it cannot load the model.
            OSError, EOFError: if it ended instead.
        """
        self.connection.poll(None)  # a download may take its time
        head, _ = wire.receive(self.connection)
        if head["state"] == "failed":
            raise EncoderError(head["problem"])
        told = head["encoder"]
        near = told.pop("agreement")
        return EncoderInfo(
            spec=EncoderSpec(**told.pop("spec")), agreement=None if near is None else Agreement(**near), **told
        )

    def send(self, parts: list[Part]) -> None:
        """Give it work.

        Raises:
            OSError: if it is gone.
        """
        wire.send(self.connection, {"parts": [as_message(part) for part in parts]})

    def receive(self, seconds: float) -> Reply:
        """The answer to the work given first of what is not answered yet.

        Raises:
            TimeoutError: if it takes longer than that.
            OSError, EOFError: if it is gone.
        """
        if not self.connection.poll(seconds):
            raise TimeoutError(f"no answer within {seconds:.0f} s")
        head, arrays = wire.receive(self.connection)
        left = iter(arrays)
        results: list[Result | Exception] = []
        for told in head["results"]:
            if "error" in told:
                results.append(as_error(told, self.spec.name))
                continue
            vectors, tokens = next(left), next(left)
            results.append(Result(vectors, next(left) if told["raw"] else None, tokens))
        return Reply(results, [tuple(batch) for batch in head["batches"]], head["seconds"])

    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def stop(self) -> None:
        """End it now, whatever it does; who waits for its answer is told so by the connection."""
        self.process.kill()
        self.process.wait()


def as_message(part: Part) -> dict[str, Any]:
    """A part as JSON."""
    work = part.work
    chain = None if work.chain is None else asdict(work.chain) | {"folder": str(work.chain.folder)}
    return {
        "texts": [work.texts[row] for row in part.rows],
        "rows": part.rows,
        "options": asdict(work.options),
        "chain": chain,
        "keep_raw": work.keep_raw,
    }


def as_error(told: dict[str, Any], name: str) -> Exception:
    """The error a worker told of."""
    if told["error"] in ERRORS:
        return ERRORS[told["error"]](told["message"])
    return UnavailableError(f"the encoder {name} failed on this request ({told['error']})", code="encoder_failed")


def crashed(name: str) -> ServiceError:
    """What the callers of a worker that went away are told."""
    return UnavailableError(
        f"the encoder {name} crashed on this request or one beside it; it is being restarted", code="encoder_crashed"
    )
