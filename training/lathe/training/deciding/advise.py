"""Pipeline from a source and an encoder to an `Advice` with a decision."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from lathe.training.deciding.evidence import MIN_ROWS, Evidence, measure_evidence
from lathe.training.deciding.places.decision import PlaceDecision, decide
from lathe.training.deciding.places.engines import require_engine
from lathe.training.deciding.requests import AdviceRequest
from lathe.training.deciding.sample import Sample, build_vector_sample, encode_sample
from lathe.training.encoder.text_encoder import TextEncoder, with_document_prompt
from lathe.training.errors import AdviceError
from lathe.training.fitting.requests import MIN_DISTINCT_ROWS, NewFit
from lathe.training.sources.row_sample import sample_rows
from lathe.training.sources.source import open_source
from lathe.transforms.chain import parse_steps
from lathe.transforms.progress import Progress, part_of

ENCODED = 0.6
"""Progress fraction once all texts are encoded."""
DECIDED = 0.2
"""Progress of the work after encoding once it is decided what to store, if evidence is measured too."""
MIN_SCRIPT_SHARE = 0.1
"""Minimum share of a script among the texts; if two scripts reach it, a note says that the source mixes scripts."""


@dataclass(frozen=True)
class Advice:
    """In what form to store the vectors of a source, with the measurements that were requested.

    Attributes:
        source: name of the source.
        encoder: description of the encoder, as JSON-serializable dict; None for vectors without an encoder.
        rows: number of rows of the source.
        distinct: number of distinct rows in the sample.
        capped: whether the sample reached its maximum, so that the source may have more distinct rows.
        heldout: number of held-out rows.
        decision: what to store in the place of the request.
        evidence: further measurements; None if they were not requested.
        notes: remarks on the sampled rows, as sentences.
    """

    source: str
    encoder: dict[str, Any] | None
    rows: int
    distinct: int
    capped: bool
    heldout: int
    decision: PlaceDecision
    evidence: Evidence | None = field(default=None, repr=False)
    notes: list[str] = field(default_factory=list)


def advise(
    request: AdviceRequest,
    encoder: TextEncoder | None,
    on_progress: Progress,
    on_decision: Callable[[PlaceDecision], None] = lambda _decision: None,
) -> Advice:
    """Decide in what form a database should store vectors, measured on a sample. Too few distinct rows raise.

    Every form that the database can hold is fitted on one part of the sample and searched by the held-out part.
    Evidence is what debiasing and fewer dimensions change, measured if requested.

    Args:
        request: the source, the place, and settings.
        encoder: encoder of the texts; not used for a source of vectors.
        on_progress: called with progress in [0, 1] and a message.
        on_decision: called with the decision, before evidence is measured.

    Raises:
        SourceError: if the source cannot be read.
        AdviceError: if the source has fewer than `MIN_DISTINCT_ROWS` distinct rows, holds texts but no encoder is
            given, the encoder fails on so many texts that too few are left, or the request wants the decision verified
            and the engine of the place is not installed.
        EncoderError: if the encoder fails on every text.
    """
    if request.verify:
        require_engine(request.place)
    source = open_source(request.source.location)
    on_progress(0.0, f"reading {source.name}")
    # One pass over the source: everything later is measured on this sample.
    row_sample = sample_rows(source, request.sample_rows, request.seed)
    if len(row_sample) < MIN_DISTINCT_ROWS:
        raise AdviceError(
            f"{source.name} has {len(row_sample)} distinct rows; advice needs at least {MIN_DISTINCT_ROWS}"
        )

    if row_sample.vectors is not None:
        # An encoder given with vectors is for the chain that is fitted later.
        sample, encoder = build_vector_sample(row_sample, row_sample.vectors), None
    elif encoder is None:
        raise AdviceError(f"{source.name} holds texts: name their encoder")
    else:
        encoder = with_document_prompt(encoder)
        sample = encode_sample(row_sample, encoder, request.evidence, part_of(on_progress, 0.0, ENCODED))
        check_encoded_rows(source.name, sample, len(row_sample))
        on_progress = part_of(on_progress, ENCODED, 1.0)

    decision = decide(request, sample, part_of(on_progress, 0.0, DECIDED if request.evidence else 1.0))
    on_decision(decision)
    evidence = measure_evidence(sample, request.seed, part_of(on_progress, DECIDED, 1.0)) if request.evidence else None
    return Advice(
        source=source.name,
        encoder=None if encoder is None else encoder.describe(),
        rows=row_sample.rows,
        distinct=len(sample.row_sample),
        capped=len(sample.row_sample) >= request.sample_rows,
        heldout=len(sample.heldout),
        decision=decision,
        evidence=evidence,
        notes=list(list_remarks(sample)),
    )


def check_encoded_rows(name: str, sample: Sample, sampled_rows: int) -> None:
    """Raise `AdviceError` if the encoder failed on so many texts that too few rows are left to fit on or to hold out.

    Both parts need a quarter of the sampled rows, but not more than a quarter of `MIN_ROWS`, and not fewer than half of
    `MIN_DISTINCT_ROWS`.

    Args:
        name: name of the source, for the message.
        sample: the encoded sample.
        sampled_rows: number of sampled rows, including failed ones.
    """
    minimum = max(MIN_DISTINCT_ROWS // 2, min(sampled_rows, MIN_ROWS) // 4)
    fit, heldout = len(sample.fit), len(sample.heldout)
    if min(fit, heldout) < minimum:
        raise AdviceError(
            f"the encoder fails on {sampled_rows - fit - heldout:,} of {sampled_rows:,} texts of {name} "
            f"({next(iter(sample.failed.values()))}): {fit:,} are left to fit on and {heldout:,} to measure on; at "
            f"least {minimum} are needed for both"
        )


def list_remarks(sample: Sample) -> Iterator[str]:
    """Yield sentences about blank, zero, repeated and short rows, mixed scripts, and failures of the encoder."""
    row_sample = sample.row_sample
    if row_sample.blank:
        yield f"{row_sample.blank:,} blank texts were left out."

    if zero_rows := int((~sample.heldout.any(axis=1)).sum()):
        yield f"{zero_rows:,} of {len(sample.heldout):,} held-out vectors are zero: they have no direction."

    if row_sample.repeated > 0:
        # Texts are compared without spaces and case, vectors bit by bit.
        aside = ", spaces and case aside" if row_sample.vectors is None else ""
        yield (
            f"{100 * row_sample.repeated:.1f} % of the rows repeat others{aside}. Only distinct rows were measured; a "
            "fit on the source counts repeated rows as often as they occur."
        )

    if 0 < sample.cut < len(sample.heldout) / 2:
        yield f"Only {sample.cut:,} of {len(sample.heldout):,} held-out texts are long enough to be cut in two."

    mixed = {script: share for script, share in sample.scripts.items() if share >= MIN_SCRIPT_SHARE}
    if len(mixed) > 1:
        shares = ", ".join(f"{script} {100 * share:.0f} %" for script, share in mixed.items())
        yield (
            f"The texts mix scripts ({shares}): part of their mean direction tells languages apart, and halves of a "
            "text find each other by language alone. Ask for advice on each language by itself too."
        )

    if sample.failed:
        reason = next(iter(sample.failed.values()))
        yield f"The encoder fails on {len(sample.failed):,} texts or halves of texts, which were left out: {reason}."


def build_recommended_fit(advice: Advice, name: str, request: AdviceRequest) -> NewFit:
    """Build the request that fits the recommended chain of transforms on the whole source of the advice.

    Raise `AdviceError` if the decision takes no chain: a setting of the place, or the vectors as they are.

    Args:
        advice: the advice.
        name: name of the chain.
        request: the request of the advice.
    """
    chosen = advice.decision.chosen
    if chosen is None or not chosen.takes_chain:
        raise AdviceError(f"no chain {name!r} was fitted: the advice recommends none")
    return NewFit(
        name=name,
        steps=[step.spec() for step in parse_steps(chosen.candidate.form.chain_steps)],
        source=request.source,
        normalize=request.metric == "cosine",
        seed=request.seed,
    )
