"""Errors of the service, and the one place that maps exceptions to HTTP statuses.

ServiceError (Exception)
├── BadValueError         400  a value that is not valid
├── MalformedError        400  a body that is not what its content type says
├── UnauthorizedError     401  no key, or an unknown one
├── ForbiddenError        403  a key that does not allow this
├── UnknownNameError      404  no such encoder, chain, version, job, index
├── ConflictError         409  vectors of different spaces, or a state that does not allow this
├── RequestTimeoutError   408  a request that took too long to arrive
├── TooLargeError         413  more bytes, texts or rows than a request may hold
├── UriTooLongError       414  a path and query over the length limit
├── UnsupportedTypeError  415  a change without the content type of JSON
├── WrongShapeError       422  the wrong shape or type
├── NoVectorError         422  a text for which the encoder gives NaN or inf
├── HeadTooLargeError     431  too many headers, or too long ones
├── OverloadedError       429  more requests than the service accepts at once; with Retry-After
├── ClientGoneError       499  a client that disconnected
├── NotSupportedError     501  an operation that the index backend does not support
├── BadGatewayError       502  an embeddings API that does not answer as it should
└── UnavailableError      503  not ready, or state that cannot be read or written
"""

import errno
import math
import re
import sqlite3
from typing import Any

from lathe.training.errors import (
    EncoderError,
    NotFiniteError,
    SpaceChangedError,
    TextError,
    TooLongError,
    TrainingError,
    UpstreamBusyError,
    UpstreamError,
    UpstreamUnavailableError,
)
from lathe.transforms.errors import ArtifactError, StepError, TransformError

MAX_MESSAGE, MESSAGE_END = 2000, 400
"""Maximum characters of an error message, and those of its end if it is cut: the end says what is allowed."""

LONG_WORD = re.compile(r"(?<!\S)(\S{80})\S{121,}")
"""Pattern of a word over 200 characters: a name from the request, which can be as long as a body."""


def shorten(text: str) -> str:
    """Return the text with each word over 200 characters cut to 80, and its middle left out past `MAX_MESSAGE`."""
    text = LONG_WORD.sub(r"\1…", _cut_middle(text, 10 * MAX_MESSAGE))  # matching a whole body would take a second
    return _cut_middle(text, MAX_MESSAGE)


def _cut_middle(text: str, max_characters: int) -> str:
    """Return the text, with its middle replaced by "…" if it has more than `max_characters` characters."""
    if len(text) <= max_characters:
        return text
    return f"{text[: max_characters - MESSAGE_END]} … {text[-MESSAGE_END:]}"


class ServiceError(Exception):
    """An error that is answered to the caller.

    Attributes:
        status: HTTP status.
        type: class of error, as OpenAI names it.
        error_type: class of error, as text-embeddings-inference names it.
        param: name of the request's field at fault; None if there is none.
        code: short constant for programs.
        retry_after: seconds after which a retry may succeed; None if it would not.
    """

    status = 500
    type = "server_error"
    error_type = "Backend"
    code = "server_error"
    retry_after: int | None = None

    def __init__(
        self, message: str, param: str | None = None, code: str | None = None, retry_after: int | None = None
    ) -> None:
        self.message = shorten(message)
        super().__init__(self.message)
        self.param = None if param is None else shorten(param)
        self.code = code or type(self).code
        self.retry_after = retry_after or type(self).retry_after


class RequestError(ServiceError):
    """An error that the caller's request caused."""

    type = "invalid_request_error"
    error_type = "Validation"


class BadValueError(RequestError):
    """A value that is not valid."""

    status = 400
    code = "invalid_value"


class MalformedError(RequestError):
    """A body that is not what its content type says."""

    status = 400
    code = "malformed_body"


class UnauthorizedError(RequestError):
    """A missing or unknown key."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class ForbiddenError(RequestError):
    """A key that does not allow this."""

    status = 403
    type = "permission_error"
    code = "forbidden"


class UnknownNameError(RequestError):
    """A name of something that does not exist."""

    status = 404
    type = "not_found_error"
    code = "not_found"


class ConflictError(RequestError):
    """Vectors of different spaces, or a state that does not allow the change."""

    status = 409
    type = "conflict_error"
    code = "conflict"


class TooLargeError(RequestError):
    """A request with more bytes, texts or rows than allowed."""

    status = 413
    code = "too_large"


class RequestTimeoutError(RequestError):
    """A request that took too long to arrive."""

    status = 408
    type = "timeout_error"
    code = "request_timeout"


class UriTooLongError(RequestError):
    """A path and query over the length limit."""

    status = 414
    code = "uri_too_long"


class UnsupportedTypeError(RequestError):
    """A request that changes state without the content type of JSON."""

    status = 415
    code = "unsupported_type"


class NoVectorError(RequestError):
    """A text for which the encoder gives NaN or inf; a retry would fail as well."""

    status = 422
    code = "not_finite"


class HeadTooLargeError(RequestError):
    """Too many headers, or headers over the size limit."""

    status = 431
    code = "headers_too_large"


class WrongShapeError(RequestError):
    """A value of the wrong shape or type."""

    status = 422
    code = "wrong_type"


class OverloadedError(ServiceError):
    """More requests than the service accepts at once."""

    status = 429
    type = "overloaded_error"
    error_type = "Overloaded"
    code = "overloaded"
    retry_after = 1


class ClientGoneError(RequestError):
    """A client that disconnected; the status appears only in logs and metrics."""

    status = 499
    code = "client_gone"

    def __init__(self) -> None:
        super().__init__("the client disconnected")


class NotSupportedError(RequestError):
    """An operation that the index backend does not support."""

    status = 501
    code = "not_supported"


class BadGatewayError(ServiceError):
    """An embeddings API behind an encoder that does not answer as it should."""

    status = 502
    type = "upstream_error"
    code = "upstream_failed"


class UnavailableError(ServiceError):
    """A service that is not ready, or whose state cannot be read or written."""

    status = 503
    type = "service_unavailable_error"
    error_type = "Unhealthy"
    code = "unavailable"
    retry_after = 5


def convert_error(error: Exception) -> ServiceError:
    """Convert an exception of any layer to the `ServiceError` that is answered.

    An unexpected exception becomes a generic 500 that does not quote its message, which may hold texts.
    """
    match error:
        case ServiceError():
            return error
        case ArtifactError():
            return UnavailableError(str(error), code="corrupt_artifact")
        case StepError():
            return BadValueError(str(error), param="steps")
        case UpstreamError():
            return _convert_upstream_error(error)
        case EncoderError():
            return _convert_encoder_error(error)
        case TransformError() | TrainingError():
            return BadValueError(str(error))
        case sqlite3.Error():
            return UnavailableError(
                f"the index's record: {_describe_sqlite_error(error)}", code=_get_sqlite_code(error)
            )
        case OSError(errno=errno.ENOSPC):
            return UnavailableError("the disk is full; nothing was written", code="disk_full")
        case OSError():
            return UnavailableError(f"files of the service cannot be read or written: {error.strerror}")
        case _:
            return ServiceError("an unexpected error occurred; the server's log has it under this request id")


def _convert_encoder_error(error: EncoderError) -> ServiceError:
    """Convert an error of an encoder: a text's, or else that of a prompt name."""
    match error:
        case TooLongError():
            return TooLargeError(str(error), param="inputs")
        case TextError():
            return BadValueError(str(error), param="inputs", code="text_refused")
        case NotFiniteError():
            return NoVectorError(str(error), param="inputs")
        case _:
            return BadValueError(str(error), param="prompt_name")


def _convert_upstream_error(error: UpstreamError) -> ServiceError:
    """Convert an error of an embeddings API; a refused key of the server's is not the caller's, so never 401."""
    seconds = None if error.retry_after is None else max(1, math.ceil(error.retry_after))
    match error:
        case SpaceChangedError():
            return ConflictError(str(error), code="space_mismatch")
        case UpstreamBusyError():
            return OverloadedError(str(error), code="upstream_busy", retry_after=seconds)
        case UpstreamUnavailableError():
            return UnavailableError(str(error), code="upstream_unavailable", retry_after=seconds)
        case _:
            return BadGatewayError(str(error))


def _describe_sqlite_error(error: sqlite3.Error) -> str:
    """Describe a SQLite error for the caller, with advice if the disk is full."""
    if _get_sqlite_code(error) == "disk_full":
        return "the disk is full; nothing was written, and the stored items can be read"
    return f"it cannot be read or written: {error}"


def _get_sqlite_code(error: sqlite3.Error) -> str:
    """Return the error code of a SQLite error: "disk_full" or "record_unavailable"."""
    return "disk_full" if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL" else "record_unavailable"


def error_body(error: ServiceError) -> dict[str, Any]:
    """Return the JSON body of an error: OpenAI's error object, and TEI's `error_type` next to it."""
    body = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return {"error": body, "error_type": error.error_type}
