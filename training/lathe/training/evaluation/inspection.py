"""Seam for further measurements of the encoders, which are made outside this package."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lathe.training.evaluation.encoders import Group
from lathe.training.evaluation.scores import TaskDescription
from lathe.training.evaluation.store import VectorStore


@dataclass(frozen=True)
class EncodedGroup:
    """Encoders that run together and their stored vectors, for an inspection.

    Attributes:
        out: output folder of the evaluation.
        group: the encoders.
        stores: vectors of each encoder, including those of the corpus.
        sentences: sentences of the corpus.
        digest: hash of these sentences.
        task_keys: keys of the suite's tasks.
        read_tasks: returns the tasks with their texts, which is slow.
        encode: encodes (prompt name, text) pairs that the stores lack, and adds the vectors to the stores.
        report: called with a message before each step.
    """

    out: Path
    group: Group
    stores: Sequence[VectorStore]
    sentences: Sequence[str]
    digest: str
    task_keys: Sequence[str]
    read_tasks: Callable[[], Sequence[TaskDescription]]
    encode: Callable[[Sequence[tuple[str | None, str]]], None]
    report: Callable[[str], None]


Inspect = Callable[[EncodedGroup], Sequence[Any]]
"""Function that inspects a group of encoders and returns what it found for each encoder."""
