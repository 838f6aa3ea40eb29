"""Reading of all sources into one training mixture, without data leakage from the target or the evaluation.

read_sources          reads every data set into a `MixtureBuilder`, which selects pairs and counts what it drops
MixtureBuilder.build  the `Mixture` of all selected pairs, with prompts
JobSources            both for a job, and the pairs that are held out for evaluation and for the certificate
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lathe.training.datasets.data_set import (
    DataSet,
    FoundPairs,
    collect_test_texts,
    collect_training_texts,
    find_overlap,
    find_pairs,
    refuse_overlap,
)
from lathe.training.datasets.folder import FileDataSet, FolderDataSet
from lathe.training.datasets.pairs import Pair, merge_duplicate_pairs
from lathe.training.datasets.records import normalize_text
from lathe.training.errors import DataSetError, JobError
from lathe.training.finetuning.evaluators import (
    Evaluator,
    TaskEvaluator,
    choose_held_out,
    collect_measured_texts,
    hold_out,
    open_evaluation_data,
)
from lathe.training.finetuning.job import DataSettings, SourceSettings, TrainingJob
from lathe.training.finetuning.mixture import Mixture, SourceReport
from lathe.training.finetuning.opening import open_data_sets, open_target


def read_sources(
    settings: DataSettings,
    target: FolderDataSet | None = None,
    forbid_training: bool = False,
    eval_texts: Collection[str] = (),
) -> "MixtureBuilder":
    """Read the pairs of a job's data sets, without pairs not to be trained on. Raise for refused overlap or no pair.

    The pairs are in a `MixtureBuilder`, to which mined negatives can still be added.

    Args:
        settings: sources, caps, and what to do about overlap with the target.
        target: data set whose test texts must not be trained on; None for none.
        forbid_training: whether texts of the target's training split count as overlap too.
        eval_texts: normalized texts of the evaluation during training; pairs that share one are dropped.

    Raises:
        JobError: if a source is missing or shares texts with the target although that is refused, or no pair is left.
        DataSetError: if a data set that the job names itself cannot be used.
    """
    builder = MixtureBuilder(settings, target, forbid_training, eval_texts)
    for source in settings.sources:
        for data in builder.open_data_sets(source):
            builder.add_data_set(data, source)

    if builder.forbidden and settings.overlap == "refuse":
        shared = {report.name: report.shared for report in builder.reports if report.shared}
        refuse_overlap(shared, target.name if target else "leave_out")
    if not builder.pairs:
        reasons = "; ".join(f"{report.name}: {report.problem or 'no pair kept'}" for report in builder.reports)
        raise JobError(f"there is no pair to train on. {reasons}")

    return builder


class MixtureBuilder:
    """Training mixture under construction, made by `read_sources`.

    Creating one reads the texts of the target.

    Args:
        settings: sources, caps, and what to do about overlap with the target.
        target: data set that must not be trained on; None for none.
        forbid_training: whether texts of the target's training split are forbidden too, not only the texts of its test.
        eval_texts: normalized texts of the evaluation during training; pairs that share one are dropped.

    Attributes:
        forbidden: normalized texts of the target, and of `leave_out`, that must not be trained on.
        data: data sets that pairs were taken from, by name.
        sources: the job's settings of each data set, by name.
        pairs: training pairs of each data set, by name.
        reports: what was kept and dropped of each data set, including unused data sets.
        seen: anchor and positive of every pair kept so far.
        notes: notes for the user.
    """

    def __init__(
        self,
        settings: DataSettings,
        target: FolderDataSet | None,
        forbid_training: bool,
        eval_texts: Collection[str],
    ) -> None:
        self.settings, self.target = settings, target
        test_texts = collect_test_texts(target) if target else set()
        self.forbidden = test_texts | (collect_training_texts(target) if target and forbid_training else set())
        self.forbidden |= {normalize_text(text) for text in settings.leave_out}
        self.evaluated = set(eval_texts)
        self.notes = (
            [f"{target.name} has no test split: no source was checked for it"] if target and not test_texts else []
        )
        self.data: dict[str, DataSet] = {}
        self.pairs: dict[str, list[Pair]] = {}
        self.sources: dict[str, SourceSettings] = {}
        self.reports: list[SourceReport] = []
        self.seen: set[tuple[str, str]] = set()

    def open_data_sets(self, source: SourceSettings) -> Iterator[DataSet]:
        """Yield the data sets of a source of the job, without the target. Data sets left out are added to `reports`.

        For each data set that is left out, a report with the reason is appended to `reports`.

        Raises:
            JobError: if there is no such folder, or no data set in it.
            DataSetError: if the data set that the source names cannot be used.
        """
        data_sets, problems = open_data_sets(source)
        self.reports += [SourceReport(name, problem=problem) for name, problem in problems.items()]
        for data in data_sets:
            if self.target and _locate(data).is_relative_to(self.target.folder.resolve()):
                self.reports.append(SourceReport(data.name, data.task, problem="the target, left out"))
            else:
                yield data

    def add_data_set(self, data: DataSet, source: SourceSettings) -> None:
        """Read a data set's pairs, and add pairs to train on, and a report, to the builder. A repeated name raises.

        A report of how many pairs were kept and dropped, and why, is appended to `reports`. A data set without a kept
        pair is only reported. So is a data set that cannot be used, if it was found in a folder of data sets.

        Raises:
            JobError: if another data set has the same name.
            DataSetError: if the data set cannot be used, and the job names it itself.
        """
        if data.name in self.pairs:
            raise JobError(f"two sources are called {data.name}; give one another name")

        try:
            found_pairs = find_pairs(data, source)
            pairs, report = self._select_pairs(found_pairs, source, SourceReport(data.name, data.task))
        except DataSetError as error:
            if source.folder is None or _locate(data) == source.folder.resolve():
                raise DataSetError(f"{data.name}: {error}") from error
            self.reports.append(SourceReport(data.name, data.task, problem=str(error)))
            return

        self.reports.append(report)
        if pairs:
            self.data[data.name], self.pairs[data.name], self.sources[data.name] = data, pairs, source

    def _select_pairs(
        self, found: FoundPairs, source: SourceSettings, report: SourceReport
    ) -> tuple[list[Pair], SourceReport]:
        """Select a data set's pairs to train on, and count dropped pairs in the report. Kept pairs are added to `seen`.

        Duplicates and pairs that share texts with the evaluation during training are dropped, and false negatives are
        removed from pairs. Pairs over the cap are dropped at random, with the job's seed. Pairs that share texts with
        the target are dropped if `overlap` is `drop`, else only counted. With `seen`, later sources count kept pairs as
        repeated.

        Raises:
            DataSetError: if the source's `negatives` is `given` and no supplied negative can be used.
        """
        dropped = {why: len(positions) for why, positions in found.dropped.places.items()}
        pairs = merge_duplicate_pairs(found.pairs)
        if len(pairs) < len(found.pairs):
            dropped["duplicate pair"] = len(found.pairs) - len(pairs)

        # Before the cap, so that a dropped pair does not count towards it.
        shared = find_overlap(pairs, self.forbidden)
        if shared and self.settings.overlap == "drop":
            dropped["shares a text with the target"] = len(shared)
            pairs = [pair for position, pair in enumerate(pairs) if position not in shared]

        evaluated = find_overlap(pairs, self.evaluated)
        if evaluated:
            dropped["shares a text with the evaluation during training"] = len(evaluated)
            pairs = [pair for position, pair in enumerate(pairs) if position not in evaluated]

        pairs, left_out = _remove_false_negatives(pairs, self.forbidden)
        dropped |= left_out
        if source.negatives == "given" and not any(pair.negatives for pair in pairs):
            raise DataSetError("negatives: given needs rows with negatives, and no row has a negative that can be used")

        cap = source.cap or self.settings.cap
        if cap is not None and len(pairs) > cap:
            dropped["over the cap"] = len(pairs) - cap
            sampled = np.random.default_rng(self.settings.seed).permutation(len(pairs))[:cap]
            pairs = [pairs[position] for position in sorted(sampled.tolist())]

        texts = {(pair.anchor, pair.positive) for pair in pairs}
        repeated = len(texts & self.seen)
        # Later sources count these pairs as repeated.
        self.seen |= texts

        return pairs, replace(
            report,
            split=found.split,
            rows=found.rows,
            found=len(found.pairs),
            kept=len(pairs),
            dropped=dropped,
            shared=len(shared),
            repeated=repeated,
            negatives=sum(len(pair.negatives) for pair in pairs),
            problem=None if pairs else _explain_no_pairs(dropped),
        )

    def set_negatives(self, name: str, negatives: Sequence[tuple[str, ...]]) -> None:
        """Replace the hard negatives of a data set's pairs, and their number in the data set's report.

        Args:
            name: name of the source.
            negatives: hard negatives of each pair of the source.
        """
        self.pairs[name] = [replace(pair, negatives=n) for pair, n in zip(self.pairs[name], negatives, strict=True)]
        count = sum(map(len, negatives))
        self.reports = [replace(report, negatives=count) if report.name == name else report for report in self.reports]

    def build(self) -> Mixture:
        """Build the training mixture of all pairs.

        The prompts of each data set are put before its anchors, positives and hard negatives.
        """
        pairs = [
            (self.sources[name].prompts, pair) for name, source_pairs in self.pairs.items() for pair in source_pairs
        ]
        negatives = [tuple(prompts.positive + text for text in pair.negatives) for prompts, pair in pairs]
        return Mixture(
            anchors=[prompts.anchor + pair.anchor for prompts, pair in pairs],
            positives=[prompts.positive + pair.positive for prompts, pair in pairs],
            sources=np.repeat(np.arange(len(self.pairs)), [len(source_pairs) for source_pairs in self.pairs.values()]),
            names=list(self.pairs),
            reports=self.reports,
            notes=tuple(self.notes),
            negatives=negatives if any(negatives) else (),
        )


def _locate(data: DataSet) -> Path:
    """Return the resolved path of a data set's folder or file. It is empty for rows of the job and hub data sets."""
    if isinstance(data, FolderDataSet):
        return data.folder.resolve()
    return data.path.resolve() if isinstance(data, FileDataSet) and data.path else Path()


def _explain_no_pairs(dropped: dict[str, int]) -> str:
    """Return the message that says why no pair of a data set is left, from the reasons of dropped pairs."""
    reasons = [why for why in dropped if why != "duplicate pair"]
    if reasons == ["shares a text with the target"]:
        return "every pair shares a text with the target"
    return f"no pair is left; dropped: {', '.join(reasons)}" if reasons else "it has no pairs"


MAX_CERTIFIED = 500
"""Maximum number of pairs of a source that are held out to certify the trained encoder."""
ANSWERS = "negative that answers its query in another pair, or equals the query"
"""Reason for leaving out a negative that is a positive of the same anchor in some pair, or the anchor itself."""
TESTED = "negative of the target's test"
"""Reason for leaving out a negative that is a text of the target's test."""


def _remove_false_negatives(pairs: list[Pair], forbidden: Collection[str]) -> tuple[list[Pair], dict[str, int]]:
    """Remove false hard negatives from pairs, and return all pairs and the number of removed negatives by reason.

    A negative is false if, ignoring case and punctuation, it is a positive of the same anchor in any pair, the anchor
    itself, or one of the `forbidden` texts, the normalized texts of the target's test. No pair is removed.
    """
    answers: dict[str, set[str]] = {}
    for pair in pairs:
        if pair.negatives:
            answers.setdefault(normalize_text(pair.anchor), {normalize_text(pair.anchor)})

    # A pair without negatives counts too: its positive answers the same anchor, which may have negatives elsewhere.
    for pair in pairs if answers else ():
        if (known := answers.get(normalize_text(pair.anchor))) is not None:
            known.add(normalize_text(pair.positive))

    counts = {ANSWERS: 0, TESTED: 0}
    cleaned = []
    for pair in pairs:
        true_negatives = []
        for text in pair.negatives:
            normalized = normalize_text(text)
            # Every anchor with negatives has a key here, from the first loop.
            if normalized in answers[normalize_text(pair.anchor)]:
                counts[ANSWERS] += 1
            elif normalized in forbidden:
                counts[TESTED] += 1
            else:
                true_negatives.append(text)

        cleaned.append(
            replace(pair, negatives=tuple(true_negatives)) if len(true_negatives) < len(pair.negatives) else pair
        )

    return cleaned, {why: count for why, count in counts.items() if count}


class JobSources:
    """Data sets of a job and their training pairs, read when the object is created.

    Args:
        job: settings of the job.

    Attributes:
        builder: mixture under construction, to which mined negatives can be added.

    Raises:
        JobError: if a source cannot be used, or the evaluation during training shares texts with the target's test.
        DataSetError: if a data set that the job names itself cannot be used.
    """

    def __init__(self, job: TrainingJob) -> None:
        self.job = job
        self.target = open_target(job.target) if job.target else None
        settings = job.evaluate
        self.evaluated = open_evaluation_data(settings, self.target) if settings and settings.folder else None
        texts = collect_measured_texts(self.evaluated) if self.evaluated else ()
        self.builder = read_sources(job, self.target, eval_texts=texts)

    def split(self) -> tuple[Mixture, Evaluator | None]:
        """Build the training mixture, and the evaluator or None. Without a data set to evaluate on, pairs are held out.

        The evaluator is None without evaluation. Without a data set to evaluate on, pairs are held out of the mixture
        for the evaluator. The evaluator of a data set reads the test split when it is created, and runs mteb's
        evaluator once on random vectors.

        Raises:
            JobError: if no source has enough pairs to hold some out, or mteb does not measure the metric on the data
                set.
            DataSetError: if the data set cannot be read.
        """
        mixture, settings = self.builder.build(), self.job.evaluate
        if settings is None:
            return mixture, None
        if self.evaluated is not None:
            return mixture, TaskEvaluator(self.evaluated, settings)
        return hold_out(mixture, settings, self.job.seed)

    def hold_out_for_certificate(self, mixture: Mixture) -> tuple[Mixture, Mixture]:
        """Split a mixture into pairs to train on, and held-out pairs to certify the trained encoder. These may be none.

        Pairs of retrieval and pairs data sets without a test split are held out, at most `MAX_CERTIFIED` of each data
        set. The choice depends on the job's seed, so the same job holds out the same pairs.
        """
        without_test = [
            position
            for position, name in enumerate(mixture.names)
            if is_searchable(data := self.builder.data[name]) and "test" not in data.list_splits()
        ]
        # Another seed than the evaluation during training has: that evaluation selects the best step, so its pairs are
        # not independent.
        is_held_out = choose_held_out(mixture, MAX_CERTIFIED, self.job.seed + 1, without_test)
        return mixture.select(np.flatnonzero(~is_held_out)), mixture.select(np.flatnonzero(is_held_out))


def is_searchable(data: DataSet) -> bool:
    """Return whether a data set's anchors are queries and its positives are relevant documents, by its task."""
    return data.task in ("retrieval", "pairs")
