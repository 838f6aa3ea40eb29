"""Choice of a form to store in a place, and the sentence that says it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from lathe.training.advice.places.databases import PLACES, write_commands
from lathe.training.advice.places.engines import find_engine, search_in_engine
from lathe.training.advice.places.forms import Candidate, FormSearch, Place, PlaceCost, StoredForm
from lathe.training.advice.places.recall import (
    CANDIDATES,
    PART,
    ExpectedRecall,
    K,
    bound_recall,
    count_found,
    extrapolate,
    find_nearest,
)
from lathe.training.advice.request import AdviceRequest, Metric, PlaceName
from lathe.training.advice.sample import Sample
from lathe.training.errors import AdviceError
from lathe.training.reporting.text import format_bytes
from lathe.transforms.errors import TransformError
from lathe.transforms.progress import Progress

MIN_ROWS = 1000
"""Minimum number of sampled rows for a decision."""
QUERIES = 500
"""Maximum number of held-out rows that search."""
SURE_FACTOR = K
"""Multiple of the sampled rows up to which recall is measured by fewer nearest rows, and beyond which extrapolated."""
MIN_SAVING = 0.1
"""Minimum share of the bytes that a form must save, compared with the vectors as they are."""
WORTH_A_CHAIN = 0.25
"""Minimum share of the bytes that a chain must save, compared with a setting of the place alone."""
CHAIN_BYTES = 10**9
"""Minimum bytes of the vectors as they are for which a chain is advised: what fits into any memory is not worth one."""


@dataclass(frozen=True)
class Option:
    """A candidate with its bytes and its expected recall.

    Attributes:
        candidate: the candidate.
        multiple: number of candidates of a search that the full vectors rank, as a multiple of ten; 1 ranks none.
        bytes: bytes in the place.
        counted: the part of `bytes` that is compared.
        recall: recall to expect with that multiple.
        alone: recall to expect without ranking by the full vectors.
        reaches: whether the lower bound of `recall` is the goal or more.
        commands: lines that create, fill and search it.
    """

    candidate: Candidate
    multiple: int
    bytes: PlaceCost
    counted: int
    recall: ExpectedRecall
    alone: ExpectedRecall
    reaches: bool
    commands: tuple[str, ...] = field(repr=False)

    @property
    def takes_chain(self) -> bool:
        """Whether a chain has to be fitted and kept for it."""
        return bool(self.candidate.form.chain_steps)


@dataclass(frozen=True)
class EngineCheck:
    """What an option found in the engine of the place itself, among the sampled rows.

    Attributes:
        words: the option.
        engine: package and version of the engine.
        rows: number of sampled rows.
        recall: share of the ten nearest sampled rows that were found.
        computed: the same share as it was computed without the engine.
        bytes: bytes of the searched vectors with their graph or lists, for each row.
    """

    words: str
    engine: str
    rows: int
    recall: float
    computed: float
    bytes: float


@dataclass(frozen=True)
class PlaceDecision:
    """What to store in a place.

    Attributes:
        place: name of the place.
        rows: number of rows in production.
        metric: how vectors are compared.
        goal: share of the ten nearest rows that a search must find.
        sentence: the decision, as a sentence.
        commands: lines that carry it out; empty to leave the vectors as they are.
        chosen: what to store; None to leave the vectors as they are.
        simpler: the best setting of the place alone, without a chain; None if that is chosen, or none reaches the goal.
        before: the vectors as they are.
        options: all options, by the bytes that are compared.
        sampled_rows: number of rows that were searched to measure.
        queries: number of rows that searched them.
        notes: what was not measured, and why, as sentences.
        checks: what the chosen option, and the simpler one, found in the engine itself; empty unless it was asked for.
    """

    place: str
    rows: int
    metric: Metric
    goal: float
    sentence: str
    commands: tuple[str, ...] = ()
    chosen: Option | None = None
    simpler: Option | None = field(default=None, repr=False)
    before: Option | None = field(default=None, repr=False)
    options: list[Option] = field(default_factory=list, repr=False)
    sampled_rows: int = 0
    queries: int = 0
    notes: list[str] = field(default_factory=list)
    checks: list[EngineCheck] = field(default_factory=list)


def decide(request: AdviceRequest, sample: Sample, on_progress: Progress) -> PlaceDecision:
    """Decide which form of the vectors a database should store.

    The bytes and the expected recall of every form that the database can hold are measured on the sample.

    Args:
        request: place, rows, metric, recall, source, and whether the engine of the place is asked too.
        sample: vectors; held-out ones search the others.
        on_progress: called with progress in [0, 1] and a message.

    Returns:
        The decision as a sentence, commands and all options.
    """
    place, rows = PLACES[request.place], request.rows or sample.row_sample.rows
    # Rows of zeros have no nearest rows by cosine.
    base, queries = (vectors[vectors.any(axis=1)] for vectors in (sample.fit, sample.heldout[:QUERIES]))
    if len(base) + len(queries) < MIN_ROWS:
        sentence = (
            f"For {place.title}, nothing can be decided from {len(base) + len(queries):,} distinct rows: "
            f"{MIN_ROWS:,} are needed."
        )
        return PlaceDecision(request.place, rows, request.metric, request.recall, sentence)

    search = FormSearch(base, queries, request.metric)
    texts = sample.row_sample.vectors is None
    options, notes = _measure_options(request, rows, search, texts, on_progress)
    before, other_options = options[0], sorted(options[1:], key=lambda option: option.counted)
    chosen, simpler = _choose(before, other_options)
    if chosen is not None and chosen.takes_chain and before.counted < CHAIN_BYTES:
        notes.append(
            f"{_describe(chosen)} would take {format_bytes(chosen.counted)}; below {format_bytes(CHAIN_BYTES)}, that "
            "is not worth a chain to fit and keep."
        )
        chosen, simpler = simpler, None
    to_check = [option for option in (chosen, simpler) if option is not None and request.verify]
    checks = [_check_option(request.place, search, option) for option in to_check]
    notes += [
        f"Verified in {check.engine}: {check.words} found {check.recall:.3f} of the {K} nearest among the "
        f"{check.rows:,} sampled rows, {check.computed:.3f} were expected of it."
        for check in checks
    ]

    return PlaceDecision(
        place=request.place,
        rows=rows,
        metric=request.metric,
        goal=request.recall,
        sentence=_write_sentence(place, request.recall, rows, before, chosen, simpler, other_options),
        commands=chosen.commands if chosen else (),
        chosen=chosen,
        simpler=simpler,
        before=before,
        options=[before, *other_options],
        sampled_rows=len(base),
        queries=len(queries),
        notes=notes,
        checks=checks,
    )


def _check_option(place: PlaceName, search: FormSearch, option: Option) -> EngineCheck:
    measured = search_in_engine(place, option.candidate, option.multiple, search)
    hits = (measured.found[:, :, None] == find_nearest(search.exact)[:, None, :]).any(axis=1)
    engine, rows = find_engine(place) or "", len(search.rows)
    return EngineCheck(
        _describe(option), engine, rows, float(hits.mean()), option.recall.sampled, measured.bytes / rows
    )


def _measure_options(
    request: AdviceRequest, rows: int, search: FormSearch, texts: bool, on_progress: Progress
) -> tuple[list[Option], list[str]]:
    """Measure the bytes and the expected recall of all forms that a database can hold.

    Returns the options in the order of the place's candidates, and notes on those that could not be measured.
    """
    place = PLACES[request.place]
    sampled, dimensions = search.rows.shape
    part = sampled // PART
    candidates = [candidate for candidate in place.list_candidates(dimensions) if request.metric in candidate.metrics]
    exact = search.exact
    # Full vectors give the truth: among all sampled rows, and among a quarter as a check.
    nearest, nearest_in_part = find_nearest(exact), find_nearest(exact[:, :part])
    by_form: dict[StoredForm, list[ExpectedRecall]] = {}
    options: list[Option] = []
    notes: list[str] = []
    if place.computed:
        notes.append(f"{place.title} itself was not run: its forms are computed as its makers describe them.")

    for done, candidate in enumerate(candidates):
        on_progress(done / len(candidates), f"{place.title}: {candidate.words}")
        # Several candidates store one form beside other full vectors; its scores are the same.
        if candidate.form not in by_form:
            try:
                scores = search.score(candidate.form)
            except (TransformError, AdviceError) as error:
                notes.append(f"{candidate.words} was not measured: {error}.")
                continue
            counts = zip(count_found(scores, nearest), count_found(scores[:, :part], nearest_in_part), strict=True)
            expected = [extrapolate(*both, sampled, rows, request.seed) for both in counts]
            # More candidates that are ranked by the full vectors do not find fewer rows.
            by_form[candidate.form] = list(accumulate(expected, lambda fewer, more: bound_recall(max, more, fewer)))

        expected = by_form[candidate.form]
        if candidate.beside in by_form:  # in full precision, ranking loses nothing
            # Candidates that are ranked by a form are not found more often than that form finds rows by itself.
            ranking = by_form[candidate.beside][0]
            expected = [expected[0], *(bound_recall(min, ranked, ranking) for ranked in expected[1:])]
        option = _build_option(request, rows, dimensions, candidate, expected, texts)
        # The first candidate stores the vectors as they are: there is nothing to carry out.
        options.append(option if options else replace(option, commands=()))

    if rows > SURE_FACTOR * sampled:
        notes.append(
            f"Recall among {rows:,} rows is extrapolated from {sampled:,} sampled ones, {rows // sampled:,} times as "
            "many. Beyond ten times, a sample cannot tell how much is lost, so that the interval is wide. "
            f"To search {math.ceil(rows / SURE_FACTOR):,} sampled rows would settle it (--sample-rows)."
        )
    on_progress(1.0, f"{place.title}: measured")
    return options, notes


def _build_option(
    request: AdviceRequest,
    rows: int,
    dimensions: int,
    candidate: Candidate,
    expected: Sequence[ExpectedRecall],
    texts: bool,
) -> Option:
    """Build the option of a form, ranking as few candidates by the full vectors as reach the recall asked for.

    If no number reaches it, as many as allowed are ranked. `expected` has the recall by position in `CANDIDATES`.
    """
    allowed = len(CANDIDATES) if candidate.beside is not None else 1
    reaching = [position for position in range(allowed) if expected[position].low >= request.recall]
    position = reaching[0] if reaching else allowed - 1
    place = PLACES[request.place]
    cost = place.measure(candidate, rows)
    multiple = CANDIDATES[position]
    return Option(
        candidate=candidate,
        multiple=multiple,
        bytes=cost,
        counted=cost.count(place.counted),
        recall=expected[position],
        alone=expected[0],
        reaches=bool(reaching),
        commands=write_commands(request, candidate, multiple, dimensions, texts),
    )


def _choose(before: Option, other_options: Sequence[Option]) -> tuple[Option | None, Option | None]:
    """Choose the option to store, and a simpler one to name with it.

    The first is None to leave the vectors as they are. The second is the smallest option without a chain, or None if
    the first one has no chain. `other_options` are in the order of their bytes.
    """
    reaching = [
        option for option in other_options if option.reaches and option.counted <= (1 - MIN_SAVING) * before.counted
    ]
    if not reaching:
        return None, None

    smallest = reaching[0]
    simpler = next((option for option in reaching if not option.takes_chain), None)
    if simpler is None or simpler is smallest:
        return smallest, None
    # A chain has to be fitted and kept: it must save more than a setting of the place alone.
    if smallest.counted > (1 - WORTH_A_CHAIN) * simpler.counted:
        return simpler, None

    return smallest, simpler


def _write_sentence(
    place: Place,
    recall: float,
    rows: int,
    before: Option,
    chosen: Option | None,
    simpler: Option | None,
    other_options: Sequence[Option],
) -> str:
    """Return the decision as one or two sentences.

    They say what to store, its bytes and its recall, and what a simpler option without a chain would take.
    """
    where = f"In {place.title}"
    if chosen is None:
        settings = [option for option in other_options if not option.takes_chain]
        best = max(settings, key=lambda option: option.recall.value, default=None)
        tried = f" ({best.candidate.words} finds {_format_recall(best.recall)})" if best else ""
        return (
            f"{where}, leave the vectors as they are ({format_bytes(before.counted)}): no setting that was tried saves "
            f"{MIN_SAVING:.0%} and is sure to find {recall:.0%} of the {K} nearest of {rows:,} rows{tried}."
        )

    memory = " of memory" if place.counted == "memory" else ""
    saved = 1 - chosen.counted / before.counted
    sentence = (
        f"{where}, store {_describe(chosen)}: {format_bytes(chosen.counted)}{memory} in place of "
        f"{format_bytes(before.counted)} for {rows:,} rows ({saved:.0%} less), with a recall@{K} of "
        f"{_format_recall(chosen.recall)}."
    )
    if simpler is None:
        return sentence

    extra = 1 - chosen.counted / simpler.counted
    return (
        f"{sentence} Without a chain, {_describe(simpler)} takes {format_bytes(simpler.counted)}: if {extra:.0%} is "
        "not worth a chain, do only that."
    )


def _describe(option: Option) -> str:
    words = option.candidate.words
    if option.multiple > 1:
        words += f", with {K * option.multiple} candidates ranked by {option.candidate.beside_words}"
    elif option.candidate.beside is not None:
        words += f" beside {option.candidate.beside_words}"
    return words


def _format_recall(recall: ExpectedRecall) -> str:
    return f"{recall.value:.3f} ({recall.low:.3f} to {recall.high:.3f})"
