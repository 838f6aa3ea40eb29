"""Errors of the client.

LatheError (Exception)
├── ServerError           the server answered with an error status
├── NoAnswerError         no answer arrived: no connection, a broken one, or a timeout
├── UnexpectedAnswerError an answer that a Lathe server does not give
├── InvalidTextError      a text that cannot be sent, as it is not Unicode
└── SpaceMismatchError    vectors of different spaces, which must not be compared
"""

from typing import Any

import httpx2

MAX_TEXT = 500
"""Maximum characters quoted of an answer that is not an error of Lathe, such as a proxy's page."""


class LatheError(Exception):
    """Base class of all errors of the client."""


class ServerError(LatheError):
    """Error status that the server answered.

    Attributes:
        status: HTTP status.
        message: the server's own text.
        code: short constant for programs; None if the answer is not from Lathe but, for example, from a proxy.
        param: name of the request's field at fault; None if there is none.
        request_id: id of the request in the server's log; None if the answer has none.
        retry_after: seconds after which the server asks to try again; None if it does not say.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(status, message, code, param, request_id, retry_after)  # all of them, for pickle
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.request_id = request_id
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.status} {self.code}: {self.message}" if self.code else f"{self.status}: {self.message}"


class NoAnswerError(LatheError):
    """Missing answer: there is no connection, it broke, or the timeout passed."""


class UnexpectedAnswerError(LatheError):
    """An answer with a success status whose content no Lathe server sends."""


class InvalidTextError(LatheError):
    """A text that cannot be sent: it holds half of a surrogate pair, such as a cut emoji, and is not Unicode."""


class SpaceMismatchError(LatheError):
    """Vectors of different spaces, which must not be compared or stored together."""


def build_server_error(response: httpx2.Response) -> ServerError:
    """Return the error for a response with an error status, with the message of Lathe or of another server."""
    details = _read_details(response)
    text = str(details.get("message") or response.text[:MAX_TEXT].strip() or response.reason_phrase)
    return ServerError(
        response.status_code,
        text,
        details.get("code"),
        details.get("param"),
        response.headers.get("x-request-id"),
        read_retry_after(response),
    )


def _read_details(response: httpx2.Response) -> dict[str, Any]:
    """Return the object `error` in the JSON body of an error of Lathe, or an empty dict if it is missing."""
    try:
        content = response.json()
    except ValueError:
        return {}
    details = content.get("error") if isinstance(content, dict) else None
    return details if isinstance(details, dict) else {}


def read_retry_after(response: httpx2.Response) -> float | None:
    """Return the seconds in the header `Retry-After`, or None if it is missing or a date."""
    value = response.headers.get("retry-after", "")
    return float(value) if value.isdecimal() else None
