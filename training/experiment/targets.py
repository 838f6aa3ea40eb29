"""Which data sets are left out in turn: the selection protocol of the REZE paper's Section 4.1.1."""

from collections.abc import Sequence

from training.errors import DataSetError, JobError
from training.experiment.settings import ExperimentSettings
from training.finetuning.datasets import FolderDataSet, open_source, open_target

ENGLISH = "en"


def chosen_targets(settings: ExperimentSettings) -> list[FolderDataSet]:
    """The targets that are named; else those of the protocol.

    English data sets whose training or test split has more rows than a threshold, and that have a training split; of
    each task type a few. The paper does not say which few: here those with the most training rows.

    Raises:
        JobError: if there is none.
    """
    if settings.targets:
        return [open_target(target) for target in settings.targets]
    eligible: dict[str, list[tuple[int, FolderDataSet]]] = {}
    for source in settings.sources:
        for data in open_source(source)[0]:
            if not isinstance(data, FolderDataSet) or data.language != ENGLISH:
                continue
            sizes = split_sizes(data)
            if {"train", "test"} <= set(sizes) and max(sizes["train"], sizes["test"]) > settings.min_rows:
                eligible.setdefault(data.task, []).append((sizes["train"], data))
    found = [data for several in eligible.values() for data in largest(several, settings.targets_per_task)]
    if not found:
        raise JobError(
            f"no data set of the sources can be a target: none is English, has a training and a test split, and one "
            f"of them with more than {settings.min_rows:,} rows; name targets, or lower min_rows"
        )
    return found


def largest(several: Sequence[tuple[int, FolderDataSet]], count: int) -> list[FolderDataSet]:
    """Those with the most training rows."""
    return [data for _, data in sorted(several, key=lambda one: (-one[0], one[1].name))[:count]]


def split_sizes(data: FolderDataSet) -> dict[str, int]:
    """Rows of each split, judgements of a retrieval; nothing of one that cannot be read."""
    try:
        if data.task == "retrieval":
            return {split: len(data.judgements(split)) for split in data.splits()}
        return {split: sum(1 for _ in data.rows(split)) for split in data.splits()}
    except DataSetError:
        return {}
