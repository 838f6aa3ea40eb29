"""A real server to measure, in a process of its own."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx

LATHE = [sys.executable, "-c", "from service.cli.main import main; main()"]


class Server:
    """A `lathe serve` of its own, and a client with the admin key."""

    def __init__(self, home: Path) -> None:
        environment = os.environ | {"LATHE_HOME": str(home)}
        self.process = subprocess.Popen(
            [*LATHE, "serve", "--port", "0"], env=environment, stderr=subprocess.PIPE, text=True
        )
        greeting = ""
        while "fit-transform" not in greeting:
            line = self.process.stderr.readline() if self.process.stderr else ""
            if not line:
                sys.exit(f"the server did not start:\n{greeting}")
            greeting += line
        threading.Thread(target=self.process.stderr.read, daemon=True).start()  # type: ignore[union-attr]
        found = re.search(r"http://127\.0\.0\.1:\d+", greeting)
        key = (home / "admin.key").read_text().strip()
        self.client = httpx.Client(
            base_url=str(found and found[0]), timeout=600, headers={"authorization": f"Bearer {key}"}
        )

    def call(self, method: str, path: str, **body: Any) -> Any:
        """The JSON of an answer that must be one of success."""
        answer = self.client.request(method, path, json=body or None)
        if answer.status_code >= 300:
            sys.exit(f"{method} {path}: {answer.status_code} {answer.text[:500]}")
        return answer.json()

    def memory(self) -> int:
        """The most bytes it had resident."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        return 1024 * int(found[1]) if found else 0

    def stop(self) -> None:
        """Let it end in order."""
        self.client.close()
        self.process.terminate()
        self.process.wait(60)
