"""Takes screenshots of the dashboard for the docs, of a real server with real content.

    python -m benchmarks.screenshots --out docs/images

Needs Chromium (apt-get install chromium) and the extra `dev`. Shown are the chains that ship, a second version of
`compact` fitted on Python's docstrings, an index of them, and traffic that requests their vectors.
"""

import itertools
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any, Literal

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from benchmarks.report import parser
from benchmarks.server import Server
from lathe.training.sources.source import open_source

TEXTS = 1500
COLOURS = 200
"""Number of colours of a picture, enough for text on a plain background; it takes a third of the bytes."""

SHOTS: list[tuple[str, str, Literal["light", "dark"], int]] = [
    ("dashboard-overview", "#/", "light", 1280),
    ("dashboard-chain", "#/chains/compact", "dark", 1280),
    ("dashboard-try", "#/try/compact@1", "light", 1280),
    ("dashboard-narrow", "#/jobs", "dark", 400),
]
"""File, page, theme, width in pixels."""


def read_docstrings(count: int) -> list[str]:
    """Return the first distinct docstrings of the Python that runs this."""
    batches = (batch.values for batch in open_source("pydoc:").batches())
    distinct = dict.fromkeys(str(text) for values in batches for text in values)
    return list(itertools.islice(distinct, count))


def fill(server: Server, texts: list[str]) -> None:
    """Create the content of the server that the screenshots show."""
    steps = [{"kind": "r2"}, {"kind": "geopres", "dimensions": 128, "nested": True}]
    fit = {"name": "compact", "steps": steps, "source": {"texts": texts}, "gates": {"recall_at_10": 0.7}}
    job = server.call("POST", "/fit-transform", **fit, promote=False)["job_id"]
    wait_for_job(server, job)
    server.call("PUT", "/indexes/docstrings", chain="compact")
    indexed = texts[:500]
    server.call("POST", "/indexes/docstrings/upsert", ids=[str(i) for i in range(len(indexed))], texts=indexed)
    server.call("POST", "/fit-transform", **fit, promote=False)


def wait_for_job(server: Server, job: str) -> None:
    """Wait until a job ends, which ends the stream of its events."""
    with server.client.stream("GET", f"/jobs/{job}/events") as events:
        for _ in events.iter_lines():
            pass


@contextmanager
def run_traffic(server: Server, texts: list[str]) -> Iterator[None]:
    """Request vectors repeatedly while the block runs, some texts again and again."""
    stopping = threading.Event()

    def send_requests() -> None:
        for start in itertools.cycle(range(0, len(texts) - 24, 8)):
            if stopping.wait(0.05 + 0.1 * (start % 5)):
                return
            server.call("POST", "/embed", inputs=texts[start : start + 24], dimensions=128)

    sender = threading.Thread(target=send_requests)
    sender.start()
    yield
    stopping.set()
    sender.join()


def take_screenshot(page: Page, server: Server, address: str, path: Path) -> None:
    """Take one screenshot, with few colours."""
    page.goto(f"{server.url}/{address}")
    page.wait_for_selector(".page > *:not(.hint)")
    if address.startswith("#/try"):
        page.click("text=Embed and compare")
        page.wait_for_selector(".heat")
    page.wait_for_timeout(45_000 if address == "#/" else 5_000)  # for charts to have something to show
    page.screenshot(path=path, full_page=True)
    Image.open(path).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    """Start a server, fill it, and take the screenshots."""
    options: Any = parser(__doc__).parse_args()
    chromium = which("chromium") or sys.exit("this takes chromium: apt-get install chromium")
    options.out.mkdir(parents=True, exist_ok=True)
    texts = read_docstrings(300 if options.quick else TEXTS)
    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        server = Server(Path(home))
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        fill(server, texts)
        with run_traffic(server, texts):
            for name, address, theme, width in SHOTS:
                context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": 800})
                take_screenshot(context.new_page(), server, address, options.out / f"{name}.png")
                context.close()
        browser.close()
        server.stop()


if __name__ == "__main__":
    main()
