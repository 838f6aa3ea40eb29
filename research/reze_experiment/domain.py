"""Held-out text of the whole domain, on which drift and isotropy are measured (the paper's Figure 3)."""

from collections.abc import Sequence

import numpy as np

from lathe.training.datasets.data_set import DataSet, find_pairs, read_test_texts
from lathe.training.datasets.folder import FolderDataSet
from lathe.training.datasets.records import normalize_text
from lathe.training.errors import DataSetError
from lathe.training.finetuning.job import SourceSettings
from lathe.training.finetuning.opening import open_data_sets
from research.reze_experiment.settings import ExperimentSettings

TEXTS_PER_SOURCE = 60
"""Maximum number of texts per data set: enough together to estimate 384 variances, few enough to encode in seconds."""


def sample_domain_texts(settings: ExperimentSettings) -> list[str]:
    """Sample up to 60 test texts of each data set with a training and a test split, as held-out text.

    Texts that any source trains on are excluded. Only data sets in folders are sampled, and those that cannot be read
    give no texts. The sample depends on the sources and the seed of the settings alone, so that measurements on it are
    comparable whatever the targets are.

    Raises:
        JobError: if the folder of a source is missing, or has no data set.
        DataSetError: if a data set that a source names cannot be opened.
    """
    sources = [(data, source) for source in settings.sources for data in open_data_sets(source)[0]]
    known = {part for data, source in sources for part in collect_trained_texts(data, source)}
    found: dict[str, None] = {}
    for data, _ in sources:
        if isinstance(data, FolderDataSet) and {"train", "test"} <= set(data.list_splits()):
            found |= dict.fromkeys(sample_test_texts(data, known, settings.seed))
    return list(found)


def collect_trained_texts(data: DataSet, source: SourceSettings) -> set[str]:
    """Return every text of a data set's training pairs, normalized.

    The result is empty if the data set cannot be used.
    """
    try:
        return {normalize_text(text) for pair in find_pairs(data, source).pairs for text in pair.parts}
    except DataSetError:
        return set()


def sample_test_texts(data: FolderDataSet, known: set[str], seed: int) -> Sequence[str]:
    """Sample up to 60 of a data set's test texts that are not in `known`.

    Args:
        data: data set.
        known: normalized texts to exclude.
        seed: seed of the sample.

    Returns:
        None if the data set cannot be read.
    """
    try:
        texts = [text for text in dict.fromkeys(read_test_texts(data)) if normalize_text(text) not in known]
    except DataSetError:
        return []
    order = np.random.default_rng(seed).permutation(len(texts))[:TEXTS_PER_SOURCE]
    return [texts[place] for place in order]
