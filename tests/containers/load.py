"""Requests for embeddings, sent all the time while something else is tried."""

import http.client
import itertools
import json
import threading
import time
from collections import Counter
from typing import Any

from tests.containers.compose import KEY

PAUSE_SECONDS = 0.05
"""Seconds between two requests of a thread: replicas that start on the same cores need time too."""


class Load:
    """Threads that each send one request after the other, on new connections every ten.

    Args:
        threads: number of threads.
        key: API key.

    Attributes:
        statuses: number of answers by status; "lost": no answer.
        slowest: seconds of the slowest request.
    """

    def __init__(self, threads: int = 4, key: str = KEY) -> None:
        self.key = key
        self.statuses: Counter[str] = Counter()
        self.slowest = 0.0
        self._stopped = threading.Event()
        self._numbers = itertools.count()
        self._threads = [threading.Thread(target=self._send_all) for _ in range(threads)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _send_all(self) -> None:
        """Send requests until stopped."""
        connection = http.client.HTTPConnection("127.0.0.1", 8080, timeout=60)
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        while not self._stopped.is_set():
            number, began = next(self._numbers), time.monotonic()
            try:
                connection.request("POST", "/embed", json.dumps({"inputs": f"Text number {number}"}), headers)
                answer = connection.getresponse()
                answer.read()
                status = str(answer.status)
            except (OSError, http.client.HTTPException):
                status = "lost"
            if status == "lost" or number % 10 == 0:
                connection.close()
            self.statuses[status] += 1
            self.slowest = max(self.slowest, time.monotonic() - began)
            self._stopped.wait(PAUSE_SECONDS)

    def summarize(self) -> dict[str, Any]:
        """Return the figures: answers by status, how many were not 200, and the slowest."""
        return {
            "requests": self.statuses.total(),
            "not_200": self.statuses.total() - self.statuses["200"],
            "statuses": dict(self.statuses),
            "slowest_seconds": round(self.slowest, 2),
        }
