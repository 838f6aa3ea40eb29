"""What worker processes do for a comparison; what goes wrong names the data set.

mteb is imported only where it is needed: the process that hands out the work needs none of it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from training.errors import EvaluationError
from training.evaluation.statistics import Array
from training.evaluation.worker import Raw, Trial
from training.research.domains.samples import Pool, pooled, sample_scores

if TYPE_CHECKING:
    from training.research.domains.texts import TextSample


def bootstrap(trials: Sequence[Trial], raw: Raw) -> tuple[int, Array]:
    """How many examples some data sets of one type have together, and the scores `(500,)` of samples of them.

    Raises:
        EvaluationError: if one of them cannot be read, or a vector is missing.
    """
    parts = [examples_of(trial, raw) for trial in trials]
    pool = pooled(parts)
    return len(pool), sample_scores(pool)


def examples_of(trial: Trial, raw: Raw) -> Pool:
    """The examples of a data set.

    Raises:
        EvaluationError: whatever went wrong.
    """
    from training.research.domains.examples import read_examples

    try:
        return read_examples(trial, raw)
    except Exception as error:  # mteb and what it stands on raise anything
        raise EvaluationError(f"{trial.entry.name}: {told(error)}") from error


def describe(trial: Trial, raw: Raw | None) -> "TextSample":
    """The texts of a data set, with their mean under an encoder.

    Raises:
        EvaluationError: whatever went wrong.
    """
    from training.research.domains.texts import sample_texts

    try:
        return sample_texts(trial, raw)
    except Exception as error:  # mteb and what it stands on raise anything
        raise EvaluationError(told(error)) from error


def told(error: Exception) -> str:
    """An error as a sentence."""
    if isinstance(error, EvaluationError):
        return str(error)
    if isinstance(error, KeyError) and isinstance(error.args[0], bytes):
        return "the vector of a text is not stored"
    return f"{type(error).__name__}: {error}"
