"""Load on a server by closed loops, which send as answers come, and open loops, which send at a rate."""

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field

import aiohttp
import numpy as np

TIMEOUT = aiohttp.ClientTimeout(total=600)


@dataclass
class Load:
    """Outcome of a series of requests.

    Attributes:
        seconds: seconds from the first request to the last answer.
        latencies: seconds of each request answered 200, in the order of the answers.
        inside: milliseconds that each of them waited and was worked on by the server's own clock, if it says so.
        statuses: number of answers of each status; 0 for no answer.
        bodies: the answers, where they were to be kept.
    """

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    inside: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    bodies: dict[int, bytes] = field(default_factory=dict)

    def percentile(self, percent: float) -> float:
        """Return a percentile of the latencies, in milliseconds."""
        return round(1000 * float(np.percentile(self.latencies, percent)), 2)


@dataclass(frozen=True)
class Target:
    """URL and headers of requests."""

    url: str
    content_type: str = "application/json"
    accept: str = "*/*"

    @property
    def headers(self) -> dict[str, str]:
        """Headers of each request."""
        return {"content-type": self.content_type, "accept": self.accept}


def closed_loop(target: Target, bodies: list[bytes], concurrency: int, keep: bool = False) -> Load:
    """Send all bodies, a number of them at a time, each as soon as an earlier one is answered."""
    return asyncio.run(run_closed(target, bodies, concurrency, keep))


def open_loop(target: Target, bodies: list[bytes], rate: float, seed: int = 0, from_due: bool = True) -> Load:
    """Send all bodies at random moments at a rate per second, without waiting for answers.

    Latency counts from the moment a request was due, or with `from_due` off from when it was sent: under more load than
    the machine can even send, the first would measure this client.
    """
    return asyncio.run(run_open(target, bodies, rate, seed, from_due))


async def run_closed(target: Target, bodies: list[bytes], concurrency: int, keep: bool) -> Load:
    """Run `closed_loop` in an event loop."""
    load, remaining = Load(), iter(enumerate(bodies))
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=TIMEOUT) as session:

        async def client() -> None:
            for index, body in remaining:
                await send(session, target, body, load, time.perf_counter(), index if keep else None)

        begun = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(concurrency)))
        load.seconds = time.perf_counter() - begun
    return load


async def run_open(target: Target, bodies: list[bytes], rate: float, seed: int, from_due: bool) -> Load:
    """Run `open_loop` in an event loop."""
    load, dice = Load(), random.Random(seed)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=TIMEOUT) as session:
        begun = due = time.perf_counter()
        sent = []
        for body in bodies:
            due += dice.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            since = due if from_due else time.perf_counter()
            sent.append(asyncio.ensure_future(send(session, target, body, load, since, None)))
        await asyncio.gather(*sent)
        load.seconds = time.perf_counter() - begun
    return load


async def send(
    session: aiohttp.ClientSession, target: Target, body: bytes, load: Load, begun: float, keep: int | None
) -> None:
    """Send one request and add its outcome to the load."""
    try:
        async with session.post(target.url, data=body, headers=target.headers) as answer:
            content = await answer.read()
    except aiohttp.ClientError:
        load.statuses[0] += 1
        return
    load.statuses[answer.status] += 1
    if answer.status == 200:
        load.latencies.append(time.perf_counter() - begun)
        load.inside.append(sum(float(answer.headers.get(name, 0)) for name in ("x-queue-time", "x-inference-time")))
    if keep is not None:
        load.bodies[keep] = content
