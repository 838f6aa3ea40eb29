"""Errors of encoders, sources, fits and other offline jobs, as a tree of classes.

TrainingError (Exception)
├── EncoderError     a model that cannot be loaded, an unknown prompt
│   ├── TooLongError   a text with more tokens than the encoder reads, while truncation is off
│   ├── NotFiniteError   a text whose vector holds NaN or inf
│   ├── UnknownTokenError   a text with a token that the model has no vector for
│   └── TextError      a text that is not Unicode, or that an embeddings API refuses
├── UpstreamError    an embeddings API that does not give the requested vectors: a revoked key, a malformed answer
│   ├── UpstreamBusyError          a rate limit
│   ├── UpstreamUnavailableError   no connection, a time-out, a failing server
│   └── SpaceChangedError          vectors of another embedding space than before
├── SourceError      a file that is missing, malformed or empty, or holds another kind of rows
│   ├── AccessError    a source that cannot be reached: a package, a permission or the network is missing
│   ├── EmptyError     a file without rows
│   └── OutsideSourceError   a path, or a link, that leads out of the folder that may be read
├── FitError         a fit that cannot start: too few distinct rows, an unknown gate
├── EngineError      workers that cannot be reached, differ from this process, or keep dying
├── EvaluationError  an evaluation that cannot start: no suite, no readable data set
│   └── DataSetError   a data set that cannot be used; the evaluation goes on with the others
├── JobError         a training job that cannot be done as described
├── AdviceError      a source on which no advice can be given
└── ExportError      a chain that cannot be exported to other software, or gives other results there
"""

import traceback
from pathlib import PurePath


def locate_error(error: Exception) -> str:
    """Return the class of an exception and where it was raised, such as "KeyError in protocols.py line 97".

    The exception's message is left out, as it may quote a key, or text of a user or of another server.
    """
    frames = traceback.extract_tb(error.__traceback__)
    place = f" in {PurePath(frames[-1].filename).name} line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"


class TrainingError(Exception):
    """Base class of the errors of offline jobs. Messages tell the user what is wrong and what is allowed."""


class EncoderError(TrainingError):
    """Error of an encoder: the model cannot be loaded, or does not support the request."""


class TooLongError(EncoderError):
    """Error for a text that has more tokens than the encoder reads, while truncation is off."""


class NotFiniteError(EncoderError):
    """Error for a text whose vector holds NaN or inf.

    Args:
        reason: what is wrong, without the place of the text.
        position: position of the text in the input; None if unknown.
        place: phrase that names the text, such as a row of a file; None calls it `input POSITION`.
    """

    def __init__(self, reason: str, position: int | None = None, place: str | None = None) -> None:
        self.reason = reason
        self.position = position
        place = f"input {position}" if place is None and position is not None else place
        super().__init__(reason if place is None else f"{place}: {reason}")

    def at(self, place: str) -> "NotFiniteError":
        """Return a copy of the error whose message names the text by `place`, such as a row of a file."""
        return NotFiniteError(self.reason, self.position, place)


class UnknownTokenError(EncoderError):
    """Error for a text with a token that the tokenizer has, but that the model has no vector for."""


class TextError(EncoderError):
    """Error for a text that is not Unicode, or that an embeddings API refuses.

    Args:
        reason: what is wrong with the text, or the API's message.
        position: position of the text in the input.
    """

    def __init__(self, reason: str, position: int = 0) -> None:
        super().__init__(f"input {position}: {reason}")
        self.reason, self.position = reason, position


class UpstreamError(TrainingError):
    """Error of an embeddings API that does not give the requested vectors.

    Attributes:
        retry_after: seconds after which another call may succeed; None if it would not.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UpstreamBusyError(UpstreamError):
    """Error of an embeddings API whose rate limit refuses calls for longer than callers wait."""


class UpstreamUnavailableError(UpstreamError):
    """Error of an embeddings API that cannot be reached, does not answer in time or fails."""


class SpaceChangedError(UpstreamError):
    """Error of an embeddings API whose vectors are of another embedding space than before, under the same name."""


class SourceError(TrainingError):
    """Error for a source that cannot be read: missing, malformed, empty, or holding another kind of rows."""


class AccessError(SourceError):
    """Error for a source that cannot be reached because a package, a permission or the network is missing.

    The files themselves are not damaged.
    """


class OutsideSourceError(SourceError):
    """Error for a path, or a link below it, that leads out of the folder that may be read."""


class EmptyError(SourceError):
    """Error for a file without rows."""


class FitError(TrainingError):
    """Error for a fit that cannot be done as described."""


class EngineError(TrainingError):
    """Error of an engine whose workers cannot do the work: unreachable, different from this process, or dying."""


class EvaluationError(TrainingError):
    """Error for an evaluation that cannot be done as described."""


class DataSetError(EvaluationError):
    """Error for a data set that cannot be used. The message says what is wrong, with file and line."""


class JobError(TrainingError):
    """Error for a training job that cannot be done as described."""


class AdviceError(TrainingError):
    """Error for a source on which no advice can be given: too few distinct rows, or texts without an encoder."""


class ExportError(TrainingError):
    """Error for a chain of transforms that cannot be exported as requested."""
