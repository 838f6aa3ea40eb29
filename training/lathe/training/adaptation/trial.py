"""What a rung of the ladder gives, and the choice among rungs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.training.adaptation.rungs import Rung
from lathe.training.adaptation.searches import JudgedVectors
from lathe.training.comparison import Interval, choose_cheapest, compare
from lathe.transforms.base import QueryPairs
from lathe.transforms.chain import Chain


@dataclass(frozen=True)
class Relevance:
    """nDCG@10 of each query through one rung.

    Attributes:
        first: that of the queries to choose by, `(n,)`.
        second: that of the queries to report on, `(m,)`.
        out_of_domain: that of the halves of out-of-domain texts, by corpus.
        crossed: whether the two parts change their roles too, so that every query chooses once and reports once.
    """

    first: NDArray[np.float64]
    second: NDArray[np.float64]
    out_of_domain: Mapping[str, NDArray[np.float64]]
    crossed: bool = False

    @property
    def folds(self) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """The queries to choose by and to report on of each fold; no query does both in one."""
        folds = [(self.first, self.second)]
        return [*folds, (self.second, self.first)] if self.crossed else folds

    @property
    def choose(self) -> NDArray[np.float64]:
        """That of all queries to choose by, over the folds."""
        return np.concatenate([choose for choose, _ in self.folds])

    @property
    def report(self) -> NDArray[np.float64]:
        """That of all queries to report on, over the folds."""
        return np.concatenate([report for _, report in self.folds])


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
    difference = compare(after, before)
    return {"ndcg_at_10": float(after.mean()), "gain": difference.value, "ci95": difference.reach}


def choose_trial(trials: Sequence[Trial], fold: int | None = None) -> Trial:
    """Return the cheapest trial that beats the first, and that no other such trial beats, by 95 % intervals of the
    difference, paired by query. It is the first if none beats that.

    Args:
        trials: trials in order of their cost, of which the first was tried; those that were not tried are passed over.
        fold: fold whose queries choose; None for those of all folds.
    """
    tried = [trial for trial in trials if trial.relevance is not None]
    relevance = [trial.require_relevance() for trial in tried]
    return tried[choose_cheapest([one.choose if fold is None else one.folds[fold][0] for one in relevance])]


def cross_validate(trials: Sequence[Trial], baseline: Relevance) -> Interval:
    """Return what choosing gains over a baseline: in each fold, the trial that its queries choose is measured on its
    others.

    Args:
        trials: trials as for `choose_trial`.
        baseline: what the vectors give that would be stored without a change.
    """
    chosen = [choose_trial(trials, fold).require_relevance() for fold in range(len(baseline.folds))]
    after = np.concatenate([relevance.folds[fold][1] for fold, relevance in enumerate(chosen)])
    return compare(after, baseline.report)
