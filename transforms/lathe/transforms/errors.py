"""Errors of the transforms.

TransformError (ValueError)
├── InputError       vectors that cannot be used: NaN, inf, wrong dimensions, too few rows
├── NotFittedError   a transform was applied before it was fitted
├── StepError        an unknown kind, a parameter out of range, a step that cannot follow
└── ArtifactError    a saved chain that is missing, truncated, altered or too new
"""


class TransformError(ValueError):
    """Base class of all errors about vectors, steps and artifacts.

    The message says what is allowed.
    """


class InputError(TransformError):
    """The input vectors cannot be used: NaN, inf, wrong dimensions, too few rows."""


class NotFittedError(TransformError):
    """A transform was applied before it was fitted."""


class StepError(TransformError):
    """A step is invalid: unknown kind, a parameter out of range, or it cannot follow the step before it."""


class ArtifactError(TransformError):
    """A saved chain is missing, damaged, altered or too new."""
