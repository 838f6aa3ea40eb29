"""Norms, and the mean vector μ by sample, language and prompt: what vectors alone tell, without scores.

Everything but the norms is of unit vectors; Σ is their covariance.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.evaluation.statistics import Array
from transforms import Moments
from transforms.quality import UNIT_TOLERANCE, centered_alignment, uncentered_alignment
from transforms.statistics import Spectrum
from transforms.vectors import BLOCK_ROWS, FloatArray

FIRST_SAMPLE = 10
"""Rows of the smallest sample; the next have about three and ten times as many."""
DRAWS = 10
"""Of each sample that does not hold all rows."""
RUNS = 10
"""Of consecutive rows, at most."""
DIRECTIONLESS = 1e-12
"""A mean of unit vectors no longer than this is rounding: it points nowhere."""


@dataclass(frozen=True)
class Norms:
    """Lengths of vectors before they are brought to unit length (the mean-bias paper's Appendix C).

    Attributes:
        texts: that were encoded to finite numbers.
        mean: of the lengths.
        std: of the lengths, over n.
        min: the shortest.
        max: the longest.
        unit: share of lengths within 1 ± 0.001.
        zero_rows: vectors of length zero.
    """

    texts: int
    mean: float
    std: float
    min: float
    max: float
    unit: float
    zero_rows: int


@dataclass(frozen=True)
class MeanPoint:
    """The mean of n vectors, over several draws of them.

    Attributes:
        n: vectors of each draw.
        draws: how many; one where n is all there are.
        norm: ‖μ_n‖, averaged.
        noise_floor: √(tr Σ / n), the length that chance alone would give it.
        cosine: cos(μ_n, μ_all), averaged; None where a mean points nowhere.
        expected_square: E‖μ_n‖².
        ratio: average of ‖μ_n‖² over that; None where it is zero. As rows are drawn at random, it can only be near 1.
        consecutive: how many times the expected ‖μ_n − μ_all‖² of random rows that of n consecutive ones is, averaged
            over up to ten runs; above 1 where neighbours are alike. None for all rows, and where nothing varies.
    """

    n: int
    draws: int
    norm: float
    noise_floor: float
    cosine: float | None
    expected_square: float
    ratio: float | None
    consecutive: float | None


@dataclass(frozen=True)
class Direction:
    """The mean of all vectors and the first principal component (the mean-bias paper's Appendix D).

    Attributes:
        rows: vectors.
        zero_rows: of them, those of length zero.
        mean_norm: ‖μ‖.
        noise_floor: √(tr Σ / n).
        centered: |cos(μ̂, PC1)| after the mean is subtracted; None where μ points nowhere or nothing varies.
        uncentered: the same before; None where μ points nowhere.
    """

    rows: int
    zero_rows: int
    mean_norm: float
    noise_floor: float
    centered: float | None
    uncentered: float | None


@dataclass(frozen=True)
class LanguageMean:
    """The mean of one language's texts, and the running mean up to it (the mean-bias paper's Appendix E).

    Attributes:
        language: its two letters.
        norm: ‖μ‖ of its texts.
        noise_floor: √(tr Σ / n) of them.
        cosine: of its mean with that of the first language; None where one points nowhere.
        running_norm: ‖μ‖ of all texts up to this language.
        running_cosine: of that mean with the one of all languages.
    """

    language: str
    norm: float
    noise_floor: float
    cosine: float | None
    running_norm: float
    running_cosine: float | None


@dataclass(frozen=True)
class PromptMean:
    """The mean of the same texts under a prompt (the mean-bias paper's Appendix E).

    Attributes:
        name: of the prompt.
        prompt: the text put before each text.
        norm: ‖μ‖.
        noise_floor: √(tr Σ / n).
        cosine: with the mean without a prompt; None where one points nowhere.
    """

    name: str
    prompt: str
    norm: float
    noise_floor: float
    cosine: float | None


def norms_of(vectors: FloatArray) -> Norms | None:
    """The norm audit of finite vectors `(n, d)`; None without any."""
    if not len(vectors):
        return None
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    return Norms(
        texts=len(lengths),
        mean=float(lengths.mean()),
        std=float(lengths.std()),
        min=float(lengths.min()),
        max=float(lengths.max()),
        unit=float((np.abs(lengths - 1) <= UNIT_TOLERANCE).mean()),
        zero_rows=int((lengths == 0).sum()),
    )


def sample_sizes(rows: int) -> list[int]:
    """10, 30, 100, 300, … below the number of rows, then all."""
    sizes, size = [], FIRST_SAMPLE
    while size < rows:
        sizes.append(size)
        size = size * 3 if str(size)[0] == "1" else size // 3 * 10
    return [*sizes, rows]


def mean_growth(vectors: FloatArray, moments: Moments, draws: int = DRAWS, seed: int = 0) -> list[MeanPoint]:
    """‖μ_n‖ and its direction over samples of 10, 30, 100, … and all rows, against the expectation.

    For n independent vectors E‖μ_n‖² = ‖μ‖² + tr Σ / n: what chance adds falls with 1/n. The true ‖μ‖² is taken
    without bias from all N rows, ‖μ_N‖² − tr Σ / N with Σ over N − 1. So ‖μ_N‖² + tr Σ (1/n − 1/N) is expected, which
    is exact for what is drawn here, n of the N rows without replacement. Its second part is the expected squared
    error ‖μ_n − μ_N‖², which runs of consecutive rows are held against.

    Args:
        vectors: `(N, d)`, two at least.
        moments: of all of them.
        draws: of each sample below N.
        seed: of the draws.
    """
    rows, sizes = len(vectors), sample_sizes(len(vectors))
    means = sample_means(vectors, sizes, draws, seed)
    whole = moments.mean
    spread = float(np.trace(moments.covariance()))
    found = []
    for place, size in enumerate(sizes):
        some = means[: draws if size < rows else 1, place]
        norms = np.linalg.norm(some, axis=1)
        cosines = [cosine(mean, whole) for mean in some]
        error = spread * (1 / size - 1 / rows)
        expected = float(whole @ whole) + error
        found.append(
            MeanPoint(
                n=size,
                draws=len(some),
                norm=float(norms.mean()),
                noise_floor=float(np.sqrt(spread / size)),
                cosine=None if None in cosines else float(np.mean(np.array(cosines, dtype=float))),
                expected_square=expected,
                ratio=float((norms**2).mean()) / expected if expected > DIRECTIONLESS**2 else None,
                consecutive=run_error(vectors, size, whole) / error if error > DIRECTIONLESS**2 else None,
            )
        )
    return found


def sample_means(vectors: FloatArray, sizes: list[int], draws: int, seed: int) -> NDArray[np.float64]:
    """Means `(draws, sizes, d)` of the first rows of as many shuffles; one pass, as vectors may be many."""
    rows, dimensions = vectors.shape
    random = np.random.default_rng(seed)
    places = np.stack([random.permutation(rows) for _ in range(draws)])
    limits = np.array(sizes)[:, None]
    sums = np.zeros((draws * len(sizes), dimensions))
    for start in range(0, rows, BLOCK_ROWS):
        block = vectors[start : start + BLOCK_ROWS].astype(np.float64)
        drawn = places[:, None, start : start + BLOCK_ROWS] < limits
        sums += drawn.reshape(len(sums), -1).astype(np.float64) @ block
    return np.asarray(sums.reshape(draws, len(sizes), dimensions) / limits)


def run_error(vectors: FloatArray, size: int, whole: Array) -> float:
    """‖μ_n − μ_all‖², averaged over up to ten disjoint runs of n consecutive rows, spread over all `(N, d)`."""
    count = min(RUNS, len(vectors) // size)
    starts = np.linspace(0, len(vectors) - size, count).astype(int)
    means = [vectors[start : start + size].mean(axis=0, dtype=np.float64) for start in starts]
    return float(np.mean([((mean - whole) ** 2).sum() for mean in means]))


def direction(vectors: FloatArray, moments: Moments) -> Direction:
    """How the mean of vectors `(n, d)` lies to their first principal component (the mean-bias paper's Appendix D)."""
    centered = uncentered = None
    if moments.mean_norm() > DIRECTIONLESS:
        spectrum = Spectrum.of(moments.covariance(ddof=0), moments.rounding_variance())
        centered = centered_alignment(spectrum, moments.mean)
        uncentered = uncentered_alignment(spectrum, moments.mean)
    return Direction(
        rows=moments.count,
        zero_rows=int((~vectors.any(axis=1)).sum()),
        mean_norm=moments.mean_norm(),
        noise_floor=moments.noise_floor(),
        centered=centered,
        uncentered=uncentered,
    )


def language_means(vectors: Mapping[str, FloatArray]) -> list[LanguageMean]:
    """μ by language and the running mean, from as many vectors `(n, d)` of each (the mean-bias paper's Appendix E)."""
    moments = [Moments.from_vectors(rows) for rows in vectors.values()]
    means = [one.mean for one in moments]
    running = [np.mean(means[:count], axis=0) for count in range(1, len(means) + 1)]
    return [
        LanguageMean(
            language=language,
            norm=one.mean_norm(),
            noise_floor=one.noise_floor(),
            cosine=cosine(one.mean, means[0]),
            running_norm=float(np.linalg.norm(so_far)),
            running_cosine=cosine(so_far, running[-1]),
        )
        for language, one, so_far in zip(vectors, moments, running, strict=True)
    ]


def prompt_mean(name: str, prompt: str, vectors: FloatArray, plain: FloatArray) -> PromptMean:
    """μ of texts under a prompt `(n, d)`, beside that of the same texts without one `(n, d)`."""
    moments = Moments.from_vectors(vectors)
    return PromptMean(
        name=name,
        prompt=prompt,
        norm=moments.mean_norm(),
        noise_floor=moments.noise_floor(),
        cosine=cosine(moments.mean, plain.mean(axis=0, dtype=np.float64)),
    )


def cosine(one: Array, other: Array) -> float | None:
    """The cosine of two means `(d,)`; None where one of them points nowhere."""
    lengths = float(np.linalg.norm(one)), float(np.linalg.norm(other))
    return None if min(lengths) <= DIRECTIONLESS else float(one @ other) / (lengths[0] * lengths[1])
