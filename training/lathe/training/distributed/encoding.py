"""Tasks by which workers encode the shards of a run."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from lathe.training.distributed.tasks import Task, TaskResult
from lathe.training.distributed.worker import Token
from lathe.training.errors import SourceError
from lathe.training.fitting.encoded_shards import Position, read_position
from lathe.training.fitting.engines import EncodingRun, Report
from lathe.training.sources.hub import is_hub
from lathe.training.sources.remote import is_remote
from lathe.training.sources.shards import Shard, is_path


class ShardTasks:
    """Iterable of a run's tasks, which also collects their outcomes.

    A task encodes one unfinished shard of a local file, or all shards of a remote one.

    Args:
        run: the shards, their folders and the encoder.
        positions: position of each shard at the start.

    Attributes:
        token: token written to the run's folder.
        shards: unfinished shards by folder; files of the same name and content share a folder.
        damaged: names of damaged files, with the reasons; further shards of these files are skipped.
    """

    def __init__(self, run: EncodingRun, positions: Mapping[Shard, Position]) -> None:
        self.run = run
        self.token = Token.write(run.root)
        self.damaged: dict[str, str] = {}
        self.shards: dict[Path, list[Shard]] = {}
        for shard in run.plan.shards:
            if positions[shard].rows < shard.rows:
                self.shards.setdefault(run.folders[shard].absolute(), []).append(shard)

    def __iter__(self) -> Iterator[Task]:
        """Yield the tasks of encoding the shards, file by file. Files that have been found damaged by then are left
        out.
        """
        for file, folders in groupby(self.shards, lambda folder: self.shards[folder][0].file):
            here = list(folders)
            # All shards of a remote file are one task, so that it is downloaded once.
            for together in [here] if is_remote(file) or is_hub(file) else [[folder] for folder in here]:
                if self.run.source.name_of(file) not in self.damaged:
                    yield self._build_task(file, together)

    def _build_task(self, file: str, folders: list[Path]) -> Task:
        location = str(Path(file).absolute()) if is_path(file) else file
        shards = [replace(self.shards[folder][0], file=location) for folder in folders]
        name = f"{self.run.source.name_of(file)}, rows {shards[0].start:,} to {shards[-1].stop:,}"
        return Task(name, "encode", (shards, self.run.source.field, folders, self.token))

    def report_progress(self, tasks: Iterable[Task], report: Report) -> None:
        """Call `report` with the rows done of each shard of the tasks, as read from the shards' folders."""
        for task in tasks:
            for folder in _list_folders(task):
                for shard in self.shards[folder]:
                    report(shard, read_position(folder).rows)

    def record_outcome(self, done: TaskResult, report: Report) -> None:
        """Record how a task ended. Its rows are reported, or a damaged file is added to `damaged` with the reason, or
        the worker's error is raised.

        Raises:
            SourceError: for a damaged file, unless the source skips such files.
            Exception: any other error that the worker raised.
        """
        if isinstance(done.error, SourceError):
            file = self.shards[_list_folders(done.task)[0]][0].file
            self.run.source.record_or_raise(file, done.error, self.damaged)
        elif done.error is not None:
            raise done.error
        else:
            self.report_progress([done.task], report)


def _list_folders(task: Task) -> list[Path]:
    """Return the folders that a task encodes its shards into."""
    folders: list[Path] = task.arguments[2]
    return folders
