"""Measures the cost of an encoder behind an embeddings API in speed, and of a kill in calls.

Throughput: as many clients as the encoder makes calls at once send requests of OpenAI's protocol, each with new texts,
directly to an API and through a Lathe whose encoder it is, in alternating rounds without caches. The API is a stub that
takes a fixed time for a call, and another Lathe on the same cores.

Kill: `lathe embed` encodes texts through a stub that fails a share of the calls, is killed once by SIGKILL, and runs
again. The stub counts the texts that it answered; the texts stored at the kill are counted in the store.
"""

import asyncio
import base64
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
from aiohttp import web

from benchmarks.load import Target, closed_loop
from benchmarks.report import parser, write_report
from benchmarks.server import LATHE, Server, own_environment
from lathe.training.encoder.spec import DEFAULT_ENCODER, StoreSettings
from lathe.training.encoder.upstream.space import PROBE_TEXTS
from lathe.training.encoder.upstream.store import UpstreamStore

STUB_DIMENSIONS = 384
ROW = np.random.default_rng(0).standard_normal(STUB_DIMENSIONS).astype(np.float32)
"""Vector that the stub answers for every text, as its speed is not measured."""
STUB_SECONDS = 0.3
"""Time of a call to the stub: hosted APIs take a few tenths of a second for 32 texts."""
PHRASE = "the ledger of the northern harbour is closed at the end of every month"


class Stub:
    """An embeddings API of OpenAI's protocol.

    Args:
        seconds: time of a call.
        failing: share of the calls that fail: half with 503, half after the connection was cut.

    Attributes:
        answered: number of times each text was answered since `/reset`.
        calls: number of calls since then.
    """

    def __init__(self, seconds: float, failing: float) -> None:
        self.seconds, self.failing = seconds, failing
        self.dice = random.Random(0)
        self.answered: Counter[str] = Counter()
        self.calls = 0

    async def embed(self, request: web.Request) -> web.Response:
        """Answer a call, or fail."""
        body = await request.json()
        self.calls += 1
        await asyncio.sleep(self.seconds)
        chance = self.dice.random()
        if chance < self.failing / 2 and request.transport is not None:
            request.transport.close()
        elif chance < self.failing:
            return web.json_response({"error": {"message": "overloaded"}}, status=503)
        texts = body["input"]
        if chance >= self.failing:
            self.answered.update(text for text in texts if text not in PROBE_TEXTS)
        row = base64.b64encode(ROW.tobytes()).decode()
        data = [{"object": "embedding", "index": index, "embedding": row} for index in range(len(texts))]
        return web.json_response({"data": data, "model": "stub", "usage": {"prompt_tokens": 20 * len(texts)}})

    async def reset(self, _request: web.Request) -> web.Response:
        """Return the counts, and set them to zero."""
        counts = {"calls": self.calls, "texts": len(self.answered), "answers": self.answered.total()}
        self.answered, self.calls = Counter(), 0
        return web.json_response(counts)


def serve_stub(seconds: float, failing: float) -> None:
    """Serve the stub on a free port, which is printed, until the process is ended."""

    async def run() -> None:
        stub = Stub(seconds, failing)
        app = web.Application(client_max_size=100_000_000)
        app.add_routes([web.post("/v1/embeddings", stub.embed), web.post("/reset", stub.reset)])
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()

    asyncio.run(run())


@contextmanager
def run_stub(seconds: float, failing: float = 0.0) -> Iterator[str]:
    """Run the stub in a process of its own for the block, and yield its address."""
    command = [sys.executable, "-m", "benchmarks.upstream", "--stub", f"{seconds},{failing}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()


def describe_upstream(url: str, model: str, concurrency: int, batch: int) -> str:
    """Return `LATHE_ENCODERS` with one encoder behind an API."""
    upstream = {"url": f"{url}/v1", "protocol": "openai", "model": model, "concurrency": concurrency}
    return json.dumps([{"name": "far", "upstream": upstream | {"batch_size": batch}}])


def write_bodies(model: str, requests: int, batch: int, salt: str) -> list[bytes]:
    """Return the bodies of requests whose texts are all different."""
    texts = ([f"{salt} {number}.{row}: {PHRASE}" for row in range(batch)] for number in range(requests))
    return [json.dumps({"model": model, "input": inputs, "encoding_format": "base64"}).encode() for inputs in texts]


def compare_throughput(
    url: str, model: str, concurrency: int, batch: int, requests: int, rounds: int
) -> dict[str, Any]:
    """Measure texts per second directly and through a Lathe, alternating, and their ratio."""
    throughput: dict[str, list[float]] = {"direct": [], "through_lathe": []}
    with tempfile.TemporaryDirectory() as home:
        encoders = describe_upstream(url, model, concurrency, batch)
        server = Server(Path(home), LATHE_ENCODERS=encoders, LATHE_CACHE_BYTES="0", LATHE_DRIFT="false")
        try:
            server.wait_for_workers(concurrency)
            for number in range(-1, rounds):  # the first warms both up
                for way, base, name in (("direct", url, model), ("through_lathe", server.url, "far")):
                    bodies = write_bodies(name, requests, batch, f"{way} {number}")
                    load = closed_loop(Target(f"{base}/v1/embeddings"), bodies, concurrency)
                    if set(load.statuses) != {200}:
                        sys.exit(f"{way}: {load.statuses}")
                    if number >= 0:
                        throughput[way].append(requests * batch / load.seconds)
        finally:
            server.stop()
    ratios = [
        through / direct for direct, through in zip(throughput["direct"], throughput["through_lathe"], strict=True)
    ]
    speeds = {f"{way}_texts_a_second": round(median(values), 1) for way, values in throughput.items()}
    shape = {"concurrency": concurrency, "texts_a_call": batch, "calls": requests, "rounds": rounds}
    return shape | speeds | {"ratio": round(median(ratios), 3), "ratios": [round(ratio, 3) for ratio in ratios]}


def kill_once(texts: int, failing: float, seconds: float, concurrency: int, batch: int) -> dict[str, Any]:
    """Kill a job halfway, run it again, and count how many texts were requested from the API in each run."""
    with run_stub(seconds, failing) as url, tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        source, out, store_folder = root / "texts.txt", root / "out.npy", root / "home" / "upstream"
        source.write_text("\n".join(f"{number}: {PHRASE}" for number in range(texts)))
        encoders = describe_upstream(url, "stub", concurrency, batch)
        environment = own_environment(root / "home", LATHE_ENCODERS=encoders)
        command = [*LATHE, "embed", "--source", str(source), "--out", str(out)]
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        while count_stored(store_folder) < texts // 2:
            if process.poll() is not None:
                sys.exit("the job ended before it was killed")
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        stored = count_stored(store_folder)
        first = httpx.post(f"{url}/reset").json()
        subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
        second = httpx.post(f"{url}/reset").json()
        rows = len(np.load(out, mmap_mode="r"))
    return {
        "texts": texts,
        "share_of_failing_calls": failing,
        "concurrency": concurrency,
        "texts_a_call": batch,
        "stored_at_the_kill": stored,
        "first_run": first,
        "second_run": second,
        "stored_texts_asked_for_again": second["texts"] - (texts - stored),
        "answered_twice_because_in_flight_at_the_kill": first["texts"] - stored,
        "answered_twice_in_the_second_run": second["answers"] - second["texts"],
        "rows_written": rows,
    }


def count_stored(folder: Path) -> int:
    """Return the number of stored vectors, or 0 if there is no store yet."""
    if not (folder / "vectors.db").exists():
        return 0
    store = UpstreamStore(StoreSettings(folder))
    count = store.count()
    store.close()
    return count


def main() -> None:
    """Measure, and write the report."""
    options = parser(__doc__)
    options.add_argument("--stub", help="SECONDS,SHARE: serve the stub instead, for the measurements")
    chosen = options.parse_args()
    if chosen.stub:
        serve_stub(*map(float, chosen.stub.split(",")))
        return
    rounds, requests, texts = (1, 40, 1000) if chosen.quick else (3, 120, 10_000)
    with run_stub(STUB_SECONDS) as url:
        stub = compare_throughput(url, "stub", 8, 32, requests, rounds)
    print(json.dumps(stub), flush=True)
    threads = {"LATHE_THREADS": "1", "LATHE_WORKERS": "1", "LATHE_DTYPE": "float32", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as home:
        hosting = Server(Path(home), LATHE_CACHE_BYTES="0", LATHE_DRIFT="false", **threads)
        try:
            hosting.wait_for_workers(1)
            lathe = compare_throughput(hosting.url, DEFAULT_ENCODER.name, 4, 16, max(10, requests // 6), rounds)
        finally:
            hosting.stop()
    print(json.dumps(lathe), flush=True)
    killed = kill_once(texts, 0.2, 0.05, 4, 32)
    print(json.dumps(killed), flush=True)
    figures = {"stub_of_300_ms": stub, "another_lathe": lathe, "killed": killed, "load": round(os.getloadavg()[0], 2)}
    print(write_report(chosen.out, "upstream", figures))


if __name__ == "__main__":
    main()
