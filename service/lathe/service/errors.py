"""Errors of the service, their HTTP statuses, and the conversion of other exceptions to them."""

import errno
import math
import re
import sqlite3
from dataclasses import dataclass
from typing import Any

from lathe.training.errors import (
    EncoderError,
    NotFiniteError,
    SpaceChangedError,
    TextError,
    TooLongError,
    TrainingError,
    UnknownTokenError,
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
    """Return a text short enough for an error message: its long words and its middle are cut.

    Each word over 200 characters is cut to 80, and the middle is left out past `MAX_MESSAGE`.
    """
    text = LONG_WORD.sub(r"\1…", _cut_middle(text, 10 * MAX_MESSAGE))  # matching a whole body would take a second
    return _cut_middle(text, MAX_MESSAGE)


def _cut_middle(text: str, max_characters: int) -> str:
    """Return a text without its middle if it is longer than `max_characters`. Its last 400 characters stay."""
    if len(text) <= max_characters:
        return text
    return f"{text[: max_characters - MESSAGE_END]} … {text[-MESSAGE_END:]}"


@dataclass(frozen=True)
class _Kind:
    """Fields of an error response that follow from its HTTP status, unless the error has its own.

    Attributes:
        code: short constant for programs.
        type: class of error, as OpenAI names it.
        error_type: class of error, as text-embeddings-inference names it.
        retry_after: seconds after which a retry may succeed; None if it would not.
    """

    code: str
    type: str = "invalid_request_error"
    error_type: str = "Validation"
    retry_after: int | None = None


_KINDS = {
    400: _Kind("invalid_value"),
    401: _Kind("invalid_api_key", "authentication_error"),
    403: _Kind("forbidden", "permission_error"),
    404: _Kind("not_found", "not_found_error"),
    405: _Kind("method_not_allowed"),
    408: _Kind("request_timeout", "timeout_error"),
    409: _Kind("conflict", "conflict_error"),
    413: _Kind("too_large"),
    414: _Kind("uri_too_long"),
    415: _Kind("unsupported_type"),
    422: _Kind("wrong_type"),
    429: _Kind("overloaded", "overloaded_error", "Overloaded", retry_after=1),
    431: _Kind("headers_too_large"),
    499: _Kind("client_gone"),  # the client disconnected: the status appears only in logs and metrics
    500: _Kind("server_error", "server_error", "Backend"),
    501: _Kind("not_supported"),
    502: _Kind("upstream_failed", "upstream_error", "Backend"),
    503: _Kind("unavailable", "service_unavailable_error", "Unhealthy", retry_after=5),
}


class ServiceError(Exception):
    """An error that is answered to the caller.

    The subclasses are those that are raised or caught in many places.

    Attributes:
        status: HTTP status; it decides `type`, `error_type` and the defaults of `code` and `retry_after`.
        param: name of the request's field at fault; None if there is none.
    """

    status = 500

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        status: int | None = None,
    ) -> None:
        self.message = shorten(message)
        super().__init__(self.message)
        self.param = None if param is None else shorten(param)
        self.status = status or type(self).status
        kind = _KINDS.get(self.status, _KINDS[400])  # a web framework may answer other statuses of 4xx
        self.type = kind.type
        self.error_type = kind.error_type
        self.code = code or kind.code
        self.retry_after = retry_after or kind.retry_after


class BadValueError(ServiceError):
    """A value that is not valid."""

    status = 400


class UnauthorizedError(ServiceError):
    """A missing or unknown key."""

    status = 401


class ForbiddenError(ServiceError):
    """A key that does not allow this."""

    status = 403


class UnknownNameError(ServiceError):
    """A name of something that does not exist."""

    status = 404


class ConflictError(ServiceError):
    """Vectors of different spaces, or a state that does not allow the change."""

    status = 409


class TooLargeError(ServiceError):
    """A request with more bytes, texts or rows than allowed."""

    status = 413


class WrongShapeError(ServiceError):
    """A value of the wrong shape or type."""

    status = 422


class OverloadedError(ServiceError):
    """More requests than the service accepts at once."""

    status = 429


class NotSupportedError(ServiceError):
    """An operation that the index backend does not support, or whose extra is not installed."""

    status = 501


class UnavailableError(ServiceError):
    """A service that is not ready, or whose state cannot be read or written."""

    status = 503

    @property
    def may_pass(self) -> bool:
        """Whether the same may succeed later: Redis is unreachable, read-only, or its memory or disk is full."""
        return self.code in ("redis_unreachable", "redis_full", "redis_read_only")


def convert_error(error: Exception) -> ServiceError:
    """Return the `ServiceError` that is answered to the client for any exception.

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
            return _convert_sqlite_error(error)
        case OSError(errno=errno.ENOSPC):
            return UnavailableError("the disk is full; nothing was written", code="disk_full")
        case OSError():
            return UnavailableError(f"files of the service cannot be read or written: {error.strerror}")
        case _:
            return ServiceError("an unexpected error occurred; the server's log has it under this request id")


def _convert_encoder_error(error: EncoderError) -> ServiceError:
    match error:
        case TooLongError():
            return TooLargeError(str(error), param="inputs")
        case TextError() | UnknownTokenError():
            return BadValueError(str(error), param="inputs", code="text_refused")
        case NotFiniteError():
            return ServiceError(str(error), param="inputs", code="not_finite", status=422)
        case _:
            return BadValueError(str(error), param="prompt_name")


def _convert_upstream_error(error: UpstreamError) -> ServiceError:
    """Return the `ServiceError` that is answered for an error of an embeddings API.

    It is never 401: a refused key is the server's, not the caller's.
    """
    seconds = None if error.retry_after is None else max(1, math.ceil(error.retry_after))
    match error:
        case SpaceChangedError():
            return ConflictError(str(error), code="space_mismatch")
        case UpstreamBusyError():
            return OverloadedError(str(error), code="upstream_busy", retry_after=seconds)
        case UpstreamUnavailableError():
            return UnavailableError(str(error), code="upstream_unavailable", retry_after=seconds)
        case _:
            return ServiceError(str(error), status=502)


def _convert_sqlite_error(error: sqlite3.Error) -> UnavailableError:
    if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL":
        reason, code = "the disk is full; nothing was written, and the stored items can be read", "disk_full"
    else:
        reason, code = f"it cannot be read or written: {error}", "record_unavailable"
    return UnavailableError(f"the index's record: {reason}", code=code)


def error_body(error: ServiceError) -> dict[str, Any]:
    """Return the JSON body of an error response as a dict: OpenAI's error object, and TEI's `error_type` next to it."""
    body = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return {"error": body, "error_type": error.error_type}
