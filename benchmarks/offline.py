"""Compares `lathe embed` with the server on the same texts: short ones, and long ones of about 256 tokens.

The time of `lathe embed` includes its start. To leave the start out, the program also runs on a small part of the
texts: the rate is the number of the other texts, divided by the difference of the two times. The server answers batches
of 32 texts, four at a time.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from benchmarks.report import markdown_table, parser, write_report
from benchmarks.serve import (
    BATCH,
    BATCH_CONCURRENCY,
    make_bodies,
    measure_alternating,
    require_answers,
    summarize_values,
)
from benchmarks.server import LATHE, Server, own_environment
from benchmarks.sockets import closed_loop
from benchmarks.texts import read_texts

PART = 10
"""Number of texts for each text of the small part."""
LONG_TEXT_CHARACTERS = 1100
"""Characters of a long text, about 256 English tokens."""


def main() -> None:
    """Measure both sides alternating, write the raw JSON, and print the table."""
    options = parser(__doc__)
    options.add_argument("--texts", default="pydoc:", help="source of texts")
    options.add_argument("--count", type=int, default=5000, help="of short texts; a quarter as many are long")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--dtype", default="bfloat16")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.count, arguments.rounds = 400, 1
    texts = read_texts(arguments.texts, arguments.count)
    kinds = {"short": [text[:130] for text in texts], "long": join_texts(texts, arguments.count // 4)}
    figures: dict[str, Any] = {"dtype": arguments.dtype}
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder) / "home", LATHE_CACHE_BYTES="0", LATHE_DTYPE=arguments.dtype)
        try:
            server.wait_for_workers(2)
            for kind, chosen in kinds.items():
                whole: list[float] = []
                sides = list_sides(server, chosen, Path(folder), arguments.dtype, whole)
                characters = sum(map(len, chosen)) / len(chosen)
                figures[kind] = {"count": len(chosen), "mean_characters": round(characters, 1)}
                figures[kind] |= measure_alternating(sides, arguments.rounds)
                figures[kind]["embed with its start"] = summarize_values([len(chosen) / seconds for seconds in whole])
        finally:
            server.stop()
    path = write_report(arguments.out, "offline", figures)
    header = ["texts", "characters", "lathe embed", "with its start", "server", "lathe embed to server"]
    rows = [[kind, str(figures[kind]["mean_characters"]), *describe(figures[kind])] for kind in kinds]
    print(markdown_table(header, rows))
    print(f"\n{path}", file=sys.stderr)


def join_texts(texts: list[str], count: int) -> list[str]:
    """Join texts by spaces, and cut `count` texts of `LONG_TEXT_CHARACTERS` characters from them."""
    text = " ".join(texts)
    while len(text) < count * LONG_TEXT_CHARACTERS:
        text = f"{text} {text[1:]}"
    return [text[place * LONG_TEXT_CHARACTERS :][:LONG_TEXT_CHARACTERS] for place in range(count)]


def list_sides(
    server: Server, texts: list[str], folder: Path, dtype: str, whole: list[float]
) -> dict[str, Callable[[], float]]:
    """Return a function for each side that measures its texts per second.

    Args:
        server: the server.
        texts: texts to encode.
        folder: folder for files.
        dtype: dtype of the encoder.
        whole: list to which the function of `lathe embed` appends the seconds for all texts, start included. Its rate
            leaves the start out.
    """
    files = {"all": texts, "part": texts[: len(texts) // PART]}
    for name, chosen in files.items():
        (folder / f"{name}.jsonl").write_bytes(b"".join(orjson.dumps({"text": text}) + b"\n" for text in chosen))
    bodies = make_bodies(texts, "all-MiniLM-L6-v2", BATCH)
    require_answers(closed_loop(f"{server.url}/v1/embeddings", bodies, BATCH_CONCURRENCY))  # warms the workers
    run = partial(run_program, folder, dtype)

    def embed() -> float:
        """Return the texts per second of `lathe embed` without its start."""
        part = run("part")
        whole.append(run("all"))
        return (len(texts) - len(files["part"])) / (whole[-1] - part)

    def request_server() -> float:
        """Return the texts per second of the server."""
        return (
            len(texts) / require_answers(closed_loop(f"{server.url}/v1/embeddings", bodies, BATCH_CONCURRENCY)).seconds
        )

    return {"embed": embed, "server": request_server}


def run_program(folder: Path, dtype: str, name: str) -> float:
    """Run `lathe embed` on the file NAME.jsonl of a folder and return its wall time in seconds."""
    environment = own_environment(folder / "program", LATHE_DTYPE=dtype) | {"PATH": os.environ["PATH"]}
    command = [*LATHE, "embed", "--source", f"{folder / name}.jsonl", "--out", str(folder / f"{name}.npy")]
    begun = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begun


def describe(figures: dict[str, Any]) -> list[str]:
    """Format one kind of texts as cells: three medians in texts per second, and the ratio with its range."""
    ratio = figures["embed/server"]
    rates = [f"{figures[side]['median']:.0f}" for side in ("embed", "embed with its start", "server")]
    return [*rates, f"{ratio['median']:.2f} ({ratio['least']:.2f} to {ratio['greatest']:.2f})"]


if __name__ == "__main__":
    main()
