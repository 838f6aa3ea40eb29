"""Candidate changes, from the cheapest to the dearest: what each gains, and the choice among them.

The budget is the seconds that an adaptation may take, over all its runs.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lathe.training.comparison import Interval, choose_cheapest, compare
from lathe.training.deciding.judged import JudgedVectors
from lathe.transforms.base import QueryPairs
from lathe.transforms.chain import Chain
from lathe.transforms.files import read_json_file, replace_synced

Training = Literal["pairs", "folders and pairs"]
"""What an encoder is trained on: the judged searches, or labelled folders before them."""


@dataclass(frozen=True)
class Candidate:
    """A candidate change: what judged searches can teach, or no change.

    Attributes:
        name: key of the change in results.
        label: what is done, for tables and sentences.
        steps: steps of a chain on the encoder's vectors, as text; empty for none.
        training: what the encoder is trained on; None if it stays as it is.
    """

    name: str
    label: str
    steps: str = ""
    training: Training | None = None

    @property
    def encodes_again(self) -> bool:
        """Whether all documents must be encoded again, because a trained encoder has other vectors."""
        return self.training is not None


AS_IS = Candidate("as_is", "leave as is")
CANDIDATES = (
    AS_IS,
    Candidate("debias", "debias", steps="r2"),
    Candidate("query_adapter", "map queries", steps="query_adapter"),
    Candidate("fine_tuning", "fine-tune the encoder", training="pairs"),
    Candidate("pre_finetuning", "pre-finetune, then fine-tune", training="folders and pairs"),
)
"""All candidates, cheapest first. Debiasing changes stored vectors without encoding, and an adapter changes queries
alone; each is a fit of seconds. Training takes minutes to hours, and then all documents are encoded again."""


@dataclass(frozen=True)
class Relevance:
    """nDCG@10 of each query through one candidate's vectors.

    Attributes:
        first: nDCG@10 of the queries to choose by, `(n,)`.
        second: nDCG@10 of the queries to report on, `(m,)`.
        out_of_domain: nDCG@10 between the halves of out-of-domain texts, by corpus.
        crossed: whether the two parts change their roles too, so that every query chooses once and reports once.
    """

    first: NDArray[np.float64]
    second: NDArray[np.float64]
    out_of_domain: Mapping[str, NDArray[np.float64]]
    crossed: bool = False

    @property
    def folds(self) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """nDCG@10 of the queries to choose by, `(n,)`, and of the queries to report on, `(m,)`, for each fold.

        No query does both in one fold.
        """
        folds = [(self.first, self.second)]
        return [*folds, (self.second, self.first)] if self.crossed else folds

    @property
    def choose(self) -> NDArray[np.float64]:
        """nDCG@10 of all queries to choose by, over the folds, as one array."""
        return np.concatenate([choose for choose, _ in self.folds])

    @property
    def report(self) -> NDArray[np.float64]:
        """nDCG@10 of all queries to report on, over the folds, as one array."""
        return np.concatenate([report for _, report in self.folds])


@dataclass(frozen=True)
class MeasuredChain:
    """The fitted chain of transforms of a trial, with the vectors that it was measured on.

    With both, the chain can be certified and published as it was measured.

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
    """A candidate change, measured with vectors as they would be stored.

    Attributes:
        candidate: the candidate.
        bytes: bytes of a stored vector of codes; None for floats.
        vector_bytes: bytes of a stored vector.
        relevance: nDCG@10 of each query; None if the candidate was not tried.
        measured: the fitted chain that was measured; None if the candidate was not tried.
        seconds: seconds that fitting or training took.
        encode_seconds: estimated seconds to encode all documents again; 0 if they stay.
        problem: why it was not tried; None if it was.
        notes: what the fit remarked, such as a map that was left out.
    """

    candidate: Candidate
    bytes: int | None
    vector_bytes: int
    relevance: Relevance | None
    measured: MeasuredChain | None = None
    seconds: float = 0.0
    encode_seconds: float = 0.0
    problem: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def measured_relevance(self) -> Relevance:
        """nDCG@10 of each query of a candidate, which must have been tried."""
        assert self.relevance is not None
        return self.relevance

    def describe(self, baseline: Relevance) -> dict[str, Any]:
        """Return the trial as a JSON-serializable dict: nDCG@10 with differences to the baseline, and costs.

        The dict of a candidate that was not tried has only the names, the bytes and the problem.

        Args:
            baseline: nDCG@10 with the encoder's own float vectors.
        """
        described: dict[str, Any] = {
            "change": self.candidate.name,
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
            "encodes_documents_again": self.candidate.encodes_again,
            "encode_seconds": round(self.encode_seconds, 1),
        }
        return described | parts | {"out_of_domain": out_of_domain} | costs | {"notes": list(self.notes)}


def _describe_part(after: NDArray[np.float64], before: NDArray[np.float64]) -> dict[str, Any]:
    """Return the mean nDCG@10, and its mean difference to `before` with half the length of the 95 % interval.

    The keys are `ndcg_at_10`, `gain` and `ci95`.
    """
    difference = compare(after, before)
    return {"ndcg_at_10": float(after.mean()), "gain": difference.value, "ci95": difference.reach}


def choose_trial(trials: Sequence[Trial], fold: int | None = None) -> Trial:
    """Return the cheapest trial that beats the first and that no other such trial beats, or the first if none beats it.

    One trial beats another if the mean difference of nDCG@10 is positive and its 95 % interval, paired by query,
    excludes 0.

    Args:
        trials: trials in order of their cost, of which the first was tried; those that were not tried are passed over.
        fold: fold whose queries choose; None for the queries of all folds.
    """
    tried = [trial for trial in trials if trial.relevance is not None]
    relevance = [trial.measured_relevance for trial in tried]
    return tried[choose_cheapest([ndcg.choose if fold is None else ndcg.folds[fold][0] for ndcg in relevance])]


def cross_validate(trials: Sequence[Trial], baseline: Relevance) -> Interval:
    """Return the mean difference of nDCG@10, with its interval, that choosing a trial gains over a baseline.

    In each fold, the trial is chosen by one part of the queries and measured on the other.

    Args:
        trials: trials as for `choose_trial`.
        baseline: nDCG@10 with the vectors that would be stored without a change.
    """
    # No query both chooses and reports in one fold, so that chance in choosing does not raise the gain.
    chosen = [choose_trial(trials, fold).measured_relevance for fold in range(len(baseline.folds))]
    after = np.concatenate([relevance.folds[fold][1] for fold, relevance in enumerate(chosen)])
    return compare(after, baseline.report)


FILE = "budget.json"
"""Name of the file with the seconds that earlier runs took, and with what was decided by the budget."""


class Budget:
    """A budget of seconds, of which stopped runs of the same adaptation have used a part.

    Args:
        seconds: the budget; None for no limit.
        folder: workspace folder of the adaptation.
    """

    def __init__(self, seconds: float | None, folder: Path) -> None:
        self.seconds = seconds
        self.path = folder / FILE
        self.begun = time.monotonic()
        try:
            self.stored = read_json_file(self.path)
        except FileNotFoundError:
            self.stored = {"spent": 0.0, "queries": {}, "seconds": {}}
        self.spent_before = float(self.stored["spent"])

    @property
    def left(self) -> float:
        """Seconds that are left: infinite without a limit, negative once the budget is overspent."""
        if self.seconds is None:
            return float("inf")
        return self.seconds - self.spent_before - (time.monotonic() - self.begun)

    def decide_queries(self, candidate: str, count: int, seconds_each: float, reserved: float) -> int:
        """Return how many of `count` queries a candidate may train on.

        The first decision for a candidate is written to disk and returned from then on, because a training that was
        stopped can only be resumed with the same queries.

        Args:
            candidate: name of the candidate.
            count: number of queries that there are.
            seconds_each: estimated seconds of the training for a query.
            reserved: seconds that are needed afterwards.
        """
        decided: dict[str, int] = self.stored["queries"]
        if candidate not in decided:
            affordable = (self.left - reserved) / max(seconds_each, 1e-9)
            decided[candidate] = int(max(0, min(count, affordable)))
            self.save()
        return decided[candidate]

    def add_seconds(self, candidate: str, seconds: float) -> float:
        """Add seconds to those that a candidate took in earlier runs, write the sum to disk, and return the sum."""
        taken: dict[str, float] = self.stored["seconds"]
        taken[candidate] = taken.get(candidate, 0.0) + seconds
        self.save()
        return taken[candidate]

    def save(self) -> None:
        """Write to disk how many seconds of the budget are spent, with the decisions and seconds of each candidate."""
        spent = self.spent_before + time.monotonic() - self.begun
        replace_synced(self.path, json.dumps(self.stored | {"spent": spent}).encode())
