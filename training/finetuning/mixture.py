"""One mixture of all sources' pairs, and a table of what was kept and dropped and why."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.errors import DataSetError, JobError
from training.finetuning.datasets import DataSet, FileDataSet, FolderDataSet, open_source, open_target
from training.finetuning.job import DataSettings, SourceSettings, TargetSettings
from training.finetuning.overlap import refuse_shared, shared_places, test_texts
from training.finetuning.positives import Pair, distinct_pairs, find_pairs


@dataclass(frozen=True)
class Lengths:
    """Characters of texts."""

    mean: float
    min: int
    max: int
    median: float

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Lengths":
        """Those of some texts, at least one."""
        counts = np.array([len(text) for text in texts])
        return cls(float(counts.mean()), int(counts.min()), int(counts.max()), float(np.median(counts)))


@dataclass(frozen=True)
class SourceReport:
    """What became of a source.

    Attributes:
        name: of the data set.
        task: of it.
        split: pairs are made of.
        rows: of the split, judgements of a retrieval.
        found: pairs with an explicit positive.
        kept: pairs trained on.
        dropped: rows and pairs left out, by why.
        shared: pairs that share a text with the target's test.
        anchors: lengths of what is kept.
        positives: likewise.
        problem: why nothing of it is used.
    """

    name: str
    task: str = ""
    split: str = ""
    rows: int = 0
    found: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    shared: int = 0
    anchors: Lengths | None = None
    positives: Lengths | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Mixture:
    """Pairs of all sources, source after source.

    Attributes:
        anchors: texts, with the source's prompt.
        positives: likewise.
        sources: the source of each pair, `(n,)`.
        names: of the sources.
        reports: of the sources, those of which nothing is used included.
    """

    anchors: list[str]
    positives: list[str]
    sources: NDArray[np.int64]
    names: list[str]
    reports: list[SourceReport]

    def __len__(self) -> int:
        """Pairs."""
        return len(self.anchors)

    def digest(self) -> str:
        """What tells two mixtures apart."""
        found = hashlib.sha256("\0".join(self.names).encode())
        for source, anchor, positive in zip(self.sources.tolist(), self.anchors, self.positives, strict=True):
            found.update(f"\0{source}\0{anchor}\0{positive}".encode(errors="surrogatepass"))
        return found.hexdigest()[:32]

    def warnings(self, dimensions: int, regularized: bool) -> list[str]:
        """What a user should know before such a mixture is trained on with an encoder of that width."""
        found = []
        if regularized and len(self.names) == 1:
            found.append("there is one source: no direction separates it from others, and nothing is shrunk")
        if regularized and len(self.names) == 2:
            found.append("there are two sources: their median is their mean, and at scale 1 or above nothing is shrunk")
        if regularized and len(self) <= 2 * dimensions:
            found.append(
                f"{len(self):,} pairs span at most {len(self) - 1:,} of the {2 * dimensions:,} dimensions of their "
                "relations; the eigenspace is estimated on few"
            )
        counts = np.bincount(self.sources, minlength=len(self.names))
        single = [name for name, count in zip(self.names, counts, strict=True) if count == 1]
        if single:
            found.append(f"a single pair makes the mean of a source: {', '.join(single)}")
        return found


def mix(settings: DataSettings, target: TargetSettings | None = None, seed: int | None = None) -> Mixture:
    """Read every source.

    Args:
        settings: sources, caps, what to do about overlap.
        target: the data set that is left out.
        seed: of what is drawn; the settings' own unless given.

    Raises:
        JobError: if a source is not there, shares texts with the target's test, or nothing is left.
        DataSetError: if a data set that the job names itself cannot be used.
    """
    left_out = open_target(target) if target else None
    forbidden = test_texts(left_out) if left_out else set()
    drawing = settings.seed if seed is None else seed
    anchors: list[str] = []
    positives: list[str] = []
    sources: list[int] = []
    names: list[str] = []
    reports: list[SourceReport] = []
    for data, source in opened(settings, left_out, reports):
        if data.name in names:
            raise JobError(f"two sources are called {data.name}; give one a name")
        try:
            kept, report = take(data, source, source.cap or settings.cap, forbidden, settings.overlap, drawing)
        except DataSetError as error:
            if source.folder is None or is_itself(source.folder, data):
                raise DataSetError(f"{data.name}: {error}") from error
            reports.append(SourceReport(data.name, data.task, problem=str(error)))
            continue
        reports.append(report)
        if not kept:
            continue
        anchors += [source.prompts.anchor + pair.anchor for pair in kept]
        positives += [source.prompts.positive + pair.positive for pair in kept]
        sources += [len(names)] * len(kept)
        names.append(data.name)
    if left_out and settings.overlap == "refuse":
        refuse_shared({report.name: report.shared for report in reports if report.shared}, left_out.name)
    if not anchors:
        reasons = "; ".join(f"{report.name}: {report.problem or 'no pair kept'}" for report in reports)
        raise JobError(f"there is no pair to train on. {reasons}")
    return Mixture(anchors, positives, np.array(sources, np.int64), names, reports)


def opened(
    settings: DataSettings, left_out: FolderDataSet | None, reports: list[SourceReport]
) -> Iterator[tuple[DataSet, SourceSettings]]:
    """Every data set of the sources with its settings; those that are not used are reported."""
    for source in settings.sources:
        found, problems = open_source(source)
        reports += [SourceReport(name, problem=problem) for name, problem in problems.items()]
        for data in found:
            if left_out and (is_itself(left_out.folder, data) or lies_in(left_out.folder, data)):
                reports.append(SourceReport(data.name, data.task, problem="the target, left out"))
            else:
                yield data, source


def is_itself(folder: Path, data: DataSet) -> bool:
    """Whether a data set lies in this very folder."""
    return isinstance(data, FolderDataSet) and data.folder.resolve() == folder.resolve()


def lies_in(folder: Path, data: DataSet) -> bool:
    """Whether a file of pairs lies in this folder."""
    return isinstance(data, FileDataSet) and data.path.resolve().is_relative_to(folder.resolve())


def take(
    data: DataSet, source: SourceSettings, cap: int | None, forbidden: set[str], overlap: str, seed: int
) -> tuple[list[Pair], SourceReport]:
    """The pairs of a data set that are trained on.

    Raises:
        DataSetError: if it cannot be read, or has no positive.
    """
    found = find_pairs(data, source)
    dropped = {why: len(places) for why, places in found.dropped.places.items()}
    distinct = distinct_pairs(found.pairs)
    if len(distinct) < len(found.pairs):
        dropped["duplicate pair"] = len(found.pairs) - len(distinct)
    shared = shared_places(distinct, forbidden)
    pairs = distinct
    if shared and overlap == "drop":
        dropped["shares a text with the target's test"] = len(shared)
        pairs = [pair for place, pair in enumerate(distinct) if place not in set(shared)]
    if cap is not None and len(pairs) > cap:
        dropped["over the cap"] = len(pairs) - cap
        chosen = np.random.default_rng(seed).permutation(len(pairs))[:cap]
        pairs = [pairs[place] for place in sorted(chosen.tolist())]
    return pairs, SourceReport(
        name=data.name,
        task=data.task,
        split=found.split,
        rows=found.rows,
        found=len(found.pairs),
        kept=len(pairs),
        dropped=dropped,
        shared=len(shared),
        anchors=Lengths.of([pair.anchor for pair in pairs]) if pairs else None,
        positives=Lengths.of([pair.positive for pair in pairs]) if pairs else None,
        problem=None if pairs else "every pair shares a text with the target's test",
    )
