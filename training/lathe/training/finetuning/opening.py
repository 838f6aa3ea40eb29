"""Opening of the data sets that a job names as sources and as target."""

from pathlib import Path

from lathe.training.datasets.data_set import DataSet
from lathe.training.datasets.folder import META, UNLABELLED, FileDataSet, FolderDataSet, read_meta
from lathe.training.datasets.hub import HubDataSet
from lathe.training.datasets.layouts import TRAINABLE
from lathe.training.errors import DataSetError, JobError
from lathe.training.finetuning.job import SourceSettings, TargetSettings


def open_data_sets(settings: SourceSettings) -> tuple[list[DataSet], dict[str, str]]:
    """Open the data sets that a source of a job names. A missing or empty folder raises, a missing file raises later.

    The source is a file, rows, a hub data set, or a folder. Only META.json files are read.

    Returns:
        The data sets, and the reasons why data sets of the folder are left out, by name.

    Raises:
        JobError: if there is no such folder, or no data set in it.
        DataSetError: if the folder that the source names is a data set that cannot be used.
    """
    if settings.rows is not None:
        return [FileDataSet(settings.name or "rows", None, settings.task or "pairs", settings.rows)], {}
    if settings.jsonl is not None:
        name = settings.name or settings.jsonl.name.partition(".")[0]
        return [FileDataSet(name, settings.jsonl, settings.task or "pairs")], {}
    if settings.hub is not None:
        name, columns = settings.name or settings.hub, tuple(settings.columns.items())
        assert settings.task is not None  # the settings refuse a hub data set without a task
        return [HubDataSet(name, settings.task, settings.hub, settings.revision, columns, settings.split)], {}

    assert settings.folder is not None
    return _open_folder(settings.folder, settings)


def _open_folder(root: Path, settings: SourceSettings) -> tuple[list[DataSet], dict[str, str]]:
    """Open the data sets at or below a folder, and return reasons for data sets left out. A folder without any raises.

    A folder with a META.json, or for which the job names a task, is one data set itself.

    Returns:
        The data sets, and the reasons for data sets that cannot be used or are excluded, by name.

    Raises:
        JobError: if the folder is missing or holds no data set, a data set to exclude is missing, or `name` is set for
            several data sets.
        DataSetError: if the folder is a data set itself that cannot be used.
    """
    if not root.is_dir():
        raise JobError(f"there is no folder {root}")
    if (root / META).is_file() or settings.task is not None:
        if settings.exclude:
            raise JobError(f"{root.name} is a data set itself, so exclude cannot be used: leave exclude out")
        return [_open_folder_data_set(settings.name or root.resolve().name, root, settings.task)], {}

    data_sets: list[DataSet] = []
    problems: dict[str, str] = {}
    names = [(str(path.parent.relative_to(root)), path.parent) for path in sorted(root.rglob(META))]
    unknown = set(settings.exclude) - {name for name, _ in names}
    if unknown:
        raise JobError(f"{root.name} holds no data set {min(unknown)!r} to exclude; it has {', '.join(dict(names))}")

    for name, folder in names:
        if name in settings.exclude:
            problems[name] = "excluded by the job"
            continue
        try:
            data_sets.append(_open_folder_data_set(name, folder))
        except DataSetError as error:
            problems[name] = str(error)

    if settings.name is not None and len(names) > 1:
        raise JobError(
            f"the folder {root.name} holds {len(names)} data sets, which cannot all have the name {settings.name}"
        )
    if not names:
        raise JobError(f"the folder {root} holds no data sets, which are folders with a {META} and data files")

    return data_sets, problems


def _open_folder_data_set(name: str, folder: Path, task: str | None = None) -> FolderDataSet:
    """Open the data set of a folder, with `task` or the task in META.json. A task that cannot be trained on raises.

    Raises:
        DataSetError: if neither names a task, or the task cannot be trained on.
    """
    known_task, language = read_meta(folder, task)
    if known_task == UNLABELLED:
        raise DataSetError("it has only sentences, without pairs that belong together; training needs pairs or labels")
    if known_task not in TRAINABLE:
        raise DataSetError(f"the task {known_task!r} cannot be trained on; allowed are {', '.join(TRAINABLE)}")
    return FolderDataSet(name, known_task, folder, str(language))


def open_target(settings: TargetSettings) -> FolderDataSet:
    """Open the folder of the target, a data set to test on that must not be trained on. A missing folder raises.

    Raises:
        JobError: if there is no such folder.
        DataSetError: if the folder is not a data set that can be used.
    """
    if not settings.folder.is_dir():
        raise JobError(f"there is no folder {settings.folder}")
    return _open_folder_data_set(settings.name or settings.folder.resolve().name, settings.folder, settings.task)
