"""Dockerfiles as lists of stages and instructions, and what .dockerignore keeps from the builder.

Only what ours use: no heredocs, no escape directive, no globs in COPY.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

FLAGS = re.compile(r"^(?:--\S+\s+)*")
VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True)
class Instruction:
    """One of a stage.

    Attributes:
        line: where it begins, from 1.
        keyword: in capitals: RUN, COPY, …
        value: the rest, its lines joined.
    """

    line: int
    keyword: str
    value: str

    @property
    def flags(self) -> dict[str, str]:
        """`--name=value` before everything else."""
        return dict(re.findall(r"--([\w-]+)=(\S+)", FLAGS.findall(self.value)[0]))

    @property
    def words(self) -> list[str]:
        """What follows them; of a JSON list its entries, of a bare command the shell that runs it."""
        rest = FLAGS.sub("", self.value, count=1)
        if rest.startswith("["):
            return [str(word) for word in json.loads(rest)]
        return ["/bin/sh", "-c", rest] if self.keyword in ("RUN", "CMD", "ENTRYPOINT") else shlex.split(rest)


@dataclass(frozen=True)
class Stage:
    """From one FROM to the next.

    Attributes:
        image: what it begins with.
        name: what others call it; empty if nothing.
        instructions: those after FROM.
    """

    image: str
    name: str
    instructions: tuple[Instruction, ...]


def read_dockerfile(path: Path) -> list[Stage]:
    """The stages of a Dockerfile."""
    stages: list[Stage] = []
    found: list[Instruction] = []
    image = name = ""
    for instruction in [*instructions(path.read_text()), Instruction(0, "FROM", "")]:
        if instruction.keyword != "FROM":
            found.append(instruction)
            continue
        if image:
            stages.append(Stage(image, name, tuple(found)))
        image, _, name = (*instruction.words, "", "", "")[:3]
        found = []
    return stages


def instructions(text: str) -> Iterator[Instruction]:
    """All of a file, in order."""
    begun, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or not line.strip():
            continue
        begun = begun if parts else number
        parts.append(line.rstrip().removesuffix("\\").strip())
        if not line.rstrip().endswith("\\"):
            keyword, _, value = " ".join(parts).partition(" ")
            yield Instruction(begun, keyword.upper(), value.strip())
            parts = []


def substituted(text: str, variables: Mapping[str, str]) -> str:
    """A value with $NAME and ${NAME} filled in."""
    return VARIABLE.sub(lambda found: variables.get(found[1] or found[2], ""), text)


def ignored(path: str, patterns: list[str]) -> bool:
    """Whether .dockerignore keeps a file from the builder: the last line to match it or a folder above decides."""
    parents = ["/".join(path.split("/")[:depth]) for depth in range(1, path.count("/") + 2)]
    verdict = False
    for pattern in patterns:
        wanted = re.escape(pattern.removeprefix("!").strip("/"))
        wanted = wanted.replace(r"\*\*/", "(.*/)?").replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
        if any(re.fullmatch(wanted, parent) for parent in parents):
            verdict = not pattern.startswith("!")
    return verdict


def ignore_patterns(context: Path) -> list[str]:
    """The lines of a folder's .dockerignore."""
    lines = (context / ".dockerignore").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]
