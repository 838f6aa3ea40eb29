"""What is known of vectors before any is seen: enough to refuse a chain that cannot work."""

from dataclasses import dataclass, replace

from transforms.errors import StepError


@dataclass(frozen=True)
class Outline:
    """Vectors between two steps of a chain.

    Attributes:
        width: their dimensions; None while nothing says so.
        missing: directions that earlier steps emptied: the rank is at most `width − missing`.
        codes: the kind of the quantisation that made them; None for floats.
        targets: the width of what steps that are fitted on pairs will make of them, if it is known.
    """

    width: int | None = None
    missing: int = 0
    codes: str | None = None
    targets: int | None = None

    def without(self, directions: int) -> "Outline":
        """The same vectors with so many more directions emptied."""
        return replace(self, missing=self.missing + directions)

    def reduced(self, kind: str, dimensions: int, whole: bool = True) -> "Outline":
        """Vectors reduced to `dimensions`, by a map that keeps as much of the rank as fits.

        Args:
            kind: of the step, for the message.
            dimensions: the new width.
            whole: whether a step that keeps the width makes sense.

        Raises:
            StepError: if that is more than there are.
        """
        if self.width is None:
            return replace(self, width=dimensions, missing=0)
        if dimensions > self.width or (dimensions == self.width and not whole):
            wider = "at least that wide" if whole else "wider than that"
            raise StepError(f"{kind} to {dimensions} must follow vectors {wider}, not {self.width}")
        return replace(self, width=dimensions, missing=max(0, dimensions - (self.width - self.missing)))
