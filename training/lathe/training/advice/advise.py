"""Pipeline from a source and an encoder to an `Advice` with a recommended chain."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lathe.training.advice.adapter import AdapterTrial, try_adapter
from lathe.training.advice.budgets import BudgetComparison, BudgetTrial, compare_budgets
from lathe.training.advice.cost import describe_changed_neighbours
from lathe.training.advice.debiasing import DebiasingComparison, compare_debiasing
from lathe.training.advice.encoding import SampleEncoder, encode_out_of_domain
from lathe.training.advice.index_plan import IndexPlan, IndexPlanner
from lathe.training.advice.matryoshka import MIN_COORDINATE_ROWS, Matryoshka, compare_first_coordinates
from lathe.training.advice.places.databases import PLACES
from lathe.training.advice.places.decision import PlaceDecision, PlaceGoal, decide
from lathe.training.advice.recommendation import Recommendation, compute_preserved_shares, recommend, recommend_budget
from lathe.training.advice.request import AdviceRequest
from lathe.training.advice.sample import Sample, build_text_sample, build_vector_sample, list_texts_to_encode
from lathe.training.advice.sample_size import MIN_ROWS, Shortage, check_row_count, list_shortages
from lathe.training.advice.sizes import SizeComparison, SizeMeasurer, SizeTrial
from lathe.training.advice.transfer import TransferResult, evaluate_transfer
from lathe.training.encoder.text_encoder import TextEncoder, with_document_prompt
from lathe.training.errors import AdviceError
from lathe.training.evaluation.statistics import cosine_similarity
from lathe.training.fitting.out_of_domain import list_built_in_corpora
from lathe.training.fitting.requests import MIN_DISTINCT_ROWS, NewFit, RowSource
from lathe.training.reporting.text import format_percent
from lathe.training.sources.row_sample import sample_rows
from lathe.training.sources.source import open_source
from lathe.training.workspace import claim_workspace_folder
from lathe.transforms.chain import parse_steps
from lathe.transforms.progress import Progress, part_of
from lathe.transforms.quality import Diagnostics, diagnose
from lathe.transforms.statistics import unit_rows
from lathe.transforms.vectors import FloatArray, row_blocks

ENCODED = 0.5
"""Progress fraction once all texts are encoded."""
DECIDED, TRIED, REDUCED = 0.1, 0.2, 0.8
"""Progress fractions of the rest: once it is decided what to store, the debiasing methods are compared, the reducers
are. They are in proportion to the time that each takes."""
ADVISED = 0.7
"""Share of the progress bar that the rest of the advice takes if an index is planned, which takes what is left."""
OnDecision = Callable[[PlaceDecision], None]
"""Function called with the decision as soon as it is made."""
MIN_SCRIPT_SHARE = 0.1
"""Minimum share of a script among the texts; if two scripts reach it, a note says that the source mixes scripts."""


@dataclass(frozen=True)
class Advice:
    """Recommendation of a chain for the vectors of a source, with the measurements that support it.

    Attributes:
        source: name of the source.
        keep: see `AdviceRequest`.
        encoder: description of the encoder, as JSON-serializable dict; None for vectors without an encoder.
        rows: number of rows of the source.
        distinct: number of distinct rows in the sample.
        capped: whether the sample reached its maximum, so that the source may have more distinct rows.
        heldout: number of held-out rows.
        cut: number of held-out texts that are long enough to be cut in two.
        diagnosis: diagnostics of the held-out rows; see `lathe.transforms.diagnose`.
        mean_agreement: cosine between the mean unit vectors of the held-out rows and of the rows to fit on; None if one
            of these means is zero.
        debiasing: comparison of debiasing methods; None with fewer than `MIN_ROWS` rows.
        matryoshka: test of the first coordinates against random ones; None with too few rows.
        sizes: comparison of reducers; None with fewer than `MIN_ROWS` rows.
        budgets: comparison of codes and of what databases do by themselves; None with fewer than `MIN_ROWS` rows.
        best: recommended chain; None with fewer than `MIN_ROWS` rows.
        confirmed: measurements of the recommended chain, refitted at its own dimensions; None without a reducer.
        second: runner-up, or None.
        fewest_bytes: codes of the fewest bytes that preserve `keep`; None if no compared budget does.
        transfer: transfer evaluation of the recommended chain, on held-out rows and on out-of-domain text; empty if no
            steps are recommended.
        adapter: trial of a query adapter; None without pairs.
        index_plan: plan of an index; None if none was requested.
        decision: what to store in the place of the request; None only while the advice is built.
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
    debiasing: DebiasingComparison | None = None
    matryoshka: Matryoshka | None = None
    sizes: SizeComparison | None = None
    budgets: BudgetComparison | None = None
    best: Recommendation | None = None
    confirmed: SizeTrial | None = None
    second: Recommendation | None = None
    fewest_bytes: BudgetTrial | None = None
    transfer: list[TransferResult] = field(default_factory=list)
    adapter: AdapterTrial | None = None
    index_plan: IndexPlan | None = None
    decision: PlaceDecision | None = None
    shortages: list[Shortage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def advise(
    request: AdviceRequest,
    encoder: TextEncoder | None,
    workspace: Path,
    on_progress: Progress,
    planner: IndexPlanner | None = None,
    on_decision: OnDecision = lambda _decision: None,
) -> Advice:
    """Recommend a chain of transforms for a source of texts or vectors.
    A sample of its rows is encoded and split, candidate chains are fitted on one part and compared on the other, and
    the advice is returned with all measurements.

    Vectors of the texts are kept in a folder within the workspace until the advice is done, so that a killed run
    resumes without encoding them again. Vectors of the built-in out-of-domain text stay cached there for later calls.

    Args:
        request: the source, and what the recommended chain must preserve.
        encoder: encoder of the texts; None for a source of vectors.
        workspace: folder of the vectors; created if missing.
        on_progress: called with progress in [0, 1] and a message.
        planner: planner of an index; None to plan none.
        on_decision: called with the decision, before the evidence beside it is measured.

    Raises:
        SourceError: if the source cannot be read.
        AdviceError: if pairs cannot be used, the source has fewer than `MIN_DISTINCT_ROWS` distinct rows, holds texts
            but no encoder is given, or the encoder fails on so many texts that too few are left.
        EncoderError: if the encoder fails on every text.
    """
    source = open_source(request.source)
    advising = part_of(on_progress, 0.0, ADVISED if planner else 1.0)
    planning = part_of(on_progress, ADVISED, 1.0)
    on_progress(0.0, f"reading {source.name}")
    # One pass over the source: everything later is measured on this sample.
    row_sample = sample_rows(source, request.sample_rows, request.seed)
    if len(row_sample) < MIN_DISTINCT_ROWS:
        raise AdviceError(
            f"{source.name} has {len(row_sample)} distinct rows; advice needs {MIN_DISTINCT_ROWS} at the least"
        )
    if row_sample.vectors is not None:
        if request.pairs is not None:
            raise AdviceError(f"{source.name} holds vectors, and pairs are texts: name a source of texts")
        sample = build_vector_sample(row_sample, row_sample.vectors)
        advice = build_advice(request, source.name, sample, None, advising, on_decision)
        return replace(advice, index_plan=planner.plan(sample, planning) if planner else None)
    if encoder is None:
        raise AdviceError(f"{source.name} holds texts: name their encoder")

    encoder = with_document_prompt(encoder)
    remarks: list[str] = []
    with claim_workspace_folder(workspace, f"advice-{source.content_key(encoder.vectors_key)[:32]}") as folder:
        encoding = SampleEncoder(encoder, folder)
        encoding.encode(list_texts_to_encode(row_sample), part_of(advising, 0.0, ENCODED))
        # Halves of texts can fail where the texts do not, so the sample is built from what was encoded.
        sample = build_text_sample(row_sample, encoding.vectors, encoding.failed)
        require_enough_encoded(source.name, sample, len(row_sample), encoding.failed)

        if len(sample.row_sample) >= MIN_ROWS:
            advising(ENCODED, "encoding out-of-domain text")
            (out_of_domain_source,) = list_built_in_corpora(request.source).values()
            out_of_domain, remarks = encode_out_of_domain(out_of_domain_source, encoder, workspace / "out_of_domain")
            sample = replace(sample, out_of_domain=out_of_domain)

        advice = build_advice(
            request, source.name, sample, encoder.describe(), part_of(advising, ENCODED, 1), on_decision
        )
        texts = [text for text in sample.row_sample.texts if text not in encoding.failed]
        adapter = try_adapter(request, texts, encoder, workspace, part_of(advising, 1, 1))
        advice = replace(advice, adapter=adapter)

    if planner is not None:
        advice = replace(advice, index_plan=planner.plan(sample, planning))

    return replace(advice, notes=[*advice.notes, *encoding.list_remarks(), *remarks])


def require_enough_encoded(name: str, sample: Sample, sampled: int, failed: Mapping[str, str]) -> None:
    """Raise `AdviceError` if too few rows are left after those on which the encoder failed.

    The minimum of each part is a quarter of the sampled rows, and at most a quarter of `MIN_ROWS`.

    Args:
        name: name of the source, for the message.
        sample: the encoded sample.
        sampled: number of sampled rows before failures.
        failed: reasons of the failures, by text.

    Raises:
        AdviceError: if too few rows are left to fit on or are held out.
    """
    minimum = max(MIN_DISTINCT_ROWS // 2, min(sampled, MIN_ROWS) // 4)
    fit, heldout = len(sample.fit), len(sample.heldout)
    if min(fit, heldout) < minimum:
        raise AdviceError(
            f"the encoder fails on {sampled - fit - heldout:,} of {sampled:,} texts of {name} "
            f"({next(iter(failed.values()))}): {fit:,} are left to fit on and {heldout:,} to measure on, "
            f"{minimum} of each are the least"
        )


def build_advice(
    request: AdviceRequest,
    name: str,
    sample: Sample,
    encoder: dict[str, Any] | None,
    on_progress: Progress,
    on_decision: OnDecision = lambda _decision: None,
) -> Advice:
    """Build the advice from a sample of vectors.
    Decide what to store, diagnose the held-out rows, compare debiasing methods, reducers and codes, and choose a chain.

    The chosen chain is then fitted and measured, also on out-of-domain text if the sample has it. With fewer than
    `MIN_ROWS` rows, only the diagnosis, notes and one shortage are set.

    Args:
        request: the advice request.
        name: name of the source.
        sample: vectors to fit and to measure on.
        encoder: description of the encoder, or None.
        on_progress: called with progress in [0, 1] and a message.
        on_decision: called with the decision, before the evidence beside it is measured.
    """
    goal = PlaceGoal(PLACES[request.place], request.rows, request.metric, request.recall)
    decision = decide(goal, sample, part_of(on_progress, 0.0, DECIDED), request.seed)
    on_decision(decision)
    # Diagnosis and decision hold for few rows; a recommendation does not.
    shortage = check_row_count(len(sample.row_sample))
    row_sample, diagnosis = sample.row_sample, diagnose(sample.heldout)
    advice = Advice(
        source=name,
        keep=request.keep,
        encoder=encoder,
        rows=row_sample.rows,
        distinct=len(row_sample),
        capped=len(row_sample) >= request.sample_rows,
        heldout=len(sample.heldout),
        cut=sample.cut,
        diagnosis=diagnosis,
        mean_agreement=cosine_of_means(sample.fit, sample.heldout),
        decision=decision,
        shortages=[shortage] if shortage else [],
        notes=list(list_remarks(sample, diagnosis["zero_rows"])),
    )
    if shortage:
        return advice

    on_progress(DECIDED, "trying what debiasing does")

    debiasing = compare_debiasing(sample)
    measurer = SizeMeasurer(sample, debiasing.trial(debiasing.chosen).steps)
    sizes = measurer.compare(part_of(on_progress, TRIED, REDUCED))
    budgets = compare_budgets(measurer, sizes, part_of(on_progress, REDUCED, 1.0))
    best, second = recommend(debiasing, sizes, request.keep)
    confirmed, transfer = None, []

    if best.steps:
        # Refitted at its own dimensions: in the comparison every reducer was fitted at the largest size and cut.
        chain = measurer.fit_chain(best.steps)
        confirmed = measurer.measure(best.reducer, chain, best.dimensions) if best.reducer else None
        transfer = list(evaluate_transfer(sample, chain))
        changed = describe_changed_neighbours(debiasing.trial(best.debiasing), confirmed is not None, transfer[0])
        best = replace(best, cost=" ".join([best.cost, *changed]))

    has_enough_rows = len(sample.heldout) >= MIN_COORDINATE_ROWS
    return replace(
        advice,
        debiasing=debiasing,
        matryoshka=compare_first_coordinates(sample.heldout, request.seed) if has_enough_rows else None,
        sizes=sizes,
        budgets=budgets,
        best=best,
        confirmed=confirmed,
        second=second,
        fewest_bytes=recommend_budget(budgets, sizes.full, request.keep),
        transfer=transfer,
        shortages=list_shortages(sample, debiasing, best),
        notes=[*advice.notes, *list_warnings(debiasing, sizes, confirmed, request.keep)],
    )


def cosine_of_means(fit: FloatArray, heldout: FloatArray) -> float | None:
    """Return the cosine between the mean unit vectors of rows `(n, d)` and `(m, d)`, None if a mean is zero."""
    return cosine_similarity(_unit_mean(fit), _unit_mean(heldout))


def _unit_mean(vectors: FloatArray) -> NDArray[np.float64]:
    """Return the mean of the L2-normalized rows, `(n, d)` to `(d,)` float64."""
    # Block by block: the unit rows of all in float64 would take twice the memory of the vectors.
    sums = [unit_rows(torch.from_numpy(block.astype(np.float64))).sum(0).numpy() for block in row_blocks(vectors)]
    return np.asarray(np.sum(sums, axis=0) / len(vectors))


def list_warnings(
    debiasing: DebiasingComparison, sizes: SizeComparison, confirmed: SizeTrial | None, keep: float
) -> Iterator[str]:
    """Yield warnings, as sentences, about failed fits and about a chain that preserves too little.
    The latter is the recommended chain, refitted at its own dimensions, if it preserves less than the share `keep`.

    Args:
        debiasing: comparison of debiasing methods.
        sizes: comparison of reducers.
        confirmed: measurements of the recommended chain refitted at its own dimensions, or None.
        keep: share that must be preserved, in (0, 1].
    """
    problems = {trial.method: trial.problem for trial in debiasing.trials if trial.problem is not None} | sizes.problems
    for name, problem in problems.items():
        yield f"{name} could not be fitted: {problem}."

    preserved = {} if confirmed is None else compute_preserved_shares(confirmed, sizes.full)
    missed_shares = [
        f"{format_percent(share)} of {what}" for what, share in preserved.items() if share.bounds[0] < keep
    ]
    if confirmed is not None and missed_shares:
        yield (
            f"Fitted at {confirmed.dimensions} dimensions by itself the chain just misses the {100 * keep:g} % that "
            f"must be kept: it keeps {' and '.join(missed_shares)}. Take the next larger size to be sure."
        )


def list_remarks(sample: Sample, zero_rows: int) -> Iterator[str]:
    """Yield a sentence for each peculiarity of the sampled rows.
    Peculiar are blank texts, zero vectors, repeated rows, texts too short to be cut in two, and several scripts.

    Args:
        sample: the sample.
        zero_rows: number of zero vectors among its held-out rows.
    """
    row_sample = sample.row_sample
    if row_sample.blank:
        yield f"{row_sample.blank:,} blank texts were left out."

    if zero_rows:
        yield f"{zero_rows:,} of {len(sample.heldout):,} held-out vectors are zero: they have no direction."

    if row_sample.repeated > 0:
        # Texts are compared without spaces and case, vectors bit by bit.
        aside = ", spaces and case aside" if row_sample.vectors is None else ""
        yield (
            f"{100 * row_sample.repeated:.1f} % of the rows repeat others{aside}. Each was looked at once; a fit on "
            "the source counts it as often as it stands there."
        )

    if row_sample.vectors is None and sample.cut < len(sample.heldout) / 2:
        yield f"Only {sample.cut:,} of {len(sample.heldout):,} held-out texts are long enough to be cut in two."

    mixed = {script: share for script, share in sample.scripts.items() if share >= MIN_SCRIPT_SHARE}
    if len(mixed) > 1:
        shares = ", ".join(f"{script} {100 * share:.0f} %" for script, share in mixed.items())
        yield (
            f"The texts mix scripts ({shares}): part of their mean direction tells languages apart, and halves of a "
            "text find each other by language alone. Ask for advice on each language by itself too."
        )


def build_recommended_fit(advice: Advice, name: str, request: AdviceRequest) -> NewFit:
    """Build the request that fits the recommended chain on the whole source.
    The query adapter is in front if it is recommended.

    Args:
        advice: the advice.
        name: name of the chain.
        request: what the advice was asked for.

    Raises:
        AdviceError: if no chain is recommended, because there are too few rows or the raw vectors are best.
    """
    if advice.best is None:
        raise AdviceError("nothing was fitted: no chain is recommended, there are too few rows")
    adapter = [advice.adapter.steps] if advice.adapter and advice.adapter.recommended else []
    steps = ",".join([*adapter, *([advice.best.steps] if advice.best.steps else [])])
    if not steps:
        raise AdviceError("nothing was fitted: no chain is recommended, the raw vectors are best")
    return NewFit(
        name=name,
        steps=[step.spec() for step in parse_steps(steps)],
        source=RowSource(path=request.source),
        seed=request.seed,
        pairs=request.pairs if adapter else None,
    )
