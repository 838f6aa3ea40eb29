"""Norms of vectors, and the mean vector μ by sample size, language and prompt.

Measured without scores. All measures except the norms are of unit vectors. Σ is their covariance.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lathe.training.comparison import Array
from lathe.training.deciding.evidence import MAX_ZERO_NORM, cosine_similarity
from lathe.transforms import Moments
from lathe.transforms.quality import UNIT_TOLERANCE, centered_alignment, uncentered_alignment
from lathe.transforms.statistics import Spectrum
from lathe.transforms.vectors import BLOCK_ROWS, FloatArray

MIN_SAMPLE = 10
"""Rows of the smallest sample; further samples have about three and ten times as many, and so on."""
RESAMPLES = 10
"""Number of random samples of each size below all rows."""
MAX_RUNS = 10
"""Maximum number of runs of consecutive rows."""


@dataclass(frozen=True)
class Norms:
    """Statistics of the norms of raw vectors, before normalization (the mean-bias paper's Appendix C).

    Attributes:
        texts: number of texts with finite vectors.
        mean: mean norm.
        std: standard deviation of the norms, over n.
        min: smallest norm.
        max: largest norm.
        unit: share of norms within 1 ± 0.001.
        zero_rows: number of zero vectors.
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
    """Mean of n vectors, averaged over several random samples of them.

    Attributes:
        n: number of vectors in a sample.
        draws: number of samples; 1 if n is all vectors.
        norm: ‖μ_n‖, averaged.
        noise_floor: √(tr Σ / n), the norm of the mean that is expected by chance.
        cosine: cos(μ_n, μ_all), averaged; None if a mean is zero.
        expected_square: E‖μ_n‖².
        ratio: mean of ‖μ_n‖² divided by `expected_square`; None if that is zero. Since rows are sampled at random, the
            ratio is near 1.
        consecutive: mean of ‖μ_n − μ_all‖² over up to ten runs of n consecutive rows, divided by its expectation for
            random rows; above 1 if neighbouring rows are similar. None for all rows, and if the vectors do not vary.
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
    """Cosine between the mean of all vectors and the first principal component (the mean-bias paper's Appendix D).

    Attributes:
        rows: number of vectors.
        zero_rows: number of zero vectors among them.
        mean_norm: ‖μ‖.
        noise_floor: √(tr Σ / n).
        centered: |cos(μ̂, PC1)| with PC1 of the centred vectors; None if μ is zero or the vectors do not vary.
        uncentered: |cos(μ̂, PC1)| with PC1 of the uncentred vectors; None if μ is zero.
    """

    rows: int
    zero_rows: int
    mean_norm: float
    noise_floor: float
    centered: float | None
    uncentered: float | None


@dataclass(frozen=True)
class LanguageMean:
    """Mean vector of one language's texts, and running mean up to this language (the mean-bias paper's Appendix E).

    Attributes:
        language: two-letter code.
        norm: ‖μ‖ of its texts.
        noise_floor: √(tr Σ / n) of its texts.
        cosine: cosine between its mean and that of the first language; None if one is zero.
        running_norm: ‖μ‖ of the texts of all languages up to this one.
        running_cosine: cosine between the running mean and the mean of all languages; None if one is zero.
    """

    language: str
    norm: float
    noise_floor: float
    cosine: float | None
    running_norm: float
    running_cosine: float | None


@dataclass(frozen=True)
class PromptMean:
    """Mean vector of the same texts under one prompt (the mean-bias paper's Appendix E).

    Attributes:
        name: name of the prompt.
        prompt: text that precedes each text.
        norm: ‖μ‖ with the prompt.
        noise_floor: √(tr Σ / n) with the prompt.
        cosine: cosine between the means with and without the prompt; None if one is zero.
    """

    name: str
    prompt: str
    norm: float
    noise_floor: float
    cosine: float | None


def measure_norms(vectors: FloatArray) -> Norms | None:
    """Compute the statistics of the L2 norms of finite vectors `(n, d)`.

    The result is None if there are none.
    """
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


def list_sample_sizes(rows: int) -> list[int]:
    """List the sample sizes 10, 30, 100, 300, … below `rows`, then `rows`."""
    sizes, size = [], MIN_SAMPLE
    while size < rows:
        sizes.append(size)
        size = size * 3 if str(size)[0] == "1" else size // 3 * 10
    return [*sizes, rows]


def measure_mean_growth(
    vectors: FloatArray, moments: Moments, draws: int = RESAMPLES, seed: int = 0
) -> list[MeanPoint]:
    """Measure ‖μ_n‖ and its direction over random samples of 10, 30, 100, … and all rows.

    For n independent vectors E‖μ_n‖² = ‖μ‖² + tr Σ / n: the part due to chance falls with 1/n. The true ‖μ‖² is
    estimated without bias from all N rows, ‖μ_N‖² − tr Σ / N with Σ over N − 1. So the expectation is ‖μ_N‖² + tr Σ
    (1/n − 1/N), which is exact for n of the N rows sampled without replacement. Its second term is the expected squared
    error ‖μ_n − μ_N‖², with which runs of consecutive rows are compared.

    Args:
        vectors: unit vectors `(N, d)`, at least two.
        moments: moments of all these vectors.
        draws: number of samples of each size below N.
        seed: seed of the samples.

    Returns:
        A point for each size.
    """
    rows, sizes = len(vectors), list_sample_sizes(len(vectors))
    means = sample_means(vectors, sizes, draws, seed)
    whole = moments.mean
    spread = float(np.trace(moments.covariance()))
    found = []
    for place, size in enumerate(sizes):
        some = means[: draws if size < rows else 1, place]
        norms = np.linalg.norm(some, axis=1)
        cosines = [cosine_similarity(mean, whole) for mean in some]
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
                ratio=float((norms**2).mean()) / expected if expected > MAX_ZERO_NORM**2 else None,
                consecutive=measure_run_error(vectors, size, whole) / error if error > MAX_ZERO_NORM**2 else None,
            )
        )
    return found


def sample_means(vectors: FloatArray, sizes: list[int], draws: int, seed: int) -> NDArray[np.float64]:
    """Return the means `(draws, sizes, d)` of random samples, nested by size, in one pass over the vectors `(N, d)`.

    A sample of n rows is the first n of a random permutation, one for each draw.
    """
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


def measure_run_error(vectors: FloatArray, size: int, whole: Array) -> float:
    """Return the mean squared error of a mean estimated from n = `size` consecutive rows.

    It is averaged over up to ten runs of rows, spread evenly over all of them; `whole` is the mean of all rows `(d,)`.
    """
    count = min(MAX_RUNS, len(vectors) // size)
    starts = np.linspace(0, len(vectors) - size, count).astype(int)
    means = [vectors[start : start + size].mean(axis=0, dtype=np.float64) for start in starts]
    return float(np.mean([((mean - whole) ** 2).sum() for mean in means]))


def measure_direction(vectors: FloatArray, moments: Moments) -> Direction:
    """Measure |cos| of the mean of vectors `(n, d)` to their first principal component, centred and uncentred.

    This is Appendix D of the mean-bias paper.
    """
    centered = uncentered = None
    if moments.mean_norm() > MAX_ZERO_NORM:
        spectrum = Spectrum.from_matrix(moments.covariance(ddof=0), moments.rounding_variance())
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


def measure_language_means(vectors: Mapping[str, FloatArray]) -> list[LanguageMean]:
    """Return each language's mean norm and cosine, and the running mean, in the order of the mapping.

    All languages must have the same number of vectors `(n, d)`. This is Appendix E of the mean-bias paper.
    """
    moments = [Moments.from_vectors(rows) for rows in vectors.values()]
    means = [one.mean for one in moments]
    running = [np.mean(means[:count], axis=0) for count in range(1, len(means) + 1)]
    return [
        LanguageMean(
            language=language,
            norm=one.mean_norm(),
            noise_floor=one.noise_floor(),
            cosine=cosine_similarity(one.mean, means[0]),
            running_norm=float(np.linalg.norm(so_far)),
            running_cosine=cosine_similarity(so_far, running[-1]),
        )
        for language, one, so_far in zip(vectors, moments, running, strict=True)
    ]


def measure_prompt_mean(name: str, prompt: str, vectors: FloatArray, plain: FloatArray) -> PromptMean:
    """Measure the mean of `vectors` under a prompt, and its cosine to the mean of `plain` without it, both `(n, d)`."""
    moments = Moments.from_vectors(vectors)
    return PromptMean(
        name=name,
        prompt=prompt,
        norm=moments.mean_norm(),
        noise_floor=moments.noise_floor(),
        cosine=cosine_similarity(moments.mean, plain.mean(axis=0, dtype=np.float64)),
    )
