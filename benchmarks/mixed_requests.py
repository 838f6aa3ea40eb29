"""Measures the memory of a server and its encoders over requests with every dimension, side, prompt and chain.

Clients choose these freely. What a server stores for each choice has to be bounded, or any client can fill its memory.
"""

import itertools
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import orjson

from benchmarks.attacks import read_megabytes
from benchmarks.report import markdown_table, parser, write_report
from benchmarks.server import Server
from benchmarks.start import describe_process, list_descendants
from lathe.training.encoder.spec import DEFAULT_MODEL

REQUESTS, POINTS = 10_000, 10
PROMPTS = {"query": "query: ", "document": "passage: ", "title": "title: "}
ENCODERS = [
    {"name": "plain", "model": DEFAULT_MODEL},
    {"name": "prompted", "model": DEFAULT_MODEL, "prompts": PROMPTS},
]
WIDTH = 384
FORMATS = ("float", "base64")


def choose_request(random_: random.Random, chains: dict[str, int | None]) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a request.

    Some of its choices do not fit together, and are answered 4xx.

    Args:
        random_: source of the choices.
        chains: dimensions to which each chain can be cut, by name; None for one that cannot be cut.
    """
    text = f"text {random_.randrange(10**9)}"
    name = random_.choice([*chains, "none"])
    body: dict[str, Any] = {"chain": name}
    if size := chains.get(name):
        body["dimensions"] = random_.randint(1, size)
    if random_.random() < 0.5:
        body["input_type"] = random_.choice(["query", "document"])
    path = random_.choice(["/embed", "/v1/embeddings", "/reduce"])
    if path == "/reduce":
        vector = [random_.gauss(0, 1) for _ in range(WIDTH)]
        return path, body | {"vectors": [vector]}
    encoder = "prompted" if name == "nested-prompted" else random_.choice(["plain", "plain", "prompted"])
    if encoder == "prompted":
        body["prompt_name"] = random_.choice([None, *PROMPTS])
    if path == "/embed":
        return path, body | {"inputs": text, "model": encoder, "normalize": random_.random() < 0.5}
    model = f"{encoder}+{body.pop('chain')}"
    return path, body | {"input": text, "model": model, "encoding_format": random_.choice(FORMATS)}


def fit_chains(server: Server) -> dict[str, int | None]:
    """Fit a nested chain of each encoder, and return the dimensions to which each chain can be cut, by name."""
    for encoder in ("plain", "prompted"):
        steps = [{"kind": "geopres", "dimensions": 256, "nested": True, "steps": 50}]
        source = {"path": "pydoc:topics"}
        job = server.call(
            "POST", "/fit-transform", name=f"nested-{encoder}", steps=steps, source=source, encoder=encoder
        )
        while (done := server.call("GET", f"/jobs/{job['job_id']}"))["state"] not in ("succeeded", "failed"):
            time.sleep(0.5)
        if done["state"] == "failed":
            sys.exit(done["error"])
    sizes = {chain["name"]: None for chain in server.call("GET", "/chains")}
    return sizes | {f"nested-{encoder}": 256 for encoder in ("plain", "prompted")}


def measure_memory(server: Server) -> dict[str, float]:
    """Return the resident megabytes of the server and of its encoders together."""
    workers = [
        process for process in list_descendants(server.process.pid) if "engine.worker" in describe_process(process)
    ]
    return {
        "server": read_megabytes(server.process.pid, "VmRSS"),
        "encoders": round(sum(read_megabytes(worker, "VmRSS") for worker in workers), 1),
    }


def main() -> None:
    """Send the requests, print the memory as a table, and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--requests", type=int, default=REQUESTS)
    options.add_argument("--checkout", help="folder of another checkout to measure instead")
    arguments = options.parse_args()
    count = arguments.requests // 20 if arguments.quick else arguments.requests
    random_ = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        settings = {"LATHE_ENCODERS": orjson.dumps(ENCODERS).decode(), "LATHE_WORKERS": "1"}
        server = Server(Path(folder), checkout=arguments.checkout, **settings)
        try:
            chains = fit_chains(server)
            statuses: Counter[int] = Counter()
            points = [{"requests": 0} | measure_memory(server)]
            for number in itertools.count(1):
                path, body = choose_request(random_, chains)
                statuses[server.client.post(path, json=body).status_code] += 1
                if number % max(count // POINTS, 1) == 0:
                    points.append({"requests": number} | measure_memory(server))
                    print(points[-1], dict(statuses), file=sys.stderr)
                if number == count:
                    break
        finally:
            server.stop()
    rows = [[f"{point['requests']:,}", f"{point['server']:.0f}", f"{point['encoders']:.0f}"] for point in points]
    print(markdown_table(["requests", "server, MB", "encoders, MB"], rows))
    figures = {"points": points, "statuses": dict(statuses), "chains": list(chains)}
    print("raw figures:", write_report(arguments.out, "mixed_requests", figures), file=sys.stderr)


if __name__ == "__main__":
    main()
