"""A real server for measurements, in a process of its own."""

import base64
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from benchmarks.search_path import search_path

UPSERTED = 2000
"""Rows of a request that fills an index."""
LATHE = [sys.executable, "-P", "-c", "from lathe.service.cli.main import main; main()"]


def own_environment(home: Path, **settings: str) -> dict[str, str]:
    """Return environment variables for Lathe with a state folder and settings of its own.

    No other `LATHE_` variables are passed on, such as those of other indexes, keys or encoders.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LATHE_")}
    return clean | {"LATHE_HOME": str(home)} | settings


class Server:
    """A `lathe serve` in a process of its own, with a client that has the admin key."""

    name = "lathe"
    command: tuple[str, ...] = (*LATHE, "serve", "--port", "0")

    def __init__(
        self,
        home: Path,
        admin_key: str | None = None,
        lathe: Sequence[str] | None = None,
        checkout: str | None = None,
        **settings: str,
    ) -> None:
        """Start the server and wait for its greeting.

        Args:
            home: its state folder.
            admin_key: admin key if LATHE_ADMIN_KEYS is set; None reads the one in the folder.
            lathe: command of another installation, which then runs outside of this checkout.
            checkout: folder of another checkout, which `lathe` then runs in.
            settings: environment variables.
        """
        environment = own_environment(home, **settings)
        if lathe is not None:
            environment.pop("PYTHONPATH", None)
        if checkout is not None:
            environment["PYTHONPATH"] = search_path(Path(checkout))
        # Another installation runs elsewhere: what lies in this folder would be imported in its place.
        outside = None if lathe is None else tempfile.gettempdir()
        self.process = subprocess.Popen(
            self.command if lathe is None else (*lathe, "serve", "--port", "0"),
            env=environment,
            cwd=checkout or outside,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        greeting = ""
        while "fit-transform" not in greeting:
            line = self.process.stderr.readline() if self.process.stderr else ""
            if not line:
                sys.exit(f"the server did not start:\n{greeting}")
            greeting += line
        threading.Thread(target=self.process.stderr.read, daemon=True).start()  # type: ignore[union-attr]
        match = re.search(r"http://127\.0\.0\.1:\d+", greeting)
        self.url = str(match and match[0])
        key = admin_key or (home / "admin.key").read_text().strip()
        self.client = httpx.Client(base_url=self.url, timeout=600, headers={"authorization": f"Bearer {key}"})

    def wait_for_workers(self, count: int) -> None:
        """Wait until a number of processes of the first encoder are ready, as the server is ready with the first."""
        while self.call("GET", "/encoders")[0].get("workers", 0) < count:
            time.sleep(0.2)

    def call(self, method: str, path: str, **body: Any) -> Any:
        """Send a request, and return the JSON of its answer.

        Raises:
            SystemExit: if the answer is not one of success.
        """
        answer = self.client.request(method, path, json=body or None)
        if answer.status_code >= 300:
            sys.exit(f"{method} {path}: {answer.status_code} {answer.text[:500]}")
        return answer.json()

    def memory(self, field: str = "VmHWM") -> int:
        """Return the peak of its resident bytes, or with `VmRSS` the current ones."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(rf"{field}:\s+(\d+) kB", status)
        return 1024 * int(match[1]) if match else 0

    def stop(self) -> None:
        """End the server in order, and wait for its end."""
        self.client.close()
        self.process.terminate()
        self.process.wait(60)


def fill_index(server: Server, vectors: NDArray[np.float32], **settings: Any) -> None:
    """Create the index `bench`, upsert vectors whose ids are their numbers, and wait until all rows are linked.

    Rows that are not linked are searched exactly, which would be timed as well.
    """
    server.call("PUT", "/indexes/bench", **settings)
    for start in range(0, len(vectors), UPSERTED):
        part = vectors[start : start + UPSERTED]
        ids = [str(number) for number in range(start, start + len(part))]
        server.call("POST", "/indexes/bench/upsert", ids=ids, vectors=encode_base64(part))
    while server.call("GET", "/indexes/bench")["in_graph"] < len(vectors):
        time.sleep(0.05)


def encode_base64(rows: NDArray[np.float32]) -> list[str]:
    """Encode rows as base64, which the routes parse faster than lists of floats."""
    return [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in rows]
