"""ASGI servers compared on an application that answers a constant body, and parsers compared on a request body.

    python -m venv other && other/bin/pip install granian uvicorn httptools uvloop msgspec
    python -m benchmarks.asgi --python other/bin/python

Each server has one core and one thread, and the client another core. The figures are upper bounds of what another
server or parser could gain.
"""

import itertools
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from benchmarks.report import markdown_table, parser, write_report
from benchmarks.serve import Figures, measure_alternating, require_answers
from benchmarks.sockets import closed_loop, find_free_port

APPLICATION = """
BODY = b"[[" + b",".join([b"0.0123456"] * 384) + b"]]"
HEAD = [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())]

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            event = (await receive())["type"]
            await send({"type": event + ".complete"})
            if event == "lifespan.shutdown":
                return
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": HEAD})
    await send({"type": "http.response.body", "body": BODY})
"""
BODY = b'{"inputs": "The net sales rose by 12 % from the year before, said the company on Tuesday.", "normalize": true}'
PARSERS = f"""
import timeit
from typing import Literal
import msgspec
from pydantic import BaseModel
class Struct(msgspec.Struct, forbid_unknown_fields=True):
    inputs: str | list[str]
    normalize: bool = True
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] = "float"
class Model(BaseModel, extra="forbid"):
    inputs: str | list[str]
    normalize: bool = True
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] = "float"
body = {BODY!r}
for parse in (msgspec.json.Decoder(Struct).decode, Model.model_validate_json):
    print(min(timeit.repeat(lambda: parse(body), number=20000, repeat=5)) / 20000)
"""


def main() -> None:
    """Measure, write the raw JSON, and print the table."""
    options = parser(__doc__)
    options.add_argument("--python", type=Path, required=True, help="Python with granian, uvicorn and msgspec")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds = 1, 0.5
    os.sched_setaffinity(0, {1})
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        (Path(folder) / "application.py").write_text(APPLICATION)
        start = partial(start_server, stack, arguments.python.absolute(), folder)
        urls = {
            "granian": start("granian", "--interface", "asgi", "--no-access-log", "--workers", "1"),
            "uvicorn": start("uvicorn", "--http", "httptools", "--no-access-log", "--log-level", "warning"),
        }
        for connections in (1, 32):
            sides: dict[str, Callable[[], float]] = {
                name: partial(measure_rate, url, connections, arguments.seconds) for name, url in urls.items()
            }
            figures[f"{connections} connections"] = measure_alternating(sides, arguments.rounds)
    done = subprocess.run([arguments.python, "-c", PARSERS], check=True, capture_output=True, text=True)
    microseconds = [round(1e6 * float(line), 3) for line in done.stdout.split()]
    figures["microseconds to parse"] = dict(zip(("msgspec", "pydantic"), microseconds, strict=True))
    path = write_report(arguments.out, "asgi", figures)
    rows = [
        [name, *(f"{figures[name][side]['median']:.0f}" for side in urls), str(figures[name]["granian/uvicorn"])]
        for name in list(figures)[:2]
    ]
    print(markdown_table(["requests a second", *urls, "granian to uvicorn"], rows))
    print(f"{figures['microseconds to parse']}\n\n{path}", file=sys.stderr)


def start_server(stack: ExitStack, python: Path, folder: str, module: str, *options: str) -> str:
    """Start a server of the application on the first core, and return its URL.

    The server ends with the stack.
    """
    port = find_free_port()
    command = [str(python), "-m", module, "application:app", "--port", str(port), "--loop", "uvloop", *options]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, preexec_fn=use_first_core)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    while process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return f"http://127.0.0.1:{port}/"
        time.sleep(0.1)
    sys.exit(f"{module} did not start")


def use_first_core() -> None:
    """Pin this process to the first core."""
    os.sched_setaffinity(0, {0})


def measure_rate(url: str, connections: int, seconds: float) -> float:
    """Return the requests answered per second over a number of connections for some seconds."""
    load = require_answers(closed_loop(url, itertools.repeat(BODY), connections, seconds))
    return load.statuses[200] / load.seconds


if __name__ == "__main__":
    main()
