"""Comparison of codes with what databases do by themselves, at equal numbers of bytes a vector."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lathe.training.advice.database_codes import (
    RABITQ,
    DatabaseSearch,
    RaBitQSearch,
    find_candidates,
    find_rabitq_problem,
    search_truncated,
)
from lathe.training.advice.debiasing import METHODS, NOTHING
from lathe.training.advice.sizes import NEIGHBOURS, OVERSAMPLING, REDUCERS, SizeComparison, SizeMeasurer
from lathe.training.evaluation.statistics import Interval, mean_interval
from lathe.training.split_half import rank_one_way
from lathe.transforms.codes import TransformCoding
from lathe.transforms.errors import TransformError
from lathe.transforms.progress import Progress
from lathe.transforms.statistics import Moments, moments_of
from lathe.transforms.vectors import FloatArray

BUDGETS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 768)
"""Compared numbers of bytes a vector."""
CODES = "codes"
NOT_COMPARED = {
    "product_codes": "its codebooks take too long to learn at every budget; `lathe fit --bytes` tries it at yours",
    "OPQ+PQ": "its training would take longer than the rest of the advice",
}
"""Reasons why methods of databases are not compared, by name."""
MAX_FIT_ROWS = 20_000
"""Maximum number of rows that codes are fitted on, since their debiased vectors are held in memory."""
CANDIDATES = NEIGHBOURS * OVERSAMPLING
"""Number of candidates that are rescored."""


@dataclass(frozen=True)
class BudgetTrial:
    """Measurements of one way to store vectors in a budget of bytes, on the held-out rows.

    Queries are floats. Measures compare with the vectors before, which are debiased if that is recommended.

    Attributes:
        method: `CODES`, a reducer of `lathe.training.advice.sizes` whose floats are stored, or a method of databases.
        setting: what is stored: steps of a chain, or bits and dimensions.
        budget: bytes allowed for a vector.
        bytes: bytes that a vector takes, factors included.
        recall_at_10: recall@10 of the neighbours before; without an interval for a reducer.
        rescored_4x: recall@10 if 40 candidates are rescored with the vectors before.
        loss: difference of 100·MRR of split-half retrieval to the vectors before, paired by text; None for a method of
            databases, and without text halves.
    """

    method: str
    setting: str
    budget: int
    bytes: int
    recall_at_10: Interval
    rescored_4x: Interval
    loss: Interval | None = None


@dataclass(frozen=True)
class BudgetComparison:
    """Measurements of all ways to store vectors, at all compared budgets.

    Attributes:
        chains: measurements of Lathe's chains: codes, and floats of reducers that fill a budget exactly.
        databases: measurements of what databases do by themselves.
        problems: reasons why methods could not be compared, by name.
        rows: number of held-out rows that search each other.
    """

    chains: list[BudgetTrial]
    databases: list[BudgetTrial]
    problems: dict[str, str]
    rows: int

    @property
    def codes(self) -> list[BudgetTrial]:
        """Measurements of codes, the smallest budget first."""
        return [trial for trial in self.chains if trial.method == CODES]

    def best_chains(self) -> list[BudgetTrial]:
        """List the chain with the highest recall@10 at each budget, the smallest budget first."""
        budgets = dict.fromkeys(trial.budget for trial in self.chains)
        return [_find_best([trial for trial in self.chains if trial.budget == budget]) for budget in budgets]

    def best_settings(self, budget: int) -> dict[str, BudgetTrial]:
        """Return, for each database method, its trial with the highest recall@10 among those with this budget of bytes.
        The result is a dict by method name.
        """
        by_method: dict[str, list[BudgetTrial]] = {}
        for trial in self.databases:
            if trial.budget == budget:
                by_method.setdefault(trial.method, []).append(trial)
        return {method: _find_best(trials) for method, trials in by_method.items()}

    def list_databases_ahead(self) -> dict[str, list[int]]:
        """Return the byte budgets at which a database's own method significantly beats the best chain in recall@10.
        The result is a dict of lists by method name.

        Only differences beyond both intervals count: its lower bound is above the chain's upper bound.
        """
        ahead: dict[str, list[int]] = {}
        for chain in self.best_chains():
            for method, rival in self.best_settings(chain.budget).items():
                if rival.recall_at_10.bounds[0] > chain.recall_at_10.bounds[1]:
                    ahead.setdefault(method, []).append(chain.budget)
        return ahead


def _find_best(trials: list[BudgetTrial]) -> BudgetTrial:
    """Return the first trial with the highest recall@10."""
    # `max` keeps the first of equals: codes come before reducers.
    return max(trials, key=lambda trial: trial.recall_at_10.value)


def list_budgets(dimensions: int) -> list[int]:
    """List the budgets of bytes to compare: those of `BUDGETS` up to a byte for each of the dimensions."""
    return [budget for budget in BUDGETS if budget <= dimensions]


def compare_budgets(measurer: SizeMeasurer, sizes: SizeComparison, on_progress: Progress) -> BudgetComparison:
    """Compare codes, reducers and the databases' own methods at every budget of bytes a vector.
    All are measured by recall@10 on the held-out rows. Codes and database methods are fitted here, and measurements of
    reducers are copied from `sizes`.

    All take the debiased vectors. Codes have their default weighting: nothing is chosen on the held-out rows. Reducers
    that fill a budget exactly are taken from `sizes`. The result's `problems` tell why codes or RaBitQ are missing.

    Args:
        measurer: the debiased held-out rows.
        sizes: measurements of the reducers.
        on_progress: called with progress in [0, 1] and a message.
    """
    # Codes and databases start from the same debiased vectors as the reducers.
    fit: FloatArray = measurer.chain.floats(measurer.sample.fit[:MAX_FIT_ROWS])
    moments, before = moments_of(fit), measurer.before
    # The truth is the neighbours among the debiased vectors, which every method approximates.
    nearest = find_candidates(before, before, NEIGHBOURS)
    comparison = BudgetComparison([], [], dict(NOT_COMPARED), len(before))
    problem = find_rabitq_problem()

    if problem is not None:
        comparison.problems[RABITQ] = problem

    rabitq = None if problem is not None else RaBitQSearch(moments, before)
    halves = measurer.sample.halves
    cut = None if halves is None else (measurer.chain.floats(halves.first), measurer.chain.floats(halves.second))
    budgets = list_budgets(measurer.sample.dimensions)

    for done, budget in enumerate(budgets):
        on_progress(done / len(budgets), f"comparing codes and databases at {budget} bytes")
        try:
            comparison.chains.append(_measure_codes(measurer, cut, moments, nearest, budget))
        except TransformError as error:
            comparison.problems[CODES] = str(error)

        # Floats of the reducers were measured at all sizes: those that fill this budget exactly are comparable with
        # codes.
        comparison.chains.extend(_take_reducers(measurer, sizes, budget))
        searches = [*search_truncated(fit, before, budget, CANDIDATES)]
        searches += [] if rabitq is None else rabitq.search(budget, CANDIDATES)
        comparison.databases.extend(_measure_search(search, budget, nearest) for search in searches)

    return comparison


def _measure_codes(
    measurer: SizeMeasurer,
    cut: tuple[FloatArray, FloatArray] | None,
    moments: Moments,
    nearest: NDArray[np.int64],
    budget: int,
) -> BudgetTrial:
    """Fit codes of `budget` bytes from the moments of the debiased rows.
    Return their recall@10 on the held-out rows, alone and rescored, and their loss in split-half retrieval (each half
    of a text searches for the other).

    Args:
        measurer: the debiased held-out rows.
        cut: debiased vectors of the first and the second halves of texts, or None.
        moments: moments of the debiased rows to fit on.
        nearest: the ten nearest neighbours of each held-out row.
        budget: bytes of a code.

    Raises:
        TransformError: if they cannot be fitted.
    """
    step, before = TransformCoding(budget).fit(moments), measurer.before
    candidates = find_candidates(before, _decode(step, before), CANDIDATES)
    recall, rescored = _measure_recall(candidates, nearest)
    loss = None

    if cut is not None and measurer.ranks is not None:
        # Queries are floats and only documents are codes: each half searches the codes of the other one.
        one_way, other_way = (
            rank_one_way(torch.from_numpy(queries), torch.from_numpy(_decode(step, stored)))
            for queries, stored in (cut, cut[::-1])
        )
        loss = mean_interval(100 * ((one_way + other_way) / 2 - measurer.ranks))

    steps = _join_steps(measurer, f"codes:{budget}")
    return BudgetTrial(CODES, steps, budget, budget, recall, rescored, loss)


def _decode(step: TransformCoding, rows: FloatArray) -> FloatArray:
    """Encode the rows `(n, d)` with the fitted codes, and return the decoded rows `(n, d)`."""
    decoded: FloatArray = step.inverse_transform(step.transform(rows))
    return decoded


def _join_steps(measurer: SizeMeasurer, step: str) -> str:
    """Return `step` with the debiasing steps of the measurer in front, if it debiases."""
    return step if measurer.debiasing == METHODS[NOTHING] else f"{measurer.debiasing},{step}"


def _take_reducers(measurer: SizeMeasurer, sizes: SizeComparison, budget: int) -> Iterator[BudgetTrial]:
    """Yield the reducers whose float32 vectors take exactly `budget` bytes, except truncation.
    Their measurements are those of the size comparison.

    Nothing is measured: recall and loss are copied from the comparison.

    Args:
        measurer: measurer of that comparison; its debiasing steps come first in a trial's `setting`.
        sizes: the comparison, with recall and loss of each reducer at each size.
        budget: bytes of a vector.
    """
    for trial in sizes.trials:
        if trial.bytes == budget and trial.reducer != "truncation":
            recall = Interval(trial.recall_at_10, None, None)
            steps = _join_steps(measurer, REDUCERS[trial.reducer].format(k=trial.dimensions))
            yield BudgetTrial(trial.reducer, steps, budget, trial.bytes, recall, trial.rescored_4x, trial.loss)


def _measure_search(search: DatabaseSearch, budget: int, nearest: NDArray[np.int64]) -> BudgetTrial:
    """Build the trial of a database method from the candidates that its search found.
    It has recall@10, alone and rescored.
    """
    recall, rescored = _measure_recall(search.candidates, nearest)
    return BudgetTrial(search.method, search.setting, budget, search.bytes, recall, rescored)


def _measure_recall(candidates: NDArray[np.int64], nearest: NDArray[np.int64]) -> tuple[Interval, Interval]:
    """Return two mean recalls@10: of the first ten candidates, and of all candidates as if rescored exactly.
    Both have intervals.

    Args:
        candidates: rows found for each row, best first, `(n, 40)`.
        nearest: the ten nearest neighbours of each row, `(n, 10)`.
    """
    # (n, 40, 10) to (n, 40): whether each candidate is one of the ten nearest.
    is_neighbour = (candidates[:, :, None] == nearest[:, None, :]).any(2)
    return (
        mean_interval(is_neighbour[:, :NEIGHBOURS].sum(1) / NEIGHBOURS),
        mean_interval(is_neighbour.sum(1) / NEIGHBOURS),
    )
