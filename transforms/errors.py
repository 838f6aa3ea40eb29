"""Errors of the transforms.

TransformError (ValueError)
├── InputError       vectors that cannot be used: NaN, inf, wrong width, too few rows
├── NotFittedError   a transform was applied before it was fitted
├── StepError        an unknown kind, a parameter out of range, a step that cannot follow
└── ArtifactError    a saved chain that is missing, truncated, altered or too new
"""


class TransformError(ValueError):
    """Anything wrong with vectors, steps or artifacts; the message says what would be right."""


class InputError(TransformError):
    """The vectors given cannot be used."""


class NotFittedError(TransformError):
    """The transform has not been fitted yet."""


class StepError(TransformError):
    """The description of a step, or its place in a chain, makes no sense."""


class ArtifactError(TransformError):
    """The saved chain cannot be trusted or read."""
