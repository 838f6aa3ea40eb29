import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import httpx2
import numpy as np
import psycopg
import pytest
import redis
from psycopg.conninfo import make_conninfo
from starlette.testclient import TestClient

from benchmarks.postgres import run_postgres
from lathe.service.app import create_app
from lathe.service.chains.registry import STARTERS, Registry
from lathe.service.home import Home
from lathe.service.processes.client import create_process_starter
from lathe.service.redis.replica import Replica
from lathe.service.settings import read_settings
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_MODEL
from lathe.training.sources.readers import extract_paragraphs, read_docstrings
from lathe.transforms import Chain, certify, parse_steps
from tests.helpers import LATHE, eventually, find_free_port
from tests.service.memory import MemoryWatch

SENTENCES = [
    "The ledger is closed at the end of every month.",
    "A lathe turns wood or metal against a cutting tool.",
    "Rain is expected over the northern hills tonight.",
    "The committee postponed its decision until spring.",
    "Interest rates were left unchanged by the central bank.",
    "She planted tomatoes behind the old stone wall.",
]


@pytest.fixture(autouse=True, scope="session")
def clean_environment():
    """Unset all `LATHE_` variables, and set float32, one worker and thread of each kind, and the priority of jobs."""
    for name in [name for name in os.environ if name.startswith("LATHE_")]:
        del os.environ[name]
    os.environ["LATHE_DTYPE"] = "float32"  # what the tests compare holds to 1e-5 there
    os.environ["LATHE_JOB_NICE"] = "0"  # tests wait for jobs, beside other tests that keep the cores busy
    for name in ("LATHE_WORKERS", "LATHE_THREADS", "LATHE_JOB_THREADS"):  # more would wait for a core, at full speed
        os.environ[name] = "1"


def is_ready(client):
    """Return whether `/health/ready` answers 200."""
    return client.get("/health/ready").status_code == 200


def children_of(process, module):
    """Return the ids of a process's children whose command line names a module."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            command = (folder / "cmdline").read_bytes()
        except OSError:  # it ended while we looked
            continue
        if int(parent) == process and module.encode() in command:
            found.append(int(folder.name))
    return found


class LiveServer:
    """A `lathe serve` in a process of its own."""

    def __init__(self, home, port=0, **environment):
        self.home = home
        self.environment = os.environ | {"LATHE_HOME": str(home)} | environment
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            [*LATHE, "serve", "--port", str(port)], env=self.environment, stderr=subprocess.PIPE, text=True
        )
        self.greeting = []
        self.reader = threading.Thread(target=lambda: self.greeting.extend(self.process.stderr), daemon=True)
        self.reader.start()
        self.url = self.wait_for_url()
        self.client = httpx2.Client(base_url=self.url, timeout=60)

    def wait_for_url(self):
        while time.monotonic() - self.begun < 90:
            if self.process.poll() is not None:
                raise AssertionError("".join(self.greeting))
            found = re.search(r"http://127\.0\.0\.1:\d+", "".join(self.greeting))
            if found and "fit-transform" in "".join(self.greeting):
                return found[0]
            time.sleep(0.05)
        raise AssertionError("the server did not greet in time")

    @property
    def admin(self):
        return {"authorization": f"Bearer {(self.home / 'admin.key').read_text().strip()}"}

    def workers(self):
        """The process ids of its encoders' processes."""
        (fork_server,) = children_of(self.process.pid, "lathe.service.processes.fork_server")
        return children_of(fork_server, "lathe.service.encoders.engine.worker")

    def wait(self, job_id, *states, seconds=120):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            job = self.client.get(f"/jobs/{job_id}").json()
            if job["state"] in states:
                return job
            time.sleep(0.1)
        raise AssertionError(f"{job} did not become {states}")

    def submit(self, texts, name="mine", size=32):
        steps = [{"kind": "r2"}, {"kind": "geopres", "dimensions": size, "steps": 20}]
        body = {"name": name, "steps": steps, "source": {"texts": texts}}
        answer = self.client.post("/fit-transform", json=body, headers=self.admin)
        assert answer.status_code == 202, answer.text
        return answer.json()["job_id"]

    def stop(self, how=signal.SIGTERM):
        self.client.close()
        self.process.send_signal(how)
        status = self.process.wait(40)
        self.reader.join(5)
        self.process.stderr.close()
        return status


class MilvusServer:
    """A Milvus Lite in a process of its own, spoken to as any Milvus is."""

    def __init__(self, folder, port):
        self.folder, self.port = folder, port
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        command = [sys.executable, "-m", "milvus_lite", "server", "--data-dir", str(self.folder)]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually(self.answers)

    def answers(self):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True

    def stop(self):
        self.process.kill()  # it misses an interrupt that comes while it starts
        self.process.wait(30)


class AppUnderTest:
    """An app in this process, its client, and its admin's headers."""

    def __init__(self, client, services, settings):
        self.client = client
        self.settings = settings
        self.services = services
        self.admin = {"authorization": f"Bearer {self.services.keys.admin[0]}"} if self.services.keys.admin else {}


@pytest.fixture(scope="session")
def serving():
    """Start a real server on a state folder, with settings as variables. It ends with the block."""

    @contextlib.contextmanager
    def start(home, port=0, **environment):
        server = LiveServer(home, port, **environment)
        try:
            yield server
        finally:
            server.stop()

    return start


class SharedStarter:
    """Starts the processes of all apps under test. No app's end ends it."""

    def __init__(self, starter):
        self.warm_up, self.start = starter.warm_up, starter.start

    def close(self):
        pass


@pytest.fixture(scope="session")
def processes(clean_environment):
    """Share one starter of the processes of encoders and jobs among all apps and engines under test."""
    starter = create_process_starter("cpu")
    yield SharedStarter(starter)
    starter.close()


@pytest.fixture(scope="session")
def memory():
    """Watch the memory that the requests to all apps under test take."""
    import faiss  # noqa: F401  # the first request that takes it would seem to take 60 MB

    return MemoryWatch()


@pytest.fixture(autouse=True)
def bounded_memory(memory):
    """Fail a test if one of its requests made its app take much more memory than its body."""
    yield
    excessive, memory.excessive = memory.excessive, []
    assert not excessive


@pytest.fixture(scope="session")
def start_app(processes, memory):
    """Start an app with settings of its own, and wait until it serves, or its indexes do. It ends with the block."""

    @contextlib.contextmanager
    def start(indexes_only=False, **settings):
        built = read_settings(**settings)
        app = create_app(built, processes)
        watched = memory.around(app)
        with TestClient(watched, base_url="http://localhost", raise_server_exceptions=False) as client:
            services = app.state.services
            eventually(services.indexes.ready.is_set if indexes_only else lambda: is_ready(client))
            yield AppUnderTest(client, services, built)

    return start


@pytest.fixture(scope="session")
def quick_polls():
    """Shorten the pauses of pymilvus.

    It sleeps half a second before it asks whether a field has its index, and ours have two fields.
    """
    from pymilvus.client import grpc_handler

    with pytest.MonkeyPatch.context() as patch:
        polled = SimpleNamespace(**vars(time) | {"sleep": lambda seconds: time.sleep(min(seconds, 0.02))})
        patch.setattr(grpc_handler, "time", polled)
        yield


@pytest.fixture(scope="session")
def start_milvus(tmp_path_factory, quick_polls):
    """Start a Milvus Lite. It ends with the tests, unless they end it."""
    started = []

    def start():
        started.append(MilvusServer(tmp_path_factory.mktemp("milvus") / "data", find_free_port()))
        started[-1].start()
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.stop()


@pytest.fixture(scope="session")
def milvus(start_milvus):
    """Share one Milvus Lite among the tests that leave it running."""
    return start_milvus()


@pytest.fixture(scope="session")
def postgres():
    """Share one PostgreSQL with pgvector among the tests, as its connection string."""
    with run_postgres() as server:
        yield server.url


@pytest.fixture
def database(postgres, monkeypatch):
    """Connect to an empty database of its own with pgvector, which commands find by LATHE_POSTGRES_URL."""
    name = "test_" + secrets.token_hex(6)
    with psycopg.connect(postgres, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
        url = make_conninfo(postgres, dbname=name)
        monkeypatch.setenv("LATHE_POSTGRES_URL", url)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION vector")
            yield connection
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")


class RedisServer:
    """A redis-server in a process of its own, in memory alone, with a password."""

    def __init__(self, folder, port):
        self.folder, self.port = folder, port
        self.url = f"redis://:{self.password}@127.0.0.1:{self.port}/0"
        self.start()

    password = "correct-horse"

    def start(self, *options):
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        command += ["--save", "", "--requirepass", self.password, *options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.client = redis.Redis.from_url(self.url)
        eventually(self.answers, 10)

    def answers(self):
        with contextlib.suppress(redis.exceptions.ConnectionError):
            return self.client.ping()

    def stop(self, how=signal.SIGTERM):
        self.client.close()
        self.process.send_signal(how)
        self.process.wait(10)


@pytest.fixture(scope="session")
def start_redis(tmp_path_factory):
    """Start a Redis. It ends with the tests, unless they end it."""
    started = []

    def start():
        started.append(RedisServer(tmp_path_factory.mktemp("redis"), find_free_port()))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.stop()


@pytest.fixture(scope="session")
def one_redis(start_redis):
    """Share one Redis among all tests."""
    return start_redis()


@pytest.fixture
def redis_server(one_redis):
    """Empty the shared Redis, for tests that leave it running."""
    one_redis.client.flushall()
    return one_redis


@pytest.fixture
def own_redis(start_redis):
    """Start an empty Redis that a test may stop and start with other options."""
    server = start_redis()
    yield server
    if server.process.poll() is None:
        server.stop()


@pytest.fixture
def open_replica(redis_server, tmp_path, monkeypatch):
    """Open a replica on the shared Redis, each on a state folder of its own, and start its replicator."""
    monkeypatch.setattr("lathe.service.redis.replica.BLOCK_SECONDS", 0.1)  # an end waits for it
    opened = []

    def open_one(name="replica", url=redis_server.url, **cache):
        opened.append(Replica(Home(tmp_path / name), url, grace_seconds=0, **cache))
        opened[-1].start()
        return opened[-1]

    yield open_one
    for replica in opened:
        replica.stopping.set()  # all end at once
        if replica.cache is not None:
            replica.cache.stopping.set()
    for replica in opened:
        replica.stop()


@pytest.fixture(scope="session")
def lathe(start_app, tmp_path_factory):
    """Share one app among the tests that leave nothing behind."""
    with start_app(home=tmp_path_factory.mktemp("home"), data_root=tmp_path_factory.mktemp("data")) as app:
        yield app


@pytest.fixture(scope="session")
def app(start_app, new_home):
    """Share another app among the tests that leave chains, indexes and jobs with names of their own."""
    with start_app(home=new_home()) as app:
        yield app


@pytest.fixture(scope="session")
def client(lathe):
    """Return the client of the shared app."""
    return lathe.client


@pytest.fixture(scope="session")
def raw(client):
    """Return the shared app's raw vectors of `SENTENCES`, as lists."""
    return client.post("/embed", json={"inputs": SENTENCES}).json()


@pytest.fixture(scope="session")
def sentences():
    """Return six sentences."""
    return SENTENCES


@pytest.fixture(scope="session")
def finish(lathe):
    """Wait for a job to end."""

    def wait(job_id, app=lathe, seconds=120.0):
        def ended():
            job = app.client.get(f"/jobs/{job_id}").json()
            return job if job["state"] in ("succeeded", "failed", "cancelled") else None

        return eventually(ended, seconds)

    return wait


def find_library_files(*names):
    """Return the source files of modules of the standard library.

    Of a package, as some modules are in later Pythons, it is the longest file.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    return [
        max([*library.glob(f"{name}.py"), *library.glob(f"{name}/*.py")], key=lambda file: file.stat().st_size)
        for name in names
    ]


@pytest.fixture(scope="session")
def paragraphs():
    """Return some 200 short texts of the standard library. A fit on few of them takes seconds."""
    files = find_library_files("turtle", "_pydecimal", "statistics", "pathlib", "argparse")
    return [
        text for text in extract_paragraphs(text for file in files for text in read_docstrings(file)) if len(text) < 100
    ]


@pytest.fixture(scope="session")
def new_home(tmp_path_factory, fill_home):
    """Return a function that makes a state folder. All have the vectors of out-of-domain text."""

    def make():
        home = tmp_path_factory.mktemp("home")
        fill_home(home)
        return home

    return make


@pytest.fixture(scope="module")
def home(new_home):
    """A state folder that the tests of one file share."""
    return new_home()


@pytest.fixture(scope="session")
def load_once():
    """Return a function that loads encoders as `Encoder` does, those of the default model once for all tests."""
    loaded = {}

    def load(spec, device=None):
        if spec.model != DEFAULT_MODEL:
            return Encoder(spec, device)
        key = repr((spec, device))
        if key not in loaded:
            loaded[key] = Encoder(spec, device)
        return loaded[key]

    return load


@pytest.fixture
def run(home, monkeypatch, capsys, load_once):
    """Return a function that runs a command in this process and returns its exit status and what it printed."""
    from lathe.service.cli import main as cli

    def command(*arguments, **environment):
        for name, value in cli.ENVIRONMENT.items():  # which the command leaves to the processes of later tests
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("LATHE_HOME", str(home))
        monkeypatch.setattr("lathe.training.encoder.opening.Encoder", load_once)
        # Whether a command takes long enough to print lines of progress depends on the machine.
        monkeypatch.setattr("lathe.service.cli.options.LINE_SECONDS", 3600.0)
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(sys, "argv", ["lathe", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return ended.value.code or 0, printed.out, printed.err

    return command


@pytest.fixture(scope="session")
def real_rows(client):
    """Return raw vectors `(270, 384)` of real texts."""
    files = find_library_files("turtle", "statistics", "pathlib", "argparse", "datetime", "random")
    texts = sorted(extract_paragraphs(text for file in files for text in read_docstrings(file)), key=len)[:270]
    return np.array(client.post("/embed", json={"inputs": texts}).json(), np.float32)


@pytest.fixture
def add_version(lathe):
    """Return a function that adds a version to a chain of the shared app.

    The version is fitted and certified on rows of its encoder. It is gone after the test.
    """
    registry, names = lathe.services.registry, set()
    encoder = Registry(STARTERS).manifest("compact", 1)["encoder"]

    def add(name, rows, steps="r2,pca:128", gates=None, promote=None, spoil=None):
        chain = Chain(parse_steps(steps)).fit(rows[::2])
        certificate = certify(chain, rows[1::2], n_fit=len(rows[::2]), seed=0)
        if spoil is not None:
            spoil(chain)
        chain.metadata = {"encoder": encoder, "provenance": {"gates": gates or {}}, "certificate": certificate}
        names.add(name)
        return registry.publish(chain, name, promote)[0]

    yield add
    for name in names:
        shutil.rmtree(registry.root / name)  # with the numbers given, which a deletion keeps
