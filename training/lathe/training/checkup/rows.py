"""Checks of stored rows by their vectors alone: values, norms, copies, collapse, hubs and the metric."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lathe.training.checkup.findings import Finding, estimate_share, format_share, name_rows
from lathe.training.checkup.store import Rows, compare_all
from lathe.training.measures import find_nearest
from lathe.training.settings import Metric
from lathe.transforms import diagnose
from lathe.transforms.quality.metrics import normalized_rows
from lathe.transforms.vectors import FloatArray

K = 10
"""Number of nearest rows that are looked at."""
UNIT_TOLERANCE = 0.01
"""Maximum distance from 1 of a norm that counts as normalized. Rounding to float16 or int8 changes norms by less."""
NEAR_COPY = 0.9999
"""Minimum cosine of near copies."""
MIN_COPIES = 0.01
"""Share of copies from which on they are worth a note."""
NEIGHBOUR_ROWS = 4000
"""Maximum number of rows whose nearest rows are found."""
METRIC_QUERIES = 500
"""Maximum number of rows whose nearest rows by two metrics are compared."""
MAX_MEAN = 0.5
"""Length of the mean of normalized rows from which on they are called collapsed."""
MAX_SKEW = 10.0
"""Skewness of the counts of nearest rows from which on hubs are worth a note."""
METRIC_AGREEMENT = 0.9
"""Share of the nearest rows by cosine below which another metric harms searches."""


def check_rows(rows: Rows, metric: Metric) -> Iterator[Finding]:
    """Check stored rows by their vectors, and yield what was found. Rows with NaN, inf or only zeros count once."""
    finite, directed = np.asarray(np.isfinite(rows.vectors).all(axis=1)), rows.is_valid
    for kind, mask, what in (
        ("not_finite", ~finite, "hold NaN or inf"),
        ("zero", finite & ~directed, "are all zeros, which have no direction"),
    ):
        if mask.any():
            share = estimate_share(mask, rows.total)
            sentence = f"{format_share(share)} of the rows {what}."
            yield Finding(kind, "fix", sentence, share, ids=name_rows(rows.ids, mask), advice="Encode them again.")

    if directed.any():
        yield from _check_norms(rows, directed, metric)
        yield from _check_copies(rows, directed)
    if directed.sum() > 2 * K:
        yield _check_collapse(rows.vectors[directed])
        yield from _check_neighbours(rows, directed)
    else:
        yield Finding("few_rows", "note", f"{directed.sum():,} rows are too few to judge collapse and nearest rows.")


def _check_norms(rows: Rows, directed: NDArray[np.bool_], metric: Metric) -> Iterator[Finding]:
    """Yield a finding on rows that are not normalized where most are, or on norms that differ and on the metric."""
    norms = np.sqrt(np.einsum("nd,nd->n", rows.vectors, rows.vectors, dtype=np.float64))
    unit = directed & (np.abs(norms - 1) <= UNIT_TOLERANCE)
    other = directed & ~unit
    median = float(np.median(norms[other])) if other.any() else 1.0
    if not other.any():
        yield Finding("norms", "fine", "All rows are normalized.")
    elif unit.sum() >= directed.sum() / 2:
        share = estimate_share(other, rows.total)
        harm = "which cosine ignores" if metric == "cosine" else f"which {metric} ranks by their lengths"
        yield Finding(
            "unnormalized",
            "note" if metric == "cosine" else "fix",
            f"{format_share(share)} of the rows are not normalized (median norm {median:.3g}), {harm}.",
            share,
            ids=name_rows(rows.ids, other, -np.abs(np.log(np.where(other, norms, 1.0)))),
            advice="Normalize these rows, and in whatever writes them.",
        )
    else:
        outliers = directed & ((norms > 10 * median) | (norms < median / 10))
        far = f"; {outliers.sum():,} are ten times as long or as short as most" if outliers.any() else ""
        sentence = f"The rows are not normalized (median norm {median:.3g}){far}."
        yield Finding("norms", "note" if far else "fine", sentence, ids=name_rows(rows.ids, outliers))
        if metric != "cosine":
            yield from _check_metric(rows.vectors[directed][:NEIGHBOUR_ROWS], metric)


def _check_metric(vectors: FloatArray, metric: Metric) -> Iterator[Finding]:
    """Yield a finding if a metric finds other rows `(n, d)` than cosine, for which text encoders are made."""
    numbers = [str(row) for row in range(len(vectors))]
    found, wanted = (
        compare_all(numbers, vectors, vectors[:METRIC_QUERIES], kind, K).ids for kind in (metric, "cosine")
    )
    agreement = np.mean([len({*first} & {*second}) / len(second) for first, second in zip(found, wanted, strict=True)])
    if agreement < METRIC_AGREEMENT:
        yield Finding(
            "metric",
            "fix",
            f"{metric} finds {100 * agreement:.0f} % of the ten rows that are nearest by cosine, for which text "
            "encoders are made.",
            certainty="likely",
            advice="Search by cosine, or normalize rows and queries.",
        )


def _check_copies(rows: Rows, directed: NDArray[np.bool_]) -> Iterator[Finding]:
    """Yield a finding on rows that equal another row byte by byte, with the ids of the largest group."""
    numbers = np.flatnonzero(directed)
    stored = np.ascontiguousarray(rows.vectors[numbers] + np.float32(0))  # −0 becomes 0
    keys = stored.view(np.dtype((np.void, stored.itemsize * stored.shape[1])))[:, 0]
    _, first, inverse, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    repeats = directed.copy()
    repeats[numbers[first]] = False
    if not repeats.any():
        yield Finding("copies", "fine", "No two of the rows read have the same vector.")
        return

    share = estimate_share(repeats, rows.total)
    group = numbers[inverse == counts.argmax()]
    # An uncased encoder gives texts that differ in capitals or spaces the same vector.
    texts = {" ".join(text.casefold().split()) for row in group if rows.texts and (text := rows.texts[row]) is not None}
    # Equal vectors of other texts come from a failed or truncating writer, not from a table that holds a text twice.
    suspicious = len(texts) > 1
    of_texts = f" of {len(texts):,} different texts" if suspicious else ""
    advice = "Store each text once, with the ids that have it."
    if not texts:
        advice = "See with --texts whether they are of the same text."
    megabytes = share.value * rows.total * stored.shape[1] * stored.itemsize / 1e6
    yield Finding(
        "copies",
        "fix" if suspicious else "note" if share.value >= MIN_COPIES else "fine",
        f"{format_share(share)} of the rows repeat the vector of another row ({megabytes:.3g} MB); the largest group "
        f"has {len(group):,} of them{of_texts}.",
        share,
        ids=[rows.ids[row] for row in group[:10]],
        advice="Encode these texts again." if suspicious else advice,
    )


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


def _check_neighbours(rows: Rows, directed: NDArray[np.bool_]) -> Iterator[Finding]:
    """Yield findings on near copies and hubs, by the ten nearest rows of up to `NEIGHBOUR_ROWS` rows."""
    numbers = np.flatnonzero(directed)[:NEIGHBOUR_ROWS]
    vectors, ids = rows.vectors[numbers], [rows.ids[row] for row in numbers]
    unit = normalized_rows(vectors, np.float32).numpy()
    nearest = find_nearest(unit, unit, K, np.stack([np.arange(len(unit))] * 2, axis=1))

    first = np.einsum("nd,nd->n", unit, unit[nearest[:, 0]])
    near = (first >= NEAR_COPY) & (vectors != vectors[nearest[:, 0]]).any(axis=1)
    if near.mean() >= MIN_COPIES:
        share = estimate_share(near, rows.total)
        sentence = f"{format_share(share)} of {len(near):,} rows have a near copy among them (cosine ≥ {NEAR_COPY})."
        yield Finding("near_copies", "note", sentence, share, ids=name_rows(ids, near))

    counts = np.bincount(nearest.ravel(), minlength=len(unit))
    skew = float(((counts - counts.mean()) ** 3).mean() / max(counts.std(), 1e-12) ** 3)
    hubs = skew > MAX_SKEW
    yield Finding(
        "hubs",
        "note" if hubs else "fine",
        f"Among {len(unit):,} rows, {100 * (counts == 0).mean():.2g} % are among the ten nearest of no other, and the "
        f"most frequent one is of {counts.max():,} (skewness {skew:.1f}).",
        ids=name_rows(ids, counts > counts.mean(), -counts.astype(np.float64)) if hubs else (),
        advice="lathe fit --steps r2 usually lowers it." * hubs,
    )
