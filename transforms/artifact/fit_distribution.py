"""What the rows a chain was fitted on look like, kept with it so that other rows can be held against them.

reference.safetensors   mean (d,), directions (r, d), variances (r + 1,), scores (101,)
manifest.json           …, "reference": {"sha256": …, "count": 23768, "heldout": 5000, …}

It holds no rows. Serving does not read it; a chain without it serves as well.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save

from transforms.artifact.folder import REFERENCE, read_manifest
from transforms.errors import ArtifactError
from transforms.statistics.gaussian import Gaussian
from transforms.statistics.moments import Moments
from transforms.vectors import BLOCK_ROWS, FloatArray, Vectors

if TYPE_CHECKING:
    from transforms.chain.retained_subspace import Kept

ROWS_MOST = 20_000
"""Rows, spread evenly over all, that mean and directions are taken of: hundreds for each direction."""

LEVELS = np.linspace(0, 1, 101)
NORM_LEVELS = (0.001, 0.999)
NORM_MARGIN = 1e-3
"""A length this close to the fitted ones, relatively, is one of them: unit rows differ by rounding alone."""


@dataclass(frozen=True, eq=False)
class Reference:
    """Fitted rows as a Gaussian, and how far from it rows lie that were held out.

    Attributes:
        count: rows it stands for.
        heldout: rows that scores and lengths were measured on.
        gaussian: of the fitted rows.
        scores: `(101,)` float32, the percentiles of held-out rows' scores.
        norms: the .001 and .999 quantile of their lengths.
        outside: the share of their squared distance from the mean that lies outside what the chain
            keeps; None where that is no subspace.
    """

    count: int
    heldout: int
    gaussian: Gaussian
    scores: NDArray[np.float32]
    norms: tuple[float, float]
    outside: float | None

    @classmethod
    def of(
        cls, rows: Vectors, heldout: FloatArray, kept: "Kept | None", before: "Reference | None" = None
    ) -> "Reference":
        """The reference of a fit.

        Args:
            rows: `(n, d)` that the chain was fitted on.
            heldout: `(m, d)` that it was not.
            kept: the subspace the chain keeps.
            before: of the rows that these were added to. Its Gaussian is merged with theirs by moments;
                what was measured on its held-out rows is mixed in by the numbers of rows, as if it
                would be the same under the merged one.

        Raises:
            InputError: for NaN or inf.
        """
        moments = sampled_moments(rows)
        if before is not None:
            moments.merge(before.gaussian.moments(before.count))
        gaussian = Gaussian.of(moments)
        apart = gaussian.standardised(heldout)
        scores = gaussian.score(apart)
        low, high = np.quantile(lengths(heldout), NORM_LEVELS).tolist()
        energy = float(np.vecdot(apart, apart).sum(dtype=np.float64))
        outside = None if kept is None else float(kept.outside(apart).sum()) / energy if energy else 0.0
        weights = np.full(len(scores), 1 / len(scores))
        if before is not None:
            old = before.count / moments.count
            weights = np.append(weights * (1 - old), np.full(len(LEVELS), old / len(LEVELS)))
            scores = np.append(scores, before.scores)
            low, high = min(low, before.norms[0]), max(high, before.norms[1])
            if outside is not None and before.outside is not None:
                outside = (1 - old) * outside + old * before.outside
        found = weighted_percentiles(scores, weights).astype(np.float32)
        return cls(moments.count, len(heldout), gaussian, found, (low, high), outside)

    def percentiles(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """The share of held-out rows that lie nearer, `(n,)` from 0 to 1, for scores `(n,)`; of those as far, half."""
        below = np.interp(scores, self.scores, LEVELS)
        above = np.interp(-scores, -self.scores[::-1], LEVELS)
        found: NDArray[np.float64] = (below + 1 - above) / 2
        return found

    def odd(self, norms: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
        """Which lengths `(n,)` lie outside those of held-out rows, a thousandth at each end left out."""
        low, high = self.norms
        found: NDArray[np.bool_] = ~((norms >= low * (1 - NORM_MARGIN)) & (norms <= high * (1 + NORM_MARGIN)))
        return found

    @cached_property
    def payload(self) -> bytes:
        """Its file."""
        of_gaussian = {name: getattr(self.gaussian, name) for name in ("mean", "directions", "variances")}
        arrays = of_gaussian | {"scores": self.scores}
        return save({name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()})

    def described(self) -> dict[str, Any]:
        """What a manifest says of it; `spectrum` are shares of the variance, falling."""
        return {
            "sha256": hashlib.sha256(self.payload).hexdigest(),
            "count": self.count,
            "heldout": self.heldout,
            "dimensions": self.gaussian.dimensions,
            "mean_norm": self.gaussian.mean_norm,
            "norms": list(self.norms),
            "outside": self.outside,
            "spectrum": self.gaussian.shares,
        }

    @classmethod
    def read(cls, path: Path) -> "Reference":
        """The reference of an artifact folder.

        Raises:
            ArtifactError: if it was saved without one, or that was damaged.
        """
        said = read_manifest(path).get("reference")
        if said is None:
            raise ArtifactError("it was saved without a reference: fit it anew to have one")
        try:
            return cls.parsed((path / REFERENCE).read_bytes(), said)
        except ArtifactError:
            raise
        except OSError as error:
            raise ArtifactError(f"its reference cannot be read: {error.strerror}") from error
        except (SafetensorError, LookupError, TypeError, ValueError) as error:
            raise ArtifactError(f"its reference cannot be used: {error!r}") from error

    @classmethod
    def parsed(cls, payload: bytes, said: Mapping[str, Any]) -> "Reference":
        """The reference of a file, and of what its manifest says of it.

        Raises:
            ArtifactError: if the file is another.
        """
        if hashlib.sha256(payload).hexdigest() != said["sha256"]:
            raise ArtifactError("its reference was truncated or altered: the SHA-256 does not match")
        arrays = {name: tensor.numpy() for name, tensor in load(payload).items()}
        gaussian = Gaussian(arrays["mean"], arrays["directions"], arrays["variances"])
        low, high = said["norms"]
        return cls(said["count"], said["heldout"], gaussian, arrays["scores"], (low, high), said["outside"])


def sampled_moments(rows: Vectors) -> Moments:
    """Moments of up to `ROWS_MOST` rows `(n, d)` spread evenly, that stand for all n."""
    total = rows.shape[0]
    chosen = np.linspace(0, total - 1, min(total, ROWS_MOST)).astype(int)
    moments = Moments()
    for start in range(0, len(chosen), BLOCK_ROWS):
        moments.update(rows[chosen[start : start + BLOCK_ROWS]])
    moments.scatter *= total / moments.count
    moments.count = total
    return moments


def weighted_percentiles(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The percentiles 0 to 100 `(101,)` of values `(n,)`, each there as often as its weight says."""
    order = np.argsort(values, kind="stable")
    passed = np.cumsum(weights[order]) - weights[order] / 2
    found: NDArray[np.float64] = np.interp(LEVELS * weights.sum(), passed, values[order])
    return found


def lengths(rows: FloatArray) -> NDArray[np.floating[Any]]:
    """‖x‖ of rows `(n, d)`, `(n,)`; infinite past their dtype."""
    with np.errstate(over="ignore"):
        found: NDArray[np.floating[Any]] = np.sqrt(np.vecdot(rows, rows))
    return found
