"""Data sets that are held out, one at a time: the selection protocol of the REZE paper's Section 4.1.1."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lathe.training.datasets.data_set import collect_test_queries, collect_test_texts, find_pairs
from lathe.training.datasets.folder import FolderDataSet
from lathe.training.datasets.pairs import Pair, merge_duplicate_pairs
from lathe.training.datasets.records import normalize_text
from lathe.training.errors import DataSetError, JobError
from lathe.training.finetuning.job import SourceSettings, TargetSettings
from lathe.training.finetuning.opening import open_data_sets, open_target
from lathe.training.settings import Prompts
from research.reze_experiment.settings import ExperimentSettings

ENGLISH = "en"
"""Language code that the protocol requires of a target."""


@dataclass(frozen=True)
class Target:
    """Data set that is held out, with its settings.

    Attributes:
        data: the data set.
        settings: prompts, labels and further settings from its source or from the experiment.
    """

    data: FolderDataSet
    settings: SourceSettings

    @classmethod
    def open(cls, asked: TargetSettings) -> "Target":
        """Open the data set of a target.

        Its rows become pairs with the target's task, prompts and labels.
        """
        settings = SourceSettings(folder=asked.folder, task=asked.task, prompts=asked.prompts, labels=asked.labels)
        return cls(open_target(asked), settings)

    @property
    def name(self) -> str:
        """Name in tables."""
        return self.data.name

    @property
    def prompts(self) -> Prompts:
        """Prompts put before its texts, in fine-tuning and in evaluation.

        Symmetric tasks use the anchor's for both.
        """
        given = self.settings.prompts
        return Prompts(anchor=given.anchor, positive=given.anchor) if self.data.layout.symmetric else given

    def read_labels(self) -> dict[str, str]:
        """Return the text of each label that has one, by label.

        The settings override the data set's own.
        """
        return self.data.read_labels() | self.settings.labels

    def read_training_pairs(self) -> list[Pair]:
        """Read the distinct training pairs, without those that share a text with the target's own test.

        For retrieval only queries are compared, because the documents of the test may be known.

        Raises:
            DataSetError: if the data set cannot be read.
        """
        found = find_pairs(self.data, self.settings.model_copy(update={"split": "train"})).pairs
        queries = collect_test_queries(self.data)
        tested = collect_test_texts(self.data) if queries is None else queries
        parts = [pair.parts if queries is None else (pair.anchor,) for pair in found]
        known = [any(normalize_text(text) in tested for text in texts) for texts in parts]
        return merge_duplicate_pairs([pair for pair, is_known in zip(found, known, strict=True) if not is_known])


def shuffle_pairs(pairs: Sequence[Pair], seed: int) -> list[Pair]:
    """Return all pairs in a random order given by the seed.

    Fine-tuning on n rows uses the first n.
    """
    return [pairs[place] for place in np.random.default_rng(seed).permutation(len(pairs))]


def choose_targets(settings: ExperimentSettings) -> list[Target]:
    """Return the targets named in the settings, or, if none are named, those that the paper's protocol selects.

    The protocol takes English data sets that have a training and a test split, one of which has more than `min_rows`
    rows; of each task type a few. The paper does not say which few: here those with the most training rows.

    Raises:
        JobError: if there is no target, or two have the same name.
    """
    if settings.targets:
        found = [Target.open(target) for target in settings.targets]
    else:
        found = list(choose_by_protocol(settings))
    names = [target.name for target in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise JobError(f"two targets are called {twice}; give one a name")
    if not found:
        raise JobError(
            f"no data set of the sources can be a target: none is English, has a training and a test split, and one "
            f"of them with more than {settings.min_rows:,} rows; name targets, or lower min_rows"
        )
    return found


def choose_by_protocol(settings: ExperimentSettings) -> Iterator[Target]:
    """Yield the targets of Section 4.1.1: per task type, the eligible data sets with the most training rows.

    At most `targets_per_task` of a task type are yielded, largest first. Eligible are English data sets in folders that
    have a training and a test split, one of which has more than `min_rows` rows.
    """
    eligible: dict[str, list[tuple[int, Target]]] = {}
    for source in settings.sources:
        for data in open_data_sets(source)[0]:
            if not isinstance(data, FolderDataSet) or data.language != ENGLISH:
                continue
            sizes = count_split_rows(data)
            if {"train", "test"} <= set(sizes) and max(sizes["train"], sizes["test"]) > settings.min_rows:
                own = source.model_copy(update={"folder": data.folder, "exclude": ()})
                eligible.setdefault(data.task, []).append((sizes["train"], Target(data, own)))
    for several in eligible.values():
        ranked = sorted(several, key=lambda one: (-one[0], one[1].name))
        yield from (target for _, target in ranked[: settings.targets_per_task])


def count_split_rows(data: FolderDataSet) -> dict[str, int]:
    """Return the number of rows (for retrieval: of judgements) of each split.

    The result is empty if the data set cannot be read.
    """
    try:
        return {split: data.layout.count_rows(data, split) for split in data.list_splits()}
    except DataSetError:
        return {}
