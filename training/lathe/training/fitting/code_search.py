"""The search for codes of a budget: queries from a source, and λ and codebooks chosen by split-half retrieval."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lathe.training.comparison import compare
from lathe.training.encoder.text_encoder import TextEncoder, encode_queries
from lathe.training.errors import FitError
from lathe.training.fitting.encoded_shards import hash_row
from lathe.training.sources.source import Source, open_source
from lathe.training.split_half import TextHalves, cut_in_two
from lathe.transforms.base import view_through
from lathe.transforms.chain import Chain
from lathe.transforms.codes import CENTROIDS, ProductCoding, TransformCoding
from lathe.transforms.errors import TransformError
from lathe.transforms.progress import Progress, part_of
from lathe.transforms.quality import row_slices
from lathe.transforms.statistics import Moments, moments_of
from lathe.transforms.vectors import FloatArray, Vectors

WEIGHTINGS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Values of λ that are tried; the first is taken unless another is better beyond its interval. With 0, codes lose least
on search tasks (research/codes.md), and product codes lose as much as codes, so that these stay the default."""

MAX_TEXTS = 1000
"""Maximum number of held-out texts that are cut in two: the interval of a difference is then about a point."""

MIN_TEXTS = 100
"""Minimum number of such texts; with fewer, no difference between weightings could be told."""

MIN_CODEBOOK_ROWS = 10 * CENTROIDS
"""Minimum number of fitted rows for codebooks to be tried: ten for each centroid."""

MAX_TRIAL_ROWS = 16_384
"""Maximum number of rows that codebooks are learned from for the trial: at 48 bytes that takes 12 seconds on a core. If
they are chosen, they are learned again from up to `lathe.transforms.codes.product_coding.MAX_ROWS`."""

WEIGHTINGS_SHARE = 0.2
"""Share of the search's progress that the weightings take; codebooks take the rest."""

MAX_QUERIES = 20_000
"""Maximum number of queries that are read: enough for their second moment at any number of dimensions in use."""


@dataclass(frozen=True)
class CodeTrial:
    """Result of trying one kind of byte codes with one weighting, measured by split-half retrieval: each half of a text
    searches for its other half.

    Attributes:
        kind: kind of the step, `codes` or `product_codes`.
        weighting: λ.
        rows: number of rows that the step was fitted on.
        retrieval: mean reciprocal rank × 100 of the other half among all halves and the held-out rows.
        ahead: difference of `retrieval` to `codes` with the first weighting, paired by text; for `product_codes` to
            `codes` with the same weighting.
        ci95: half-width of the 95 % interval of `ahead`.
    """

    kind: str
    weighting: float
    rows: int
    retrieval: float
    ahead: float
    ci95: float


@dataclass(frozen=True)
class CodeSearch:
    """Chain of transforms with the byte codes that a search chose, and all trials of the search.

    Attributes:
        chain: fitted chain that ends in the chosen codes.
        trials: what was tried; empty if there were no texts to try with.
        not_tried: reasons why the weightings or kinds of codes were not tried, by name.
    """

    chain: Chain
    trials: Sequence[CodeTrial]
    not_tried: dict[str, str]

    def describe(self) -> dict[str, Any]:
        """Return how the byte codes were chosen, as a dict for the certificate. Its keys are `chosen_by`, `tried` (the
        trials) and `not_tried` (reasons by kind of codes).
        """
        return {
            "chosen_by": "split-half retrieval" if self.trials else "default",
            "tried": [asdict(trial) for trial in self.trials],
            "not_tried": self.not_tried,
        }


def read_queries(source: str, encoder: TextEncoder | None, dimensions: int) -> FloatArray:
    """Read the queries of a source, and return the vectors of at most `MAX_QUERIES` of them, `(m, d)` float32. Texts
    are encoded, without blank ones.

    Texts get the encoder's prompt of queries if it has one, else its default prompt.

    Args:
        source: source of query texts, or of their vectors, written as for `open_source`.
        encoder: encoder of the fitted rows; needed for texts.
        dimensions: d, those of the fitted rows.

    Raises:
        SourceError: if the source cannot be read.
        FitError: if it is empty, holds texts without an encoder, or vectors of other dimensions.
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
        raise FitError("queries are texts and there is no encoder: give vectors of queries")
    if texts and encoder is not None:
        blocks = [encode_queries(encoder, texts[:MAX_QUERIES])]
    if not blocks:
        raise FitError(f"the source of queries {source!r} holds none")
    vectors = np.concatenate(blocks)[:MAX_QUERIES]
    if vectors.shape[1] != dimensions:
        raise FitError(f"queries have {vectors.shape[1]} dimensions, the fitted rows have {dimensions}")
    return vectors


def encode_heldout_halves(
    source: Source, encoder: TextEncoder | None, hashes: NDArray[np.uint64], seed: int
) -> TextHalves | str:
    """Cut held-out texts of a source in two, at most `MAX_TEXTS`, and return the vectors of their first and second
    halves. If the source holds vectors, or fewer than `MIN_TEXTS` texts that are long enough, return that as a string
    instead.

    Args:
        source: the fitted source; it is read again.
        encoder: its encoder; None for vectors without an encoder.
        hashes: hashes of the held-out rows.
        seed: seed of the choice among more texts.
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
    """Return the result of a search for byte codes that tried nothing: the chain as it is, and the reason, which the
    certificate reports.
    """
    return CodeSearch(chain, [], {"weightings": reason, ProductCoding.kind: reason})


def search_codes(
    chain: Chain,
    rows: Vectors,
    halves: TextHalves,
    heldout: FloatArray,
    queries: Vectors | None,
    on_progress: Progress,
) -> CodeSearch:
    """Choose the byte codes that end a chain of transforms by split-half retrieval, in which each half of a text
    searches for its other half. First the weighting λ is chosen, then learned codebooks are tried with it. Returns the
    chain with the chosen codes and all trials.

    The other halves and all held-out rows are searched together. Split-half retrieval follows labelled tasks better
    than recall of neighbours does, which a weighting can raise while tasks lose. The first of `WEIGHTINGS` stays unless
    another is ahead of it by more than its 95 % interval, and then `codes` stay unless `product_codes` are ahead of
    them by more than theirs.

    Args:
        chain: fitted chain that ends in `codes`; not changed.
        rows: the rows that it was fitted on, `(n, d)`.
        halves: vectors of the first and second halves of held-out texts.
        heldout: held-out rows, `(m, d)`.
        queries: the queries that it was fitted with, if any.
        on_progress: called with progress in [0, 1] and a message.
    """
    chosen, trials, ranks = choose_weighting(
        chain, rows, halves, heldout, queries, part_of(on_progress, 0, WEIGHTINGS_SHARE)
    )
    if rows.shape[0] < MIN_CODEBOOK_ROWS:
        reason = f"its codebooks need {MIN_CODEBOOK_ROWS:,} rows to fit on, there are {rows.shape[0]:,}"
    else:
        on_progress(WEIGHTINGS_SHARE, "trying learned codebooks")
        trial_rows = rows
        if rows.shape[0] > MAX_TRIAL_ROWS:  # ascending, since rows are read from disk
            trial_rows = rows[np.sort(np.random.default_rng(0).permutation(rows.shape[0])[:MAX_TRIAL_ROWS])]
        try:
            learned = _with_codebooks(chosen, trial_rows, queries)
        except TransformError as error:
            reason = str(error)
        else:
            trial = _compare(learned, trial_rows.shape[0], _rank_halves(learned, halves, heldout), ranks)
            if trial.ahead > trial.ci95:
                on_progress((1 + WEIGHTINGS_SHARE) / 2, "learning codebooks")
                chosen = learned if trial_rows is rows else _with_codebooks(chosen, rows, queries)
            return CodeSearch(chosen, [*trials, trial], {})
    return CodeSearch(chosen, trials, {ProductCoding.kind: reason})


def choose_weighting(
    chain: Chain, rows: Vectors, halves: TextHalves, heldout: FloatArray, queries: Vectors | None, on_progress: Progress
) -> tuple[Chain, list[CodeTrial], NDArray[np.float64]]:
    """Fit the byte codes that end a chain of transforms with every weighting λ of `WEIGHTINGS`, and choose the one with
    the best split-half retrieval. Returns the chain with the chosen weighting, a trial for every weighting, and the
    reciprocal rank of each text through the chosen codes, `(n,)`.
    """
    before = chain.without_quantizer()
    assert isinstance(chain.quantizer, TransformCoding)
    moments = moments_of(_view_through(rows, before))
    query_moments = None if queries is None else moments_of(_view_through(queries, before.query_chain()))
    ranks, chains = [], []
    for done, weighting in enumerate(WEIGHTINGS):
        on_progress(done / len(WEIGHTINGS), f"trying codes with weighting {weighting:g}")
        chains.append(_with_weighting(chain, weighting, moments, query_moments))
        ranks.append(_rank_halves(chains[-1], halves, heldout))

    # The first weighting is compared with itself, which gives a difference of 0 and no interval.
    trials = [
        _compare(weighted, rows.shape[0], reciprocal_ranks, ranks[0])
        for weighted, reciprocal_ranks in zip(chains, ranks, strict=True)
    ]
    best = pick_trial(trials)
    return chains[best], trials, ranks[best]


def pick_trial(trials: Sequence[CodeTrial]) -> int:
    """Return the index of the trial that is furthest ahead of the first, among those that are ahead by more than their
    95 % interval. Return 0 if none is.
    """
    better = [i for i, trial in enumerate(trials) if trial.ahead > trial.ci95]
    return max(better, key=lambda i: trials[i].ahead, default=0)


def _view_through(rows: Vectors, chain: Chain) -> Vectors:
    """Return a lazy view of rows as a chain of transforms maps them, or the rows themselves if the chain changes
    nothing.
    """
    return view_through(rows, chain) if len(chain) or chain.normalize else rows


def _with_weighting(chain: Chain, weighting: float, moments: Moments, queries: Moments | None) -> Chain:
    """Return a copy of the chain whose byte codes are fitted again with another weighting λ, from the moments of the
    rows and of the queries.
    """
    assert chain.quantizer is not None
    parameters = {name: value for name, value in chain.quantizer.spec().items() if name != "kind"}
    step = TransformCoding(**(parameters | {"weighting": weighting})).fit(moments, queries=queries)
    return Chain([*chain.float_steps, step], chain.normalize)


def _with_codebooks(chain: Chain, rows: Vectors, queries: Vectors | None) -> Chain:
    """Return a copy of the chain whose byte codes are replaced by product codes of the same bytes and weighting, with
    codebooks learned from the rows.

    Raises:
        TransformError: if they cannot be fitted, as if every coordinate has a byte of its own.
    """
    codes, before = chain.quantizer, chain.without_quantizer()
    assert isinstance(codes, TransformCoding)
    parameters = {name: getattr(codes, name) for name in ("weighting", "seed", "restore_norm", "adjust_levels")}
    step = ProductCoding(codes.bytes, **parameters)
    query_moments = None if queries is None else moments_of(_view_through(queries, before.query_chain()))
    return Chain([*chain.float_steps, step.fit(_view_through(rows, before), queries=query_moments)], chain.normalize)


def _rank_halves(chain: Chain, halves: TextHalves, heldout: FloatArray) -> NDArray[np.float64]:
    """Search with each half of a text for its other half, among the byte codes of all such halves and of the held-out
    rows. Return the reciprocal rank of the other half for each text, `(n,)`, averaged over both directions.
    """
    # Documents are decoded codes, as a search over stored codes scores them. Queries stay floats.
    distractors = chain.floats(heldout)
    reciprocal_ranks = np.zeros(len(halves.first))
    for query_halves, document_halves in ((halves.first, halves.second), (halves.second, halves.first)):
        queries = torch.from_numpy(chain.transform_queries(query_halves))
        documents = torch.from_numpy(np.concatenate([chain.floats(document_halves), distractors]))
        for rows in row_slices(len(queries)):
            scores = queries[rows] @ documents.T  # (block, n halves + m held-out rows); text i's half is column i
            own = scores[torch.arange(len(scores)), torch.arange(rows.start, rows.stop)].unsqueeze(1)
            # Equal codes have equal scores: a tie counts half.
            nearer = (scores > own).sum(1) + ((scores == own).sum(1) - 1) / 2
            reciprocal_ranks[rows] += (0.5 / (1 + nearer.double())).numpy()
    return reciprocal_ranks


def _compare(chain: Chain, fit_rows: int, ranks: NDArray[np.float64], baseline_ranks: NDArray[np.float64]) -> CodeTrial:
    """Return the trial of a chain's byte codes: the mean of its reciprocal ranks × 100, and the mean difference to the
    baseline's with its 95 % interval.
    """
    assert isinstance(chain.quantizer, TransformCoding)
    difference, codes = compare(100 * ranks, 100 * baseline_ranks), chain.quantizer
    return CodeTrial(
        codes.kind, codes.weighting, fit_rows, 100 * float(ranks.mean()), difference.value, difference.reach or 0.0
    )
