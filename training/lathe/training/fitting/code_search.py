"""Search for the byte codes of a budget: weighting λ and kind of codes are chosen on held-out data.

The queries that codes may be fitted on are read here too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.training.comparison import choose_cheapest, compare
from lathe.training.encoder.text_encoder import TextEncoder, encode_queries
from lathe.training.errors import FitError
from lathe.training.fitting.encoded_shards import hash_row
from lathe.training.measures import TextHalves, cut_in_two, find_nearest, rank_halves
from lathe.training.sources.source import Source, open_source
from lathe.transforms.base import view_through
from lathe.transforms.chain import Chain
from lathe.transforms.codes import CENTROIDS, ProductCoding, TransformCoding
from lathe.transforms.errors import TransformError
from lathe.transforms.progress import Progress, part_of
from lathe.transforms.statistics import Moments, moments_of
from lathe.transforms.vectors import FloatArray, Vectors

WEIGHTINGS = (0.0, 0.5)
"""Values of λ that are tried. With 0, codes of few bits lose least on search tasks (research/codes.md)."""

WEIGHTED_BITS = 2
"""Bits per dimension from which on λ = 0.5 is the default: search tasks then lose as much with 0 as with 0.5, and 0.5
finds 2 points more of the neighbours, for e5-small 6 points (benchmarks/codes.md)."""

MAX_ROTATED_BYTES = 32
"""Largest budget at which one bit for each rotated axis is tried. With more bytes, it finds fewer neighbours."""

Judge = Callable[[Chain], NDArray[np.float64]]
"""Function that measures a chain with byte codes on held-out data: a score in [0, 1] for each query, `(n,)`."""

MAX_TEXTS = 1000
"""Maximum number of held-out texts that are cut in two, and of vectors that search held-out rows. The interval of a
difference is then about one point."""

MIN_TEXTS = 100
"""Minimum number of these texts or vectors. With fewer, differences between codes could not be detected."""

NEIGHBOURS = 10
"""Number of nearest neighbours that held-out vectors search for."""

MIN_CODEBOOK_ROWS = 10 * CENTROIDS
"""Minimum number of fitted rows to try codebooks: ten for each centroid."""

MAX_TRIAL_ROWS = 16_384
"""Maximum number of rows from which codebooks are learned for the trial: 12 seconds on a core at 48 bytes. If codebooks
are chosen, they are learned again from up to `lathe.transforms.codes.product_coding.MAX_ROWS` rows."""

WEIGHTINGS_SHARE = 0.2
"""Share of the search's progress that the weightings take. Codebooks take the rest."""

MAX_QUERIES = 20_000
"""Maximum number of queries that are read: enough to estimate their second moment at usual numbers of dimensions."""


@dataclass(frozen=True)
class CodeTrial:
    """Measurement of one kind of byte codes with one weighting on held-out data.

    Attributes:
        kind: kind of the step, `codes` or `product_codes`.
        weighting: λ.
        bits: bits of each rotated axis; None if the bits of an axis follow from its variance.
        rows: number of rows that the step was fitted on.
        retrieval: mean score × 100: the reciprocal rank of a text's other half among all halves and the held-out rows,
            or the share of the ten nearest held-out rows that is found.
        ahead: difference of `retrieval` to the codes that were tried first, paired by query; for `product_codes` to the
            chosen `codes`.
        ci95: half the length of the 95 % interval of `ahead`.
    """

    kind: str
    weighting: float
    bits: int | None
    rows: int
    retrieval: float
    ahead: float
    ci95: float


@dataclass(frozen=True)
class CodeSearch:
    """Chain of transforms with the byte codes that a search chose, and all trials of the search.

    Attributes:
        chain: fitted chain that ends in the chosen codes.
        trials: trials of all candidates; at most one if nothing was compared.
        not_tried: reasons why weightings (`weightings`) or kinds of codes were not tried, by name.
        chosen_by: name of the measure by which the codes were chosen.
    """

    chain: Chain
    trials: Sequence[CodeTrial]
    not_tried: dict[str, str]
    chosen_by: str = "default"

    def describe(self) -> dict[str, Any]:
        """Describe how the byte codes were chosen, as a dict for the certificate.

        The keys are `chosen_by` (a measure, or `default` if fewer than two trials were made), `tried` (the trials) and
        `not_tried` (reasons by name).
        """
        trials = self.trials if len(self.trials) > 1 else []
        return {
            "chosen_by": self.chosen_by if trials else "default",
            "tried": [asdict(trial) for trial in trials],
            "not_tried": self.not_tried,
        }


def read_queries(source: str, encoder: TextEncoder | None, dimensions: int) -> FloatArray:
    """Read at most `MAX_QUERIES` queries as float32 vectors `(m, d)`. An empty source, or texts without encoder, raise.

    Blank texts are left out. The encoder's prompt for queries is used if there is one, else the default prompt.

    Args:
        source: source of query texts or query vectors, written as for `open_source`.
        encoder: encoder of the fitted rows; needed for texts.
        dimensions: d, the dimensions of the fitted rows.

    Raises:
        SourceError: if the source cannot be read.
        FitError: if the source is empty, holds texts without an encoder, or vectors of other dimensions.
    """
    texts: list[str] = []
    blocks: list[FloatArray] = []
    for batch in open_source(source).batches():
        if isinstance(batch.values, list):
            texts += [text for text in batch.values if text.strip()]
        else:
            blocks.append(np.asarray(batch.values, np.float32))
        if len(texts) + sum(map(len, blocks)) >= MAX_QUERIES:
            break
    if texts and encoder is None:
        raise FitError(f"the queries {source!r} are texts, and the fit has no encoder: give vectors of queries")
    if texts and encoder is not None:
        blocks = [encode_queries(encoder, texts[:MAX_QUERIES])]
    if not blocks:
        raise FitError(f"the source of queries {source!r} is empty")
    vectors = np.concatenate(blocks)[:MAX_QUERIES]
    if vectors.shape[1] != dimensions:
        raise FitError(f"queries have {vectors.shape[1]} dimensions, and the fitted rows have {dimensions}")
    return vectors


def encode_heldout_halves(
    source: Source, encoder: TextEncoder | None, hashes: NDArray[np.uint64], seed: int
) -> TextHalves | str:
    """Cut at most `MAX_TEXTS` held-out texts in two, and encode both halves, or return a reason if this is impossible.

    The source is read again. The reason is a string: the source holds vectors, or has fewer than `MIN_TEXTS` held-out
    texts that are long enough.

    Args:
        source: source of the fit.
        encoder: encoder of the source's texts; None for vectors without an encoder.
        hashes: hashes of the held-out rows, `(m,)`.
        seed: seed of the random choice of texts.
    """
    if encoder is None or source.kind() != "texts":
        return "the source holds vectors, and texts are needed to choose by"
    heldout_hashes = set(hashes.tolist())
    cut_texts = {
        text: cut
        for batch in source.batches()
        for text in batch.values
        if isinstance(text, str) and hash_row(text.encode()) in heldout_hashes and (cut := cut_in_two(text)) is not None
    }
    if len(cut_texts) < MIN_TEXTS:
        return f"{len(cut_texts)} held-out texts are long enough to be cut in two, and {MIN_TEXTS} are needed"
    cuts = list(cut_texts.values())
    chosen = np.sort(np.random.default_rng(seed).permutation(len(cuts))[:MAX_TEXTS])
    first, second = ([cuts[i][side] for i in chosen] for side in (0, 1))
    return TextHalves(encoder.encode(first).vectors, encoder.encode(second).vectors)


def keep_default(chain: Chain, reason: str) -> CodeSearch:
    """Build a `CodeSearch` without trials: the chain keeps its codes, and the certificate reports the reason."""
    return CodeSearch(chain, [], {"weightings": reason, ProductCoding.kind: reason})


def search_codes(
    chain: Chain,
    rows: Vectors,
    halves: TextHalves | str,
    heldout: FloatArray,
    queries: Vectors | None,
    on_progress: Progress,
    with_codebooks: bool = True,
) -> CodeSearch:
    """Try other byte codes at the end of a chain on held-out data. The default stays unless one is clearly ahead.

    Candidates are weightings λ, one bit for each rotated axis, and learned codebooks. A candidate is clearly ahead by
    more than the 95 % interval of the difference. The given chain is not changed.

    With halves of texts, the measure is split-half retrieval: a half searches for the other half of its text among all
    halves and the held-out rows. Without halves, the measure is recall@10: the queries, or some of the held-out rows,
    search for their nearest neighbours among the held-out rows. By recall, larger λ are ahead even if search tasks lose
    with them, so only codebooks are tried. The default λ follows from the budget, see `WEIGHTED_BITS`.

    Args:
        chain: fitted chain that ends in `codes`.
        rows: the rows that the chain was fitted on, `(n, d)`.
        halves: vectors of the first and second halves of held-out texts, or the reason why there are none.
        heldout: held-out rows, `(m, d)`.
        queries: the queries that the chain was fitted on; None without queries.
        on_progress: called with progress in [0, 1] and a message.
        with_codebooks: whether codebooks may be learned from the rows.
    """
    codes = chain.quantizer
    assert isinstance(codes, TransformCoding)
    dimensions = len(codes.mean)
    weightings = WEIGHTINGS if 8 * codes.bytes < WEIGHTED_BITS * dimensions else WEIGHTINGS[::-1]
    candidates: list[dict[str, Any]] = [{"weighting": weighting} for weighting in weightings]
    not_tried: dict[str, str] = {}
    judge: Judge
    if isinstance(halves, TextHalves):
        chosen_by, judge = "split-half retrieval", partial(rank_halves, halves=halves, distractors=heldout)
        if codes.bytes <= min(MAX_ROTATED_BYTES, dimensions // 8):
            candidates.append({"weighting": 0.0, "bits": 1, "rotation": "random"})
    else:
        not_tried["weightings"], candidates = halves, candidates[:1]
        chosen_by, judge = _judge_by_neighbours(queries, heldout)

    chosen, trials, scores = _choose_parameters(
        chain, rows, judge, candidates, queries, part_of(on_progress, 0, WEIGHTINGS_SHARE)
    )
    if not with_codebooks or rows.shape[0] < MIN_CODEBOOK_ROWS:
        there = f"there are {rows.shape[0]:,}" if with_codebooks else "there are few"
        not_tried[ProductCoding.kind] = f"its codebooks need {MIN_CODEBOOK_ROWS:,} rows to fit on, {there}"
        return CodeSearch(chosen, trials, not_tried, chosen_by)

    on_progress(WEIGHTINGS_SHARE, "trying learned codebooks")
    trial_rows = rows
    if rows.shape[0] > MAX_TRIAL_ROWS:  # ascending, since rows are read from disk
        trial_rows = rows[np.sort(np.random.default_rng(0).permutation(rows.shape[0])[:MAX_TRIAL_ROWS])]
    try:
        learned = _with_codebooks(chosen, trial_rows, queries)
    except TransformError as error:
        return CodeSearch(chosen, trials, not_tried | {ProductCoding.kind: str(error)}, chosen_by)

    learned_scores = judge(learned)
    trials.append(_compare(learned, trial_rows.shape[0], learned_scores, scores))
    if choose_cheapest([scores, learned_scores]):
        on_progress((1 + WEIGHTINGS_SHARE) / 2, "learning codebooks")
        chosen = learned if trial_rows is rows else _with_codebooks(chosen, rows, queries)
    return CodeSearch(chosen, trials, not_tried, chosen_by)


def _choose_parameters(
    chain: Chain,
    rows: Vectors,
    judge: Judge,
    candidates: Sequence[Mapping[str, Any]],
    queries: Vectors | None,
    on_progress: Progress,
) -> tuple[Chain, list[CodeTrial], NDArray[np.float64]]:
    """Fit the byte codes that end a chain with the parameters of every candidate, and choose a candidate by `judge`.

    The first candidate stays unless another candidate is ahead by more than the 95 % interval of the difference.

    Returns:
        The chain with the chosen codes, a trial for every candidate, and the scores of the chosen codes.
    """
    before = chain.without_quantizer()
    moments = moments_of(_view_through(rows, before))
    query_moments = None if queries is None else moments_of(_view_through(queries, before.query_chain()))
    chains, scores = [], []
    for done, parameters in enumerate(candidates):
        on_progress(done / len(candidates), f"trying codes with {parameters}")
        chains.append(_with_parameters(chain, parameters, moments, query_moments))
        scores.append(judge(chains[-1]))

    # The first candidate is compared with itself, which gives a difference of 0 and no interval.
    trials = [_compare(tried, rows.shape[0], score, scores[0]) for tried, score in zip(chains, scores, strict=True)]
    best = choose_cheapest(scores)
    return chains[best], trials, scores[best]


def _view_through(rows: Vectors, chain: Chain) -> Vectors:
    return view_through(rows, chain) if len(chain) or chain.normalize else rows


def _with_parameters(chain: Chain, changed: Mapping[str, Any], moments: Moments, queries: Moments | None) -> Chain:
    """Fit the byte codes of a chain again with changed parameters, and return a chain with the new codes.

    `moments` are of the rows before the codes, and `queries` of the queries, or None.
    """
    assert chain.quantizer is not None
    parameters = {name: value for name, value in chain.quantizer.spec().items() if name != "kind"}
    step = TransformCoding(**(parameters | dict(changed))).fit(moments, queries=queries)
    return Chain([*chain.float_steps, step], chain.normalize)


def _with_codebooks(chain: Chain, rows: Vectors, queries: Vectors | None) -> Chain:
    """Learn product codes of the same bytes and weighting from the rows, and return a chain that ends in them.

    The chain's byte codes are replaced in the result.

    Raises:
        TransformError: if the product codes cannot be fitted, as with one byte for every coordinate.
    """
    codes, before = chain.quantizer, chain.without_quantizer()
    assert isinstance(codes, TransformCoding)
    parameters = {name: getattr(codes, name) for name in ("weighting", "seed", "restore_norm", "adjust_levels")}
    step = ProductCoding(codes.bytes, **parameters)
    query_moments = None if queries is None else moments_of(_view_through(queries, before.query_chain()))
    return Chain([*chain.float_steps, step.fit(_view_through(rows, before), queries=query_moments)], chain.normalize)


def _judge_by_neighbours(queries: Vectors | None, heldout: FloatArray) -> tuple[str, Judge]:
    """Return name and function to measure recall@10 of byte codes, for each query or, with few, each held-out row.

    The queries search the held-out rows. With fewer than `MIN_TEXTS` queries, a third of the held-out rows search the
    others.
    """
    if queries is not None and queries.shape[0] >= MIN_TEXTS:
        name, searching, searched = "queries", np.asarray(queries[:MAX_TEXTS]), heldout
    else:
        name, (searching, searched) = "held-out rows", np.split(heldout, [min(MAX_TEXTS, -(-len(heldout) // 3))])

    def judge(chain: Chain) -> NDArray[np.float64]:
        asking = chain.transform_queries(searching)
        nearest, found = (
            find_nearest(asking, documents, NEIGHBOURS)
            for documents in (chain.without_quantizer().transform(searched), chain.floats(searched))
        )
        shares: NDArray[np.float64] = (found[:, :, None] == nearest[:, None, :]).any(axis=1).mean(axis=1)
        return shares

    return f"neighbours found by {name}", judge


def _compare(chain: Chain, fit_rows: int, scores: NDArray[np.float64], baseline: NDArray[np.float64]) -> CodeTrial:
    """Build the trial of a chain's byte codes: mean of the scores × 100, and mean difference to the baseline × 100."""
    codes, difference = chain.quantizer, compare(100 * scores, 100 * baseline)
    assert isinstance(codes, TransformCoding)
    mean, reach = 100 * float(scores.mean()), difference.reach or 0.0
    return CodeTrial(codes.kind, codes.weighting, codes.bits, fit_rows, mean, difference.value, reach)
