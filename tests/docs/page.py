"""Runs the blocks of one page in one folder, one after another."""

import contextlib
import gc
import io
import os
import re
import subprocess
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.docs import commands, data
from tests.docs.blocks import CONFIGURATION, ROOT, Block
from tests.docs.configurations import READERS
from tests.docs.shape import missing, shown_by_comments
from tests.docs.workshop import Workshop
from tests.helpers import find_free_port

SECONDS = {"quick": 180, "services": 300, "long": 3000}
ASKS_SERVER = re.compile(r"lathe index (?:reindex|calibrate)|--apply")
LOCAL = re.compile(r"\b(?:localhost|127\.0\.0\.1):8080\b")
FORKED = re.compile(r"\blathe\b|\bpython -m\b")
USES_POSTGRES = re.compile(r"\bpgvector\b|\bpsql\b|\bpsycopg\b")
STARTS_SERVER = re.compile(r"\blathe serve\b")
READS_STATE = re.compile(r"~/\.lathe\b")


class BlockError(AssertionError):
    """A block does not do what its page says."""


class Page:
    """The state of one page while its blocks run.

    Args:
        workshop: the servers and the state folder, which all pages share.
        folder: of this page, empty.
    """

    def __init__(self, workshop: Workshop, folder: Path) -> None:
        self.workshop, self.folder = workshop, folder
        folder.mkdir(parents=True)
        (folder / "docs").symlink_to(ROOT / "docs")  # a reader sits in a checkout
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        self.printed = ""
        self.own_address: str | None = None
        self.postgres: dict[str, str] = {}
        self.server: dict[str, str] = {}

    def run(self, block: Block) -> None:
        """Run a block, or check it.

        Raises:
            BlockError: with what went wrong.
        """
        if block.directive.drawing:
            return
        try:
            if block.directive.when == "elsewhere":
                self.check(block)
            elif block.language in CONFIGURATION:
                self.read(block)
            else:
                RUNNERS[block.language](self, block)
        except BlockError:
            raise
        except Exception as error:
            raise BlockError(f"{block.page}:{block.line}: {type(error).__name__}: {error}") from error

    def text_of(self, block: Block) -> str:
        """Return the block's text with its swaps and addresses, and create the data it names."""
        text = block.text
        for shown, used in block.directive.swap.items():
            if shown not in text:
                raise BlockError(f"{block.page}:{block.line}: there is no {shown!r} to put something else for")
            text = text.replace(shown, used.replace("{redis}", self.workshop.redis) if "{redis}" in used else used)
        data.put(text, self.folder, self.workshop)
        if not self.postgres and USES_POSTGRES.search(text):
            self.workshop.fill_articles(list(data.texts()))
            self.postgres = self.workshop.postgres
        if READS_STATE.search(text):
            assert self.workshop.address, "the state folder is that of a server that has run"
        if ASKS_SERVER.search(text):
            self.server = {"LATHE_SERVER": f"http://{self.workshop.address}"}
        if STARTS_SERVER.search(text):
            self.own_address = f"127.0.0.1:{find_free_port()}"
        return LOCAL.sub(lambda _: self.own_address or self.workshop.address, text)

    def environment(self) -> dict[str, str]:
        """Return the variables of a command. A server that a page starts listens where its page expects it."""
        own = {"LATHE_PORT": self.own_address.rpartition(":")[2]} if self.own_address else {}
        return self.workshop.environment | own | self.postgres | self.server

    def shell(self, block: Block) -> None:
        """Run commands by bash, which stops at the first that fails."""
        if FORKED.search(block.text):
            self.workshop.commands.listen()
        self.execute(block, ["bash", "-e", "-o", "pipefail"], "sh")

    def javascript(self, block: Block) -> None:
        """Run a module by Node, which finds packages in the page's folder."""
        self.execute(block, ["node"], "mjs")

    def execute(self, block: Block, command: list[str], suffix: str) -> None:
        """Run a file with the block's text by a command in the page's folder. Raise `BlockError` if it fails."""
        script = self.folder / f"line-{block.line}.{suffix}"
        script.write_text(self.text_of(block))
        done = subprocess.run(
            [*command, str(script)],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS[block.directive.when],
        )
        self.printed = done.stdout
        if done.returncode:
            raise BlockError(
                f"{block.page}:{block.line} ended with {done.returncode}\n{script.read_text()}\n"
                f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
            )

    def python(self, block: Block) -> None:
        """Run code in the namespace of the page's earlier blocks."""
        code = compile("\n" * block.line + self.text_of(block), block.page, "exec")
        said = io.StringIO()
        with (
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(said),
            warnings.catch_warnings(),
            patch.dict(os.environ, self.postgres),
        ):
            warnings.simplefilter("default")  # what libraries say of themselves is no affair of the page
            exec(code, self.namespace)
        self.printed = said.getvalue()
        if block.directive.tolerance is not None:
            self.require_printed(block, shown_by_comments(block.text))

    def read(self, block: Block) -> None:
        """Read a configuration by the reader its directive names."""
        if block.directive.reads not in READERS:
            raise BlockError(f"{block.page}:{block.line}: `reads` names one of {', '.join(READERS)}")
        path = self.folder / (block.directive.file or f"line-{block.line}.{block.language}")
        path.write_text(self.text_of(block))
        READERS[block.directive.reads](path, self.workshop)

    def compare(self, block: Block) -> None:
        """Compare the block with what the block before printed."""
        self.require_printed(block, block.text)

    def require_printed(self, block: Block, shown: str) -> None:
        """Raise `BlockError` unless what a block shows was printed."""
        if lost := missing(shown, self.printed, block.directive.tolerance):
            raise BlockError(f"{block.page}:{block.line}: not printed: {lost}\nbut:\n{self.printed[-4000:]}")

    def check(self, block: Block) -> None:
        """Check a block without running it."""
        if block.language == "python":
            compile(block.text, f"{block.page}:{block.line}", "exec")
        elif block.language in ("", "sh"):
            commands.check(block.text)
        else:
            raise BlockError(f"{block.page}:{block.line}: {block.language} is never run elsewhere")

    def close(self) -> None:
        """Drop what the blocks made."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # connections that a reader's script leaves to its end
            self.namespace.clear()
            gc.collect()
        self.workshop.clear()


RUNNERS = {"": Page.shell, "sh": Page.shell, "python": Page.python, "javascript": Page.javascript, "text": Page.compare}
"""How a block of each language is run; configurations are read."""


def folder_of(page: str) -> str:
    """Return a folder name for a page."""
    return Path(page).with_suffix("").as_posix().replace("/", "-")
