"""The part of a comparison that worker processes do.

Errors name the data set. mteb is imported only inside the functions that need it, because the main process needs none
of it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lathe.training.comparison import Array
from lathe.training.errors import EvaluationError
from lathe.training.evaluation.suites import Entry
from research.domains.samples import Pool, StoredVectors, concatenate_pools, score_samples

if TYPE_CHECKING:
    from research.domains.texts import TextSample


def bootstrap_scores(entries: Sequence[Entry], stored: StoredVectors) -> tuple[int, Array]:
    """Pool examples of several data sets of a type.

    Args:
        entries: data sets, as they were evaluated.
        stored: stored vectors of an encoder.

    Returns:
        Their number and the scores `(500,)` of bootstrap samples.

    Raises:
        EvaluationError: if a data set cannot be read, or a vector is missing.
    """
    parts = [_read_examples_of(entry, stored) for entry in entries]
    pool = concatenate_pools(parts)
    return len(pool), score_samples(pool)


def _read_examples_of(entry: Entry, stored: StoredVectors) -> Pool:
    """Read the scored examples of a data set.

    Any exception becomes an `EvaluationError` that names the data set.

    Raises:
        EvaluationError: if anything fails.
    """
    from research.domains.examples import read_examples

    try:
        return read_examples(entry, stored)
    except Exception as error:  # mteb and what it stands on raise anything
        raise EvaluationError(f"{entry.name}: {_format_error(error)}") from error


def sample_texts_of(entry: Entry, stored: StoredVectors | None) -> "TextSample":
    """Sample texts of a data set, with their mean vector if `stored` is given.

    Any exception becomes an `EvaluationError`.

    Raises:
        EvaluationError: if anything fails.
    """
    from research.domains.texts import sample_texts

    try:
        return sample_texts(entry, stored)
    except Exception as error:  # mteb and what it stands on raise anything
        raise EvaluationError(_format_error(error)) from error


def _format_error(error: Exception) -> str:
    """Format an exception as a message: a missing vector is named in words, other types as "Type: message"."""
    if isinstance(error, EvaluationError):
        return str(error)
    if isinstance(error, KeyError) and isinstance(error.args[0], bytes):
        return "the vector of a text is not stored"
    return f"{type(error).__name__}: {error}"
