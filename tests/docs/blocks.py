"""The fenced blocks of README.md, docs/ and the packages' READMEs: where they stand, what they say, how they are run.

The language tells how: none and `sh` are commands, `python` and `javascript` are code, `json` and `yaml` are
configuration, `text` is what the block before printed. Where that is not enough, a comment above the block says the
rest:

    <!-- run: {when: long, swap: {"geopres:96": "geopres:96,steps=5"}} -->

See `Directive` for what may stand there.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

ROOT = Path(__file__).resolve().parents[2]
FENCE = "```"
BLOCK = re.compile(
    r"(?:^<!-- (?P<directive>run:(?:(?!-->).)*) -->\n)?"
    r"^```(?P<language>[a-z]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
CONFIGURATION = ("json", "yaml")

When = Literal["quick", "services", "long", "elsewhere"]


class Directive(BaseModel):
    """How a block is run.

    Attributes:
        when: quick, in `make test`; services, in `make test-services`; long, in `make docs`; elsewhere, nowhere here:
            then `make test` checks what can be checked without running it.
        reason: why elsewhere, or why it is a drawing.
        swap: what stands in the block's text for what a reader has: addresses, sizes, fewer steps.
        file: the name under which the blocks after it find a configuration.
        reads: what reads a configuration, by its name in `tests.docs.configurations`.
        drawing: a picture made of letters; nothing can be run.
        tolerance: share by which numbers may differ from what the block shows: what was printed before it, or what the
            comments behind its calls of `print` say. Without it any number will do, and comments are no output.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    when: When = "quick"
    reason: str = ""
    swap: dict[str, str] = {}
    file: str | None = None
    reads: str | None = None
    drawing: bool = False
    tolerance: float | None = None

    @model_validator(mode="after")
    def reasons(self) -> "Directive":
        """Refuse what is not run without a reason, and a reason for what is."""
        if bool(self.reason) != (self.drawing or self.when == "elsewhere"):
            raise ValueError("a block that is a drawing or run elsewhere has a reason, and no other")
        return self


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: relative to the repository.
        line: of the opening fence, from 1.
    """

    page: str
    line: int
    language: str
    text: str
    directive: Directive


def pages(root: Path = ROOT) -> list[Path]:
    """Return the README and what stands beside it, all pages of docs/, and the READMEs of the packages."""
    beside = [root / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    distributions = [root / name / "README.md" for name in ("transforms", "training", "service")]
    return [
        *beside,
        *sorted((root / "docs").rglob("*.md")),
        *distributions,
        *sorted(root.glob("integrations/*/README.md")),
    ]


def all_blocks(root: Path = ROOT) -> list[Block]:
    """Return every block of every page, in order."""
    return [block for page in pages(root) for block in blocks_of(page.read_text(), page.relative_to(root).as_posix())]


def blocks_of(text: str, page: str) -> list[Block]:
    """Return the blocks of a page.

    Raises:
        ValueError: for a fence or a comment that is not as described above, with the page.
    """
    found = list(BLOCK.finditer(text))
    fences = sum(line.lstrip().startswith((FENCE, "~~~")) for line in text.splitlines())
    if fences != 2 * len(found):
        raise ValueError(f"{page}: {fences} fences and {len(found)} blocks: begin each with ```LANGUAGE, unindented")
    if text.count("<!-- run:") != sum(match["directive"] is not None for match in found):
        raise ValueError(f"{page}: a comment `<!-- run: … -->` stands directly above its block")
    return [block_of(match, page) for match in found]


def block_of(match: re.Match[str], page: str) -> Block:
    """Build a block from a match on a page. Its errors are those of `blocks_of`."""
    line = match.string.count("\n", 0, match.start("language")) + 1
    try:
        said = yaml.safe_load(match["directive"])["run"] if match["directive"] else {}
        return Block(page, line, match["language"], match["text"], Directive.model_validate(said))
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{page}:{line}: {error}") from error
