"""Pipeline from a source and an encoder to an `Advice` with a recommended chain."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from training.advice.cost import changes
from training.advice.debiasing import Debiasing, try_debiasing
from training.advice.encoding import Encoding, foreign_text
from training.advice.matryoshka import ROWS_LEAST, Matryoshka, find_matryoshka
from training.advice.recommendation import Recommendation, lower, recommend, what_is_kept
from training.advice.request import Question
from training.advice.row_sample import draw
from training.advice.sample import Foreign, Sample, text_sample, to_encode, vector_sample
from training.advice.sample_size import LEAST, Shortage, shortages, too_few
from training.advice.sizes import Curve, Sizes, SizeTrial
from training.advice.transfer import Elsewhere, elsewhere
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
"""Progress fractions: `TRIED` once the debiasing methods are compared, `ENCODED` once all texts are encoded."""
MIXED = 0.1
"""Minimum share of a script among the texts; if two scripts reach it, a note says that the source mixes scripts."""


@dataclass(frozen=True)
class Advice:
    """Recommendation of a chain for the vectors of a source, with the measurements that support it.

    Attributes:
        source: name of the source.
        keep: see `Question`.
        encoder: description of the encoder, as JSON-serializable dict; None for vectors without an encoder.
        rows: number of rows of the source.
        distinct: number of distinct rows in the sample.
        capped: whether the sample reached its maximum, so that the source may have more distinct rows.
        heldout: number of held-out rows.
        cut: number of held-out texts that are long enough to be cut in two.
        diagnosis: diagnostics of the held-out rows; see `transforms.diagnose`.
        mean_agreement: cosine between the mean unit vectors of the held-out rows and of the rows to fit on; None if one
            of these means is zero.
        debiasing: comparison of debiasing methods; None with fewer than `LEAST` rows.
        matryoshka: test of the first coordinates against random ones; None with too few rows.
        sizes: comparison of reducers; None with fewer than `LEAST` rows.
        best: recommended chain; None with fewer than `LEAST` rows.
        confirmed: measurements of the recommended chain, refitted at its own dimensions; None without a reducer.
        second: runner-up, or None.
        elsewhere: transfer evaluation of the recommended chain, on held-out rows and on out-of-domain text; empty if no
            steps are recommended.
        shortages: questions for which the sample is too small.
        notes: further remarks, as sentences.
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
    """Sample a source, encode texts if it holds texts, compare transforms on held-out rows, and return the advice.

    Vectors of the texts are written to the workspace folder, so that a killed run resumes without encoding them again.

    Args:
        question: the source, and what the recommended chain must preserve.
        encoder: encoder of the texts; None for a source of vectors.
        workspace: folder of the vectors.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        SourceError: if the source cannot be read.
        AdviceError: if the source has fewer than `DISTINCT_LEAST` distinct rows, holds texts but no encoder is given,
            or the encoder fails on so many texts that too few are left.
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
    """Raise `AdviceError` if, after texts on which the encoder fails, too few rows are left to fit on or are held out.

    The minimum of each part is a quarter of the sampled rows, and at most a quarter of `LEAST`.

    Args:
        name: name of the source, for the message.
        sample: the encoded sample.
        drawn: number of sampled rows before failures.
        failed: reasons of the failures, by text.
    """
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
    """Diagnose the sample, compare debiasing methods and reducers, choose a chain, and return the advice.

    With fewer than `LEAST` rows, only the diagnosis, notes and one shortage are set.

    Args:
        question: the advice request.
        name: name of the source.
        sample: vectors to fit and to measure on.
        encoder: description of the encoder, or None.
        on_progress: called with progress in [0, 1] and a message.
    """
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
    """Return the cosine between the mean unit vectors of two sets of rows, `(n, d)`, `(m, d)`; None if one is zero."""
    return cosine(unit_mean(fit), unit_mean(heldout))


def unit_mean(vectors: FloatArray) -> NDArray[np.float64]:
    """Return the mean of the L2-normalized rows, `(n, d)` to `(d,)` float64."""
    sums = [unit_rows(torch.from_numpy(block.astype(np.float64))).sum(0).numpy() for block in row_blocks(vectors)]
    return np.asarray(np.sum(sums, axis=0) / len(vectors))


def doubts(debiasing: Debiasing, sizes: Sizes, confirmed: SizeTrial | None, keep: float) -> Iterator[str]:
    """Yield warnings: methods that could not be fitted, and what the refitted chain preserves less of than `keep`.

    Args:
        debiasing: comparison of debiasing methods.
        sizes: comparison of reducers.
        confirmed: measurements of the recommended chain refitted at its own dimensions, or None.
        keep: share that must be preserved, in (0, 1].
    """
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
    """Yield remarks on the sampled rows: blank texts, zero vectors, repeated rows, short texts, several scripts."""
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
