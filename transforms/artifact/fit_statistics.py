"""Statistics of the rows that a chain was fitted on, stored beside it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from transforms.artifact.fit_distribution import FitDistribution
from transforms.artifact.stored_moments import describe_moments, moments_to_tensors
from transforms.statistics import Moments


@dataclass(frozen=True)
class FitStatistics:
    """What is stored of the rows that a chain was fitted on; nothing by default.

    Attributes:
        moments: by refit stage, so that rows can be added (`transforms.incremental`).
        distribution: of the rows, so that other rows can be compared with them.
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset({"moments", "reference"})
    """Fields of a manifest that describe statistics."""

    moments: Mapping[int, Moments] = field(default_factory=dict)
    distribution: FitDistribution | None = None

    def describe(self) -> dict[str, Any]:
        """Return the manifest fields that describe the statistics."""
        reference = {} if self.distribution is None else {"reference": self.distribution.describe()}
        return describe_moments(self.moments) | reference

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that are stored beside the chain's own."""
        return moments_to_tensors(self.moments)
