"""Errors of the service, and the one place that maps errors to HTTP statuses.

ServiceError (Exception)
├── BadValueError         400  a value that makes no sense
├── MalformedError        400  a body that is not what its content type says
├── UnauthorizedError     401  no key, or one nobody knows
├── ForbiddenError        403  a key that does not allow this
├── UnknownNameError      404  no such encoder, chain, version, job, index
├── ConflictError         409  two spaces that differ, a state that does not allow this
├── RequestTimeoutError   408  a request that took too long to arrive
├── TooLargeError         413  more than a request may hold
├── UriTooLongError       414  a path and query past the limit
├── UnsupportedTypeError  415  a change whose body does not say that it is JSON
├── WrongShapeError       422  the wrong shape or type
├── HeadTooLargeError     431  too many headers, or too long ones
├── OverloadedError       429  more than the service takes on; with Retry-After
├── ClientGoneError       499  the caller hung up
├── NotSupportedError     501  what this backend of indexes cannot do
└── UnavailableError      503  not ready, or its state cannot be read or written
"""

import errno
import re
import sqlite3
from typing import Any

from training.errors import EncoderError, TooLongError, TrainingError
from transforms.errors import ArtifactError, StepError, TransformError

MAX_MESSAGE, MESSAGE_END = 2000, 400
"""Characters of an error's message, and those of its end that stay where it is cut: they say what is allowed."""

LONG_WORD = re.compile(r"(?<!\S)(\S{80})\S{121,}")
"""A name that a message quotes was sent by the caller, and can be as long as a body; no word of ours has 200
characters."""


def shortened(text: str) -> str:
    """Return a text with its long words cut, and its middle where it is longer than a message may be."""
    text = LONG_WORD.sub(r"\1…", _without_middle(text, 10 * MAX_MESSAGE))  # of a whole body that would take a second
    return _without_middle(text, MAX_MESSAGE)


def _without_middle(text: str, most: int) -> str:
    """Return a text of at most about so many characters."""
    return text if len(text) <= most else f"{text[: most - MESSAGE_END]} … {text[-MESSAGE_END:]}"


class ServiceError(Exception):
    """What went wrong, for the caller.

    Attributes:
        status: of the HTTP answer.
        type: the class of error, in OpenAI's words.
        error_type: the same in text-embeddings-inference's words.
        param: the field at fault.
        code: a short constant for programs.
        retry_after: seconds, where trying again helps.
    """

    status = 500
    type = "server_error"
    error_type = "Backend"
    code = "server_error"
    retry_after: int | None = None

    def __init__(
        self, message: str, param: str | None = None, code: str | None = None, retry_after: int | None = None
    ) -> None:
        self.message = shortened(message)
        super().__init__(self.message)
        self.param = None if param is None else shortened(param)
        self.code = code or type(self).code
        self.retry_after = retry_after or type(self).retry_after


class RequestError(ServiceError):
    """The caller's doing."""

    type = "invalid_request_error"
    error_type = "Validation"


class BadValueError(RequestError):
    """A value that makes no sense."""

    status = 400
    code = "invalid_value"


class MalformedError(RequestError):
    """A body that is not what its content type says."""

    status = 400
    code = "malformed_body"


class UnauthorizedError(RequestError):
    """No key, or one nobody knows."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class ForbiddenError(RequestError):
    """A key that does not allow this."""

    status = 403
    type = "permission_error"
    code = "forbidden"


class UnknownNameError(RequestError):
    """Nothing of that name."""

    status = 404
    type = "not_found_error"
    code = "not_found"


class ConflictError(RequestError):
    """Spaces that differ, or a state that does not allow this."""

    status = 409
    type = "conflict_error"
    code = "conflict"


class TooLargeError(RequestError):
    """More than a request may hold."""

    status = 413
    code = "too_large"


class RequestTimeoutError(RequestError):
    """A request that took too long to arrive."""

    status = 408
    type = "timeout_error"
    code = "request_timeout"


class UriTooLongError(RequestError):
    """A path and query past the limit."""

    status = 414
    code = "uri_too_long"


class UnsupportedTypeError(RequestError):
    """A change whose body does not say that it is JSON."""

    status = 415
    code = "unsupported_type"


class HeadTooLargeError(RequestError):
    """Too many headers, or too long ones."""

    status = 431
    code = "headers_too_large"


class WrongShapeError(RequestError):
    """The wrong shape or type."""

    status = 422
    code = "wrong_type"


class OverloadedError(ServiceError):
    """More than the service takes on at once."""

    status = 429
    type = "overloaded_error"
    error_type = "Overloaded"
    code = "overloaded"
    retry_after = 1


class ClientGoneError(RequestError):
    """The caller hung up; only logs and counts see the status."""

    status = 499
    code = "client_gone"

    def __init__(self) -> None:
        super().__init__("the caller hung up")


class NotSupportedError(RequestError):
    """What the backend that keeps the indexes cannot do."""

    status = 501
    code = "not_supported"


class UnavailableError(ServiceError):
    """Not ready, or its state cannot be read or written."""

    status = 503
    type = "service_unavailable_error"
    error_type = "Unhealthy"
    code = "unavailable"
    retry_after = 5


def as_service_error(error: Exception) -> ServiceError:
    """The service's form of an error from the layers below.

    Anything nobody foresaw becomes a plain 500 that does not quote it: a message may hold texts.
    """
    match error:
        case ServiceError():
            return error
        case TooLongError():
            return TooLargeError(str(error), param="inputs")
        case ArtifactError():
            return UnavailableError(str(error), code="corrupt_artifact")
        case StepError():
            return BadValueError(str(error), param="steps")
        case EncoderError():
            return BadValueError(str(error), param="prompt_name")
        case TransformError() | TrainingError():
            return BadValueError(str(error))
        case sqlite3.Error():
            return UnavailableError(f"the index's record: {sqlite_problem(error)}", code=sqlite_code(error))
        case OSError(errno=errno.ENOSPC):
            return UnavailableError("the disk is full; nothing was written", code="disk_full")
        case OSError():
            return UnavailableError(f"the service's files cannot be read or written: {error.strerror}")
        case _:
            return ServiceError("something went wrong inside; the log has the request id")


def sqlite_problem(error: sqlite3.Error) -> str:
    """What SQLite says, in our words where a user can do something about it."""
    if sqlite_code(error) == "disk_full":
        return "the disk is full; nothing was written, and what is there can be read"
    return f"it cannot be read or written: {error}"


def sqlite_code(error: sqlite3.Error) -> str:
    """A short constant for programs."""
    return "disk_full" if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL" else "record_unavailable"


def error_body(error: ServiceError) -> dict[str, Any]:
    """The JSON of an error: OpenAI's object, and TEI's `error_type` beside it."""
    body = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return {"error": body, "error_type": error.error_type}
