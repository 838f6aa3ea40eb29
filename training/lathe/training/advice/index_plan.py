"""Plan of an index in Lathe: size, recall and time of chains and graphs, measured on a sample."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from lathe.training.advice.sample import Sample
from lathe.training.reporting.text import format_bytes
from lathe.transforms.chain import Chain, parse_steps
from lathe.transforms.progress import Progress
from lathe.transforms.statistics import unit_rows
from lathe.transforms.vectors import FloatArray

MIN_ROWS = 1000
"""Minimum number of rows to index and search: with fewer, searches are exact, and there is nothing to plan."""
QUERIES = 500
"""Number of held-out rows that search the others."""
BUDGETS = (24, 32, 48, 64, 96)
"""Bytes of the codes that are fitted."""
LINKS = (8, 16)
"""Links per node that are tried."""
MIN_LOSS = 1e-4
"""Smallest loss of recall that a sample can show; recall is clipped by it, because the logit of 1 is infinite."""
FLOATS = "none"
"""Name of the candidate without a chain, as `lathe index import --chain` takes it."""


@dataclass(frozen=True)
class IndexGoal:
    """What a planned index must reach.

    Attributes:
        recall: share of the true k nearest rows that a search must find.
        memory: maximum bytes of the process for the graph; None for as few as possible.
        rows: rows that the index is to have; None for as many as the source has.
        k: number of results of a search.
    """

    recall: float = 0.95
    memory: int | None = None
    rows: int | None = None
    k: int = 10


@dataclass(frozen=True)
class Trial:
    """Measured size, build time and searches of a graph over sampled rows.

    Attributes:
        rows: number of rows in the graph.
        memory: bytes of the graph for each row.
        disk: bytes of the row files for each row.
        build_seconds: CPU time to build the graph.
        found: recall and microseconds for each query, by ef and rescoring.
    """

    rows: int
    memory: float
    disk: int
    build_seconds: float
    found: Mapping[tuple[int, int], tuple[float, float]]


class GraphMeasurer(Protocol):
    """Function that builds a graph over sampled rows as an index would, and measures its searches."""

    def __call__(
        self, chain: Chain | None, m: int, base: FloatArray, queries: FloatArray, truth: NDArray[np.int64], k: int
    ) -> Trial:
        """Measure a graph over the rows `(n, d)`, reduced by the chain, with `m` links per node.

        `truth` has the true k nearest rows of each query, `(q, k)`.
        """


@dataclass(frozen=True)
class Setting:
    """Parameters to build and search an index, with its expected recall, time and size.

    Attributes:
        chain: `none`, or the step that was fitted on the sample, such as `codes:48`.
        m: number of links per node.
        ef: effort of a search.
        rescore: candidates that the originals rank again, as a multiple of k; 1 ranks none.
        memory: bytes of the process for the graph.
        disk: bytes of the row files, which the page cache holds as far as there is room.
        recall: expected share of the true k nearest rows that a search finds.
        sampled_recall: share that it found on the sample.
        microseconds: expected CPU time of one query on one core, without HTTP.
        build_seconds: expected CPU time to build the graph.
        fitted_bytes: bytes of the codes; None without a chain.
    """

    chain: str
    m: int
    ef: int
    rescore: int
    memory: int
    disk: int
    recall: float
    sampled_recall: float
    microseconds: float
    build_seconds: float
    fitted_bytes: int | None


@dataclass(frozen=True)
class IndexPlan:
    """Measured settings of an index, and the one to build.

    Attributes:
        goal: what the index must reach.
        rows: rows that the index is to have.
        measured_rows: rows that were indexed to measure.
        chosen: setting to build; None if no setting reaches the goal.
        problem: why there is no setting to build; empty if there is one.
        settings: all settings.
    """

    goal: IndexGoal
    rows: int
    measured_rows: int
    chosen: Setting | None = None
    problem: str = ""
    settings: list[Setting] = field(default_factory=list)


@dataclass(frozen=True)
class IndexPlanner:
    """Planner of an index for the rows of a sample.

    Attributes:
        goal: what the index must reach.
        measure: function that measures a graph.
    """

    goal: IndexGoal
    measure: GraphMeasurer

    def plan(self, sample: Sample, on_progress: Progress) -> IndexPlan:
        """Plan an index by measuring HNSW graphs on the sample, and choose a setting that reaches the goal.
        The plan has a `problem` instead of a choice if the sample is too small or no setting reaches the goal.

        Graphs are built over the rows to fit on, and searched by held-out rows.

        Args:
            sample: vectors of the source; rows of zeros are left out.
            on_progress: called with progress in [0, 1] and a message.
        """
        base, queries = (rows[rows.any(axis=1)] for rows in (sample.fit, sample.heldout[:QUERIES]))
        rows = self.goal.rows or sample.row_sample.rows
        if len(base) + len(queries) < MIN_ROWS:
            problem = (
                f"a plan needs {MIN_ROWS:,} distinct rows, the source has {len(base) + len(queries):,}; searches of so "
                "few are exact"
            )
            return IndexPlan(self.goal, rows, len(base), problem=problem)

        settings = measure_settings(fit_candidates(base), base, queries, rows, self.goal.k, self.measure, on_progress)
        chosen = choose_setting(settings, self.goal)
        problem = "" if chosen else explain_no_setting(settings, self.goal)

        return IndexPlan(self.goal, rows, len(base), chosen, problem, settings)


def fit_candidates(vectors: FloatArray) -> dict[int | None, Chain | None]:
    """Fit the chains that an index plan compares.
    Return them in a dict by bytes of their codes, where the key None stands for vectors without a chain.

    Codes are fitted for each budget up to a byte for each dimension.

    Args:
        vectors: sampled vectors `(n, d)`, without those that search.
    """
    chains: dict[int | None, Chain | None] = {None: None}
    for budget in BUDGETS:
        if budget <= vectors.shape[1]:
            chains[budget] = Chain(parse_steps(f"codes:{budget}")).fit(vectors)
    return chains


def measure_settings(
    candidates: Mapping[int | None, Chain | None],
    base: FloatArray,
    queries: FloatArray,
    rows: int,
    k: int,
    measure: GraphMeasurer,
    on_progress: Progress,
) -> list[Setting]:
    """Measure graphs for each chain and number of links, over the sample and over a quarter of it.
    Return the settings with recall, time and memory extrapolated to `rows` rows.

    Similarity is the cosine. The logit of recall and the time of a query are taken as linear in the logarithm of the
    number of rows; neither improves with it.

    Args:
        candidates: chains, by bytes of their codes.
        base: sampled vectors `(n, d)` in random order.
        queries: other vectors `(q, d)`.
        rows: number of rows of the planned index.
        k: number of results of a search.
        measure: function that measures a graph.
        on_progress: called with progress in [0, 1] and a message.
    """
    base, queries = (unit_rows(torch.from_numpy(np.array(vectors, np.float32))).numpy() for vectors in (base, queries))
    # Two sizes give the slope with which recall falls and time grows.
    sizes = (len(base) // 4, len(base))
    truths = [find_nearest(queries, base[:size], k) for size in sizes]
    settings: list[Setting] = []
    tasks = [(fitted_bytes, chain, m) for fitted_bytes, chain in candidates.items() for m in LINKS]

    for done, (fitted_bytes, chain, m) in enumerate(tasks):
        on_progress(done / len(tasks), f"an index of {_name_candidate(fitted_bytes)}, {m} links per node")
        trials = [measure(chain, m, base[:size], queries, truth, k) for size, truth in zip(sizes, truths, strict=True)]
        settings += extrapolate(fitted_bytes, m, trials, max(rows, sizes[1]))

    on_progress(1.0, "measured")
    return settings


def find_nearest(queries: FloatArray, base: FloatArray, k: int) -> NDArray[np.int64]:
    """Return the positions of the k rows of `base` nearest to each query by cosine, best first, `(q, k)`.
    All vectors must have length 1.
    """
    rows = torch.from_numpy(base)
    # 256 queries at a time: the similarities of all would be (q, n).
    blocks = [(torch.from_numpy(queries[start : start + 256]) @ rows.T) for start in range(0, len(queries), 256)]
    return np.concatenate([block.topk(k, dim=1).indices.numpy() for block in blocks])


def extrapolate(fitted_bytes: int | None, m: int, trials: Sequence[Trial], rows: int) -> Iterator[Setting]:
    """Extrapolate a graph's recall, time and memory to `rows` rows, from measurements with few rows and with more.
    Yield a setting for each pair of ef (candidates a search keeps) and rescoring that both have.

    Args:
        fitted_bytes: bytes of the codes; None without a chain.
        m: number of links per node.
        trials: measurements with few rows, and with more.
        rows: number of rows of the planned index.
    """
    few, more = trials
    # Logit of recall, and time, are linear in log(rows): `share` is how far beyond the larger trial they are followed.
    share = math.log(rows / more.rows) / math.log(more.rows / few.rows)
    for (ef, rescoring), (recall, microseconds) in more.found.items():
        if (ef, rescoring) not in few.found:
            continue

        before, faster = few.found[ef, rescoring]
        # The build time grows as a power of the rows; two trials give the exponent.
        growth = max(0.0, math.log(more.build_seconds / few.build_seconds) / math.log(more.rows / few.rows))
        yield Setting(
            chain=_name_candidate(fitted_bytes),
            m=m,
            ef=ef,
            rescore=rescoring,
            memory=round(more.memory * rows),
            disk=more.disk * rows,
            # Recall may only fall with more rows: a rise between the trials is chance.
            recall=_expit(_logit(recall) + share * min(0.0, _logit(recall) - _logit(before))),
            sampled_recall=recall,
            microseconds=microseconds + share * max(0.0, microseconds - faster),
            build_seconds=more.build_seconds * (rows / more.rows) ** growth,
            fitted_bytes=fitted_bytes,
        )


def _name_candidate(fitted_bytes: int | None) -> str:
    return FLOATS if fitted_bytes is None else f"codes:{fitted_bytes}"


def _logit(share: float) -> float:
    """Return the logit of a share, clipped to between `MIN_LOSS` and 1 − `MIN_LOSS`."""
    # A sample without any loss has the logit inf, which cannot be extrapolated.
    share = min(max(share, MIN_LOSS), 1 - MIN_LOSS)
    return math.log(share / (1 - share))


def _expit(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


def choose_setting(settings: Sequence[Setting], goal: IndexGoal) -> Setting | None:
    """Return the fastest setting within the memory limit that is expected to reach the recall, or None.
    Without a limit, it is the one that takes the least memory.
    """
    reaching = [setting for setting in settings if setting.recall >= goal.recall and _fits(setting, goal)]
    if not reaching:
        return None
    return min(reaching, key=lambda setting: (setting.memory if goal.memory is None else 0, setting.microseconds))


def explain_no_setting(settings: Sequence[Setting], goal: IndexGoal) -> str:
    """Return a sentence that says that no setting reaches the recall within the memory.
    It adds the best recall that fits, and the memory that the recall would take.
    """
    limit = "" if goal.memory is None else f" within {format_bytes(goal.memory)}"
    reasons = []
    fitting = [candidate for candidate in settings if _fits(candidate, goal)]

    if fitting:
        best = max(fitting, key=lambda candidate: candidate.recall)
        reasons.append(f"{best.chain} with {best.m} links reaches {best.recall:.3f} with {format_bytes(best.memory)}")
    else:
        cheapest = min(settings, key=lambda candidate: candidate.memory)
        reasons.append(
            f"the smallest graph, {cheapest.chain} with {cheapest.m} links, takes {format_bytes(cheapest.memory)}"
        )

    reaching = [candidate for candidate in settings if candidate.recall >= goal.recall]
    if reaching:
        cheapest = min(reaching, key=lambda candidate: candidate.memory)
        reasons.append(
            f"{goal.recall} takes {format_bytes(cheapest.memory)} ({cheapest.chain} with {cheapest.m} links)"
        )

    return f"no setting is expected to reach recall {goal.recall}{limit}: {'; '.join(reasons)}"


def _fits(setting: Setting, goal: IndexGoal) -> bool:
    return goal.memory is None or setting.memory <= goal.memory


def list_best(settings: Iterable[Setting], recall: float) -> list[Setting]:
    """List the best setting for each chain and number of links.
    It is the fastest that reaches the recall, or the one with the highest recall if none does.
    """
    groups: dict[tuple[str, int], list[Setting]] = {}
    for setting in settings:
        groups.setdefault((setting.chain, setting.m), []).append(setting)

    best = []
    for group in groups.values():
        reaching = [setting for setting in group if setting.recall >= recall]
        best.append(
            min(reaching, key=lambda setting: setting.microseconds)
            if reaching
            else max(group, key=lambda setting: setting.recall)
        )

    return best
