"""A thousand texts of a data set, and where they lie on average.

Only worker processes import this, as it imports mteb; see `training.evaluation.worker`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from mteb.types import PromptType
from numpy.typing import NDArray

from training.errors import DataSetError
from training.evaluation.tasks import splits_of
from training.evaluation.worker import Raw, Trial, loaded
from training.research.domains.examples import document_texts, stored_model

TEXTS_MOST = 1000
"""Of a data set: the paper's number (*FinMTEB*, Appendix A.1)."""
COLUMNS = ("text", "sentences", "sentence1", "sentence2", "human_summaries", "machine_summaries")
"""That hold texts, in our layouts and mteb's usual ones; a cell is a text or a list of texts."""

Asked = tuple[str, PromptType | None]


@dataclass(frozen=True)
class TextSample:
    """Texts of a data set.

    Attributes:
        texts: distinct, drawn with a seed.
        mean: of their unit vectors `(d,)`; None where none were asked for or none are stored.
    """

    texts: tuple[str, ...]
    mean: NDArray[np.float64] | None


def sample_texts(trial: Trial, raw: Raw | None) -> TextSample:
    """At most 1,000 texts of those a task is evaluated on, the same each time, with their mean under an encoder.

    Raises:
        EvaluationError: if the data set cannot be read or has no texts.
    """
    task, _ = loaded(trial)
    asked = list(dict.fromkeys(texts_of_task(task)))
    if not asked:
        raise DataSetError(f"it has none of the columns {', '.join(COLUMNS)}")
    drawn = [asked[row] for row in np.random.default_rng(0).permutation(len(asked))[:TEXTS_MOST]]
    mean = None if raw is None else mean_vector(task, raw, drawn)
    return TextSample(tuple(dict.fromkeys(text for text, _ in drawn)), mean)


def texts_of_task(task: Any) -> Iterator[Asked]:
    """Texts of what is evaluated, each with the kind of prompt it is asked for with."""
    for holder, split in splits_of(task):
        data = holder[split]
        if isinstance(data, dict):
            yield from ((text, PromptType.query) for text in data["queries"]["text"] if isinstance(text, str))
            yield from ((text, PromptType.document) for text in document_texts(data["corpus"]))
            continue
        for name in (name for name in COLUMNS if name in data.column_names):
            for cell in data[name]:
                yield from ((text, None) for text in ([cell] if isinstance(cell, str) else cell))


def mean_vector(task: Any, raw: Raw, drawn: list[Asked]) -> NDArray[np.float64] | None:
    """The mean `(d,)` of the texts' vectors; mteb's own tasks may leave texts out, which then have none."""
    model = stored_model(raw)
    keys = [model.keys([text], task.metadata, prompt_type)[0] for text, prompt_type in drawn]
    known = [key for key in keys if key in model.store]
    return model.store.get(known).mean(axis=0, dtype=np.float64) if known else None
