"""Large bodies: `/reduce` of npy and JSON, beside the same product in this process.

    git worktree add /tmp/before REVISION
    python -m benchmarks.bodies --before /tmp/before

Server and process have one thread each, and take turns request by request. The product is that of the folded chain, as
the server computes it, and that of the chain's own steps. With `--before`, the server of another checkout takes turns
too.
"""

import http.client
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import orjson
import torch
from numpy.typing import NDArray

from benchmarks.front import ROOT, start
from benchmarks.report import markdown_table, parser, write_report
from lathe.service.chains.registry import Registry
from lathe.transforms import Chain, parse_steps

NPY = "application/x-npy"
SHAPES = {"4,096 × 384 to 128": (4096, 384, 128), "8,192 × 1,024 to 256": (8192, 1024, 256)}
JSON_ROWS = 512
"""Rows of the JSON body: of the first shape, a text of 4 MB."""
FIT_ROWS = 3000
WARM_REQUESTS = 5

Figures = dict[str, Any]
Rows = NDArray[np.float32]


def main() -> None:
    """Measure all sides in turns, write the raw JSON, and print the table."""
    options = parser(__doc__)
    options.add_argument("--before", type=Path, help="folder of another checkout, measured in turns with this one")
    options.add_argument("--requests", type=int, default=60, help="of each kind and side")
    arguments = options.parse_args()
    requests = 10 if arguments.quick else arguments.requests
    torch.set_num_threads(1)
    sides = {"now": ROOT} | ({"before": arguments.before.resolve()} if arguments.before else {})
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        homes = {name: Path(folder) / name for name in sides}
        settings = {"LATHE_THREADS": "1", "LATHE_MAX_BODY_BYTES": "64000000", "OMP_NUM_THREADS": "1"}
        servers = {name: start(stack, place, homes[name], **settings) for name, place in sides.items()}
        for label, shape in SHAPES.items():
            chain, rows = fit_chain(*shape)
            for home in homes.values():
                Registry(home / "chains").publish(chain, f"c{shape[1]}", None)
            posts = {
                f"npy, {name}": make_post(server.url, f"c{shape[1]}", serialize_npy(rows), NPY)
                for name, server in servers.items()
            }
            products: dict[str, Callable[[], object]] = {
                "folded": partial(chain.fold().transform, rows),
                "steps": partial(chain.transform, rows),
            }
            figures[label] = measure_in_turns({**posts, **products}, requests)
        figures["JSON"] = measure_json({name: server.url for name, server in servers.items()}, requests)
    path = write_report(arguments.out, "bodies", figures)
    print(format_table(figures))
    print(f"\n{path}", file=sys.stderr)


def fit_chain(count: int, width: int, dimensions: int) -> tuple[Chain, Rows]:
    """Return a chain from `width` to `dimensions` and unit vectors `(count, width)` that share a direction."""
    rows = np.random.default_rng(0).normal(size=(count, width)).astype(np.float32) + 0.5
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    chain = Chain(parse_steps(f"r2,geopres:steps=2,dimensions={dimensions}"))
    chain.fit(rows[:FIT_ROWS])
    return chain, rows


def serialize_npy(rows: Rows) -> bytes:
    """Return rows as a .npy file."""
    file = io.BytesIO()
    np.save(file, rows)
    return file.getvalue()


def make_post(url: str, chain: str, body: bytes, media_type: str) -> Callable[[], bytes]:
    """Return a function that posts a body to `/reduce` on a connection that stays open, and reads the answer."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port)
    headers = {"content-type": media_type, "accept": media_type}

    def post() -> bytes:
        connection.request("POST", f"/reduce?chain={chain}", body, headers)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {content[:300]!r}")
        return content

    return post


def measure_in_turns(calls: Mapping[str, Callable[[], object]], count: int) -> Figures:
    """Time each call `count` times, in turns. Return the median, least and greatest milliseconds of each."""
    for call in calls.values():
        for _ in range(WARM_REQUESTS):
            call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(count):
        for name, call in calls.items():
            begun = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - begun)
    return {
        name: [round(1000 * value, 2) for value in (statistics.median(found), min(found), max(found))]
        for name, found in seconds.items()
    }


def measure_json(urls: dict[str, str], count: int) -> Figures:
    """Time a JSON body beside parsing it and writing an answer of the same size."""
    _, rows = fit_chain(*SHAPES["4,096 × 384 to 128"])
    body = orjson.dumps({"vectors": rows[:JSON_ROWS], "chain": "c384"}, option=orjson.OPT_SERIALIZE_NUMPY)
    posts = {f"JSON, {name}": make_post(url, "c384", body, "application/json") for name, url in urls.items()}
    reduced = np.array(orjson.loads(next(iter(posts.values()))())["vectors"], np.float32)

    def parse_and_dump() -> None:
        orjson.loads(body)
        orjson.dumps({"vectors": reduced}, option=orjson.OPT_SERIALIZE_NUMPY)

    return measure_in_turns({**posts, "parse and dump": parse_and_dump}, count)


def format_table(figures: Figures) -> str:
    """Format the milliseconds of each call, and the ratios to what this process computes."""
    rows = []
    for label, calls in figures.items():
        least = next(name for name in ("folded", "parse and dump") if name in calls)
        for name, (median, fewest, _) in calls.items():
            ratio = f"{median / calls[least][0]:.2f}"
            to_steps = f"{median / calls['steps'][0]:.2f}" if "steps" in calls else ""
            rows.append([label, name, f"{median:.1f}", f"{fewest:.1f}", ratio, to_steps])
    return markdown_table(["", "", "median ms", "least", "to the least work", "to the chain's steps"], rows)


if __name__ == "__main__":
    main()
