"""What a chain costs, measured on vectors it was not fitted on."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transforms.chain.chain import Chain
from transforms.linear.debias import R1, R2
from transforms.linear.normalize import unit_rows
from transforms.quality.diagnostics import DIRECTION_MARGIN, diagnose
from transforms.quality.metrics import cross_recall_at_k, local_spearman, positional_stress, recall_at_k
from transforms.vectors import FloatArray

FEW_ROWS_PER_DIMENSION = 10
"""Fewer fitted rows than this for each output dimension, and the certificate says so."""

SMALLEST_SPREAD = 1e-5
"""An output whose standard deviation is less, relative to the largest, says nothing."""

Certificate = dict[str, Any]


def certify(
    chain: Chain,
    heldout: FloatArray,
    *,
    n_fit: int,
    seed: int = 0,
    foreign: Mapping[str, FloatArray] | None = None,
    warnings: list[str] | None = None,
    targets: FloatArray | None = None,
) -> Certificate:
    """Measure a fitted chain on held-out vectors and on foreign ones.

    Args:
        chain: fitted.
        heldout: `(n, d)` vectors of the corpus that were kept from the fit, without duplicates.
        n_fit: how many rows it was fitted on.
        seed: of the split.
        foreign: vectors of other corpora by name; an in-domain number alone misleads.
        warnings: what the fit has to say already.
        targets: what the held-out vectors should become, `(n, k)`, for a chain fitted on pairs.

    Returns:
        A JSON object: `{n_fit, n_heldout, seed, local_spearman, recall_at_10,
        recall_at_10_rescored_4x, positional_stress, mean_norm: {before, after},
        isoscore: {before, after}, bytes_per_vector: {before, after}, diagnostics: {before, after},
        foreign: {name: …}, warnings: []}`; `diagnostics` is what `diagnose` finds in the held-out
        rows. What too few rows do not allow to measure is null. For a nested chain, `sizes` holds
        the same quality measures of a quarter, a half and three quarters. Codes are measured by
        the floats they stand for. With targets there is `alignment: {cosine, recall_at_10}`: the
        mean cosine of an output to its target, and how many of the ten targets that are nearest
        to a target its output finds among all.
    """
    after = chain.floats(heldout)
    diagnostics = {"before": diagnose(heldout), "after": diagnose(after)}
    certificate: Certificate = {
        "n_fit": n_fit,
        "n_heldout": heldout.shape[0],
        "seed": seed,
        **fidelity(heldout, after),
        **{key: {side: found[key] for side, found in diagnostics.items()} for key in ("mean_norm", "isoscore")},
        "bytes_per_vector": {"before": 4 * heldout.shape[1], "after": chain.bytes_per_vector},
        "diagnostics": diagnostics,
    }
    if chain.nested:
        full = after.shape[1]
        smaller = sorted({full * quarter // 4 for quarter in (1, 2, 3)} - {0, full})
        certificate["sizes"] = {str(k): fidelity(heldout, chain.transform(heldout, dimensions=k)) for k in smaller}
    if targets is not None:
        certificate["alignment"] = {
            "cosine": float((unit(after) * unit(targets)).sum(1).mean()),
            "recall_at_10": cross_recall_at_k(after, targets, 10) if len(targets) > 10 else None,
        }
    certificate["foreign"] = {
        name: {"n": len(vectors), **fidelity(vectors, chain.floats(vectors))}
        for name, vectors in (foreign or {}).items()
    }
    dead = dead_outputs(heldout, after)
    certificate["warnings"] = [*(warnings or []), *doubts(chain, n_fit, heldout.shape[0]), *dead]
    return certificate


def unit(vectors: FloatArray) -> Tensor:
    """Rows of length 1, float64."""
    return unit_rows(torch.from_numpy(vectors.astype(np.float64)))


def fidelity(before: FloatArray, after: FloatArray) -> dict[str, float | None]:
    """The quality measures of a certificate; null where there are too few rows."""
    n = before.shape[0]
    return {
        "local_spearman": local_spearman(before, after) if n >= 3 else None,
        "recall_at_10": recall_at_k(before, after, 10) if n > 10 else None,
        "recall_at_10_rescored_4x": recall_at_k(before, after, 10, oversampling=4) if n > 40 else None,
        "positional_stress": positional_stress(before, after) if n >= 2 else None,
    }


def dead_outputs(before: FloatArray, after: FloatArray) -> list[str]:
    """A warning if outputs do not vary; where the width stays, if more of them than inputs."""
    was, dead = (
        int((spread <= SMALLEST_SPREAD * spread.max()).sum())
        for spread in (side.std(axis=0) for side in (before, after))
    )
    if dead == 0 or len(after) < 2 or (before.shape[1] == after.shape[1] and dead <= was):
        return []
    return [f"outputs that never vary, and are stored for nothing: {dead} of {after.shape[1]}"]


def doubts(chain: Chain, n_fit: int, n_heldout: int) -> list[str]:
    """Reasons to trust a fit less."""
    found = []
    for step in chain.transforms:
        if isinstance(step, R1 | R2) and float(step.mean_norm) < DIRECTION_MARGIN * float(step.noise_floor):
            found.append(
                f"the mean direction is within its noise: ‖μ‖ is {float(step.mean_norm):.3f}, "
                f"chance alone gives {float(step.noise_floor):.3f}; fit on more text or leave {step.kind} out"
            )
        size = step.learned_directions
        if n_fit < FEW_ROWS_PER_DIMENSION * size:
            found.append(
                f"{n_fit} rows are few for {size} dimensions; "
                f"{FEW_ROWS_PER_DIMENSION * size} or more give a map to rely on"
            )
        record = step.record
        if record is not None and record.diverged:
            found.append(
                f"the training of {step.kind} diverged after {record.steps} steps; the best map before is kept"
            )
        elif record is not None and record.still_falling:
            found.append(
                f"the held-out loss of {step.kind} still fell after {record.steps} steps; more would do better"
            )
    if n_heldout <= 40:
        found.append(f"{n_heldout} held-out rows are too few for every measure; those are null")
    return found
