"""Signatures: what is known of the vectors between two steps before fitting, to reject impossible chains early."""

from dataclasses import dataclass, replace

from lathe.transforms.errors import StepError


@dataclass(frozen=True)
class Signature:
    """What is known, without data, of the vectors between two steps of a chain: dimensions, rank, codes or floats.

    Attributes:
        dimensions: number of dimensions; None while unknown.
        zero_variance_directions: number of directions in which earlier steps leave no variance, so that the rank is at
            most `dimensions − zero_variance_directions`.
        codes: kind of the quantizer if the vectors are codes; None for floats.
        target_dimensions: number of output dimensions of steps fitted on pairs; None while unknown.
    """

    dimensions: int | None = None
    zero_variance_directions: int = 0
    codes: str | None = None
    target_dimensions: int | None = None

    def add_zero_variance(self, directions: int) -> "Signature":
        """Return a copy with `directions` more directions without variance."""
        return replace(self, zero_variance_directions=self.zero_variance_directions + directions)

    def reduce(self, kind: str, dimensions: int, allow_same: bool = True) -> "Signature":
        """Return the signature of vectors after a reduction to `dimensions`. The rank becomes the smaller of the rank
        and `dimensions`.

        Without known input dimensions the outputs are taken to have full rank.

        Args:
            kind: kind of the reducing step, for the error message.
            dimensions: number of output dimensions.
            allow_same: whether the number of dimensions may stay the same.

        Raises:
            StepError: if the vectors have too few dimensions.
        """
        if self.dimensions is None:
            return replace(self, dimensions=dimensions, zero_variance_directions=0)
        if dimensions > self.dimensions or (dimensions == self.dimensions and not allow_same):
            needed = f"at least {dimensions}" if allow_same else f"more than {dimensions}"
            raise StepError(f"{kind} to {dimensions} needs vectors of {needed} dimensions, not {self.dimensions}")

        # A reduction keeps at most `rank` directions that vary, so only dimensions beyond the rank are surely empty.
        rank = self.dimensions - self.zero_variance_directions
        return replace(self, dimensions=dimensions, zero_variance_directions=max(0, dimensions - rank))
