"""HTTP client of one endpoint: one POST request, and its whole response or a `NoResponseError`, without a retry.

Requests go to the endpoint alone: redirects are not followed, and nothing is taken from the environment, neither
proxies nor .netrc. The providers' own clients bring their own retries, which rate limits, budgets and the circuit
breaker would not see, follow redirects with the key, take headers from the environment, and read a response of any
size.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import httpx2
import orjson

CONNECT_SECONDS = 15.0
"""Maximum time to connect, in seconds."""
MAX_QUOTED = 200
"""Maximum number of characters of an endpoint's own text that an error message repeats."""
RATE_LIMIT, REQUEST_TIMEOUT, SERVER_ERRORS = 429, 408, 500
"""HTTP statuses that can be retried; server errors are all from 500 on."""
REDIRECTS, REFUSALS = 300, 400
"""Lowest HTTP statuses of redirects and of refusals."""


@dataclass(frozen=True)
class Received:
    """Response to a request: HTTP status, reason phrase, headers and whole payload."""

    status: int
    reason: str
    headers: Mapping[str, str]
    payload: bytes

    @property
    def retryable(self) -> bool:
        """Whether the status says that a retry may succeed."""
        return self.status in (RATE_LIMIT, REQUEST_TIMEOUT) or self.status >= SERVER_ERRORS


FailureKind = Literal["time-out", "no connection", "cut connection", "too large", "encoded"]
"""What went wrong with a request that got no whole response."""


class NoResponseError(Exception):
    """Error of a request without a whole response.

    Attributes:
        kind: what went wrong.
    """

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class EndpointClient:
    """Connections to an endpoint, used by one event loop.

    Args:
        key: API key, sent as a bearer token; None for none.
        timeout: maximum time of a whole response, in seconds.
        kept: maximum number of idle connections to keep; None for no limit.
    """

    def __init__(self, key: str | None, timeout: float, kept: int | None = None) -> None:
        self.key, self.timeout = key, timeout
        headers = {
            "accept": "application/json",
            "accept-encoding": "identity",  # decompressed, a small response can be of any size
            "content-type": "application/json",
        }
        self.client = httpx2.AsyncClient(
            headers=headers | ({"authorization": f"Bearer {key}"} if key else {}),
            timeout=httpx2.Timeout(timeout, connect=min(CONNECT_SECONDS, timeout)),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=kept),
            trust_env=False,
            follow_redirects=False,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self.client.aclose()

    async def post(self, url: str, content: bytes, limit: int) -> Received:
        """Send a JSON body to a URL of the endpoint, and return the whole response, whatever its status.

        Args:
            url: URL of the endpoint.
            content: JSON body.
            limit: maximum size of the response, in bytes.

        Raises:
            NoResponseError: if there is none within the time limit, or it is too large.
        """
        try:
            async with (
                asyncio.timeout(self.timeout),  # of the whole response: httpx2 limits only each read
                self.client.stream("POST", url, content=content) as response,
            ):
                encoding = response.headers.get("content-encoding", "identity")
                if encoding != "identity":
                    raise NoResponseError("encoded", f"a response in {self.redact(encoding)}, not plain, came back")
                payload = bytearray()
                async for part in response.aiter_raw():
                    payload += part
                    if len(payload) > limit:
                        raise NoResponseError("too large", f"more than {limit:,} bytes came back")
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise NoResponseError("time-out", f"no answer within {self.timeout:g} s") from error
        except (httpx2.ConnectError, httpx2.InvalidURL) as error:
            raise NoResponseError("no connection", f"no connection: {self.redact(str(error))}") from error
        except httpx2.HTTPError as error:
            raise NoResponseError("cut connection", f"the connection was cut: {self.redact(str(error))}") from error

        return Received(response.status_code, response.reason_phrase, response.headers, bytes(payload))

    def redact(self, text: str) -> str:
        """Return an endpoint's text for a message: without the key, on one line, at most `MAX_QUOTED` characters."""
        text = text.replace(self.key, "…") if self.key else text
        return " ".join(text.split())[:MAX_QUOTED]


def extract_message(found: Any) -> str:
    """Return the error message in a JSON response, wherever common layouts have it. If it is not a string, it is
    returned as JSON text.
    """
    error = found.get("error", found) if isinstance(found, dict) else found
    message = error.get("message", error) if isinstance(error, dict) else error
    return message if isinstance(message, str) else orjson.dumps(message).decode()
