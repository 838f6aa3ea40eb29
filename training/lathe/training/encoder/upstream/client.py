"""One call to an embeddings API, which returns an answer or raises a `CallError`.

CallError (Exception)
├── retryable      429, 408, 5xx, no connection, a time-out, a cut connection, a body that is not JSON
└── not retryable  400, 401, 403, 404, 413, 422, a redirect, JSON of another shape: another try would fail as this one

httpx2 is used, not the providers' own clients: two protocols need one field or two each, while every one of those
clients brings its own retries, which rate limits and the circuit breaker would not see, follows redirects with the key,
takes proxies and headers from the environment, and reads an answer of any size.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import orjson

from lathe.training.encoder.spec import UpstreamSpec
from lathe.training.encoder.upstream.protocols import PROTOCOLS, Answer, CallOptions, MalformedAnswerError
from lathe.training.endpoint import parse_retry_after

CONNECT_SECONDS = 15.0
"""Maximum time to connect, in seconds."""
MAX_ANSWER_BYTES = 256_000_000
"""Maximum size of an answer; a larger one is refused. 2,048 vectors of 4,096 numbers take 180 MB as JSON."""
MAX_QUOTED = 200
"""Maximum number of characters of an API's own text that an error message repeats."""
KEY_STATUSES = (401, 403)
"""HTTP statuses of a refused key, whose messages are not repeated: some quote a part of the key."""
TEXT_STATUSES = (400, 413, 422)
"""HTTP statuses that may be due to one text of a call."""
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


class CallError(Exception):
    """Error of a call that returned no vectors.

    Attributes:
        retryable: whether a retry may succeed.
        status: HTTP status; 0 if there was no response, or one with a success status but without vectors.
        retry_after: seconds that the API asks to wait; None if it does not ask.
    """

    def __init__(self, message: str, retryable: bool, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retryable, self.status, self.retry_after = retryable, status, retry_after

    @property
    def limited(self) -> bool:
        """Whether the API refused because of a rate limit."""
        return self.status == RATE_LIMIT

    @property
    def blames_text(self) -> bool:
        """Whether one of the texts may be the reason."""
        return self.status in TEXT_STATUSES


class UpstreamClient:
    """Connections to an embeddings API; used by one event loop.

    Args:
        spec: the API.
        key: API key; None for none. It is sent to the address of the spec only.

    Attributes:
        base64: whether the OpenAI protocol asks for base64, which some servers refuse.
    """

    def __init__(self, spec: UpstreamSpec, key: str | None) -> None:
        self.spec, self.key = spec, key
        self.protocol = PROTOCOLS[spec.protocol]
        self.base64 = True
        self.client = httpx2.AsyncClient(
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(spec.timeout, connect=min(CONNECT_SECONDS, spec.timeout)),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=spec.concurrency),
            trust_env=False,
            follow_redirects=False,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self.client.aclose()

    async def embed(self, texts: Sequence[str], options: CallOptions) -> Answer:
        """Make one call, without a retry, and return its answer.

        Raises:
            CallError: if the answer does not hold one vector for each text.
        """
        body = self.protocol.build_body(self.spec, texts, options)
        if not self.base64:
            body.pop("encoding_format", None)
        received = await self._post(orjson.dumps(body))
        found = self._parse_json(received)
        try:
            return self.protocol.read_answer(found, received.headers, len(texts))
        except MalformedAnswerError as error:
            said = self._redact(_extract_message(found)) if isinstance(found, dict) and "error" in found else ""
            raise CallError(f"it answered {error}{said and f': {said}'}", retryable=False) from None

    async def _post(self, content: bytes) -> Received:
        """Send the body of a call and return the whole response, within the time limit.

        Raises:
            CallError: if no response comes, it is too large, or its status is not a success.
        """
        try:
            async with asyncio.timeout(self.spec.timeout):  # of the whole response: httpx2 limits only each read
                received = await self._exchange(f"{self.spec.url.rstrip('/')}{self.protocol.path}", content)
        except (TimeoutError, httpx2.TimeoutException):
            raise CallError(f"no answer within {self.spec.timeout:g} s", retryable=True) from None
        except httpx2.ConnectError as error:
            raise CallError(f"no connection: {self._redact(str(error))}", retryable=True) from None
        except httpx2.HTTPError as error:
            raise CallError(f"the connection was cut: {self._redact(str(error))}", retryable=True) from None
        if received.status >= REDIRECTS:
            raise self._build_status_error(received)
        return received

    async def _exchange(self, url: str, content: bytes) -> Received:
        """Send a request and read its whole response, whatever its status.

        Raises:
            CallError: if the response is larger than `MAX_ANSWER_BYTES`.
            TimeoutError, httpx2.HTTPError: as the connection raises them; `_post` converts them.
        """
        kind = {"accept": "application/json", "content-type": "application/json"}
        async with self.client.stream("POST", url, content=content, headers=kind) as response:
            payload = bytearray()
            async for part in response.aiter_bytes():
                payload += part
                if len(payload) > MAX_ANSWER_BYTES:
                    raise CallError(f"more than {MAX_ANSWER_BYTES:,} bytes came back", retryable=False)
        return Received(response.status_code, response.reason_phrase, response.headers, bytes(payload))

    def _parse_json(self, received: Received) -> Any:
        """Return the parsed JSON of a response.

        Raises:
            CallError: if it is not JSON, which is retryable: a proxy may answer for a server that restarts.
        """
        try:
            return orjson.loads(received.payload)
        except orjson.JSONDecodeError:
            kind = self._redact(received.headers.get("content-type", "nothing it names"))
            raise CallError(f"not JSON but {kind} came back", retryable=True) from None

    def _build_status_error(self, received: Received) -> CallError:
        """Build, without raising, the error for an HTTP status from 300 on.

        It has the API's own message, unless the key was refused.
        """
        status, headers = received.status, received.headers
        if status < REFUSALS:
            return CallError(f"it answered {status}, a redirect, which is not followed", False, status)
        if status in KEY_STATUSES:
            named = f"the key in {self.spec.api_key_env}" if self.spec.api_key_env else "calls without a key"
            return CallError(f"it refuses {named} ({status})", False, status)
        retryable = status in (RATE_LIMIT, REQUEST_TIMEOUT) or status >= SERVER_ERRORS
        try:
            said = _extract_message(orjson.loads(received.payload))
        except orjson.JSONDecodeError:
            said = received.reason  # a page for browsers says no more
        after = parse_retry_after(headers.get("retry-after")) if retryable else None
        return CallError(f"it answered {status}: {self._redact(said)}", retryable, status, after)

    def _redact(self, text: str) -> str:
        """Return an API's text for a message: without the key, on one line, at most `MAX_QUOTED` characters."""
        text = text.replace(self.key, "…") if self.key else text
        return " ".join(text.split())[:MAX_QUOTED]


def _extract_message(found: Any) -> str:
    """Return the error message in a JSON answer, whatever its layout; as JSON if it is no string."""
    error = found.get("error", found) if isinstance(found, dict) else found
    message = error.get("message", error) if isinstance(error, dict) else error
    return message if isinstance(message, str) else orjson.dumps(message).decode()
