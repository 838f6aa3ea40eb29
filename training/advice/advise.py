"""Advice on a source and an encoder, from texts to a recommendation."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from training.advice.debiasing import GEOMETRY_ROWS, Debiasing, ranks_behind, try_debiasing
from training.advice.draw import draw
from training.advice.encoding import Encoding, foreign_text
from training.advice.enough import LEAST, Shortage, shortages, too_few
from training.advice.halves import reciprocal_ranks
from training.advice.matryoshka import Matryoshka, find_matryoshka
from training.advice.question import Question
from training.advice.recommendation import Recommendation, keeps_enough, recommend
from training.advice.sample import Foreign, Halves, Sample, text_sample, to_encode, vector_sample
from training.advice.sizes import Curve, Sizes, SizeTrial
from training.encoders import Encoder
from training.errors import AdviceError
from training.evaluation.audit.measure import cosine
from training.evaluation.statistics import Interval, mean_interval
from training.fitting import DISTINCT_LEAST
from training.keys import source_key
from training.sources import open_source
from training.workspace import claimed_folder
from transforms.arrays import FloatArray
from transforms.certificate import fidelity
from transforms.chain import Chain
from transforms.diagnostics import Diagnostics, diagnose
from transforms.moments import Moments
from transforms.transform import Progress, part_of

TRIED, ENCODED = 0.8, 0.7
"""Shares of the work that are done when debiasing is tried, and when all is encoded."""
MIXED = 0.1
"""Share of texts in another script from which on a source counts as mixed."""


@dataclass(frozen=True)
class Elsewhere:
    """The recommended chain, fitted here, on some text; all texts are measured among as many rows.

    Attributes:
        text: whose.
        rows: of it.
        measures: as in a certificate.
        retrieval: mean reciprocal rank of halves in the raw vectors; None where too few can be cut.
        gain: of that behind the chain, in points.
    """

    text: str
    rows: int
    measures: dict[str, float | None]
    retrieval: float | None
    gain: Interval | None


@dataclass(frozen=True)
class Advice:
    """What to do to the vectors of a source, with the evidence.

    Attributes:
        source: its name.
        encoder: what is known of it; None for vectors of nobody's.
        rows: of the source.
        distinct: rows that were looked at.
        capped: whether the source may have more distinct rows.
        heldout: of those looked at, that were measured on.
        cut: of those, that could be cut in two.
        diagnosis: of the held-out rows; see `transforms.diagnose`.
        mean_agreement: cosine of their mean with that of the other rows; None where one points nowhere.
        debiasing: what was tried; None where there is too little.
        matryoshka: likewise.
        sizes: likewise.
        best: likewise.
        confirmed: the recommended chain itself, fitted at its own size.
        second: the runner-up, if there is one.
        elsewhere: the recommended chain on held-out rows and on foreign text.
        shortages: what the sample cannot tell.
        notes: what else to know.
    """

    source: str
    encoder: dict[str, Any] | None
    rows: int
    distinct: int
    capped: bool
    heldout: int
    cut: int
    diagnosis: Diagnostics
    mean_agreement: float | None
    debiasing: Debiasing | None
    matryoshka: Matryoshka | None
    sizes: Sizes | None
    best: Recommendation | None
    confirmed: SizeTrial | None
    second: Recommendation | None
    elsewhere: list[Elsewhere]
    shortages: list[Shortage]
    notes: list[str]


def advise(question: Question, encoder: Encoder | None, workspace: Path, on_progress: Progress) -> Advice:
    """Measure on the user's own rows, and recommend a chain.

    Args:
        question: what to advise on.
        encoder: of the texts; None for a source of vectors.
        workspace: where vectors lie meanwhile; what a killed run encoded there is used again.
        on_progress: told a fraction and a sentence.

    Raises:
        SourceError: if the source cannot be read.
        AdviceError: if it holds fewer than four distinct rows, or texts without an encoder.
        EncoderError: if the encoder fails on every text.
    """
    source = open_source(question.source)
    on_progress(0.0, f"reading {source.name}")
    drawn = draw(source, question.rows, question.seed)
    if len(drawn) < DISTINCT_LEAST:
        raise AdviceError(f"{source.name} has {len(drawn)} distinct rows; advice needs {DISTINCT_LEAST} at the least")
    if drawn.vectors is not None:
        return concluded(question, source.name, vector_sample(drawn, drawn.vectors), None, on_progress)
    if encoder is None:
        raise AdviceError(f"{source.name} holds texts: name their encoder")
    with claimed_folder(workspace, f"advice-{source_key(source, encoder)[:32]}") as folder:
        foreign: Foreign | None = None
        if len(drawn) >= LEAST:
            on_progress(0.0, "encoding foreign text")
            other = "pydoc:topics" if question.source == "pydoc:" else "pydoc:"
            foreign = foreign_text(other, encoder, workspace / "foreign")
        encoding = Encoding(encoder, folder)
        encoding.encode(to_encode(drawn), part_of(on_progress, 0.0, ENCODED))
        sample = text_sample(drawn, foreign, encoding.vectors, encoding.failed)
        advice = concluded(question, source.name, sample, encoder.describe(), on_progress)
    return replace(advice, notes=[*advice.notes, *encoding.notes()])


def concluded(
    question: Question, name: str, sample: Sample, encoder: dict[str, Any] | None, on_progress: Progress
) -> Advice:
    """Everything that follows from a sample."""
    few = too_few(len(sample.drawn))
    advice = Advice(
        source=name,
        encoder=encoder,
        rows=sample.drawn.rows,
        distinct=len(sample.drawn),
        capped=len(sample.drawn) >= question.rows,
        heldout=len(sample.heldout),
        cut=sample.cut,
        diagnosis=diagnose(sample.heldout),
        mean_agreement=agreement(sample.fit, sample.heldout),
        debiasing=None,
        matryoshka=None,
        sizes=None,
        best=None,
        confirmed=None,
        second=None,
        elsewhere=[],
        shortages=[few] if few else [],
        notes=list(notes(sample)),
    )
    if few:
        return advice
    on_progress(ENCODED, "trying what debiasing does")
    debiasing = try_debiasing(sample)
    matryoshka = find_matryoshka(sample.heldout, question.seed)
    curve = Curve(sample, debiasing.trial(debiasing.chosen).steps)
    sizes = curve.sizes(part_of(on_progress, TRIED, 1.0))
    best, second = recommend(debiasing, sizes, question.keep)
    chain = curve.fitted(best.steps) if best.steps else None
    confirmed = curve.measure(best.reducer, chain, best.dimensions) if chain and best.reducer else None
    return replace(
        advice,
        debiasing=debiasing,
        matryoshka=matryoshka,
        sizes=sizes,
        best=best,
        confirmed=confirmed,
        second=second,
        elsewhere=list(elsewhere(sample, chain)) if chain else [],
        shortages=shortages(sample, debiasing, best),
        notes=[*advice.notes, *doubts(sizes, confirmed, question.keep)],
    )


def agreement(fit: FloatArray, heldout: FloatArray) -> float | None:
    """The cosine of the means of two sets of rows; None where one of them points nowhere."""
    return cosine(Moments.from_vectors(fit).mean, Moments.from_vectors(heldout).mean)


def elsewhere(sample: Sample, chain: Chain) -> Iterator[Elsewhere]:
    """A chain on held-out rows and on foreign text, among as many rows and halves of each."""
    foreign = sample.foreign
    rows = min(len(sample.heldout), GEOMETRY_ROWS, len(foreign.vectors) if foreign else GEOMETRY_ROWS)
    cut = [some.halves for some in (sample, foreign) if some is not None and some.halves is not None]
    halves = min((len(some) for some in cut), default=0)
    yield on_text("held out", chain, sample.heldout[:rows], sample.halves, halves)
    if foreign is not None:
        yield on_text("foreign", chain, foreign.vectors[:rows], foreign.halves, halves)


def on_text(name: str, chain: Chain, vectors: FloatArray, cut: Halves | None, halves: int) -> Elsewhere:
    """A fitted chain on some vectors, and on so many halves."""
    retrieval, gain = None, None
    if cut is not None:
        some = Halves(cut.first[:halves], cut.second[:halves])
        raw = reciprocal_ranks(some.first, some.second)
        retrieval, gain = float(raw.mean()), mean_interval(100 * (ranks_behind(chain, some) - raw))
    return Elsewhere(name, len(vectors), fidelity(vectors, np.asarray(chain.floats(vectors))), retrieval, gain)


def doubts(sizes: Sizes, confirmed: SizeTrial | None, keep: float) -> Iterator[str]:
    """What did not work, and whether the recommended chain holds what the curve promised."""
    for reducer, problem in sizes.problems.items():
        yield f"{reducer} could not be fitted: {problem}."
    if confirmed is not None and not keeps_enough(confirmed, sizes.full, keep):
        yield (
            f"Fitted at {confirmed.dimensions} dimensions by itself the chain just misses what must be kept: recall@10 "
            f"rescored {confirmed.rescored_4x.value:.3f}. Take the next larger size to be sure."
        )


def notes(sample: Sample) -> Iterator[str]:
    """What a reader of the advice must know of the rows."""
    drawn = sample.drawn
    if drawn.blank:
        yield f"{drawn.blank:,} blank texts were left out."
    if drawn.repeated > 0:
        yield (
            f"{100 * drawn.repeated:.1f} % of the rows repeat others. Each was looked at once; a fit on the "
            "source counts it as often as it stands there."
        )
    if drawn.vectors is None and sample.cut < len(sample.heldout) / 2:
        yield f"Only {sample.cut:,} of {len(sample.heldout):,} held-out texts are long enough to be cut in two."
    mixed = {script: share for script, share in sample.scripts.items() if share >= MIXED}
    if len(mixed) > 1:
        shares = ", ".join(f"{script} {100 * share:.0f} %" for script, share in mixed.items())
        yield (
            f"The texts mix scripts ({shares}): part of their mean direction tells languages apart, and halves of a "
            "text find each other by language alone. Ask for advice on each language by itself too."
        )
