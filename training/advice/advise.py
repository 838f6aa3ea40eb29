"""Advice on a source and an encoder, from texts to a recommendation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from training.advice.debiasing import GEOMETRY_ROWS, Debiasing, ranks_behind, try_debiasing
from training.advice.draw import Drawn, draw
from training.advice.enough import Shortage, shortages, too_few
from training.advice.matryoshka import Matryoshka, find_matryoshka
from training.advice.question import Question
from training.advice.recommendation import Recommendation, recommend
from training.advice.sample import Foreign, Halves, Sample, cut_all, text_sample, to_encode, vector_sample
from training.advice.sizes import Sizes, try_sizes
from training.encoders import Encoder
from training.encoding import source_key
from training.errors import AdviceError
from training.evaluation.statistics import Interval, mean_interval
from training.evaluation.store import VectorStore, text_key
from training.fitting import built_in_name, kept_vectors, sample_vectors, sampled_texts
from training.sources import open_source
from training.workspace import claimed_folder
from transforms.arrays import FloatArray
from transforms.certificate import fidelity
from transforms.chain import Chain
from transforms.diagnostics import Diagnostics, diagnose
from transforms.steps import parse_steps
from transforms.transform import Progress

ENCODE_ROWS = 1024
"""Texts that are encoded between two writes to disk."""
DISTINCT_LEAST = 4
"""Rows: of fewer nothing can be said at all."""
REAL = 2.0
"""Times its noise floor a mean direction must be long to be one."""
ENCODED, TRIED = 0.7, 0.8
"""Shares of the work that are done when all is encoded, and when debiasing is tried."""
MIXED = 0.1
"""Share of texts in another script from which on a source counts as mixed."""


@dataclass(frozen=True)
class Elsewhere:
    """The recommended chain, fitted here, on some text.

    Attributes:
        text: whose.
        rows: of it.
        measures: as in a certificate.
        gain: of halves finding each other, to the raw vectors, in points; None where none can be cut.
    """

    text: str
    rows: int
    measures: dict[str, float | None]
    gain: Interval | None


@dataclass(frozen=True)
class Advice:
    """What to do to the vectors of a source, with the evidence.

    Attributes:
        source: its name.
        encoder: what is known of it; None for vectors of nobody's.
        rows: of the source.
        distinct: rows that were looked at.
        heldout: of those, that were measured on.
        cut: of those, that could be cut in two.
        diagnosis: of the rows to fit on; see `transforms.diagnose`.
        debiasing: what was tried; None where there is too little.
        matryoshka: likewise.
        sizes: likewise.
        best: likewise.
        second: the runner-up, if there is one.
        elsewhere: the recommended chain on held-out rows and on foreign text.
        shortages: what the sample cannot tell.
        notes: what else to know.
    """

    source: str
    encoder: dict[str, Any] | None
    rows: int
    distinct: int
    heldout: int
    cut: int
    diagnosis: Diagnostics
    debiasing: Debiasing | None
    matryoshka: Matryoshka | None
    sizes: Sizes | None
    best: Recommendation | None
    second: Recommendation | None
    elsewhere: list[Elsewhere]
    shortages: list[Shortage]
    notes: list[str]

    @property
    def direction_is_real(self) -> bool:
        """Whether ‖μ‖ is more than chance alone would give."""
        return bool(self.diagnosis["mean_norm"] > REAL * self.diagnosis["noise_floor"])


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
        EncoderError: if a text cannot be encoded.
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
    other = "pydoc:topics" if question.source == "pydoc:" else "pydoc:"
    with claimed_folder(workspace, f"advice-{source_key(source, encoder)[:32]}") as folder:
        encoding = Encoding(encoder, folder, on_progress)
        on_progress(0.0, "encoding foreign text")
        foreign = foreign_text(other, encoder, workspace / "foreign")
        sample = text_sample(drawn, foreign, encoding.encode(to_encode(drawn)))
        return concluded(question, source.name, sample, encoder.describe(), on_progress)


def foreign_text(written: str, encoder: Encoder, workspace: Path) -> Foreign:
    """Built-in text with its halves, encoded once for each encoder."""
    source, folder = open_source(written), workspace / encoder.fingerprint

    def both_halves() -> FloatArray:
        return encoder.encode([text for half in cut_all(sampled_texts(source)) for text in half]).vectors

    stacked = kept_vectors(folder, f"{built_in_name(source)} halves", both_halves)
    half = len(stacked) // 2
    return Foreign(sample_vectors(source, encoder, folder), Halves(stacked[:half], stacked[half:]))


class Encoding:
    """Texts to vectors, kept in a folder so that a killed run goes on."""

    def __init__(self, encoder: Encoder, folder: Path, on_progress: Progress) -> None:
        self.encoder = encoder
        self.store = VectorStore(folder / "texts", encoder.dimensions)
        self.on_progress = on_progress

    def encode(self, texts: Sequence[str]) -> FloatArray:
        """Vectors `(n, d)`."""
        missing = list({text_key(text): text for text in texts if text_key(text) not in self.store}.values())
        for start in range(0, len(missing), ENCODE_ROWS):
            self.on_progress(ENCODED * start / len(missing), f"{start:,} of {len(missing):,} texts encoded")
            some = missing[start : start + ENCODE_ROWS]
            self.store.add([text_key(text) for text in some], self.encoder.encode(some).vectors)
        return self.store.get([text_key(text) for text in texts])


def concluded(
    question: Question, name: str, sample: Sample, encoder: dict[str, Any] | None, on_progress: Progress
) -> Advice:
    """Everything that follows from a sample."""
    drawn = sample.drawn
    few = too_few(len(drawn))
    advice = Advice(
        source=name,
        encoder=encoder,
        rows=drawn.rows,
        distinct=len(drawn),
        heldout=len(sample.heldout),
        cut=len(sample.halves) if sample.halves else 0,
        diagnosis=diagnose(sample.fit),
        debiasing=None,
        matryoshka=None,
        sizes=None,
        best=None,
        second=None,
        elsewhere=[],
        shortages=[few] if few else [],
        notes=list(notes(sample)),
    )
    if few:
        return advice
    on_progress(ENCODED, "trying what debiasing does")
    debiasing = try_debiasing(sample)
    matryoshka = find_matryoshka(sample.heldout[:GEOMETRY_ROWS], question.seed)

    def report(fraction: float, sentence: str) -> None:
        on_progress(TRIED + (1 - TRIED) * fraction, sentence)

    sizes = try_sizes(sample, debiasing.trial(debiasing.chosen).steps, report)
    best, second = recommend(debiasing, sizes, matryoshka, question.keep)
    return replace(
        advice,
        debiasing=debiasing,
        matryoshka=matryoshka,
        sizes=sizes,
        best=best,
        second=second,
        elsewhere=list(elsewhere(sample, best)),
        shortages=shortages(sample, debiasing, best),
    )


def elsewhere(sample: Sample, best: Recommendation) -> list[Elsewhere]:
    """The recommended chain itself, on held-out rows and on foreign text."""
    if not best.steps:
        return []
    chain = Chain(parse_steps(best.steps)).fit(sample.fit)
    found = [on_text("held out", chain, sample.heldout[:GEOMETRY_ROWS], sample.halves)]
    if sample.foreign is not None:
        found.append(on_text("foreign", chain, sample.foreign.vectors, sample.foreign.halves))
    return found


def on_text(name: str, chain: Chain, vectors: FloatArray, cut: Halves | None) -> Elsewhere:
    """A fitted chain on some vectors."""
    gain = None
    if cut is not None:
        raw = Chain(parse_steps("normalize")).fit(cut.first)
        gain = mean_interval(100 * (ranks_behind(chain, cut) - ranks_behind(raw, cut)))
    return Elsewhere(name, len(vectors), fidelity(vectors, np.asarray(chain.floats(vectors))), gain)


def notes(sample: Sample) -> list[str]:
    """What a reader of the advice must know of the rows."""
    drawn: Drawn = sample.drawn
    found = []
    if drawn.blank:
        found.append(f"{drawn.blank:,} blank texts were left out.")
    if drawn.repeated > 0:
        found.append(f"{100 * drawn.repeated:.1f} % of the rows repeat others; each was looked at once.")
    if drawn.vectors is not None:
        found.append(
            "The source holds vectors: what is useful to texts cannot be measured, so no debiasing is advised."
        )
    elif sample.halves is None or len(sample.halves) < len(sample.heldout) / 2:
        cut = len(sample.halves) if sample.halves else 0
        found.append(f"Only {cut:,} of {len(sample.heldout):,} held-out texts are long enough to be cut in two.")
    mixed = {script: share for script, share in sample.scripts.items() if share >= MIXED}
    if len(mixed) > 1:
        shares = ", ".join(f"{script} {100 * share:.0f} %" for script, share in mixed.items())
        found.append(
            f"The texts mix scripts ({shares}): part of their mean direction tells languages apart, and halves of a "
            "text find each other by language alone. Ask for advice on each language by itself too."
        )
    return found
