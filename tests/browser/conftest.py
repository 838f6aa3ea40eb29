"""Two real servers, a real Chromium, and pages that fail a test when they complain or ask for anything elsewhere."""

import json
import os
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from urllib.parse import urlsplit

import numpy as np
import pytest
from playwright.sync_api import expect, sync_playwright

from benchmarks.server import Server
from lathe.training.encoder.spec import DEFAULT_MODEL
from lathe.training.sources.readers import extract_paragraphs, read_docstrings

KEY = "use-key"
PATIENCE_MS = 30_000
"""How long to wait for what a page should show; a fit on a busy machine takes longest."""


@pytest.fixture(scope="session")
def texts():
    """Short texts of the standard library."""
    source = Path(sysconfig.get_paths()["stdlib"]) / "turtle.py"
    return list(
        dict.fromkeys(
            text for text in extract_paragraphs(read_docstrings(source)) if len(text) < 100 and "\n" not in text
        )
    )


@pytest.fixture(scope="session")
def servers(tmp_path_factory, tiny_model, fill_home):
    """Start a server with the real encoder and a tiny one, usable without a key, and a tiny one that needs a key."""
    home, keyed_home = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("keyed")
    fill_home(home)  # a fit that encodes out-of-domain texts beside other tests takes longer than a page is waited for
    tiny = {"name": "tiny", "model": str(tiny_model)}
    encoders = json.dumps([{"name": "all-MiniLM-L6-v2", "model": DEFAULT_MODEL}, tiny])
    common = {"LATHE_WORKERS": "1", "LATHE_DTYPE": "float32", "HF_HUB_OFFLINE": "1", "LATHE_LOG_LEVEL": "warning"}
    common |= {"LATHE_THREADS": "1", "LATHE_JOB_THREADS": "1"}  # more would wait for a core, at full speed
    with ThreadPoolExecutor() as pool:
        free = pool.submit(Server, home, LATHE_ENCODERS=encoders, **common)
        keyed = pool.submit(Server, keyed_home, LATHE_ENCODERS=json.dumps([tiny]), LATHE_API_KEYS=KEY, **common)
        started = free.result(), keyed.result()
    started[0].key = (home / "admin.key").read_text().strip()
    yield started
    for server in started:
        server.stop()
        server.process.stderr.close()


@pytest.fixture(scope="session")
def server(servers, texts):
    """Return the server without keys, with an index to show."""
    found = servers[0]
    found.call("PUT", "/indexes/notes", chain="compact")
    found.call("POST", "/indexes/notes/upsert", ids=["a", "b"], texts=texts[:2])
    return found


@pytest.fixture(scope="session")
def keyed(servers):
    """Return the server that needs a key."""
    return servers[1]


@pytest.fixture(scope="session")
def browser():
    """Start a headless Chromium."""
    program = which("chromium") or which("chromium-browser") or which("google-chrome")
    assert program, "chromium is missing: apt-get install chromium, or `make test` for the tests that take no services"
    with sync_playwright() as playwright:
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        args = [*root, "--host-resolver-rules=MAP rebound.example 127.0.0.1"]
        started = playwright.chromium.launch(executable_path=program, args=args)
        yield started
        started.close()


@pytest.fixture
def open_page(browser, server):
    """Open pages of the dashboard. Fail if one logged an error or sent a request to another server."""
    complaints = []

    @contextmanager
    def opening(address="#/", at=server, allowed=(), **context):
        made = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context})
        page = made.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: note(message, allowed))
        page.on("request", lambda request: away(request, at.url))
        page.goto(f"{at.url}/{address}")
        yield page
        made.close()

    def note(message, allowed):
        if message.type in ("error", "warning") and not any(word in message.text for word in allowed):
            complaints.append(message.text)

    def away(request, url):
        if urlsplit(request.url).scheme != "blob" and not request.url.startswith(url):
            complaints.append(f"asked for {request.url}")

    expect.set_options(timeout=PATIENCE_MS)
    yield opening
    assert complaints == []


@pytest.fixture(scope="session")
def vectors():
    """Draw rows `(300, 12)` of a few clusters."""
    rng = np.random.default_rng(0)
    return (rng.normal(size=(8, 12))[rng.integers(8, size=300)] + 0.3 * rng.normal(size=(300, 12))).astype(np.float32)


@pytest.fixture(scope="session")
def give_key():
    """Return a function that fills in the dialog that asks for a key."""

    def give(page, key):
        page.fill("#key-input", key)
        page.click("text=Use the key")

    return give
