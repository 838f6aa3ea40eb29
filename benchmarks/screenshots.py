"""Takes screenshots of each page of the dashboard for the docs, of a real server with real content.

    python -m benchmarks.screenshots --out docs/images/dashboard

Needs Chromium (apt-get install chromium) and the extra `dev`. Shown are the chains that ship, a second version of
`compact` fitted on Python's docstrings, an index of them, an adaptation to searches for them, a training, a fit that
runs, and traffic that requests their vectors. Each page is taken at the widths of a computer and of a telephone.
"""

import itertools
import json
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
FREQUENT, SPREAD = 8, 16
"""Numbers of a picture's colours that are its most frequent ones, and that are spread over all others."""
HEIGHTS = (2000, 1700, 1400, 1200, 1000, 800)
"""Heights in pixels at which a picture is cut off: the first at which it is small enough."""
WIDTHS: list[tuple[int, Literal["light", "dark"]]] = [(1280, "light"), (390, "dark")]
"""Widths in pixels, each with its theme."""
MAX_BYTES = 60_000
"""Maximum number of bytes of a picture."""
TRAFFIC_MS = 40_000
"""Milliseconds after which the overview's charts show something."""

SHOTS = [
    ("overview", "#/"),
    ("chains", "#/chains"),
    ("chain", "#/chains/compact"),
    ("indexes", "#/indexes"),
    ("index", "#/indexes/docstrings"),
    ("jobs", "#/jobs"),
    ("adaptation", "#/jobs/{adapt}"),
    ("training", "#/jobs/{train}"),
    ("try", "#/try/compact@1"),
    ("compare", "#/compare/compact@1/codes48@1"),
    ("new-fit", "#/fit"),
    ("new-adaptation", "#/adapt"),
    ("new-training", "#/train"),
    ("key", "#/fit"),
]
"""File and page; names in braces stand for the ids of jobs."""


def read_docstrings(count: int) -> list[str]:
    """Return the first distinct docstrings of the Python that runs this."""
    batches = (batch.values for batch in open_source("pydoc:").batches())
    distinct = dict.fromkeys(str(text) for values in batches for text in values)
    return list(itertools.islice(distinct, count))


def fill(server: Server, data: Path, texts: list[str]) -> dict[str, str]:
    """Create the content of the server that the screenshots show, and return the ids of its jobs by kind.

    Args:
        server: the server, whose data folder is `data`.
        data: folder for the files of the jobs.
        texts: documents; the first words of each are a search for it.
    """
    steps = [{"kind": "r2"}, {"kind": "geopres", "dimensions": 128, "nested": True}]
    fit = {"name": "compact", "steps": steps, "source": {"texts": texts}, "gates": {"recall_at_10": 0.99}}
    wait_for_job(server, server.call("POST", "/fit-transform", **fit, promote=False)["job_id"])
    create_index(server, texts[:500])

    pairs = [{"query": " ".join(text.split()[:5]), "document": text} for text in texts if len(text.split()) > 10]
    write_json_lines(data / "documents.jsonl", [{"text": text} for text in texts])
    write_json_lines(data / "judged.jsonl", pairs)
    adaptation = {"source": {"path": "documents.jsonl"}, "pairs": "judged.jsonl", "train": False, "bytes": 96}
    jobs = {"adapt": server.call("POST", "/adapt", **adaptation)["job_id"]}
    wait_for_job(server, jobs["adapt"])

    source = {"jsonl": "judged.jsonl", "anchor": "query", "positive": "document", "cap": 300}
    settings = {"sources": [source], "training": {"max_length": 64, "log_steps": 2}, "evaluate": {"every": 5}}
    training = {"name": "tuned", "method": "reze", "job": settings}
    answer = server.client.post("/train", json=training)  # `Server.call` takes `method` itself
    jobs["train"] = answer.json()["job_id"]
    wait_for_job(server, jobs["train"])

    endless = [{"kind": "geopres", "dimensions": 128, "steps": 100_000}]
    server.call("POST", "/fit-transform", name="small", steps=endless, source={"texts": texts[:500]})
    return jobs


def create_index(server: Server, texts: list[str]) -> None:
    """Create the index `docstrings` of the texts, with their number of words as metadata."""
    server.call("PUT", "/indexes/docstrings", chain="compact", text_field="text")
    ids = [f"doc-{number:03}" for number in range(len(texts))]
    metadata = [{"words": len(text.split())} for text in texts]
    server.call("POST", "/indexes/docstrings/upsert", ids=ids, texts=texts, metadata=metadata)


def write_json_lines(path: Path, rows: list[dict[str, str]]) -> None:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


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


def prepare(page: Page, name: str) -> None:
    """Do on a page what its picture shows: embed texts, search, or ask for a key."""
    if name == "try":
        page.click("text=Embed and compare")
        page.wait_for_selector(".heat")
    elif name == "index":
        page.fill("#search-query", "open a file for reading")
        page.fill("#search-k", "3")
        page.fill("#search-filter", '{"words": {"lt": 40}}')
        page.click("#search-submit")
        page.wait_for_selector("#search-results table")
    elif name == "key":
        page.fill("#fit-name", "mine")
        page.fill("#fit-path", "pydoc:")
        page.click("#fit-submit")
        page.fill("#key-input", "a wrong key")
        page.click("text=Use the key")


def take_screenshot(page: Page, name: str, address: str, path: Path) -> None:
    """Take the screenshot of a page."""
    page.goto(address)
    page.wait_for_selector(".page > *:not(.hint)")
    prepare(page, name)
    page.wait_for_timeout(TRAFFIC_MS if name == "overview" else 2_000)
    page.screenshot(path=path, full_page=True)
    shrink(path)


def shrink(path: Path) -> None:
    """Reduce the colours of a picture, and cut it off at a height at which it is small enough.

    The most frequent colours alone would leave out the lines of charts, and spread ones alone change the background.
    """
    picture = Image.open(path).convert("RGB")
    counted: Any = picture.getcolors(picture.width * picture.height)
    frequent = [channel for _, colour in sorted(counted, reverse=True)[:FREQUENT] for channel in colour]
    spread = picture.quantize(SPREAD, Image.Quantize.MAXCOVERAGE).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette(frequent + spread[: 3 * SPREAD])

    for height in HEIGHTS:
        part = picture.crop((0, 0, picture.width, min(picture.height, height)))
        part.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)
        if path.stat().st_size <= MAX_BYTES:
            return


def main() -> None:
    """Start a server, fill it, and take the screenshots."""
    options: Any = parser(__doc__).parse_args()
    chromium = which("chromium") or sys.exit("this takes chromium: apt-get install chromium")
    options.out.mkdir(parents=True, exist_ok=True)
    texts = read_docstrings(300 if options.quick else TEXTS)
    with (
        tempfile.TemporaryDirectory() as home,
        tempfile.TemporaryDirectory() as data,
        sync_playwright() as playwright,
    ):
        server = Server(Path(home), LATHE_DATA_ROOT=data, LATHE_THREADS="1", LATHE_JOB_THREADS="1")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        jobs = fill(server, Path(data), texts)
        with run_traffic(server, texts):
            for (name, address), (width, theme) in itertools.product(SHOTS, WIDTHS):
                context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": 800})
                path = options.out / f"{name}-{width}.png"
                take_screenshot(context.new_page(), name, f"{server.url}/{address.format(**jobs)}", path)
                context.close()
        browser.close()
        server.stop()


if __name__ == "__main__":
    main()
