"""Checks of stored rows by their vectors alone: values, norms, copies, collapse and hubs."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lathe.training.checkup.findings import Finding, estimate_share, format_share, name_rows
from lathe.training.checkup.store import Metric, Rows, compare_all
from lathe.training.measures import find_nearest
from lathe.transforms import diagnose
from lathe.transforms.quality.metrics import normalized_rows
from lathe.transforms.vectors import FloatArray

UNIT_TOLERANCE = 0.01
"""Maximum distance from 1 of a norm that counts as normalized. Rounding to float16 or int8 changes norms by less."""
NEAR_COPY = 0.9999
"""Minimum cosine of near copies."""
MIN_COPIES = 0.01
"""Share of copies from which on they are worth a note."""
NEIGHBOUR_ROWS = 4000
"""Maximum number of rows whose nearest rows are found."""
MAX_MEAN = 0.5
"""Length of the mean of normalized rows from which on they are called collapsed."""
MAX_SKEW = 10.0
"""Skewness of the counts of nearest rows from which on hubs are worth a note."""
METRIC_QUERIES = 500
"""Number of rows whose nearest rows by two metrics are compared."""
METRIC_AGREEMENT = 0.9
"""Share of the nearest rows by cosine below which another metric is noted."""
K = 10


def check_rows(rows: Rows, metric: Metric) -> Iterator[Finding]:
    """Check stored rows by their vectors, and yield what was found. Rows with NaN, inf or only zeros count once."""
    finite, directed = np.asarray(np.isfinite(rows.vectors).all(axis=1)), rows.is_valid
    for kind, mask, what in (
        ("not_finite", ~finite, "hold NaN or inf"),
        ("zero", finite & ~directed, "are all zeros, which have no direction"),
    ):
        if mask.any():
            share = estimate_share(int(mask.sum()), len(mask), rows.total)
            sentence = f"{format_share(share)} of the rows {what}."
            yield Finding(kind, "mend", sentence, share, ids=name_rows(rows.ids, mask), advice="Encode them again.")
    if directed.sum() < 2:
        return

    norms = np.linalg.norm(np.where(directed[:, None], rows.vectors, 0).astype(np.float64), axis=1)
    yield from _check_norms(rows, directed, norms, metric)
    yield from _check_copies(rows, directed)
    yield _check_collapse(rows.vectors[directed])
    yield from _check_neighbours(rows, directed, metric)


def _check_norms(
    rows: Rows, directed: NDArray[np.bool_], norms: NDArray[np.float64], metric: Metric
) -> Iterator[Finding]:
    """Yield a finding on rows that are not normalized where most rows are, and on norms that differ by far."""
    unit = directed & (np.abs(norms - 1) <= UNIT_TOLERANCE)
    other = directed & ~unit
    if not other.any():
        yield Finding("norms", "fine", "All rows are normalized.")
        return

    if unit.sum() >= directed.sum() / 2:
        share = estimate_share(int(other.sum()), int(directed.sum()), rows.total)
        low, high = np.quantile(norms[other], [0.05, 0.95])
        harm = "which cosine ignores" if metric == "cosine" else f"which {metric} ranks by their lengths"
        yield Finding(
            "unnormalized",
            "note" if metric == "cosine" else "mend",
            f"{format_share(share)} of the rows are not normalized (norms of {low:.3g} to {high:.3g}), {harm}: "
            "something writes vectors without normalizing them.",
            share,
            ids=name_rows(rows.ids, other, -np.abs(np.log(np.maximum(norms, 1e-30))).astype(np.float32)),
            advice="Normalize these rows, and whatever writes them.",
        )
        return

    median = float(np.median(norms[directed]))
    outliers = directed & ((norms > 10 * median) | (norms < median / 10))
    far = f"; {outliers.sum():,} are ten times as long or as short as most" if outliers.any() else ""
    yield Finding(
        "norms",
        "note" if outliers.any() else "fine",
        f"The rows are not normalized (median norm {median:.3g}){far}.",
        ids=name_rows(rows.ids, outliers),
    )


def _check_copies(rows: Rows, directed: NDArray[np.bool_]) -> Iterator[Finding]:
    """Yield a finding on rows that equal another row byte by byte, with the ids of the largest group."""
    numbers = np.flatnonzero(directed)
    stored = np.ascontiguousarray(rows.vectors[numbers] + np.float32(0))  # −0 becomes 0
    keys = stored.view(np.dtype((np.void, stored.itemsize * stored.shape[1])))[:, 0]
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    extra = int((counts - 1).sum())
    if not extra:
        yield Finding("copies", "fine", "No two of the rows read have the same vector.")
        return

    share = estimate_share(extra, len(numbers), rows.total)
    group = numbers[inverse == counts.argmax()]
    texts = {rows.texts[row] for row in group} - {None} if rows.texts is not None else set()
    largest = f"the largest group has {len(group):,} of them"
    # Equal vectors of other texts come from a failed or truncating writer, not from a table that holds a text twice.
    suspicious = len(texts) > 1
    if suspicious:
        largest += f" of {len(texts):,} different texts"
    elif texts:
        largest += f" of the text {_shorten(texts.pop())!r}"
    megabytes = share.value * rows.total * stored.shape[1] * stored.itemsize / 1e6
    yield Finding(
        "copies",
        "mend" if suspicious else "note" if share.value >= MIN_COPIES else "fine",
        f"{format_share(share)} of the rows repeat the vector of another row ({megabytes:.3g} MB): {largest}.",
        share,
        ids=[rows.ids[row] for row in group[:10]],
        advice="Encode these texts again." if suspicious else "Store each text once, with the ids that have it.",
    )


def _shorten(text: str | None, length: int = 60) -> str:
    text = " ".join((text or "").split())
    return text if len(text) <= length else text[: length - 1] + "…"


def _check_collapse(vectors: FloatArray) -> Finding:
    """Return a finding on the mean of the normalized rows and the number of directions that they are spread over."""
    described = diagnose(vectors)
    mean, effective, d = described["mean_norm"], described["participation_ratio"], described["dimensions"]
    collapsed = mean > MAX_MEAN
    return Finding(
        "collapse",
        "note" if collapsed else "fine",
        f"The mean of the normalized rows is {mean:.2f} long, and they are spread over {effective:.0f} of {d} "
        f"directions.{' They share one direction, which spends the range of every quantizer.' * collapsed}",
        advice="Project off the mean direction: lathe fit --steps r2, or lathe advise --evidence." * collapsed,
    )


def _check_neighbours(rows: Rows, directed: NDArray[np.bool_], metric: Metric) -> Iterator[Finding]:
    """Yield findings on near copies, hubs and the metric, by the ten nearest rows of up to `NEIGHBOUR_ROWS` rows."""
    numbers = np.flatnonzero(directed)[:NEIGHBOUR_ROWS]
    if len(numbers) <= 2 * K:
        return
    vectors = rows.vectors[numbers]
    unit = normalized_rows(vectors, np.float32).numpy()
    own = np.stack([np.arange(len(unit))] * 2, axis=1)
    nearest = find_nearest(unit, unit, K, own)

    first = np.einsum("nd,nd->n", unit, unit[nearest[:, 0]])
    near = (first >= NEAR_COPY) & (vectors != vectors[nearest[:, 0]]).any(axis=1)
    if near.mean() >= MIN_COPIES:
        share = estimate_share(int(near.sum()), len(near), len(near))
        sentence = f"{format_share(share)} of {len(near):,} rows have a near copy among them (cosine ≥ {NEAR_COPY})."
        yield Finding("near_copies", "note", sentence, share, ids=name_rows([rows.ids[row] for row in numbers], near))

    counts = np.bincount(nearest.ravel(), minlength=len(unit))
    skew = float(((counts - counts.mean()) ** 3).mean() / max(counts.std(), 1e-12) ** 3)
    unreached = float((counts == 0).mean())
    yield Finding(
        "hubs",
        "note" if skew > MAX_SKEW else "fine",
        f"Among {len(unit):,} rows, {100 * unreached:.2g} % are among the ten nearest of no other, and the most "
        f"frequent one is of {counts.max():,} (skewness {skew:.1f}).",
        ids=[rows.ids[numbers[row]] for row in np.argsort(-counts)[:5]] if skew > MAX_SKEW else (),
        advice="lathe fit --steps r2 usually lowers it." if skew > MAX_SKEW else "",
    )

    if metric != "cosine":
        agreement = _compare_metrics(vectors, metric)
        if agreement < METRIC_AGREEMENT:
            yield Finding(
                "metric",
                "mend",
                f"The rows are not normalized: {metric} shares {100 * agreement:.0f} % of the ten nearest rows with "
                "cosine, for which text encoders are made.",
                certainty="likely",
                advice="Search by cosine, or normalize rows and queries.",
            )


def _compare_metrics(vectors: FloatArray, metric: Metric) -> float:
    """Return the share of the ten nearest rows by cosine that are also the nearest by another metric."""
    numbers = [str(row) for row in range(len(vectors))]
    queries = vectors[:METRIC_QUERIES]
    found, wanted = (compare_all(numbers, vectors, queries, kind, K).ids for kind in (metric, "cosine"))
    return float(np.mean([len(set(first) & set(second)) / K for first, second in zip(found, wanted, strict=True)]))
