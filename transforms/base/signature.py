"""What is known of the vectors between two steps before any is seen: enough to refuse a chain that cannot work."""

from dataclasses import dataclass, replace

from transforms.errors import StepError


@dataclass(frozen=True)
class Signature:
    """Vectors between two steps of a chain.

    Attributes:
        dimensions: of the vectors; None while unknown.
        empty_directions: number of directions in which earlier steps leave no variance, so that the rank is at most
            `dimensions − empty_directions`.
        codes: kind of the quantizer whose codes these are; None for floats.
        target_dimensions: dimensions that steps fitted on pairs will output, if known.
    """

    dimensions: int | None = None
    empty_directions: int = 0
    codes: str | None = None
    target_dimensions: int | None = None

    def add_empty(self, directions: int) -> "Signature":
        """Return the signature with more directions left without variance."""
        return replace(self, empty_directions=self.empty_directions + directions)

    def reduce(self, kind: str, dimensions: int, allow_same: bool = True) -> "Signature":
        """Return the signature after a reduction that retains as much of the rank as fits.

        Args:
            kind: kind of the reducing step, for the message.
            dimensions: of the outputs.
            allow_same: whether the step may keep the number of dimensions.

        Raises:
            StepError: if the vectors have too few dimensions.
        """
        if self.dimensions is None:
            return replace(self, dimensions=dimensions, empty_directions=0)
        if dimensions > self.dimensions or (dimensions == self.dimensions and not allow_same):
            needed = f"at least {dimensions}" if allow_same else f"more than {dimensions}"
            raise StepError(f"{kind} to {dimensions} needs vectors of {needed} dimensions, not {self.dimensions}")
        rank = self.dimensions - self.empty_directions
        return replace(self, dimensions=dimensions, empty_directions=max(0, dimensions - rank))
