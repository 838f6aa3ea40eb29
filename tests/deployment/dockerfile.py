"""Dockerfiles as lists of stages and instructions, and what .dockerignore excludes from the builder.

Only what ours use: no heredocs, no escape directive, no globs in COPY.
"""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FLAGS = re.compile(r"^(?:--\S+\s+)*")


@dataclass(frozen=True)
class Instruction:
    """One instruction of a stage.

    Attributes:
        keyword: RUN, COPY, …
        value: the rest, with its lines joined.
    """

    keyword: str
    value: str

    @property
    def flags(self) -> dict[str, str]:
        """Flags `--name=value` before everything else. Of a repeated flag the last one counts."""
        return dict(re.findall(r"--([\w-]+)=(\S+)", FLAGS.findall(self.value)[0]))

    @property
    def words(self) -> list[str]:
        """Words after the flags: the entries of a JSON list, or a bare command with the shell that runs it."""
        rest = FLAGS.sub("", self.value, count=1)
        if rest.startswith("["):
            return [str(word) for word in json.loads(rest)]
        return ["/bin/sh", "-c", rest] if self.keyword in ("RUN", "CMD", "ENTRYPOINT") else shlex.split(rest)


@dataclass(frozen=True)
class Stage:
    """A stage with all instructions that make its image.

    Attributes:
        image: the base image, of the first stage that it continues.
        name: its name; empty if it has none.
        instructions: instructions of the stages that it continues, then its own.
    """

    image: str
    name: str
    instructions: tuple[Instruction, ...]

    def find(self, keyword: str) -> list[Instruction]:
        """Return the instructions of a keyword."""
        return [instruction for instruction in self.instructions if instruction.keyword == keyword]


def read_dockerfile(path: Path) -> dict[str, Stage]:
    """Return the stages of a Dockerfile by name, in order."""
    stages: dict[str, Stage] = {}
    for instruction in _read_instructions(path.read_text()):
        if instruction.keyword == "FROM":
            base, _, name = (*instruction.words, "", "")[:3]
            begun = stages[base] if base in stages else Stage(base, "", ())
            stages[name] = Stage(begun.image, name, begun.instructions)
        elif stages:  # not an ARG before the first FROM
            last = list(stages.values())[-1]
            stages[last.name] = Stage(last.image, last.name, (*last.instructions, instruction))
    return stages


def _read_instructions(text: str) -> Iterator[Instruction]:
    """Yield all instructions of a Dockerfile in order."""
    parts: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#") or not line.strip():
            continue
        parts.append(line.rstrip().removesuffix("\\").strip())
        if not line.rstrip().endswith("\\"):
            keyword, _, value = " ".join(parts).partition(" ")
            yield Instruction(keyword.upper(), value.strip())
            parts = []


def is_ignored(path: str, patterns: list[str]) -> bool:
    """Return whether .dockerignore excludes a file: the last line that matches it or a folder above it decides."""
    parents = ["/".join(path.split("/")[:depth]) for depth in range(1, path.count("/") + 2)]
    verdict = False
    for pattern in patterns:
        wanted = re.escape(pattern.removeprefix("!").strip("/"))
        wanted = wanted.replace(r"\*\*/", "(.*/)?").replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
        if any(re.fullmatch(wanted, parent) for parent in parents):
            verdict = not pattern.startswith("!")
    return verdict


def read_ignore_patterns(context: Path) -> list[str]:
    """Return the lines of a folder's .dockerignore."""
    lines = (context / ".dockerignore").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]
