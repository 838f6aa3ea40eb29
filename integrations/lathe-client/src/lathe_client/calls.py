"""A request to the server and the reading of its answer, the same for both clients.

arguments ─► build_…_call ─► Call ─► Client or AsyncClient sends it, and retries ─► Call.read ─► result
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, get_type_hints

import httpx2

from lathe_client.errors import NoAnswerError, UnexpectedAnswerError, build_server_error
from lathe_client.text_encoding import encode_json

Result = TypeVar("Result", covariant=True)

JSON = "application/json"


@dataclass(frozen=True)
class Call(Generic[Result]):
    """A request to the server, and the function that reads the result from its response.

    Attributes:
        method: HTTP method.
        path: path below the server's address.
        read_answer: converts a response with a success status to the result.
        body: bytes of the body; None without one.
        headers: headers of the request.
        query: query parameters.
        changes_state: whether the call changes something on the server; then it is not sent again after a broken
            connection.
    """

    method: str
    path: str
    read_answer: Callable[[httpx2.Response], Result]
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    changes_state: bool = False

    def read(self, outcome: httpx2.Response | httpx2.RequestError) -> Result:
        """Return the result in a response, or raise the error that an outcome without one stands for.

        Raises:
            ServerError: for a response with an error status.
            NoAnswerError: for an error of the connection.
            UnexpectedAnswerError: for a response that a Lathe server does not give.
        """
        if isinstance(outcome, httpx2.RequestError):
            reason = str(outcome) or type(outcome).__name__
            raise NoAnswerError(f"{self.method} {self.path} got no answer: {reason}") from outcome
        if not outcome.is_success:
            raise build_server_error(outcome)
        try:
            return self.read_answer(outcome)
        except (KeyError, TypeError, ValueError) as error:
            raise UnexpectedAnswerError(
                f"{self.method} {self.path}: the answer is not one of a Lathe server ({error!r})"
            ) from error


def build_object_call(path: str) -> Call[dict[str, Any]]:
    """Return a GET call whose result is a JSON object."""
    return Call("GET", path, read_object)


def build_list_call(path: str) -> Call[list[dict[str, Any]]]:
    """Return a GET call whose result is a JSON list of objects."""
    return Call("GET", path, _read_list)


def build_json_call(
    method: str,
    path: str,
    fields: Mapping[str, Any],
    read_answer: Callable[[httpx2.Response], Result],
    accept: str = JSON,
    changes_state: bool = False,
) -> Call[Result]:
    """Return a call with a JSON body, whose response `read_answer` reads.

    Raises:
        InvalidTextError: if a text in the body is not Unicode.
    """
    return Call(
        method,
        path,
        read_answer,
        encode_json(fields),
        {"accept": accept, "content-type": JSON},
        changes_state=changes_state,
    )


def select_fields(options: Mapping[str, Any], known: type) -> dict[str, Any]:
    """Return the options that are not None, as a dict. `known` is the TypedDict with the names of all options.

    Raises:
        TypeError: for an option that it does not have.
    """
    names = get_type_hints(known)  # those of its bases too
    for name in options:
        if name not in names:
            raise TypeError(f"there is no option {name!r}; there are: {', '.join(sorted(names))}")
    return {name: value for name, value in options.items() if value is not None}


def read_object(response: httpx2.Response) -> dict[str, Any]:
    """Return the JSON object of a response.

    Raises:
        TypeError: if it holds something else.
    """
    content = response.json()
    if not isinstance(content, dict):
        raise TypeError(f"it holds a {type(content).__name__} where an object should be")
    return content


def _read_list(response: httpx2.Response) -> list[dict[str, Any]]:
    """Return the JSON list of a response.

    Raises:
        TypeError: if it holds something else.
    """
    content = response.json()
    if not isinstance(content, list):
        raise TypeError(f"it holds a {type(content).__name__} where a list should be")
    return content
