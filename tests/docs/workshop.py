"""Where blocks are run: one state folder, one server, one Redis, each started when a block first needs it."""

import io
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from unittest.mock import patch

import httpx2
import numpy as np
import psycopg
from psycopg.conninfo import conninfo_to_dict

from benchmarks.postgres import run_postgres
from lathe.service.chains.registry import STARTERS
from lathe.service.processes.client import ForkedProcess, ForkServer
from lathe.service.processes.program import Program
from tests.docs.blocks import ROOT
from tests.helpers import accepts_connections, eventually, find_free_port

HERE = Path(__file__).resolve().parent
PASSWORD = "correct-horse"
START_SECONDS = 120
STOP_SECONDS = 40

PRELOADED = (
    "sentence_transformers",
    "lathe.service.app",
    "lathe.service.cli.main",
    "lathe.training.fitting.fit",
    "uvicorn",
)
LIBRARIES = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
"""Variables that libraries read when they are imported, which is before a command has its own."""

PG_VARIABLES = {"host": "PGHOST", "user": "PGUSER", "dbname": "PGDATABASE"}
"""Variables of libpq, by the parts of a connection string."""

STAND_INS = {
    "lathe": f'exec "{sys.executable}" -S -E "{HERE}/client.py" lathe "$@"\n',
    "python": f'if [ "$1" = -m ]; then exec "{sys.executable}" -S -E "{HERE}/client.py" python "$@"; fi\n'
    f'exec "{sys.executable}" "$@"\n',
    "pip": f'exec "{sys.executable}" "{HERE}/extras.py" "$@"\n',
}
"""Programs in front of a reader's own: commands start in forks, and nothing is installed."""

PREAMBLE = """curl() { command curl --silent --show-error --fail-with-body --write-out '\\n' "$@"; }\n"""
"""An answer that is an error ends a block, as the exit status of a command does; each answer is a line of its own."""


class CommandServer:
    """Runs the commands of blocks in forks of one process that has imported the libraries.

    Args:
        path: a socket, through which `client.py` asks for commands.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.forks = ForkServer(PRELOADED)
        self.running: list[ForkedProcess] = []
        self.listener: socket.socket | None = None

    def listen(self) -> None:
        """Start the fork server and accept connections. Do nothing if that is done already."""
        if self.listener is not None:
            return
        found = {"PYTHONPATH": str(ROOT)}  # so that `python -m benchmarks…` is
        with patch.dict(os.environ, LIBRARIES | found):
            self.forks.warm_up()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen()
        self.thread = threading.Thread(target=self._start_commands, daemon=True)
        self.thread.start()

    def close(self) -> None:
        """End the commands that still run, and the fork server."""
        if self.listener is None:
            return
        self.listener.shutdown(socket.SHUT_RDWR)  # the thread that accepts gets an error
        self.thread.join()
        self.listener.close()
        try:
            for process in self.running:
                process.terminate()
            for process in self.running:
                process.wait(STOP_SECONDS)
        finally:
            self.forks.close()

    def _start_commands(self) -> None:
        """Start a command for each connection."""
        while (connection := self._accept()) is not None:
            with connection:
                program = Program("tests.docs.command", (), {}, descriptor=connection.fileno())
                self.running = [process for process in self.running if process.poll() is None]
                self.running.append(self.forks.start(program))

    def _accept(self) -> socket.socket | None:
        """Wait for a connection and return it, or None when there will be no more."""
        try:
            return self.listener.accept()[0]
        except OSError:
            return None


class Workshop:
    """State shared by all blocks: a state folder, a server and a Redis.

    Args:
        root: an empty folder.
        fill_home: gives a state folder the vectors of out-of-domain text.
    """

    def __init__(self, root: Path, fill_home: Callable[[Path], None]) -> None:
        self.root = root
        self.home, self.programs, self.running = (root / name for name in ("home", "bin", "running"))
        for folder in (self.home, self.programs, self.running):
            folder.mkdir(parents=True, exist_ok=True)
        fill_home(self.home / ".lathe")
        for name, text in STAND_INS.items():
            (self.programs / name).write_text(f"#!/bin/sh\n{text}")
            (self.programs / name).chmod(0o755)
        (root / "preamble").write_text(PREAMBLE)
        self.processes: list[subprocess.Popen] = []
        self.databases = ExitStack()
        self.commands = CommandServer(root / "commands")

    @cached_property
    def environment(self) -> dict[str, str]:
        """Variables of a block, without those of this process for Lathe: the state folder is ~/.lathe."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("LATHE_", "PYTEST_"))}
        return kept | {
            "PATH": f"{self.programs}:{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin",
            "HOME": str(self.home),
            "BASH_ENV": str(self.root / "preamble"),
            "PYTHONPATH": str(ROOT),
            "DOCS_COMMANDS": str(self.commands.path),
            "DOCS_RUNNING": str(self.running),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "LATHE_DTYPE": "float32",  # so that vectors of out-of-domain text are those of other tests
            "LATHE_THREADS": "1",
            "LATHE_JOB_THREADS": "1",
            "LATHE_JOB_NICE": "0",  # a reader waits for a job, beside other tests that keep the cores busy
        }

    @cached_property
    def log(self) -> Path:
        """File with the server's log and greeting."""
        return self.root / "server.log"

    @cached_property
    def address(self) -> str:
        """HOST:PORT of the server that replaces localhost:8080 of the pages. It is started at first use."""
        self.commands.listen()
        command = [sys.executable, "-S", "-E", str(HERE / "client.py"), "--wait", "lathe", "serve", "--port", "0"]
        with self.log.open("w") as log:
            self.processes.append(
                subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            )
        deadline = time.monotonic() + START_SECONDS
        while "fit-transform" not in self.log.read_text():
            assert self.processes[-1].poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        return re.search(r"http://(127\.0\.0\.1:\d+)", self.log.read_text())[1]

    @cached_property
    def redis(self) -> str:
        """URL of a Redis with a password. It is started at first use."""
        port = find_free_port()
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(self.root), "--save", ""]
        self.processes.append(subprocess.Popen([*command, "--requirepass", PASSWORD], stdout=subprocess.DEVNULL))
        eventually(lambda: accepts_connections(port), START_SECONDS)
        return f"redis://default:{PASSWORD}@127.0.0.1:{port}/0"

    @cached_property
    def postgres(self) -> dict[str, str]:
        """Variables of a PostgreSQL with pgvector for its clients, and a path to psql. It is started at first use."""
        server = self.databases.enter_context(run_postgres())
        settings = conninfo_to_dict(server.url)
        variables = {variable: str(settings[name]) for name, variable in PG_VARIABLES.items()}
        return variables | {"PATH": f"{self.environment['PATH']}:{server.programs}"}

    def fill_articles(self, texts: list[str]) -> None:
        """Create anew the table of articles that pages about PostgreSQL begin with: a row for each text."""
        vectors = np.load(io.BytesIO(self.embed(texts)))
        settings = {name: self.postgres[variable] for name, variable in PG_VARIABLES.items()}
        with psycopg.connect(**settings, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS articles")
            connection.execute("CREATE TABLE articles (id bigserial PRIMARY KEY, title text, embedding vector(384))")
            with connection.cursor() as cursor, cursor.copy("COPY articles (title, embedding) FROM STDIN") as copy:
                for text, vector in zip(texts, vectors, strict=True):
                    copy.write_row((text, str(vector.tolist())))

    def embed(self, texts: list[str]) -> bytes:
        """Return the server's embeddings of texts as .npy bytes."""
        body = {"inputs": texts}
        answer = httpx2.post(
            f"http://{self.address}/embed", json=body, headers={"accept": "application/x-npy"}, timeout=120
        )
        return answer.raise_for_status().content

    def clear(self) -> None:
        """End the servers that a page started, and remove its indexes and chains: pages may use the same names."""
        for mark in self.running.glob("*.pid"):
            with suppress(ProcessLookupError):
                os.kill(int(mark.stem), signal.SIGTERM)
            mark.unlink()
        if "address" in self.__dict__:
            key = (self.home / ".lathe/admin.key").read_text().strip()
            with httpx2.Client(base_url=f"http://{self.address}", headers={"authorization": f"Bearer {key}"}) as client:
                for index in client.get("/indexes").json():
                    client.delete(f"/indexes/{index['name']}").raise_for_status()

        for folder in (self.home / ".lathe/chains").glob("[!.]*/"):
            if not (STARTERS / folder.name).exists():  # the starters are links
                shutil.rmtree(folder)

    def close(self) -> None:
        """Stop all servers and commands, and remove the folder."""
        self.clear()
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            process.wait(STOP_SECONDS)
        self.databases.close()
        self.commands.close()
        shutil.rmtree(self.root, ignore_errors=True)
