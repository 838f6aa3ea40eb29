"""What a model is measured on while it is trained: held-out pairs, or a data set."""

import contextlib
import io
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from training.errors import JobError
from training.finetuning.datasets import FolderDataSet, open_target
from training.finetuning.extras import DevelopmentSettings
from training.finetuning.job import TargetSettings
from training.finetuning.mixture import Mixture
from training.finetuning.overlap import normalized, test_queries, test_texts

HELD_OUT_SHARE = 0.2
"""Of a source's pairs, at most: the rest is trained on."""

Encode = Callable[[Sequence[str]], NDArray[np.float32]]
"""Unit vectors `(n, d)` of texts that carry their prompts."""


class Development(Protocol):
    """Something to measure a model on."""

    @property
    def settings(self) -> DevelopmentSettings:
        """How often, and when to stop."""

    @property
    def metric(self) -> str:
        """What is measured; more is better."""

    def measure(self, encode: Encode) -> float:
        """The metric of a model."""


@dataclass(frozen=True)
class HeldOut:
    """Pairs that are not trained on. Each anchor looks for its positives among all held-out ones of its source.

    Attributes:
        pairs: with their sources.
        settings: of the job.
    """

    pairs: Mixture
    settings: DevelopmentSettings

    @property
    def metric(self) -> str:
        """`mrr`, the mean of 1 / rank of the first positive, or `accuracy`, how often that is 1; a mean of sources."""
        return self.settings.metric or "mrr"

    def measure(self, encode: Encode) -> float:
        """The metric of a model."""
        texts = list(dict.fromkeys([*self.pairs.anchors, *self.pairs.positives]))
        vectors = dict(zip(texts, encode(texts), strict=True))
        found = []
        for source in np.unique(self.pairs.sources):
            answers: dict[str, set[str]] = {}
            for place in np.flatnonzero(self.pairs.sources == source):
                answers.setdefault(self.pairs.anchors[place], set()).add(self.pairs.positives[place])
            ranks = first_ranks(answers, vectors)
            found.append(float((1 / ranks).mean() if self.metric == "mrr" else (ranks == 1).mean()))
        return float(np.mean(found))


def first_ranks(answers: dict[str, set[str]], vectors: dict[str, NDArray[np.float32]]) -> NDArray[np.float64]:
    """The rank of each anchor's nearest positive among the positives of all, behind others that are as near."""
    documents = sorted(set().union(*answers.values()))
    scores = np.stack([vectors[anchor] for anchor in answers]) @ np.stack([vectors[text] for text in documents]).T
    own = np.array([[text in some for text in documents] for some in answers.values()])
    best = np.where(own, scores, -np.inf).max(axis=1, keepdims=True)
    return np.asarray(1 + ((scores >= best) & ~own).sum(axis=1), np.float64)


def hold_out(mixture: Mixture, settings: DevelopmentSettings, seed: int) -> tuple[Mixture, HeldOut]:
    """Some pairs of each source apart from the others; all pairs of an anchor are on one side.

    Raises:
        JobError: if no source has enough pairs.
    """
    random_numbers = np.random.default_rng(seed)
    aside = np.zeros(len(mixture), bool)
    for source in range(len(mixture.names)):
        places = np.flatnonzero(mixture.sources == source)
        by_anchor: dict[str, list[int]] = {}
        for place in places.tolist():
            by_anchor.setdefault(normalized(mixture.anchors[place]), []).append(place)
        most, taken = min(settings.rows, int(len(places) * HELD_OUT_SHARE)), 0
        groups = list(by_anchor.values())
        for number in random_numbers.permutation(len(groups)):
            if taken + len(groups[number]) <= most:
                aside[groups[number]] = True
                taken += len(groups[number])
    if not aside.any():
        raise JobError("no source has pairs enough to hold some out; name a data set with evaluate: {folder: …}")
    rest, held = mixture.rows(np.flatnonzero(~aside)), mixture.rows(np.flatnonzero(aside))
    return rest, HeldOut(held, settings)


class Task:
    """A data set's test, by mteb's evaluators.

    Args:
        data: the data set.
        settings: prompts, metric and limit.

    Raises:
        DataSetError: if it cannot be read.
    """

    def __init__(self, data: FolderDataSet, settings: DevelopmentSettings) -> None:
        from training.evaluation.layouts import READERS
        from training.evaluation.limits import limit_rows
        from training.evaluation.model import Collector
        from training.evaluation.records import Warnings
        from training.evaluation.tasks import local_task
        from training.evaluation.worker import measure

        self.name, self.settings = data.name, settings
        self.prompts = {"query": settings.prompts.anchor, "document": settings.prompts.positive}
        self.task = local_task(data.name, data.task, data.language, READERS[data.task](data.folder, Warnings()))
        if settings.limit is not None:
            limit_rows(self.task, settings.limit)
        collector = Collector({})
        with undisturbed():
            _, metrics = measure(collector, self.task)
        if settings.metric is not None and settings.metric not in metrics:
            known = ", ".join(sorted(metrics))
            raise JobError(f"evaluate.metric: mteb measures no {settings.metric!r} on {data.name}, but {known}")
        self.texts = [prompt + text for _, text in collector.asked for prompt in dict.fromkeys(self.prompts.values())]

    @property
    def metric(self) -> str:
        """What is measured, of which data set."""
        return f"{self.settings.metric or self.task.metadata.main_score} of {self.name}"

    def measure(self, encode: Encode) -> float:
        """The metric of a model."""
        from training.evaluation.model import PromptedModel
        from training.evaluation.store import MemoryStore
        from training.evaluation.worker import measure

        model = PromptedModel(MemoryStore(self.texts, encode(self.texts)), self.prompts)
        with undisturbed():
            value, metrics = measure(model, self.task)
        return metrics[self.settings.metric] if self.settings.metric else value


def open_development(settings: DevelopmentSettings, target: FolderDataSet | None) -> FolderDataSet:
    """The data set to measure on.

    Raises:
        JobError: if there is none, it has no test, or it is the target or shares texts with its test.
    """
    assert settings.folder is not None  # asked for only where one is named
    data = open_target(TargetSettings(folder=settings.folder))
    if "test" not in data.splits():
        raise JobError(f"evaluate: {data.name} has no test split")
    if target is not None and "test" in target.splits():
        shared = measured_texts(data) & measured_texts(target)
        if shared:
            raise JobError(
                f"evaluate: {data.name} shares {len(shared):,} texts with the test of the target {target.name}, which "
                "is to be measured once, at the end"
            )
    return data


def measured_texts(data: FolderDataSet) -> set[str]:
    """The normalized inputs of a test; of a search, its queries.

    Raises:
        DataSetError: if it cannot be read.
    """
    queries = test_queries(data)
    return test_texts(data) if queries is None else queries


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Random numbers as they were before, so that training goes on as if nothing was measured; no bars of mteb's."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002  what mteb seeds is numpy's old generator
    with torch.random.fork_rng(), contextlib.redirect_stderr(io.StringIO()):
        yield
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
