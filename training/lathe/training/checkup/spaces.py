"""Rows of another embedding space than they should be: their texts are encoded again and compared.

Causes are told apart by trying them: the vector of the text with another prompt, or of its beginning alone. A vector
that none of these explains is of another text if it lies where the encoder's vectors lie, and of another encoder if it
does not: the leading principal directions of one encoder hold no more of another encoder's vectors than of random ones.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lathe.training.checkup.findings import Finding, estimate_share, format_share, name_rows
from lathe.training.checkup.store import Rows
from lathe.training.encoder.text_encoder import NO_PROMPT, TextEncoder, encode_queries, find_side_prompt
from lathe.training.errors import EncoderError
from lathe.transforms.progress import Progress
from lathe.transforms.quality.metrics import normalized_rows
from lathe.transforms.vectors import FloatArray

SAME = 0.99
"""Minimum cosine of a stored vector and the same text's vector now. Half precision, other hardware and codes of a byte
a dimension change vectors by less."""
TRUNCATED = 0.97
"""Minimum cosine with the vector of a beginning of the text, whose end is found to some words only."""
AGAIN_ROWS = 400
"""Number of rows whose texts are encoded again."""
EXPLAINED_ROWS = 60
"""Maximum number of differing rows that are encoded in other ways to find the cause."""
MOST = 0.9
"""Share of differing rows from which on another encoder or other texts may have been named than the rows'."""
DIRECTIONS = 4
"""One in this many principal directions is a leading one."""
MIN_SHARE = 0.5
"""Minimum share of an encoder's vectors in its leading directions, .6 to .9 with usual ones, for others to be told."""
DEVIATIONS = 3.5
"""Minimum distance of a vector outside from the median of those inside, in standard deviations."""
MIN_POPULATION = 100
"""Minimum number of rows for their principal directions."""
STRANGER_ROWS = 4000
"""Maximum number of rows among which others of another encoder are looked for without texts."""
STRANGER_MIN_ROWS = 4
"""Minimum number of these rows for each dimension."""
CLUSTERS = 10
MIN_STRANGERS = 0.01
"""Share of rows that lie elsewhere from which on they are noted; .2 % of the rows of one encoder do."""


@dataclass(frozen=True)
class StoreEncoder:
    """Encoder that a store's rows should be of, and the chain that its vectors went through.

    Attributes:
        encoder: the encoder.
        map_documents: maps its vectors `(n, d)` as the store's rows are.
        map_queries: maps its vectors as the store's queries are.
    """

    encoder: TextEncoder
    map_documents: Callable[[FloatArray], FloatArray]
    map_queries: Callable[[FloatArray], FloatArray]

    def encode(self, texts: Sequence[str], prompt_name: str | None) -> FloatArray:
        """Encode texts with a prompt as the store's rows are, and return vectors `(n, k)`."""
        return self.map_documents(self.encoder.encode(texts, prompt_name).vectors)

    def ask(self, texts: Sequence[str]) -> FloatArray:
        """Encode texts as the store's queries are, and return vectors `(n, k)`."""
        return self.map_queries(encode_queries(self.encoder, texts))


def find_document_prompt(encoder: StoreEncoder) -> str | None:
    """Return the name of the prompt that an encoder has for documents, or None without one."""
    return find_side_prompt(encoder.encoder.prompts, "document", encoder.encoder.default_prompt_name)


WORDS = {
    "other_encoder": "are vectors of another encoder or chain",
    "prompt": "were encoded with another prompt, or with none where the encoder has one for documents",
    "truncated": "were encoded from the beginning of their text alone",
    "changed_text": "are vectors of another text: it changed after they were written",
}
"""What is wrong with rows, by cause."""


@dataclass(frozen=True)
class Again:
    """Sampled rows and their texts' vectors now.

    Attributes:
        ids: ids of the rows.
        fresh: normalized vectors of their texts `(n, d)`.
        cosines: cosine of each pair `(n,)`.
        causes: by cause, the mask `(n,)` of the rows that differ for it; only causes that were found.
    """

    ids: list[str]
    fresh: FloatArray
    cosines: NDArray[np.float64]
    causes: dict[str, NDArray[np.bool_]]

    def describe(self, total: int, cure: str) -> Iterator[Finding]:
        """Yield a finding for each cause with the command `cure`, or that all texts have the stored vectors."""
        differing = np.mean(np.any([*self.causes.values()], axis=0)) if self.causes else 0.0
        doubt = "Check that the right encoder and texts are named; if so,"
        first = "Correct what writes them, and" if differing < MOST else doubt
        for cause, mask in self.causes.items():
            share = estimate_share(mask, total)
            yield Finding(
                cause,
                "fix",
                f"{format_share(share)} of the rows {WORDS[cause]}.",
                share,
                certainty="certain" if cause in ("prompt", "truncated") else "likely",
                ids=name_rows(self.ids, mask, self.cosines),
                advice=f"{first} encode these rows again: {cure}".removesuffix(": "),
            )
        if not self.causes:
            yield Finding("space", "fine", f"{len(self.ids):,} texts encoded again have their stored vectors.")


def encode_again(rows: Rows, encoder: StoreEncoder, on_progress: Progress) -> Again | None:
    """Encode the texts of up to `AGAIN_ROWS` rows again, and explain vectors that differ. None if no row has a text.

    Args:
        rows: rows of the store.
        encoder: the encoder that the rows should be of; its prompts are tried.
        on_progress: called with progress in [0, 1] and a message.

    Returns:
        The comparison, or None if no row has a text.

    Raises:
        EncoderError: if the encoder gives vectors of another number of dimensions than the rows have.
    """
    if rows.texts is None:
        return None
    chosen = [row for row in np.flatnonzero(rows.is_valid) if (rows.texts[row] or "").strip()][:AGAIN_ROWS]
    if not chosen:
        return None

    texts = [rows.texts[row] or "" for row in chosen]
    stored = normalized_rows(rows.vectors[chosen], np.float32).numpy()
    own = find_document_prompt(encoder)
    on_progress(0.0, "encoding texts again")
    fresh = normalized_rows(encoder.encode(texts, own), np.float32).numpy()
    require_dimensions(encoder, fresh, stored)
    cosines = compute_cosines(stored, fresh)
    differing = np.flatnonzero(cosines < SAME)
    # The rows are in random order: the first of them are as good a sample, and each that differs costs many encodings.
    checked = len(chosen) if len(differing) <= EXPLAINED_ROWS else int(differing[EXPLAINED_ROWS])
    differing = differing[:EXPLAINED_ROWS]
    causes = {cause: np.zeros(checked, bool) for cause in WORDS}
    if len(differing):
        on_progress(0.5, "finding out why vectors differ")
        part = stored[differing]
        found = _explain([texts[row] for row in differing], part, cosines[differing], own, encoder)
        outside = _lie_outside(part, fresh)
        for position, cause, stranger in zip(differing, found, outside, strict=True):
            causes[cause or ("other_encoder" if stranger else "changed_text")][position] = True
    ids = [rows.ids[row] for row in chosen[:checked]]
    found_causes = {cause: mask for cause, mask in causes.items() if mask.any()}
    return Again(ids, fresh[:checked], cosines[:checked], found_causes)


def require_dimensions(encoder: StoreEncoder, fresh: FloatArray, stored: FloatArray) -> None:
    """Raise an `EncoderError` unless an encoder's vectors have as many dimensions as the stored ones."""
    if fresh.shape[1] != stored.shape[1]:
        raise EncoderError(
            f"{encoder.encoder.name} gives {fresh.shape[1]} dimensions, and the rows have {stored.shape[1]}: name "
            "their encoder, and the chain that they went through"
        )


def compute_cosines(stored: FloatArray, fresh: FloatArray) -> NDArray[np.float64]:
    """Compute the cosine of each normalized row `(n, d)` and the vector `(n, d)` of its text, `(n,)`."""
    return np.asarray(np.einsum("nd,nd->n", stored, normalized_rows(fresh, np.float32).numpy()), np.float64)


def _explain(
    texts: Sequence[str],
    stored: FloatArray,
    cosines: NDArray[np.float64],
    own: str | None,
    encoder: StoreEncoder,
) -> list[str | None]:
    """Return for each differing row `prompt` or `truncated` if that gives its stored vector, else None."""
    causes: list[str | None] = [None] * len(texts)
    prompts = encoder.encoder
    tried = {prompts.prompt(own) or ""}
    for name in (NO_PROMPT, *prompts.prompts):
        prompt = prompts.prompt(name) or ""
        if prompt not in tried:
            tried.add(prompt)
            same = compute_cosines(stored, encoder.encode(texts, name)) >= SAME
            causes = ["prompt" if found else cause for found, cause in zip(same, causes, strict=True)]

    left = [row for row, cause in enumerate(causes) if cause is None]
    if left:
        cut = _are_beginnings([texts[row] for row in left], stored[left], cosines[left], own, encoder)
        for row, is_cut in zip(left, cut, strict=True):
            causes[row] = "truncated" if is_cut else None
    return causes


def _are_beginnings(
    texts: Sequence[str], stored: FloatArray, cosines: NDArray[np.float64], own: str | None, encoder: StoreEncoder
) -> NDArray[np.bool_]:
    """Return the mask `(n,)` of rows whose stored vector is of a beginning of the text, whatever its length.

    The share of the words is searched in eighths, then in 32nds around the best.
    """
    words = [text.split() for text in texts]
    best, shares = cosines.copy(), np.zeros(len(texts))
    for offsets in (np.arange(1, 8) / 8, np.arange(-3, 4) / 32):
        centres = shares.copy()
        for offset in offsets:
            tried = np.clip(centres + offset, 0, 1)
            counts = [max(1, round(share * len(one))) for share, one in zip(tried, words, strict=True)]
            parts = [" ".join(one[:count]) for one, count in zip(words, counts, strict=True)]
            found = compute_cosines(stored, encoder.encode(parts, own))
            shares[found > best] = tried[found > best]
            best = np.maximum(best, found)
    return np.asarray((best >= TRUNCATED) & (shares < 1) & (best > cosines))


def _lie_outside(vectors: FloatArray, population: FloatArray) -> NDArray[np.bool_]:
    """Return the mask `(n,)` of normalized vectors that do not lie where a population's vectors do."""
    if len(population) < MIN_POPULATION:
        return np.zeros(len(vectors), bool)
    fitted, held = population[::2], population[1::2]
    return np.asarray(measure_share(fitted, vectors) < _find_limit(measure_share(fitted, held)))


def _find_limit(usual: NDArray[np.float64]) -> float:
    """Return the share in leading directions below which a vector lies outside, from the vectors that lie inside.

    It is a third of the way from chance to their median, and far below what they scatter by. Their scatter is measured
    above the median, where no vectors of others are. It is 0 if the vectors `(n,)` are spread over all directions, so
    that nothing is outside.
    """
    chance = 1 / DIRECTIONS
    median, upper = np.quantile(usual, [0.5, 0.84])
    limit = min(chance + (median - chance) / 3, median - DEVIATIONS * (upper - median))
    return float(limit) if median >= MIN_SHARE else 0.0


def find_strangers(rows: Rows) -> Iterator[Finding]:
    """Yield a finding on rows that lie elsewhere than most, without their texts, unless there are few or none.

    The rows are clustered, and each is compared with the leading directions of the rows of all other clusters. Two
    encoders that are not told apart: those that share a part of their directions, and those with as many rows each.
    """
    from scipy.cluster.vq import kmeans2

    valid = np.flatnonzero(rows.is_valid)[:STRANGER_ROWS]
    if len(valid) < STRANGER_MIN_ROWS * rows.vectors.shape[1]:
        return
    unit = normalized_rows(rows.vectors[valid], np.float32).numpy()
    _, labels = kmeans2(unit, CLUSTERS, minit="++", seed=0)
    share = np.ones(len(unit))
    for label in np.unique(labels):
        inside = labels == label
        if not inside.all():
            share[inside] = measure_share(unit[~inside], unit[inside])
    strange = share < _find_limit(share)
    if strange.mean() < MIN_STRANGERS:
        return
    found = estimate_share(strange, rows.total + 1)  # never exact: the clusters are drawn at random
    yield Finding(
        "strangers",
        "note",
        f"{format_share(found)} of the rows lie where the others do not, as vectors of another encoder would.",
        found,
        certainty="possible",
        ids=name_rows([rows.ids[row] for row in valid], strange, share),
        advice="Encode a sample of their texts again: lathe checkup … --encoder NAME --texts FIELD",
    )


def measure_share(population: FloatArray, vectors: FloatArray) -> NDArray[np.float64]:
    """Return the share of each vector's squared length `(n,)` in a quarter of the principal directions of a population.

    The population is not centred.
    """
    second = population.T.astype(np.float64) @ population
    _, directions = np.linalg.eigh(second)
    leading = directions[:, -(population.shape[1] // DIRECTIONS) :]
    inside = ((vectors @ leading) ** 2).sum(axis=1)
    return np.asarray(inside / np.maximum((vectors.astype(np.float64) ** 2).sum(axis=1), 1e-30))
