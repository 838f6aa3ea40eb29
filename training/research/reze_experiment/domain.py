"""Held-out text of the whole domain, on which drift and isotropy are measured (the paper's Figure 3)."""

from collections.abc import Sequence

import numpy as np

from training.errors import DataSetError
from training.finetuning.datasets import DataSet, FolderDataSet, open_source
from training.finetuning.job import SourceSettings
from training.finetuning.overlap import normalized, tested_texts
from training.finetuning.positives import find_pairs
from training.research.reze_experiment.settings import ExperimentSettings

TEXTS_PER_SOURCE = 60
"""Of each data set: enough together to estimate 384 variances, few enough to be encoded in seconds."""


def domain_texts(settings: ExperimentSettings) -> list[str]:
    """A few test texts of every data set that trains on another split, none of which any data set trains on.

    They depend on the sources alone, so that what is measured on them can be compared whatever the targets are.
    """
    sources = [(data, source) for source in settings.sources for data in open_source(source)[0]]
    known = {part for data, source in sources for part in trained_parts(data, source)}
    found: dict[str, None] = {}
    for data, _ in sources:
        if isinstance(data, FolderDataSet) and {"train", "test"} <= set(data.splits()):
            found |= dict.fromkeys(drawn(data, known, settings.seed))
    return list(found)


def trained_parts(data: DataSet, source: SourceSettings) -> set[str]:
    """Every text of a data set's pairs; none of one that cannot be used."""
    try:
        return {normalized(text) for pair in find_pairs(data, source).pairs for text in pair.parts}
    except DataSetError:
        return set()


def drawn(data: FolderDataSet, known: set[str], seed: int) -> Sequence[str]:
    """A few of a data set's test texts; none of one that cannot be read."""
    try:
        texts = [text for text in dict.fromkeys(tested_texts(data)) if normalized(text) not in known]
    except DataSetError:
        return []
    order = np.random.default_rng(seed).permutation(len(texts))[:TEXTS_PER_SOURCE]
    return [texts[place] for place in order]
