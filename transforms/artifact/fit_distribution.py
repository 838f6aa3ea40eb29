"""The distribution of the rows a chain was fitted on, stored with it so that other rows can be compared with them.

reference.safetensors   mean (d,), directions (r, d), variances (r + 1,), scores (101,)
manifest.json           …, "reference": {"sha256": …, "count": 23768, "heldout": 5000, …}

It holds no rows. Serving does not read it, and a chain without it serves as well.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save

from transforms.artifact.folder import DISTRIBUTION, read_manifest
from transforms.errors import ArtifactError
from transforms.statistics import Gaussian, Moments, Subspace
from transforms.vectors import BLOCK_ROWS, FloatArray, Vectors

MAX_ROWS = 20_000
"""Rows, spread evenly over all, that mean and directions are estimated on: hundreds for each direction."""

LEVELS = np.linspace(0, 1, 101)
NORM_LEVELS = (0.001, 0.999)
NORM_MARGIN = 1e-3
"""Relative tolerance of row norms, because unit rows differ by rounding."""


@dataclass(frozen=True, eq=False)
class FitDistribution:
    """A Gaussian fitted to the rows, and how far held-out rows lie from it.

    Attributes:
        count: number of rows it describes.
        heldout: number of held-out rows that scores and norms were measured on.
        gaussian: of the fitted rows.
        scores: `(101,)` float32, percentiles of the held-out rows' scores.
        norms: the .001 and .999 quantile of the held-out rows' norms.
        outside: share of their squared distance from the mean that lies outside the subspace the chain
            retains; None if the chain retains no subspace.
    """

    count: int
    heldout: int
    gaussian: Gaussian
    scores: NDArray[np.float32]
    norms: tuple[float, float]
    outside: float | None

    @classmethod
    def measure(
        cls,
        rows: Vectors,
        heldout: FloatArray,
        retained: Subspace | None,
        earlier: "FitDistribution | None" = None,
    ) -> "FitDistribution":
        """Measure the distribution of the rows of a fit.

        Args:
            rows: `(n, d)` that the chain was fitted on.
            heldout: `(m, d)` that it was not fitted on.
            retained: the subspace that the chain retains.
            earlier: distribution of the rows that these were added to. The Gaussians are merged by moments;
                measurements on its held-out rows are mixed in by the numbers of rows, as if they
                would be the same under the merged Gaussian.

        Raises:
            InputError: for NaN or inf.
        """
        moments = _sampled_moments(rows)
        if earlier is not None:
            moments.merge(earlier.gaussian.to_moments(earlier.count))
        gaussian = Gaussian.fit(moments)
        standardized = gaussian.standardize(heldout)
        scores = gaussian.score(standardized)
        low, high = np.quantile(row_norms(heldout), NORM_LEVELS).tolist()
        energy = float(np.vecdot(standardized, standardized).sum(dtype=np.float64))
        outside = None
        if retained is not None:
            outside = float(retained.energy_outside(standardized).sum()) / energy if energy else 0.0
        weights = np.full(len(scores), 1 / len(scores))
        if earlier is not None:
            old = earlier.count / moments.count
            weights = np.append(weights * (1 - old), np.full(len(LEVELS), old / len(LEVELS)))
            scores = np.append(scores, earlier.scores)
            low, high = min(low, earlier.norms[0]), max(high, earlier.norms[1])
            if outside is not None and earlier.outside is not None:
                outside = (1 - old) * outside + old * earlier.outside
        found = _weighted_percentiles(scores, weights).astype(np.float32)
        return cls(moments.count, len(heldout), gaussian, found, (low, high), outside)

    def percentiles(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the share of held-out rows with a lower score, `(n,)` in [0, 1]; equal scores count half."""
        below = np.interp(scores, self.scores, LEVELS)
        above = np.interp(-scores, -self.scores[::-1], LEVELS)
        found: NDArray[np.float64] = (below + 1 - above) / 2
        return found

    def outlier_norms(self, norms: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
        """Return which norms `(n,)` lie outside those of held-out rows, leaving out a thousandth at each end."""
        low, high = self.norms
        found: NDArray[np.bool_] = ~((norms >= low * (1 - NORM_MARGIN)) & (norms <= high * (1 + NORM_MARGIN)))
        return found

    @cached_property
    def payload(self) -> bytes:
        """Content of its file."""
        of_gaussian = {name: getattr(self.gaussian, name) for name in ("mean", "directions", "variances")}
        arrays = of_gaussian | {"scores": self.scores}
        return save({name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()})

    def describe(self) -> dict[str, Any]:
        """Return the manifest field that describes it; `spectrum` holds shares of the variance, descending."""
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
    def load(cls, path: Path) -> "FitDistribution":
        """Read the distribution of an artifact folder.

        Raises:
            ArtifactError: if the chain was saved without one, or it is damaged.
        """
        described = read_manifest(path).get("reference")
        if described is None:
            raise ArtifactError("it was saved without the distribution of its rows: fit it again to store one")
        try:
            return cls.from_bytes((path / DISTRIBUTION).read_bytes(), described)
        except ArtifactError:
            raise
        except OSError as error:
            raise ArtifactError(f"the distribution of its rows cannot be read: {error.strerror}") from error
        except (SafetensorError, LookupError, TypeError, ValueError) as error:
            raise ArtifactError(f"the distribution of its rows cannot be used: {error!r}") from error

    @classmethod
    def from_bytes(cls, payload: bytes, described: Mapping[str, Any]) -> "FitDistribution":
        """Build a distribution from the content of its file and the manifest field that describes it.

        Raises:
            ArtifactError: if the file is not the described one.
        """
        if hashlib.sha256(payload).hexdigest() != described["sha256"]:
            raise ArtifactError("the distribution of its rows was truncated or altered: the SHA-256 does not match")
        arrays = {name: tensor.numpy() for name, tensor in load(payload).items()}
        gaussian = Gaussian(arrays["mean"], arrays["directions"], arrays["variances"])
        low, high = described["norms"]
        count, heldout, outside = (described[name] for name in ("count", "heldout", "outside"))
        return cls(count, heldout, gaussian, arrays["scores"], (low, high), outside)


def _sampled_moments(rows: Vectors) -> Moments:
    """Return moments estimated on up to `MAX_ROWS` rows `(n, d)`, evenly spread, and scaled to n rows."""
    total = rows.shape[0]
    chosen = np.linspace(0, total - 1, min(total, MAX_ROWS)).astype(int)
    moments = Moments()
    for start in range(0, len(chosen), BLOCK_ROWS):
        moments.update(rows[chosen[start : start + BLOCK_ROWS]])
    moments.scatter *= total / moments.count
    moments.count = total
    return moments


def _weighted_percentiles(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the percentiles 0 to 100 `(101,)` of values `(n,)` with weights."""
    order = np.argsort(values, kind="stable")
    passed = np.cumsum(weights[order]) - weights[order] / 2
    found: NDArray[np.float64] = np.interp(LEVELS * weights.sum(), passed, values[order])
    return found


def row_norms(rows: FloatArray) -> NDArray[np.floating[Any]]:
    """Return the norms `(n,)` of rows `(n, d)`; infinite where they overflow the dtype."""
    with np.errstate(over="ignore"):
        found: NDArray[np.floating[Any]] = np.sqrt(np.vecdot(rows, rows))
    return found
