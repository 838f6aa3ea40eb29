"""Choice of the form in which a place should store vectors, and a sentence for the user."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from lathe.training.deciding.places.databases import PLACES, Candidate, Cost, write_commands
from lathe.training.deciding.places.engines import find_engine, search_in_engine
from lathe.training.deciding.places.forms import FormSearch, StoredForm
from lathe.training.deciding.places.recall import (
    CANDIDATES,
    PART,
    ExpectedRecall,
    K,
    bound_recall,
    count_found,
    extrapolate,
    find_nearest,
)
from lathe.training.deciding.requests import AdviceRequest, PlaceName
from lathe.training.deciding.sample import Sample
from lathe.training.errors import AdviceError
from lathe.training.reporting.text import format_bytes
from lathe.training.settings import Metric
from lathe.transforms.errors import TransformError
from lathe.transforms.progress import Progress

MIN_ROWS = 1000
"""Minimum number of sampled rows for a decision."""
QUERIES = 500
"""Maximum number of held-out rows that are queries."""
SURE_FACTOR = K
"""Multiple of the sampled rows up to which recall follows from fewer nearest rows in the sample, see recall.py."""
MIN_SAVING = 0.1
"""Minimum share of the bytes that a form must save compared with the vectors as they are."""
WORTH_A_CHAIN = 0.25
"""Minimum share of the bytes that a form with a chain must save compared with a form without a chain."""
CHAIN_BYTES = 10**9
"""Minimum bytes of the vectors as they are for which a chain is advised. Fewer bytes fit into any memory."""


@dataclass(frozen=True)
class Option:
    """A candidate with its bytes and its expected recall.

    Attributes:
        candidate: the candidate.
        multiple: number of candidates of a search that the full vectors rescore, as a multiple of ten; 1 rescores none.
        bytes: bytes in the place.
        counted: the bytes by which options are compared, see `Place.count`.
        recall: expected recall with this multiple.
        alone: expected recall without rescoring.
        reaches: whether the lower bound of `recall` reaches the recall that the request asks for.
        commands: lines that create, fill and search a table in this form.
    """

    candidate: Candidate
    multiple: int
    bytes: Cost
    counted: int
    recall: ExpectedRecall
    alone: ExpectedRecall
    reaches: bool
    commands: tuple[str, ...] = field(repr=False)

    @property
    def takes_chain(self) -> bool:
        """Whether the option needs a fitted chain of transforms."""
        return bool(self.candidate.form.chain_steps)

    def describe(self) -> str:
        """Describe the option in words: its form, and the full vectors if they are stored or rescore candidates."""
        words, beside_words = self.candidate.words, self.candidate.beside_words
        if self.multiple > 1:
            return f"{words}, with {K * self.multiple} candidates ranked by {beside_words}"
        return f"{words} next to {beside_words}" if beside_words else words


@dataclass(frozen=True)
class EngineCheck:
    """Measured recall and bytes of an option in the engine of the place, among the sampled rows.

    Attributes:
        words: description of the option.
        engine: package and version of the engine.
        rows: number of sampled rows.
        recall: share of the ten nearest sampled rows that the engine found.
        computed: this share as it was computed without the engine.
        bytes: bytes per row of the searched vectors with their graph or lists.
    """

    words: str
    engine: str
    rows: int
    recall: float
    computed: float
    bytes: float


@dataclass(frozen=True)
class PlaceDecision:
    """Decision about the form in which a place should store vectors.

    Attributes:
        place: name of the place.
        rows: number of rows in production.
        metric: how vectors are compared.
        goal: share of the ten nearest rows that a search must find.
        sentence: the decision, as a sentence.
        commands: lines that carry the decision out; empty to leave the vectors as they are.
        undo: how to roll back, as a sentence; empty to leave the vectors as they are.
        chosen: option to store; None to leave the vectors as they are.
        simpler: smallest option without a chain, if `chosen` has a chain; None if no such option reaches the goal.
        before: option that stores the vectors as they are; None with fewer than `MIN_ROWS` rows.
        options: all options: `before`, then the others by the bytes that are compared.
        sampled_rows: number of sampled rows that were searched.
        queries: number of held-out rows that were queries.
        notes: sentences on what was not measured, and why.
        checks: measurements of `chosen` and `simpler` in the engine of the place; empty unless requested.
    """

    place: PlaceName
    rows: int
    metric: Metric
    goal: float
    sentence: str
    commands: tuple[str, ...] = ()
    undo: str = ""
    chosen: Option | None = None
    simpler: Option | None = field(default=None, repr=False)
    before: Option | None = field(default=None, repr=False)
    options: list[Option] = field(default_factory=list, repr=False)
    sampled_rows: int = 0
    queries: int = 0
    notes: list[str] = field(default_factory=list)
    checks: list[EngineCheck] = field(default_factory=list)


def decide(request: AdviceRequest, sample: Sample, on_progress: Progress) -> PlaceDecision:
    """Decide by bytes and expected recall in which form to store vectors, or to keep them. Few rows decide nothing.

    With fewer than `MIN_ROWS` nonzero rows, nothing is decided. If the request asks to verify, the chosen option is
    also searched in the database's engine.

    Args:
        request: place, rows, metric, recall, source, and whether to verify.
        sample: vectors; held-out rows are the queries, and rows to fit on are searched.
        on_progress: called with progress in [0, 1] and a message.
    """
    # Rows of zeros have no nearest rows by cosine.
    base, queries = (vectors[vectors.any(axis=1)] for vectors in (sample.fit, sample.heldout[:QUERIES]))
    decision = PlaceDecision(
        request.place, request.rows or sample.row_sample.rows, request.metric, request.recall, sentence=""
    )
    if (distinct := len(base) + len(queries)) < MIN_ROWS:
        title = PLACES[request.place].title
        sentence = f"For {title}, nothing can be decided from {distinct:,} distinct rows: {MIN_ROWS:,} are needed."
        return replace(decision, sentence=sentence)

    search = FormSearch(base, queries, request.metric)
    texts = sample.row_sample.vectors is None
    (before, *others), notes = _measure_options(request, decision.rows, search, texts, on_progress)
    others.sort(key=lambda option: option.counted)
    chosen, simpler = _choose(before, others)
    if chosen is not None and chosen.takes_chain and before.counted < CHAIN_BYTES:
        notes.append(
            f"{chosen.describe()} would take {format_bytes(chosen.counted)}; vectors of less than "
            f"{format_bytes(CHAIN_BYTES)} are not worth a chain to fit and keep."
        )
        chosen, simpler = simpler, None

    undo = ""
    if chosen is not None:
        chain = ", delete the chain (lathe chains delete)" if chosen.takes_chain else ""
        undo = f"To roll back: {PLACES[request.place].undo}{chain}; the full vectors stay as they are."
    checks = [_check_option(request.place, search, option) for option in (chosen, simpler) if option and request.verify]
    notes += [
        f"Verified in {check.engine}: {check.words} found {check.recall:.3f} of the {K} nearest among the "
        f"{check.rows:,} sampled rows; {check.computed:.3f} were expected."
        for check in checks
    ]
    decision = replace(
        decision,
        commands=chosen.commands if chosen else (),
        chosen=chosen,
        simpler=simpler,
        before=before,
        options=[before, *others],
        sampled_rows=len(base),
        queries=len(queries),
        notes=notes,
        undo=undo,
        checks=checks,
    )
    return replace(decision, sentence=_write_sentence(decision, before))


def _check_option(place: PlaceName, search: FormSearch, option: Option) -> EngineCheck:
    recall, size = search_in_engine(place, option.candidate, option.multiple, search)
    engine, rows = find_engine(place) or "", len(search.rows)
    return EngineCheck(option.describe(), engine, rows, recall, option.recall.sampled, size / rows)


def _measure_options(
    request: AdviceRequest, rows: int, search: FormSearch, texts: bool, on_progress: Progress
) -> tuple[list[Option], list[str]]:
    """Measure bytes and expected recall of all forms that a database can hold, and return options and notes.

    The options are in the order of the place's candidates. Forms that could not be measured are left out and noted, and
    so is an extrapolation beyond `SURE_FACTOR` times the sampled rows.
    """
    place = PLACES[request.place]
    sampled, dimensions = search.rows.shape
    part = sampled // PART
    candidates = [candidate for candidate in place.list_candidates(dimensions) if request.metric in candidate.metrics]
    # Full vectors give the truth: among all sampled rows, and among a quarter as a check.
    nearest, nearest_in_part = find_nearest(search.exact), find_nearest(search.exact[:, :part])
    by_form: dict[StoredForm, list[ExpectedRecall]] = {}
    options: list[Option] = []
    notes: list[str] = []
    if place.computed:
        notes.append(f"{place.title} itself was not run: its forms are computed as its makers describe them.")

    for done, candidate in enumerate(candidates):
        on_progress(done / len(candidates), f"{place.title}: {candidate.words}")
        # Several candidates may differ only in their full vectors; the scores of the searched form are the same.
        if candidate.form not in by_form:
            try:
                scores = search.score(candidate.form)
            except (TransformError, AdviceError) as error:
                notes.append(f"{candidate.words} was not measured: {error}.")
                continue
            counts = zip(count_found(scores, nearest), count_found(scores[:, :part], nearest_in_part), strict=True)
            expected = [extrapolate(*both, sampled, rows, request.seed) for both in counts]
            # Rescoring more candidates with the full vectors does not find fewer rows.
            by_form[candidate.form] = list(accumulate(expected, lambda fewer, more: bound_recall(max, more, fewer)))

        expected = by_form[candidate.form][: len(CANDIDATES) if candidate.beside else 1]
        if candidate.beside in by_form:  # full vectors in full precision are not among the measured forms
            # Rescoring with a form does not find more rows than a search through that form alone.
            ranking = by_form[candidate.beside][0]
            expected = [expected[0], *(bound_recall(min, ranked, ranking) for ranked in expected[1:])]
        # As few candidates are rescored as reach the recall; if no number reaches it, as many as allowed.
        reaching = [position for position, recall in enumerate(expected) if recall.low >= request.recall]
        position = reaching[0] if reaching else len(expected) - 1
        multiple, cost = CANDIDATES[position], place.measure(candidate, rows)
        options.append(
            Option(
                candidate=candidate,
                multiple=multiple,
                bytes=cost,
                counted=place.count(cost),
                recall=expected[position],
                alone=expected[0],
                reaches=bool(reaching),
                # The first candidate stores the vectors as they are: there is nothing to carry out.
                commands=write_commands(request, candidate, multiple, dimensions, texts) if options else (),
            )
        )

    if rows > SURE_FACTOR * sampled:
        notes.append(
            f"Recall among {rows:,} rows is extrapolated from {sampled:,} sampled rows, which is {rows // sampled:,} "
            f"times fewer. Beyond {SURE_FACTOR} times, the interval is wide. A sample of "
            f"{math.ceil(rows / SURE_FACTOR):,} rows would narrow it (--sample-rows)."
        )
    on_progress(1.0, f"{place.title}: measured")
    return options, notes


def _choose(before: Option, others: Sequence[Option]) -> tuple[Option | None, Option | None]:
    """Choose the smallest option that reaches the recall, or None, and a simpler option without a chain, or None.

    Options must save `MIN_SAVING` of the bytes; an option with a chain must save `WORTH_A_CHAIN` compared with the
    smallest option without a chain. The first is None to leave the vectors as they are. The second is None if the first
    has no chain or there is no simpler option.

    Args:
        before: the vectors as they are.
        others: the other options, smallest first.
    """
    reaching = [option for option in others if option.reaches and option.counted <= (1 - MIN_SAVING) * before.counted]
    smallest = next(iter(reaching), None)
    simpler = next((option for option in reaching if not option.takes_chain), None)
    if smallest is None or simpler is None or simpler is smallest:
        return smallest, None
    # A chain has to be fitted and kept: it must save more than a setting of the place.
    if smallest.counted > (1 - WORTH_A_CHAIN) * simpler.counted:
        return simpler, None
    return smallest, simpler


def _write_sentence(decision: PlaceDecision, before: Option) -> str:
    """Write the decision in one or two sentences: what to store, bytes, recall, and an alternative without a chain.

    If the vectors stay as they are, the sentence names the best form that was tried.
    """
    place, chosen, simpler = PLACES[decision.place], decision.chosen, decision.simpler
    if chosen is None:
        settings = [option for option in decision.options[1:] if not option.takes_chain]
        best = max(settings, key=lambda option: option.recall.value, default=None)
        tried = f" ({best.candidate.words} finds {_format_recall(best.recall)})" if best else ""
        return (
            f"In {place.title}, leave the vectors as they are ({format_bytes(before.counted)}): no setting that was "
            f"tried saves {MIN_SAVING:.0%} and is sure to find {decision.goal:.0%} of the {K} nearest of "
            f"{decision.rows:,} rows{tried}."
        )

    memory = " of memory" if place.counted == "memory" else ""
    sentence = (
        f"In {place.title}, store {chosen.describe()}: {format_bytes(chosen.counted)}{memory} in place of "
        f"{format_bytes(before.counted)} for {decision.rows:,} rows ({1 - chosen.counted / before.counted:.0%} less), "
        f"with a recall@{K} of {_format_recall(chosen.recall)}."
    )
    if simpler is None:
        return sentence
    return (
        f"{sentence} Without a chain, {simpler.describe()} takes {format_bytes(simpler.counted)}: if "
        f"{1 - chosen.counted / simpler.counted:.0%} is not worth a chain, do only that."
    )


def _format_recall(recall: ExpectedRecall) -> str:
    return f"{recall.value:.3f} ({recall.low:.3f} to {recall.high:.3f})"
