"""The query weighting of codes: queries from a source, and λ chosen by split-half retrieval on held-out texts."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from training.encoder.encoder import Encoder
from training.errors import FitError
from training.fitting.encoded_shards import hash_row
from training.sources.source import Source, open_source
from training.split_half import cut_in_two
from transforms.base import view_through
from transforms.chain import Chain
from transforms.codes import TransformCoding
from transforms.progress import Progress
from transforms.quality import anchor_blocks
from transforms.statistics import Moments, moments_of
from transforms.vectors import FloatArray, Vectors

WEIGHTINGS = (0.5, 0.0, 0.25, 0.75, 1.0)
"""Values of λ that are tried; the first is taken unless another is better beyond its interval."""

MAX_TEXTS = 1000
"""Maximum number of held-out texts that are cut in two: the interval of a difference is then about a point."""

MIN_TEXTS = 100
"""Minimum number of such texts; with fewer, no difference between weightings could be told."""

MAX_QUERIES = 20_000
"""Maximum number of queries that are read: enough for their second moment at any number of dimensions in use."""

QUERY_PROMPT = "query"
"""Name of the prompt that queries get if the encoder has it."""

NORMAL_QUANTILE = 1.96
"""Half-width of a 95 % interval in standard errors."""


@dataclass(frozen=True)
class WeightingTrial:
    """Split-half retrieval through the codes of one weighting.

    Attributes:
        weighting: λ.
        retrieval: mean reciprocal rank × 100 of the other half among all halves and the held-out rows.
        ahead: difference of `retrieval` to the first weighting, paired by text.
        ci95: half-width of the 95 % interval of `ahead`.
    """

    weighting: float
    retrieval: float
    ahead: float
    ci95: float


@dataclass(frozen=True)
class HeldOutHalves:
    """Vectors of the halves of held-out texts.

    Attributes:
        first, second: vectors of the first and the second halves, `(n, d)` each; they search each other.
    """

    first: FloatArray
    second: FloatArray


def read_queries(written: str, encoder: Encoder | None, dimensions: int) -> FloatArray:
    """Return the vectors of the first `MAX_QUERIES` queries of a source, `(m, d)`; encode texts, blank ones left out.

    Texts get the prompt `QUERY_PROMPT` if the encoder has it, else its default prompt.

    Args:
        written: source of query texts, or of their vectors.
        encoder: encoder of the fitted rows; needed for texts.
        dimensions: d, those of the fitted rows.

    Raises:
        SourceError: if the source cannot be read.
        FitError: if it is empty, holds texts without an encoder, or vectors of other dimensions.
    """
    texts: list[str] = []
    blocks: list[FloatArray] = []
    for batch in open_source(written).batches():
        if isinstance(batch.values, list):
            texts += [text for text in batch.values if text.strip()]
        else:
            blocks.append(np.asarray(batch.values, np.float32))
        if len(texts) + sum(map(len, blocks)) >= MAX_QUERIES:
            break
    if texts and encoder is None:
        raise FitError("queries are texts and there is no encoder: give vectors of queries")
    if texts and encoder is not None:
        prompt = QUERY_PROMPT if QUERY_PROMPT in encoder.prompts else None
        blocks = [encoder.encode(texts[:MAX_QUERIES], prompt).vectors]
    if not blocks:
        raise FitError(f"the source of queries {written!r} holds none")
    found = np.concatenate(blocks)[:MAX_QUERIES]
    if found.shape[1] != dimensions:
        raise FitError(f"queries have {found.shape[1]} dimensions, the fitted rows have {dimensions}")
    return found


def encode_heldout_halves(
    source: Source, encoder: Encoder | None, hashes: NDArray[np.uint64], seed: int
) -> HeldOutHalves | None:
    """Cut up to `MAX_TEXTS` held-out texts of a source in two and return the vectors of the halves.

    Args:
        source: the fitted source; it is read again.
        encoder: its encoder.
        hashes: hashes of the held-out rows.
        seed: seed of the choice among more texts.

    Returns:
        None for a source of vectors, or with fewer than `MIN_TEXTS` texts that are long enough.
    """
    if encoder is None or source.kind() != "texts":
        return None
    wanted = set(hashes.tolist())
    pairs = {
        text: cut
        for batch in source.batches()
        for text in batch.values
        if isinstance(text, str) and hash_row(text.encode()) in wanted and (cut := cut_in_two(text)) is not None
    }
    if len(pairs) < MIN_TEXTS:
        return None
    cuts = list(pairs.values())
    chosen = np.sort(np.random.default_rng(seed).permutation(len(cuts))[:MAX_TEXTS])
    first, second = ([cuts[i][side] for i in chosen] for side in (0, 1))
    return HeldOutHalves(encoder.encode(first).vectors, encoder.encode(second).vectors)


def choose_weighting(
    chain: Chain, rows: Vectors, halves: HeldOutHalves, heldout: FloatArray, queries: Vectors | None, report: Progress
) -> tuple[Chain, list[WeightingTrial]]:
    """Return a chain whose codes have the weighting that retrieves best, and what every weighting retrieved.

    Halves of texts search the codes of their other halves among those of all held-out rows. Retrieval of halves follows
    labelled tasks better than recall of neighbours does, which a weighting can raise while tasks lose. The first of
    `WEIGHTINGS` stays unless another is ahead of it by more than its 95 % interval.

    Args:
        chain: fitted, ending in `codes`; not changed.
        rows: the rows that it was fitted on, `(n, d)`.
        halves: of held-out texts.
        heldout: held-out rows, `(m, d)`.
        queries: the queries that it was fitted with, if any.
        report: called with progress in [0, 1] and a message.
    """
    before = Chain(chain.float_steps, chain.normalize)
    assert isinstance(chain.quantizer, TransformCoding)
    moments = moments_of(view_through(rows, before) if len(before) or before.normalize else rows)
    of_queries = None if queries is None else moments_of(view_through(queries, before))
    ranks, chains = [], []
    for done, weighting in enumerate(WEIGHTINGS):
        report(done / len(WEIGHTINGS), f"trying codes with weighting {weighting:g}")
        chains.append(_with_weighting(chain, weighting, moments, of_queries))
        ranks.append(_rank_halves(chains[-1], halves, heldout))
    trials = [_compare(weighting, own, ranks[0]) for weighting, own in zip(WEIGHTINGS, ranks, strict=True)]
    return chains[pick_trial(trials)], trials


def pick_trial(trials: Sequence[WeightingTrial]) -> int:
    """Return the number of the trial that is furthest ahead of the first beyond its interval; 0 if none is."""
    better = [i for i, trial in enumerate(trials) if trial.ahead > trial.ci95]
    return max(better, key=lambda i: trials[i].ahead, default=0)


def describe_choice(trials: Sequence[WeightingTrial]) -> dict[str, Any]:
    """Return how the weighting of codes was chosen, for the certificate: `{chosen_by, tried}`."""
    return {"chosen_by": "split-half retrieval" if trials else "default", "tried": [asdict(one) for one in trials]}


def _with_weighting(chain: Chain, weighting: float, moments: Moments, queries: Moments | None) -> Chain:
    """Return the chain with its codes fitted again with another weighting; the other steps are shared."""
    assert chain.quantizer is not None
    parameters = {name: value for name, value in chain.quantizer.spec().items() if name != "kind"}
    step = TransformCoding(**(parameters | {"weighting": weighting})).fit(moments, queries=queries)
    return Chain([*chain.float_steps, step], chain.normalize)


def _rank_halves(chain: Chain, halves: HeldOutHalves, heldout: FloatArray) -> NDArray[np.float64]:
    """Return 1/rank `(n,)` of each text's other half among the codes of all such halves and of the held-out rows.

    Queries are floats. First halves search second halves and the reverse, and 1/rank is averaged; ties count half.
    """
    distractors = chain.floats(heldout)
    found = np.zeros(len(halves.first))
    for asked, answered in ((halves.first, halves.second), (halves.second, halves.first)):
        queries = torch.from_numpy(chain.transform_queries(asked))
        documents = torch.from_numpy(np.concatenate([chain.floats(answered), distractors]))
        for rows in anchor_blocks(len(queries)):
            scores = queries[rows] @ documents.T
            own = scores[torch.arange(len(scores)), torch.arange(rows.start, rows.stop)].unsqueeze(1)
            # Equal codes have equal scores: a tie counts half.
            nearer = (scores > own).sum(1) + ((scores == own).sum(1) - 1) / 2
            found[rows] += (0.5 / (1 + nearer.double())).numpy()
    return found


def _compare(weighting: float, own: NDArray[np.float64], first: NDArray[np.float64]) -> WeightingTrial:
    """Compare the reciprocal ranks `(n,)` of a weighting with those of the first one."""
    difference = 100 * (own - first)
    half = NORMAL_QUANTILE * float(difference.std(ddof=1)) / float(np.sqrt(len(difference)))
    return WeightingTrial(weighting, 100 * float(own.mean()), float(difference.mean()), half)
