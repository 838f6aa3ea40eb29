"""Measures what the host alone can serve: a worker whose forward passes cost nothing, behind the real server.

`python -m benchmarks.free_device` starts the server with such a worker, one as on a GPU, and sends texts over HTTP. It
then times the stages of requests of 64 texts and of single texts one by one, in microseconds of a core a text.
"""

import socket
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch

from benchmarks.gpu import Figures, make_passages, measure_rates
from benchmarks.report import markdown_table, parser, write_report
from benchmarks.server import Server
from lathe.service.encoders.engine import dispatcher, framing, worker
from lathe.service.encoders.engine.work import EncodeOptions, Part, Work
from lathe.service.processes.program import Program
from lathe.service.settings import Settings
from lathe.training.encoder.batching import Batch
from lathe.training.encoder.encoder import DEVICE_BATCH_TOKENS, Encoder

SIZES = (64, 1)
DIMENSIONS = 384


class FreeServer(Server):
    """A `lathe serve` whose encoder tokenizes texts and computes nothing."""

    command = (sys.executable, "-m", "benchmarks.free_device", "--serve")


def main(arguments: list[str]) -> None:
    """Measure, write the raw JSON and print the tables.

    With `--serve`, or the number of a socket, be the server or its worker instead.
    """
    if arguments == ["--serve"]:
        serve()
    elif len(arguments) == 1 and arguments[0].isdecimal():
        vars(worker)["Encoder"] = FreeEncoder
        worker.main(arguments)
    else:
        measure()


class FreeEncoder(Encoder):
    """Encoder whose forward passes return the same vectors at once, once it is loaded and tested."""

    def __init__(self, *fields: Any, **more: Any) -> None:
        super().__init__(*fields, **more)
        self.vectors = torch.nn.functional.normalize(torch.randn(self.batch_tokens, self.dimensions), dim=1)

    def forward(self, batch: Batch, normalize: bool) -> torch.Tensor:
        """Return as many unit vectors `(b, d)` as the batch has texts."""
        vectors = getattr(self, "vectors", None)
        return super().forward(batch, normalize) if vectors is None else vectors[: len(batch.rows)]


def serve() -> None:
    """Serve as on a GPU, with one worker that runs this module."""
    from lathe.service.cli.main import main as run_command

    def start_here(_module: str, *fields: Any, **more: Any) -> Program:
        return Program("benchmarks.free_device", *fields, **more)

    vars(dispatcher)["Program"] = start_here
    type.__setattr__(Settings, "on_gpu", True)
    sys.argv[1:] = ["serve", "--port", "0"]
    run_command()


def measure() -> None:
    """Measure the server and the stages, write the raw JSON and print the tables."""
    options = parser(__doc__).parse_args()
    figures: Figures = {"stages": {size: measure_stages(size) for size in SIZES}, "rates": {}}
    with tempfile.TemporaryDirectory() as folder:
        server = FreeServer(
            Path(folder),
            LATHE_CACHE_BYTES="0",
            LATHE_DTYPE="float32",
            LATHE_MAX_BATCH_TOKENS=str(DEVICE_BATCH_TOKENS),
            PYTHONPATH=str(Path(__file__).parents[1]),  # workers import nothing from the working directory
        )
        try:
            server.wait_for_workers(1)
            figures["rates"] = measure_rates(server, options.quick, "compact", [32])
        finally:
            server.stop()
    path = write_report(options.out, "free-device", figures)
    stages = figures["stages"]
    rows = [[name, *(str(stages[size][name]) for size in SIZES)] for name in stages[SIZES[0]]]
    print(markdown_table(["stage, µs a text", "64 texts", "single texts"], rows) + "\n")
    rows = []
    for name, rate in figures["rates"].items():
        spent = [round(1e6 * cores / rate["texts_per_second"], 1) for cores in rate["busy_cores"].values()]
        rows.append([name, str(rate["texts_per_second"]), *map(str, spent)])
    print(markdown_table(["requests", "texts a second", "server, µs a text", "worker, µs a text"], rows))
    print(f"\n{path}", file=sys.stderr)


def measure_stages(size: int) -> dict[str, float]:
    """Return the microseconds per text of each stage of a request of `size` texts of 32 tokens.

    Each stage is measured alone on one core.
    """
    from lathe.service.codec import dump_json, dump_npy, encode_rows
    from lathe.service.http.encoding import list_texts
    from lathe.service.http.json_body import validate_json
    from lathe.service.http.schemas import EmbedBody
    from lathe.training.encoder.spec import EncoderSpec
    from lathe.transforms import Chain, parse_steps

    torch.set_num_threads(1)
    encoder = FreeEncoder(EncoderSpec("encoder", dtype="float32"), "cpu", DEVICE_BATCH_TOKENS)
    texts = make_passages(32, size)
    body, rows = orjson.dumps({"inputs": texts}), np.random.default_rng(0).normal(size=(4096, DIMENSIONS))
    chain = Chain(parse_steps("r2,pca:128")).fit(rows.astype(np.float32)).fold()
    vectors = torch.from_numpy(rows[:size]).float()
    ours, theirs = (Connection(end.detach()) for end in socket.socketpair())

    def make_part() -> Part:
        return Work(texts, EncodeOptions(), None, False, 256).take(1 << 20)

    part, counts = make_part(), np.ones(size, np.int64)
    parts = [dispatcher.build_message(part)]
    working = worker.Worker(encoder)
    groups = working.tokenize(parts)

    def send_texts() -> None:
        framing.send(ours, {"parts": [dispatcher.build_message(part)]})
        framing.receive(theirs)

    def send_vectors() -> None:
        framing.send(theirs, {"results": [{"raw": False}], "batches": []}, [vectors.numpy(), counts, counts])
        framing.receive(ours)

    stages: dict[str, Callable[[], Any]] = {
        "parsing JSON": lambda: list_texts(validate_json(body, EmbedBody).inputs, size, "inputs"),
        "queue": make_part,
        "framing of texts": send_texts,
        "tokenizing": lambda: working.tokenize(parts),
        "worker without forward passes": lambda: working.encode_message(groups),
        "chain": lambda: chain.floats(vectors),
        "framing of vectors": send_vectors,
        "answer, npy": lambda: dump_npy(vectors.numpy()),
        "answer, JSON": lambda: dump_json(encode_rows(vectors.numpy(), "float")),
    }
    return {name: time_call(stage, size) for name, stage in stages.items()}


def time_call(call: Callable[[], Any], texts: int) -> float:
    """Return the fewest microseconds of a core per text that a call for so many texts took.

    The fewest count because other processes use the cores too.
    """
    seconds = []
    for _ in range(300):
        begun = time.process_time()
        call()
        seconds.append(time.process_time() - begun)
    return round(1e6 * min(seconds) / texts, 1)


if __name__ == "__main__":
    main(sys.argv[1:])
