import os
import sys
import time

import pytest
from starlette.testclient import TestClient

from service import create_app
from service.settings import read_settings

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
    for name in [name for name in os.environ if name.startswith("LATHE_")]:
        del os.environ[name]


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"{condition} did not hold within {seconds} s")


def is_ready(client):
    return client.get("/health/ready").status_code == 200


class AppUnderTest:
    """An app in this process, its client, and its admin's headers."""

    def __init__(self, client, settings):
        self.client = client
        self.settings = settings
        self.services = client.app.state.services
        self.admin = {"authorization": f"Bearer {self.services.keys.admin[0]}"} if self.services.keys.admin else {}


@pytest.fixture(scope="session")
def start_app():
    """Start an app with settings of its own; ends with the block."""
    from contextlib import contextmanager

    @contextmanager
    def start(**settings):
        built = read_settings(**settings)
        with TestClient(create_app(built), raise_server_exceptions=False) as client:
            wait_for(lambda: is_ready(client))
            yield AppUnderTest(client, built)

    return start


@pytest.fixture(scope="session")
def lathe(start_app, tmp_path_factory):
    """One app shared by the tests that leave nothing behind."""
    with start_app(home=tmp_path_factory.mktemp("home"), data_root=tmp_path_factory.mktemp("data")) as app:
        yield app


@pytest.fixture(scope="session")
def client(lathe):
    return lathe.client


@pytest.fixture(scope="session")
def raw(client):
    return client.post("/embed", json={"inputs": SENTENCES}).json()


@pytest.fixture(scope="session")
def sentences():
    return SENTENCES


@pytest.fixture(scope="session")
def finish(lathe):
    """Wait for a job to end."""

    def wait(job_id, app=lathe, seconds=120.0):
        def ended():
            job = app.client.get(f"/jobs/{job_id}").json()
            return job if job["state"] in ("succeeded", "failed", "cancelled") else None

        return wait_for(ended, seconds)

    return wait


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A state folder that the tests of one file share."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def run(home, monkeypatch, capsys):
    """Run a command in this process; gives its exit status and what it printed."""
    from service.cli import main as cli

    def command(*arguments, **environment):
        monkeypatch.setenv("LATHE_HOME", str(home))
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(sys, "argv", ["lathe", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return ended.value.code or 0, printed.out, printed.err

    return command
