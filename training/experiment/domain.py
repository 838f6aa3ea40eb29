"""Held-out text of the whole domain, on which drift and isotropy are measured (the paper's Figure 3)."""

from collections.abc import Iterable, Sequence

import numpy as np

from training.errors import DataSetError
from training.experiment.settings import ExperimentSettings
from training.finetuning.datasets import FolderDataSet, open_source
from training.finetuning.mixture import Mixture
from training.finetuning.overlap import normalized, tested_texts

TEXTS_PER_SOURCE = 60
"""Of each data set: enough together to estimate 384 variances, few enough to be encoded in seconds."""


def domain_texts(settings: ExperimentSettings, mixtures: Iterable[Mixture]) -> list[str]:
    """A few test texts of every data set that trains on another split, none of them trained on by any mixture."""
    known = {part for mixture in mixtures for part in trained_parts(mixture)}
    found: dict[str, None] = {}
    for source in settings.sources:
        for data in open_source(source)[0]:
            if isinstance(data, FolderDataSet) and {"train", "test"} <= set(data.splits()):
                found |= dict.fromkeys(drawn(data, known, settings.seed))
    return list(found)


def trained_parts(mixture: Mixture) -> Iterable[str]:
    """Every text of a mixture, and every line of those that are made of several texts."""
    for text in (*mixture.anchors, *mixture.positives):
        yield normalized(text)
        yield from map(normalized, text.splitlines())


def drawn(data: FolderDataSet, known: set[str], seed: int) -> Sequence[str]:
    """A few of a data set's test texts; none of one that cannot be read."""
    try:
        texts = [text for text in dict.fromkeys(tested_texts(data)) if normalized(text) not in known]
    except DataSetError:
        return []
    order = np.random.default_rng(seed).permutation(len(texts))[:TEXTS_PER_SOURCE]
    return [texts[place] for place in order]
