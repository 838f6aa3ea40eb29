"""Statistics of the rows that a chain was fitted on, stored in its artifact folder."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from lathe.transforms.artifact.fit_distribution import FitDistribution
from lathe.transforms.artifact.stored_moments import describe_moments, moments_to_tensors
from lathe.transforms.statistics import Moments


@dataclass(frozen=True)
class FitStatistics:
    """Moments and distribution of the rows that a chain was fitted on, to store with the chain.

    Both are empty by default.

    Attributes:
        moments: moments by refit stage, which allow adding rows later (`lathe.transforms.incremental`).
        distribution: distribution of the rows, to compare other rows with; None to store none.
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset({"moments", "reference"})
    """Names of the manifest fields that describe statistics."""

    moments: Mapping[int, Moments] = field(default_factory=dict)
    distribution: FitDistribution | None = None

    def describe(self) -> dict[str, Any]:
        """Return the manifest fields `moments` and `reference`, each only if there is such a statistic."""
        reference = {} if self.distribution is None else {"reference": self.distribution.describe()}
        return describe_moments(self.moments) | reference

    def tensors(self) -> dict[str, Tensor]:
        """Return the moments as named tensors, to store in the same file as those of the chain."""
        return moments_to_tensors(self.moments)
