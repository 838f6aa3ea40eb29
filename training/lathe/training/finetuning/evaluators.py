"""Evaluation during training, on held-out pairs or on the test split of a data set."""

import contextlib
import io
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from lathe.training.datasets.data_set import EvaluatedDataSet, collect_test_queries, collect_test_texts
from lathe.training.datasets.folder import FolderDataSet
from lathe.training.datasets.records import normalize_text
from lathe.training.errors import JobError
from lathe.training.finetuning.extras import EvaluatorSettings
from lathe.training.finetuning.job import TargetSettings
from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.opening import open_target

HELD_OUT_SHARE = 0.2
"""Maximum share of a source's pairs that are held out, so that most pairs are trained on."""

Encode = Callable[[Sequence[str]], NDArray[np.float32]]
"""Function that encodes texts that already contain their prompts to unit vectors `(n, d)`."""


class Evaluator(Protocol):
    """Interface of an evaluation during training."""

    @property
    def settings(self) -> EvaluatorSettings:
        """Settings: the evaluation interval, and when to stop early."""

    @property
    def metric(self) -> str:
        """Name of the metric, of which higher is better."""

    def measure(self, encode: Encode) -> float:
        """Encode the evaluation's texts with `encode`, and return the metric. Higher is better."""


@dataclass(frozen=True)
class HeldOutEvaluator:
    """Evaluation on held-out pairs: each anchor retrieves among all held-out positives of its source.

    Attributes:
        pairs: held-out pairs, with their sources.
        settings: evaluation settings of the job.
    """

    pairs: Mixture
    settings: EvaluatorSettings

    @property
    def metric(self) -> str:
        """Name of the metric: `mrr` or `accuracy`.

        `mrr` is the mean reciprocal rank of the best positive, `accuracy` the share of ranks 1. Both are means over
        sources.
        """
        return self.settings.metric or "mrr"

    def measure(self, encode: Encode) -> float:
        """Encode held-out pairs, and return the mean reciprocal rank or recall@1 of positives, averaged over sources.

        The metric is the mean reciprocal rank of the best positive among all held-out positives of the source, or the
        share of anchors with rank 1. It is averaged over sources.
        """
        texts = list(dict.fromkeys([*self.pairs.anchors, *self.pairs.positives]))
        vectors = dict(zip(texts, encode(texts), strict=True))
        by_source = []

        for source in np.unique(self.pairs.sources):
            answers: dict[str, set[str]] = {}
            for row in np.flatnonzero(self.pairs.sources == source):
                answers.setdefault(self.pairs.anchors[row], set()).add(self.pairs.positives[row])
            ranks = _rank_first_positives(answers, vectors)
            by_source.append(float((1 / ranks).mean() if self.metric == "mrr" else (ranks == 1).mean()))

        return float(np.mean(by_source))


def _rank_first_positives(answers: dict[str, set[str]], vectors: dict[str, NDArray[np.float32]]) -> NDArray[np.float64]:
    """Compute the rank, from 1, of each anchor's best-scored positive among all positives, `(m,)`.

    Positives of other anchors with the same score rank before it.

    Args:
        answers: the positives of each anchor.
        vectors: unit vector of each anchor and each positive, by text.
    """
    documents = sorted(set().union(*answers.values()))
    scores = np.stack([vectors[anchor] for anchor in answers]) @ np.stack([vectors[text] for text in documents]).T
    # scores and is_positive are (anchors, documents).
    is_positive = np.array([[text in positives for text in documents] for positives in answers.values()])
    best = np.where(is_positive, scores, -np.inf).max(axis=1, keepdims=True)
    return np.asarray(1 + ((scores >= best) & ~is_positive).sum(axis=1), np.float64)


def hold_out(mixture: Mixture, settings: EvaluatorSettings, seed: int) -> tuple[Mixture, HeldOutEvaluator]:
    """Split a mixture into pairs to train on and an evaluator on random held-out pairs. Too few pairs raise.

    From each source at most `settings.rows` pairs and `HELD_OUT_SHARE` of its pairs are held out. Pairs whose anchors
    differ only in case or punctuation stay together.

    Args:
        mixture: pairs of all sources.
        settings: evaluation settings of the job.
        seed: seed of the random choice.

    Returns:
        The mixture without the held-out pairs, and the evaluator.

    Raises:
        JobError: if no source has enough pairs.
    """
    is_held_out = choose_held_out(mixture, settings.rows, seed, range(len(mixture.names)))
    if not is_held_out.any():
        raise JobError("no source has enough pairs to hold some out; name a data set with evaluate: {folder: …}")

    trained, evaluated = mixture.select(np.flatnonzero(~is_held_out)), mixture.select(np.flatnonzero(is_held_out))
    return trained, HeldOutEvaluator(evaluated, settings)


def choose_held_out(mixture: Mixture, max_rows: int, seed: int, sources: Iterable[int]) -> NDArray[np.bool_]:
    """Choose random pairs of some sources to hold out, as a mask over all pairs of the mixture, `(n,)`.

    From each source at most `max_rows` pairs and `HELD_OUT_SHARE` of its pairs are held out. Pairs whose anchors differ
    only in case or punctuation stay together.

    Args:
        mixture: pairs of all sources.
        max_rows: maximum number of pairs of a source.
        seed: seed of the random choice.
        sources: positions of the sources in the mixture's names.
    """
    random_numbers = np.random.default_rng(seed)
    is_held_out = np.zeros(len(mixture), bool)
    for source in sources:
        rows = np.flatnonzero(mixture.sources == source)
        by_anchor: dict[str, list[int]] = {}
        for row in rows.tolist():
            by_anchor.setdefault(normalize_text(mixture.anchors[row]), []).append(row)

        max_held_out, held_out = min(max_rows, int(len(rows) * HELD_OUT_SHARE)), 0
        groups = list(by_anchor.values())
        # Whole groups of pairs with the same anchor: a query must not be both trained on and evaluated.
        for number in random_numbers.permutation(len(groups)):
            if held_out + len(groups[number]) <= max_held_out:
                is_held_out[groups[number]] = True
                held_out += len(groups[number])

    return is_held_out


class TaskEvaluator:
    """Evaluation on the test split of a data set, with mteb's evaluator.

    Creating one reads the test, reduced to the settings' limit, and runs mteb's evaluator once on random vectors, to
    find out which texts it encodes and which metrics it measures.

    Args:
        data: the data set.
        settings: prompts, metric and limit.

    Raises:
        DataSetError: if the data set cannot be read.
        JobError: if mteb does not measure the metric on this data set.
    """

    def __init__(self, data: FolderDataSet, settings: EvaluatorSettings) -> None:
        from lathe.training.datasets.records import Warnings
        from lathe.training.evaluation.encoders import text_key
        from lathe.training.evaluation.model import Collector
        from lathe.training.evaluation.tasks import limit_rows
        from lathe.training.evaluation.worker import measure

        self.name, self.settings = data.name, settings
        self.prompts = {"query": settings.prompts.anchor, "document": settings.prompts.positive}
        self.task = data.build_task(Warnings())

        if settings.limit is not None:
            limit_rows(self.task, settings.limit)

        # A dry run on random vectors shows which texts mteb encodes, and which metrics it returns.
        collector = Collector()
        with preserve_random_state():
            metrics = measure(collector, self.task).metrics

        if settings.metric is not None and settings.metric not in metrics:
            known = ", ".join(sorted(metrics))
            raise JobError(f"evaluate.metric: {settings.metric!r} is not measured on {data.name}; allowed: {known}")

        asked = [(text, prompt) for _, text in collector.asked for prompt in dict.fromkeys(self.prompts.values())]
        self.texts, self.keys = [prompt + text for text, prompt in asked], [text_key(*pair) for pair in asked]

    @property
    def metric(self) -> str:
        """Name of the metric and of the data set, such as "ndcg_at_10 of fiqa"."""
        return f"{self.settings.metric or self.task.metadata.main_score} of {self.name}"

    def measure(self, encode: Encode) -> float:
        """Encode the data set's texts, and compute the metric on the test with mteb's evaluator.

        The metric is the one of the settings, or else the task's main score. Random states are restored.
        """
        from lathe.training.evaluation.encoders import TextVectors
        from lathe.training.evaluation.model import StoredModel
        from lathe.training.evaluation.worker import measure

        # For tasks without retrieval mteb names no prompt: texts are encoded as queries.
        model = StoredModel(TextVectors(self.keys, encode(self.texts)), self.prompts, self.prompts["query"])
        with preserve_random_state():
            measured = measure(model, self.task)

        return measured.metrics[self.settings.metric] if self.settings.metric else measured.score


def open_evaluation_data(settings: EvaluatorSettings, target: FolderDataSet | None) -> FolderDataSet:
    """Open the data set to evaluate on during training. Raise without a test split, or if it shares the target's texts.

    Raises:
        JobError: if there is no such folder, it has no test split, or its test shares texts with the target's test.
        DataSetError: if a data set cannot be read.
    """
    assert settings.folder is not None  # the caller checks it
    data = open_target(TargetSettings(folder=settings.folder))
    if "test" not in data.list_splits():
        raise JobError(f"evaluate: {data.name} has no test split; name a data set with one")

    if target is not None and "test" in target.list_splits():
        shared = collect_measured_texts(data) & collect_measured_texts(target)
        if shared:
            raise JobError(
                f"evaluate: {data.name} shares {len(shared):,} texts with the test of the target {target.name}, which "
                "must be measured only once, at the end; name another data set"
            )

    return data


def collect_measured_texts(data: EvaluatedDataSet) -> set[str]:
    """Return the normalized texts of a data set's test that must not be trained on.

    The texts are the queries of a retrieval or reranking task, or all texts of any other task.

    Raises:
        DataSetError: if the data set cannot be read.
    """
    queries = collect_test_queries(data)
    return collect_test_texts(data) if queries is None else queries


@contextlib.contextmanager
def preserve_random_state() -> Iterator[None]:
    """Run a block with stderr hidden, then restore the random states of Python, NumPy and torch.

    An evaluation in the block then does not change the training after it, and mteb's progress bars are not printed.
    """
    states = random.getstate(), np.random.get_state()  # noqa: NPY002  mteb seeds numpy's global generator
    with torch.random.fork_rng(), contextlib.redirect_stderr(io.StringIO()):
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002
