"""The shards of a run as tasks for workers."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from training.distributed.tasks import Done, Task
from training.distributed.token import Token
from training.errors import SourceError
from training.fitting.encoded_shards import Position, position_in
from training.fitting.encoding_run import Run
from training.fitting.engines import Report
from training.sources.readers import BUILT_IN
from training.sources.remote import is_remote
from training.sources.shards import Shard


class ShardTasks:
    """What is left of a run: of files here each shard by itself, the shards of a file elsewhere in one go.

    Args:
        run: whose shards they are.
        positions: how far each was.

    Attributes:
        shards: that are not finished, by the folder they go to: files of the same name and content share one.
        damaged: files found to be, and why; what is left of them is passed over.
    """

    def __init__(self, run: Run, positions: Mapping[Shard, Position]) -> None:
        self.run = run
        self.token = Token.put_into(run.root)
        self.damaged: dict[str, str] = {}
        self.shards: dict[Path, list[Shard]] = {}
        for shard in run.plan.shards:
            if positions[shard].rows < shard.rows:
                self.shards.setdefault(run.folders[shard].absolute(), []).append(shard)

    def __iter__(self) -> Iterator[Task]:
        for file, folders in groupby(self.shards, lambda folder: self.shards[folder][0].file):
            here = list(folders)
            for together in [here] if is_remote(file) else [[folder] for folder in here]:
                if self.run.source.name_of(file) not in self.damaged:
                    yield self.task(file, together)

    def task(self, file: str, folders: list[Path]) -> Task:
        """The encoding of shards of one file, in words that hold in any working folder."""
        place = file if file in BUILT_IN or is_remote(file) else str(Path(file).absolute())
        shards = [replace(self.shards[folder][0], file=place) for folder in folders]
        name = f"{self.run.source.name_of(file)}, rows {shards[0].start:,} to {shards[-1].stop:,}"
        return Task(name, "encode", (shards, self.run.source.field, folders, self.token))

    def look(self, tasks: Iterable[Task], report: Report) -> None:
        """Report how far tasks are, by what lies in the workspace."""
        for task in tasks:
            for folder in folders_of(task):
                for shard in self.shards[folder]:
                    report(shard, position_in(folder).rows)

    def end(self, done: Done, report: Report) -> None:
        """Note how a task ended.

        Raises:
            SourceError: for a damaged file, unless the source leaves such out.
            Exception: whatever else the worker raised.
        """
        if isinstance(done.error, SourceError):
            file = self.shards[folders_of(done.task)[0]][0].file
            self.run.source.leave_out(file, done.error, self.damaged)
        elif done.error is not None:
            raise done.error
        else:
            self.look([done.task], report)


def folders_of(task: Task) -> list[Path]:
    """Where the shards of a task go."""
    folders: list[Path] = task.arguments[2]
    return folders
