"""Advice on a source and an encoder, from texts to a recommendation."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from training.advice.debiasing import Debiasing, try_debiasing
from training.advice.draw import draw
from training.advice.elsewhere import Elsewhere, elsewhere
from training.advice.encoding import Encoding, foreign_text
from training.advice.enough import LEAST, Shortage, shortages, too_few
from training.advice.matryoshka import ROWS_LEAST, Matryoshka, find_matryoshka
from training.advice.price import changes
from training.advice.question import Question
from training.advice.recommendation import Recommendation, lower, recommend, what_is_kept
from training.advice.sample import Foreign, Sample, text_sample, to_encode, vector_sample
from training.advice.sizes import Curve, Sizes, SizeTrial
from training.encoder.encoder import Encoder
from training.errors import AdviceError
from training.evaluation.audit.measure import cosine
from training.evaluation.words import percent
from training.fitting.fit_request import DISTINCT_LEAST
from training.fitting.keys import source_key
from training.sources.source import open_source
from training.workspace import claimed_folder
from transforms.progress import Progress, part_of
from transforms.quality import Diagnostics, diagnose
from transforms.statistics import unit_rows
from transforms.vectors import FloatArray, row_blocks

TRIED, ENCODED = 0.8, 0.7
"""Shares of the work that are done when debiasing is tried, and when all is encoded."""
MIXED = 0.1
"""Share of texts in another script from which on a source counts as mixed."""


@dataclass(frozen=True)
class Advice:
    """What to do to the vectors of a source, with the evidence.

    Attributes:
        source: its name.
        keep: see `Question`.
        encoder: what is known of it; None for vectors of nobody's.
        rows: of the source.
        distinct: rows that were looked at.
        capped: whether the source may have more distinct rows.
        heldout: of those looked at, that were measured on.
        cut: of those, that could be cut in two.
        diagnosis: of the held-out rows; see `transforms.diagnose`.
        mean_agreement: cosine of the mean of the held-out unit vectors with that of the others; None where one points
            nowhere.
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
    keep: float
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
        AdviceError: if it holds fewer than four distinct rows, or texts without an encoder, or the encoder fails on
            nearly all.
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
        said: list[str] = []
        encoding = Encoding(encoder, folder)
        encoding.encode(to_encode(drawn), part_of(on_progress, 0.0, ENCODED))
        sample = text_sample(drawn, None, encoding.vectors, encoding.failed)
        require_both_sides(source.name, sample, len(drawn), encoding.failed)
        if len(sample.drawn) >= LEAST:
            on_progress(ENCODED, "encoding foreign text")
            other = "pydoc:topics" if question.source == "pydoc:" else "pydoc:"
            foreign, said = foreign_text(other, encoder, workspace / "foreign")
        advice = concluded(
            question,
            source.name,
            replace(sample, foreign=foreign),
            encoder.describe(),
            part_of(on_progress, ENCODED, 1),
        )
    return replace(advice, notes=[*advice.notes, *encoding.notes(), *said])


def require_both_sides(name: str, sample: Sample, drawn: int, failed: Mapping[str, str]) -> None:
    """Raise `AdviceError` where an encoder that fails leaves a side less than half of what few rows would give it."""
    least = max(DISTINCT_LEAST // 2, min(drawn, LEAST) // 4)
    fit, heldout = len(sample.fit), len(sample.heldout)
    if min(fit, heldout) < least:
        raise AdviceError(
            f"the encoder fails on {drawn - fit - heldout:,} of {drawn:,} texts of {name} "
            f"({next(iter(failed.values()))}): {fit:,} are left to fit on and {heldout:,} to measure on, "
            f"{least} of each are the least"
        )


def concluded(
    question: Question, name: str, sample: Sample, encoder: dict[str, Any] | None, on_progress: Progress
) -> Advice:
    """Everything that follows from a sample."""
    few = too_few(len(sample.drawn))
    diagnosis = diagnose(sample.heldout)
    advice = Advice(
        source=name,
        keep=question.keep,
        encoder=encoder,
        rows=sample.drawn.rows,
        distinct=len(sample.drawn),
        capped=len(sample.drawn) >= question.rows,
        heldout=len(sample.heldout),
        cut=sample.cut,
        diagnosis=diagnosis,
        mean_agreement=agreement(sample.fit, sample.heldout),
        debiasing=None,
        matryoshka=None,
        sizes=None,
        best=None,
        confirmed=None,
        second=None,
        elsewhere=[],
        shortages=[few] if few else [],
        notes=list(notes(sample, diagnosis["zero_rows"])),
    )
    if few:
        return advice
    on_progress(ENCODED, "trying what debiasing does")
    debiasing = try_debiasing(sample)
    curve = Curve(sample, debiasing.trial(debiasing.chosen).steps)
    sizes = curve.sizes(part_of(on_progress, TRIED, 1.0))
    best, second = recommend(debiasing, sizes, question.keep)
    confirmed, places = None, []
    if best.steps:
        chain = curve.fitted(best.steps)
        confirmed = curve.measure(best.reducer, chain, best.dimensions) if best.reducer else None
        places = list(elsewhere(sample, chain))
        changed = changes(debiasing.trial(best.debiasing), confirmed is not None, places[0])
        best = replace(best, price=" ".join([best.price, *changed]))
    return replace(
        advice,
        debiasing=debiasing,
        matryoshka=find_matryoshka(sample.heldout, question.seed) if len(sample.heldout) >= ROWS_LEAST else None,
        sizes=sizes,
        best=best,
        confirmed=confirmed,
        second=second,
        elsewhere=places,
        shortages=shortages(sample, debiasing, best),
        notes=[*advice.notes, *doubts(debiasing, sizes, confirmed, question.keep)],
    )


def agreement(fit: FloatArray, heldout: FloatArray) -> float | None:
    """The cosine of the means of two sets of rows, each of length 1; None where one of them points nowhere."""
    return cosine(unit_mean(fit), unit_mean(heldout))


def unit_mean(vectors: FloatArray) -> NDArray[np.float64]:
    """The mean `(d,)` of rows brought to unit length."""
    sums = [unit_rows(torch.from_numpy(block.astype(np.float64))).sum(0).numpy() for block in row_blocks(vectors)]
    return np.asarray(np.sum(sums, axis=0) / len(vectors))


def doubts(debiasing: Debiasing, sizes: Sizes, confirmed: SizeTrial | None, keep: float) -> Iterator[str]:
    """What did not work, and whether the recommended chain holds what the curve promised."""
    problems = {one.method: one.problem for one in debiasing.trials if one.problem is not None} | sizes.problems
    for name, problem in problems.items():
        yield f"{name} could not be fitted: {problem}."
    kept = {} if confirmed is None else what_is_kept(confirmed, sizes.full)
    missed = [f"{percent(share)} of {what}" for what, share in kept.items() if lower(share) < keep]
    if confirmed is not None and missed:
        yield (
            f"Fitted at {confirmed.dimensions} dimensions by itself the chain just misses the {100 * keep:g} % that "
            f"must be kept: it keeps {' and '.join(missed)}. Take the next larger size to be sure."
        )


def notes(sample: Sample, zero_rows: int) -> Iterator[str]:
    """What a reader of the advice must know of the rows."""
    drawn = sample.drawn
    if drawn.blank:
        yield f"{drawn.blank:,} blank texts were left out."
    if zero_rows:
        yield f"{zero_rows:,} of {len(sample.heldout):,} held-out vectors are zero: they have no direction."
    if drawn.repeated > 0:
        aside = ", spaces and case aside" if drawn.vectors is None else ""
        yield (
            f"{100 * drawn.repeated:.1f} % of the rows repeat others{aside}. Each was looked at once; a fit on the "
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
