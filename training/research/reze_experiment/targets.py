"""Which data sets are left out in turn: the selection protocol of the REZE paper's Section 4.1.1."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from training.errors import DataSetError, JobError
from training.finetuning.datasets import FolderDataSet, open_source, open_target
from training.finetuning.job import SourceSettings
from training.finetuning.overlap import normalized, test_queries, test_texts
from training.finetuning.positives import Pair, distinct_pairs, find_pairs
from training.finetuning.values import Prompts
from training.research.reze_experiment.settings import ExperimentSettings

ENGLISH = "en"
SYMMETRIC = ("sts", "pair_classification")
"""Tasks that compare two texts of one kind: both get the anchor's prompt, as where they are measured."""


@dataclass(frozen=True)
class Target:
    """A data set that is left out, with what its source or the experiment says of it."""

    data: FolderDataSet
    settings: SourceSettings

    @property
    def name(self) -> str:
        """In tables."""
        return self.data.name

    @property
    def prompts(self) -> Prompts:
        """Put before its texts, in the fine-tuning and where it is measured."""
        given = self.settings.prompts
        return Prompts(anchor=given.anchor, positive=given.anchor) if self.data.task in SYMMETRIC else given

    def labels(self) -> dict[str, str]:
        """The text of each label, where something says more than the label."""
        return self.data.labels() | self.settings.labels

    def training_pairs(self) -> list[Pair]:
        """Its training pairs without those that have a text of its test; of a search, a query of it.

        Raises:
            DataSetError: if they cannot be read.
        """
        found = find_pairs(self.data, self.settings.model_copy(update={"split": "train"})).pairs
        queries = test_queries(self.data)
        tested = test_texts(self.data) if queries is None else queries
        parts = [pair.parts if queries is None else (pair.anchor,) for pair in found]
        known = [any(normalized(text) in tested for text in texts) for texts in parts]
        return distinct_pairs([pair for pair, is_known in zip(found, known, strict=True) if not is_known])


def drawn_rows(pairs: Sequence[Pair], seed: int) -> list[Pair]:
    """Training pairs in the order of a seed, of which a fine-tuning takes the first."""
    return [pairs[place] for place in np.random.default_rng(seed).permutation(len(pairs))]


def chosen_targets(settings: ExperimentSettings) -> list[Target]:
    """The targets that are named; else those of the protocol.

    English data sets whose training or test split has more rows than a threshold, and that have a training split; of
    each task type a few. The paper does not say which few: here those with the most training rows.

    Raises:
        JobError: if there is none, or two have one name.
    """
    if settings.targets:
        found = [Target(open_target(target), target.as_source()) for target in settings.targets]
    else:
        found = list(protocol(settings))
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


def protocol(settings: ExperimentSettings) -> Iterator[Target]:
    """The targets of Section 4.1.1."""
    eligible: dict[str, list[tuple[int, Target]]] = {}
    for source in settings.sources:
        for data in open_source(source)[0]:
            if not isinstance(data, FolderDataSet) or data.language != ENGLISH:
                continue
            sizes = split_sizes(data)
            if {"train", "test"} <= set(sizes) and max(sizes["train"], sizes["test"]) > settings.min_rows:
                own = source.model_copy(update={"folder": data.folder, "exclude": ()})
                eligible.setdefault(data.task, []).append((sizes["train"], Target(data, own)))
    for several in eligible.values():
        ranked = sorted(several, key=lambda one: (-one[0], one[1].name))
        yield from (target for _, target in ranked[: settings.targets_per_task])


def split_sizes(data: FolderDataSet) -> dict[str, int]:
    """Rows of each split, judgements of a retrieval; nothing of one that cannot be read."""
    try:
        if data.task == "retrieval":
            return {split: len(data.judgements(split)) for split in data.splits()}
        return {split: sum(1 for _ in data.rows(split)) for split in data.splits()}
    except DataSetError:
        return {}
