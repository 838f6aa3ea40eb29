"""Samples of a thousand texts of a data set, and their mean vector.

Only worker processes import this module, because it imports mteb; see `lathe.training.evaluation.worker`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mteb.types import PromptType
from numpy.typing import NDArray

from lathe.training.datasets.layouts import LAYOUTS
from lathe.training.errors import DataSetError
from lathe.training.evaluation.suites import Entry
from lathe.training.evaluation.tasks import iterate_splits
from lathe.training.evaluation.worker import load_task
from research.domains.examples import join_title_and_text, open_stored_model
from research.domains.samples import StoredVectors

MAX_TEXTS = 1000
"""Maximum number of texts sampled from a data set: the paper's number (*FinMTEB*, Appendix A.1)."""
MTEB_COLUMNS = ("text", "sentences", "sentence1", "sentence2", "human_summaries", "machine_summaries")
"""Usual names of the columns of mteb's tasks that hold texts; a cell is a text or a list of texts."""

Asked = tuple[str, PromptType | None]
"""Text, and the kind of prompt it is encoded with: query, document or None."""


@dataclass(frozen=True)
class TextSample:
    """Sample of the texts of a data set.

    Attributes:
        texts: distinct texts, at most 1,000, drawn with a fixed seed.
        mean: mean of their unit vectors `(d,)`; None if no encoder was given or no vector is stored.
    """

    texts: tuple[str, ...]
    mean: NDArray[np.float64] | None


def sample_texts(entry: Entry, stored: StoredVectors | None) -> TextSample:
    """Draw at most 1,000 texts that a task is evaluated on, the same ones each time, and compute their mean vector.

    Args:
        entry: data set as it was evaluated.
        stored: stored vectors of an encoder; None for no mean.

    Raises:
        EvaluationError: if the data set cannot be read or has no texts.
    """
    task, _ = load_task(entry)
    columns = LAYOUTS[entry.task].text_columns if entry.task else MTEB_COLUMNS
    asked = list(dict.fromkeys(_iterate_texts(task, columns)))
    if not asked:
        raise DataSetError(f"it has none of the columns {', '.join(columns)}")
    drawn = [asked[row] for row in np.random.default_rng(0).permutation(len(asked))[:MAX_TEXTS]]
    mean = None if stored is None else _average_vectors(task, stored, drawn)
    return TextSample(tuple(dict.fromkeys(text for text, _ in drawn)), mean)


def _iterate_texts(task: Any, columns: Sequence[str]) -> Iterator[Asked]:
    """Yield every text of the evaluated splits, repeats included, with the kind of prompt it is encoded with.

    These are queries and documents of a search, else texts of the named columns that there are.
    """
    for holder, split in iterate_splits(task):
        data = holder[split]
        if isinstance(data, dict):
            yield from ((text, PromptType.query) for text in data["queries"]["text"] if isinstance(text, str))
            yield from ((text, PromptType.document) for text in join_title_and_text(data["corpus"]))
            continue
        for name in (name for name in columns if name in data.column_names):
            for cell in data[name]:
                yield from ((text, None) for text in ([cell] if isinstance(cell, str) else cell))


def _average_vectors(task: Any, stored: StoredVectors, drawn: list[Asked]) -> NDArray[np.float64] | None:
    """Return the mean `(d,)` float64 of the stored vectors of the texts.

    The result is None if none of them has a stored vector. mteb's own tasks may leave texts out, which then have no
    vector and are skipped.
    """
    model = open_stored_model(stored)
    keys = [model.keys([text], task.metadata, prompt_type)[0] for text, prompt_type in drawn]
    known = [key for key in keys if key in model.vectors]
    return model.vectors.get(known).mean(axis=0, dtype=np.float64) if known else None
