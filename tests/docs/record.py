"""The table of all blocks with their last run: docs/results/blocks.json, and blocks.md made from it."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.report import markdown_table, write_report
from tests.docs.blocks import CONFIGURATION, ROOT, Block, all_blocks

RESULTS = ROOT / "docs/results"
RUNS_IN = {"quick": "`make test`", "services": "`make test-services`", "long": "`make docs`"}
HEAD = """# Every block of these pages, and its run

By `python -m tests.docs`, on {machine}, with other work beside it ([raw](blocks.json)). Lines are those of the run.
Commands are run by bash, and start in forks of one process that has imported the libraries; a server stands where a
page says `localhost:8080`. What a reader brings along (`texts.jsonl`, `vectors.npy`, `my-data` …) is made of
docstrings, and small; how else a block is run stands in a comment above it ([what it may
say](../../tests/docs/blocks.py)). {count} blocks, {seconds} seconds.

"""


@dataclass(frozen=True)
class Run:
    """Result of running a block: seconds, and the error or an empty text."""

    block: Block
    seconds: float
    problem: str = ""

    def row(self) -> dict[str, Any]:
        """Return the run as a JSON object."""
        block = self.block
        return {
            "page": block.page,
            "line": block.line,
            "language": block.language or "sh",
            "first_words": block.first_words,
            "how": manner(block),
            "date": datetime.now(UTC).date().isoformat(),
            "seconds": round(self.seconds, 1),
            "result": self.problem.partition("\n")[0][:200] or ("checked" if is_checked(block) else "ran"),
            "digest": block.digest,
        }


def is_checked(block: Block) -> bool:
    """Return whether a block is checked without being run."""
    directive = block.directive
    return directive.drawing or directive.when == "elsewhere" or block.language in (*CONFIGURATION, "text")


def manner(block: Block) -> str:
    """Describe how a block is run."""
    directive = block.directive
    if directive.drawing:
        return f"a drawing: {directive.reason}"
    if directive.when == "elsewhere":
        return f"not here, {directive.reason}; parsed"
    how = "code, in one namespace a page" if block.language == "python" else "bash"
    if block.language in CONFIGURATION:
        how = f"read as {directive.reads}"
    elif block.language == "text":
        how = "lines compared with what was printed, but for numbers"
    swaps = "; ".join(f"`{used}` for `{shown}`" for shown, used in directive.swap.items())
    return f"{RUNS_IN[directive.when]}: {how}" + (f"; {swaps}" if swaps else "")


def read_rows(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Return the recorded rows."""
    path = folder / "blocks.json"
    return json.loads(path.read_text())["figures"] if path.exists() else []


def merged(old: Iterable[dict[str, Any]], runs: Iterable[Run], blocks: Iterable[Block]) -> list[dict[str, Any]]:
    """Return a row for each block: of its new run, or of an earlier run if the block has not changed."""
    known = {(row["page"], row["digest"]): row for row in old}
    known |= {(run.block.page, run.block.digest): run.row() for run in runs}
    found = [(block, known.get((block.page, block.digest))) for block in blocks]
    return [row | {"line": block.line} for block, row in found if row is not None]


def record(runs: Iterable[Run], folder: Path = RESULTS) -> None:
    """Rewrite blocks.json and blocks.md with these runs."""
    path = write_report(folder, "blocks", merged(read_rows(folder), runs, all_blocks()))
    report = json.loads(path.read_text())
    rows = report["figures"]
    cells = [
        [
            f"[{row['page']}:{row['line']}]({link_to(row['page'])})",
            row["language"],
            f"`{row['first_words'].replace('|', '¦').replace('`', '´')}`",
            row["how"].replace("|", "¦"),
            row["date"],
            f"{row['seconds']:.1f}",
            row["result"].replace("|", "¦"),
        ]
        for row in rows
    ]
    head = HEAD.format(
        machine=report["machine"],
        count=len(rows),
        seconds=round(sum(row["seconds"] for row in rows)),
    )
    table = markdown_table(["block", "language", "begins", "how it is run", "on", "seconds", "result"], cells)
    (folder / "blocks.md").write_text(head + table + "\n")


def link_to(page: str) -> str:
    """Return the link from the table to a page."""
    return "../../README.md" if page == "README.md" else f"../{page.removeprefix('docs/')}"
