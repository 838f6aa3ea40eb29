"""The distribution of the rows that a chain was fitted on, stored with the chain to detect drift in other rows.

reference.safetensors   mean (d,), directions (r, d), variances (r + 1,), scores (101,)
manifest.json           …, "reference": {"sha256": …, "count": 23768, "heldout": 5000, …}

The file holds no rows. Serving does not read it: a chain without it serves as well.
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

from lathe.transforms.artifact.folder import DISTRIBUTION, read_manifest
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import read_plain_file
from lathe.transforms.statistics import Gaussian, Moments, Subspace
from lathe.transforms.vectors import BLOCK_ROWS, FloatArray, Vectors

MAX_MEASURED_ROWS = 20_000
"""Maximum number of evenly spaced rows that mean and directions are estimated on: over 100 for each direction."""

LEVELS = np.linspace(0, 1, 101)
"""Quantile levels of the stored scores: 0, 0.01, …, 1."""

NORM_LEVELS = (0.001, 0.999)
"""Quantile levels between which row norms count as ordinary."""

NORM_MARGIN = 1e-3
"""Relative tolerance of the bounds of row norms, because the norms of unit rows differ by rounding."""


@dataclass(frozen=True, eq=False)
class FitDistribution:
    """A Gaussian fitted to the rows of a fit, and quantiles of the scores and norms of held-out rows.

    Attributes:
        count: number of fitted rows described.
        heldout: number of held-out rows that scores and norms were measured on.
        gaussian: Gaussian of the fitted rows.
        scores: `(101,)` float32, percentiles of `Gaussian.score` over the held-out rows.
        norms: 0.001 and 0.999 quantile of the norms of the held-out rows.
        outside: fraction of the held-out rows' squared distance from the mean that lies outside the subspace the chain
            retains; None if the chain retains no subspace.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms.artifact import FitDistribution
        >>> rows = np.random.default_rng(0).normal(size=(500, 8)).astype(np.float32)
        >>> distribution = FitDistribution.measure(rows[:400], rows[400:], None)
        >>> far, near = distribution.gaussian.score(distribution.gaussian.standardize(np.stack([9 * rows[0], rows[0]])))
        >>> bool(far > distribution.scores[-1] > near)
        True
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
        retained_subspace: Subspace | None,
    ) -> "FitDistribution":
        """Fit a Gaussian to a sample of the fitted rows, and measure the scores and norms of held-out rows under it.

        Args:
            rows: `(n, d)`, rows that the chain was fitted on.
            heldout: `(m, d)`, rows that it was not fitted on.
            retained_subspace: the subspace of the inputs that the chain's outputs depend on; None if there is none. The
                share of the held-out rows' energy outside of it is measured too.

        Raises:
            InputError: for NaN or inf.
        """
        gaussian = Gaussian.fit(_sample_moments(rows))
        standardized = gaussian.standardize(heldout)
        scores = gaussian.score(standardized)
        low, high = np.quantile(vector_norms(heldout), NORM_LEVELS).tolist()
        # Squared distances from the mean in units of σ: the share outside the subspace is the same in any unit.
        energy = float(np.vecdot(standardized, standardized).sum(dtype=np.float64))
        outside = None

        if retained_subspace is not None:
            outside = float(retained_subspace.energy_outside(standardized).sum()) / energy if energy else 0.0

        # Hazen's percentiles of −x mirror the percentiles of x: each score stands at the middle of its own share.
        percentiles = np.quantile(scores, LEVELS, method="hazen").astype(np.float32)
        return cls(rows.shape[0], len(heldout), gaussian, percentiles, (low, high), outside)

    def quantile_ranks(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Estimate, for each score, the fraction of held-out rows with a lower one, `(n,)` in [0, 1].

        Ties count half. The fraction is interpolated linearly between the stored percentiles.
        """
        # Among equal percentiles `np.interp` takes the upper level; mirrored, it takes the lower one.
        below = np.interp(scores, self.scores, LEVELS)
        above = np.interp(-scores, -self.scores[::-1], LEVELS)
        ranks: NDArray[np.float64] = (below + 1 - above) / 2
        return ranks

    def outlier_norms(self, norms: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
        """Return a mask `(n,)` of the norms outside the 0.001 and 0.999 quantiles of the held-out rows' norms.

        NaN counts as outside. Both bounds have a relative tolerance of `NORM_MARGIN`.
        """
        low, high = self.norms
        # Negated, because comparisons with NaN are False and NaN must count as outside.
        is_outlier: NDArray[np.bool_] = ~((norms >= low * (1 - NORM_MARGIN)) & (norms <= high * (1 + NORM_MARGIN)))
        return is_outlier

    @cached_property
    def payload(self) -> bytes:
        """Content of the file reference.safetensors, as bytes.

        It has the arrays of the Gaussian and the percentiles of the scores.
        """
        of_gaussian = {name: getattr(self.gaussian, name) for name in ("mean", "directions", "variances")}
        arrays = of_gaussian | {"scores": self.scores}
        return save({name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()})

    def describe(self) -> dict[str, Any]:
        """Return the manifest's entry about this distribution, as a dict that can be serialized as JSON.

        It holds the SHA-256 of `payload`, `count`, `heldout`, `norms`, `outside`, dimensions, mean norm and, as
        `spectrum`, the explained-variance ratios in descending order.
        """
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
        """Load the distribution of the fitted rows from the artifact folder `path`. A missing or damaged file raises.

        Raises:
            ArtifactError: if the chain was saved without one, or it is damaged.
        """
        described = read_manifest(path).get("reference")
        if described is None:
            raise ArtifactError("it was saved without the distribution of its rows: fit it again to store one")

        try:
            return cls.from_bytes(read_plain_file(path / DISTRIBUTION), described)
        # ArtifactError is a ValueError, which the last clause would wrap in a second message.
        except ArtifactError:
            raise
        except OSError as error:
            raise ArtifactError(f"the distribution of its rows cannot be read: {error.strerror}") from error
        except (SafetensorError, LookupError, TypeError, ValueError, OverflowError) as error:
            raise ArtifactError(f"the distribution of its rows cannot be used: {error!r}") from error

    @classmethod
    def from_bytes(cls, payload: bytes, described: Mapping[str, Any]) -> "FitDistribution":
        """Rebuild a distribution from a file's bytes and the manifest's entry. Another SHA-256 or a bad array raises.

        Raises:
            ArtifactError: if the SHA-256 of the bytes is not that in the entry, or an array is none that a fit gives.
        """
        if hashlib.sha256(payload).hexdigest() != described["sha256"]:
            raise ArtifactError("the distribution of its rows was truncated or altered: the SHA-256 does not match")

        arrays = {name: tensor.numpy() for name, tensor in load(payload).items()}
        gaussian = Gaussian(arrays["mean"], arrays["directions"], arrays["variances"])
        low, high = described["norms"]
        count, heldout, outside = (described[name] for name in ("count", "heldout", "outside"))
        restored = cls(count, heldout, gaussian, arrays["scores"], (low, high), outside)
        restored._check_arrays()

        return restored

    def _check_arrays(self) -> None:
        """Check that the arrays and numbers have shapes and ranges that a measured distribution can have.

        A file from somebody else has the right digest, and may hold anything.

        Raises:
            ArtifactError: if a shape or a range is wrong.
        """
        mean, directions, variances = self.gaussian.mean, self.gaussian.directions, self.gaussian.variances
        r, d = directions.shape if directions.ndim == 2 else (0, 0)
        shapes = [(mean, (d,)), (directions, (r, d)), (variances, (r + 1,)), (self.scores, (len(LEVELS),))]
        if any(array.shape != shape or array.dtype != np.float32 for array, shape in shapes):
            raise ArtifactError("the distribution of its rows has arrays of other shapes or dtypes than a fit's")
        if not all(np.isfinite(array).all() for array, _ in shapes) or not (variances > 0).all():
            raise ArtifactError("the distribution of its rows is not finite, or has a variance of 0 or less")
        if (np.diff(self.scores) < 0).any():
            raise ArtifactError("the distribution of its rows has percentiles that are not in order")

        numbers = [*self.norms, *([] if self.outside is None else [self.outside])]
        counts = [self.count, self.heldout]
        if not all(type(number) in (int, float) and number >= 0 for number in numbers) or not all(
            type(count) is int and count > 0 for count in counts
        ):
            raise ArtifactError("the distribution of its rows has counts, norms or a share that are not such numbers")


def _sample_moments(rows: Vectors) -> Moments:
    """Return the moments of up to `MAX_MEASURED_ROWS` evenly spaced rows of `(n, d)`."""
    total = rows.shape[0]
    # Evenly spaced, because the first rows of an ordered corpus would describe only its beginning.
    chosen = np.linspace(0, total - 1, min(total, MAX_MEASURED_ROWS)).astype(int)
    moments = Moments()

    for start in range(0, len(chosen), BLOCK_ROWS):
        moments.update(rows[chosen[start : start + BLOCK_ROWS]])

    return moments


def vector_norms(rows: FloatArray) -> NDArray[np.floating[Any]]:
    """Return the L2 norms `(n,)` of rows `(n, d)`, in the rows' dtype.

    A norm that overflows is inf.
    """
    with np.errstate(over="ignore"):
        norms: NDArray[np.floating[Any]] = np.sqrt(np.vecdot(rows, rows))
    return norms
