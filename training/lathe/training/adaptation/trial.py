"""What a rung of the ladder gives, and the choice among rungs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.training.adaptation.rungs import Rung
from lathe.training.adaptation.searches import JudgedVectors
from lathe.transforms.base import QueryPairs
from lathe.transforms.chain import Chain
from lathe.transforms.quality.metrics import NORMAL_QUANTILE


@dataclass(frozen=True)
class Difference:
    """Mean difference of two measures, paired by query.

    Attributes:
        gain: the mean difference.
        ci95: half-width of its 95 % interval; infinite for a single query.
    """

    gain: float
    ci95: float

    @classmethod
    def between(cls, after: NDArray[np.float64], before: NDArray[np.float64]) -> "Difference":
        """Return the mean of `after − before`, `(n,)` each, with its interval."""
        gains = after - before
        error = float(gains.std(ddof=1)) / len(gains) ** 0.5 if len(gains) > 1 else np.inf
        return cls(float(gains.mean()), NORMAL_QUANTILE * error)

    @property
    def is_gain(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.gain > self.ci95

    @property
    def is_loss(self) -> bool:
        """Whether the whole interval is below 0."""
        return self.gain < -self.ci95

    def describe(self) -> dict[str, float | None]:
        """Return gain and interval as JSON."""
        return {"gain": self.gain, "ci95": self.ci95 if np.isfinite(self.ci95) else None}


@dataclass(frozen=True)
class Relevance:
    """nDCG@10 of each query through one rung.

    Attributes:
        choose: that of the queries to choose by, `(n,)`.
        report: that of the queries to report on, `(m,)`.
        out_of_domain: that of the halves of out-of-domain texts, by corpus.
    """

    choose: NDArray[np.float64]
    report: NDArray[np.float64]
    out_of_domain: Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class MeasuredChain:
    """The fitted chain of a trial, with what it was measured on, so that it can be certified and published as it is.

    Attributes:
        chain: the chain; without steps for vectors that stay as they are.
        vectors: judged searches by the encoder of the trial.
        halves: halves of out-of-domain texts by the same encoder.
    """

    chain: Chain
    vectors: JudgedVectors
    halves: Mapping[str, QueryPairs]


@dataclass(frozen=True)
class Trial:
    """A rung, measured with vectors as they would be stored.

    Attributes:
        rung: the rung.
        bytes: bytes of a stored vector of codes; None for floats.
        vector_bytes: bytes of a stored vector.
        relevance: nDCG@10 of each query; None if the rung was not tried.
        measured: the fitted chain that was measured; None if the rung was not tried.
        seconds: seconds that fitting or training took.
        encode_seconds: estimated seconds to encode all documents again; 0 if they stay.
        problem: why it was not tried; None if it was.
        notes: what the fit remarked, such as a map that was left out.
    """

    rung: Rung
    bytes: int | None
    vector_bytes: int
    relevance: Relevance | None
    measured: MeasuredChain | None = None
    seconds: float = 0.0
    encode_seconds: float = 0.0
    problem: str | None = None
    notes: tuple[str, ...] = ()

    def require_relevance(self) -> Relevance:
        """Return what was measured. The caller knows that the rung was tried."""
        assert self.relevance is not None
        return self.relevance

    def describe(self, baseline: Relevance) -> dict[str, Any]:
        """Return the trial as JSON, with differences to the baseline.

        Args:
            baseline: what the encoder's own floats give.
        """
        described: dict[str, Any] = {
            "rung": self.rung.name,
            "bytes": self.bytes,
            "vector_bytes": self.vector_bytes,
            "problem": self.problem,
        }
        if self.relevance is None:
            return described
        parts = {
            name: _describe_part(getattr(self.relevance, name), getattr(baseline, name))
            for name in ("choose", "report")
        }
        out_of_domain = {
            name: _describe_part(after, baseline.out_of_domain[name])
            for name, after in self.relevance.out_of_domain.items()
        }
        costs = {
            "fit_seconds": round(self.seconds, 1),
            "encodes_documents_again": self.rung.encodes_again,
            "encode_seconds": round(self.encode_seconds, 1),
        }
        return described | parts | {"out_of_domain": out_of_domain} | costs | {"notes": list(self.notes)}


def _describe_part(after: NDArray[np.float64], before: NDArray[np.float64]) -> dict[str, Any]:
    return {"ndcg_at_10": float(after.mean())} | Difference.between(after, before).describe()


def choose_trial(trials: Sequence[Trial]) -> Trial:
    """Return the cheapest trial that no other beats beyond the 95 % interval of their difference, paired by query.

    Args:
        trials: trials in order of their cost, of which the first was tried; those that were not tried are passed over.
    """
    tried = [trial for trial in trials if trial.relevance is not None]

    def is_beaten(trial: Trial) -> bool:
        own = trial.require_relevance().choose
        return any(Difference.between(rival.require_relevance().choose, own).is_gain for rival in tried)

    # None beats the trial with the highest mean, so there is always one.
    return next(trial for trial in tried if not is_beaten(trial))
