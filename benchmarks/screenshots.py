"""Pictures of the dashboard for the docs, of a real server with real content.

    python -m benchmarks.screenshots --out docs/images

Takes Chromium (apt-get install chromium) and the extra `dev`. What is shown: the chains that ship, a second version
of `compact` fitted on Python's docstrings, an index of them, and texts asked for all the while.
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
"""Enough for text on plain ground; a third of the bytes."""

SHOTS: list[tuple[str, str, Literal["light", "dark"], int]] = [
    ("dashboard-overview", "#/", "light", 1280),
    ("dashboard-chain", "#/chains/compact", "dark", 1280),
    ("dashboard-try", "#/try/compact@1", "light", 1280),
    ("dashboard-narrow", "#/jobs", "dark", 400),
]
"""File, page, theme, width in pixels."""


def texts_to_show(count: int) -> list[str]:
    """The first distinct docstrings of the Python that runs this."""
    batches = (batch.values for batch in open_source("pydoc:").batches())
    distinct = dict.fromkeys(str(text) for values in batches for text in values)
    return list(itertools.islice(distinct, count))


def fill(server: Server, texts: list[str]) -> None:
    """Give the server something to show."""
    steps = [{"kind": "r2"}, {"kind": "geopres", "dimensions": 128, "nested": True}]
    fit = {"name": "compact", "steps": steps, "source": {"texts": texts}, "gates": {"recall_at_10": 0.7}}
    job = server.call("POST", "/fit-transform", **fit, promote=False)["job_id"]
    await_end(server, job)
    server.call("PUT", "/indexes/docstrings", chain="compact")
    some = texts[:500]
    server.call("POST", "/indexes/docstrings/upsert", ids=[str(i) for i in range(len(some))], texts=some)
    server.call("POST", "/fit-transform", **fit, promote=False)


def await_end(server: Server, job: str) -> None:
    """Wait until a job ends; the stream of its events does."""
    with server.client.stream("GET", f"/jobs/{job}/events") as events:
        for _ in events.iter_lines():
            pass


@contextmanager
def traffic(server: Server, texts: list[str]) -> Iterator[None]:
    """Ask for vectors all the while, some texts again and again."""
    stopping = threading.Event()

    def ask() -> None:
        for start in itertools.cycle(range(0, len(texts) - 24, 8)):
            if stopping.wait(0.05 + 0.1 * (start % 5)):
                return
            server.call("POST", "/embed", inputs=texts[start : start + 24], dimensions=128)

    asking = threading.Thread(target=ask)
    asking.start()
    yield
    stopping.set()
    asking.join()


def take(page: Page, server: Server, address: str, path: Path) -> None:
    """One picture, with few colours."""
    page.goto(f"{server.url}/{address}")
    page.wait_for_selector(".page > *:not(.hint)")
    if address.startswith("#/try"):
        page.click("text=Embed and compare")
        page.wait_for_selector(".heat")
    page.wait_for_timeout(45_000 if address == "#/" else 5_000)  # for charts to have something to show
    page.screenshot(path=path, full_page=True)
    Image.open(path).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    """Start a server, fill it, take the pictures."""
    options: Any = parser(__doc__).parse_args()
    chromium = which("chromium") or sys.exit("this takes chromium: apt-get install chromium")
    options.out.mkdir(parents=True, exist_ok=True)
    texts = texts_to_show(300 if options.quick else TEXTS)
    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        server = Server(Path(home))
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        fill(server, texts)
        with traffic(server, texts):
            for name, address, theme, width in SHOTS:
                context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": 800})
                take(context.new_page(), server, address, options.out / f"{name}.png")
                context.close()
        browser.close()
        server.stop()


if __name__ == "__main__":
    main()
