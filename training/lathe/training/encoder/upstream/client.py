"""One call to an embeddings API, which returns an answer or raises a `CallError`.

CallError (Exception)
├── retryable      429, 408, 5xx, no connection, a time-out, a cut connection, a body that is not JSON
└── not retryable  400, 401, 403, 404, 413, 422, a redirect, JSON of another shape: another try would fail as this one
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from lathe.training.encoder.spec import UpstreamSpec
from lathe.training.encoder.upstream.protocols import PROTOCOLS, ApiAnswer, CallOptions, MalformedAnswerError
from lathe.training.endpoint import parse_retry_after
from lathe.training.endpoint_client import (
    RATE_LIMIT,
    REDIRECTS,
    REFUSALS,
    EndpointClient,
    NoResponseError,
    Received,
    extract_message,
)

NUMBER_BYTES = 32
"""Maximum bytes of a number in an answer: a double has up to 24 characters, with a comma and white space."""
OTHER_BYTES = 1_000_000
"""Maximum bytes of an answer besides the numbers of its vectors."""
OTHER_VALUES = 10_000
"""Maximum JSON values of an answer besides those of its vectors."""
MAX_CALL_BYTES = 64_000_000
"""Maximum bytes of all numbers of an answer. A call has no more texts than that allows."""
MAX_DIMENSIONS = 16_384
"""Maximum dimensions of an API's vectors, which are not known before its first answer."""
KEY_STATUSES = (401, 403)
"""HTTP statuses of a refused key, whose messages are not repeated: some quote a part of the key."""
TEXT_STATUSES = (400, 413, 422)
"""HTTP statuses that may be due to one text of a call."""
ENCODING_STATUSES = (0, 400, 415, 422, 500, 501)
"""HTTP statuses of servers that know no base64. 0 is an answer without vectors."""


class CallError(Exception):
    """Error of a call that returned no vectors.

    Attributes:
        retryable: whether a retry may succeed.
        status: HTTP status; 0 if there was no response, or one with a success status but without vectors.
        retry_after: seconds that the API asks to wait; None if it does not ask.
        no_response: whether there was no response, or one that is too large.
    """

    def __init__(
        self,
        message: str,
        retryable: bool,
        status: int = 0,
        retry_after: float | None = None,
        no_response: bool = False,
    ) -> None:
        super().__init__(message)
        self.retryable, self.status, self.retry_after = retryable, status, retry_after
        self.no_response = no_response

    @property
    def limited(self) -> bool:
        """Whether the API refused because of a rate limit."""
        return self.status == RATE_LIMIT

    @property
    def blames_text(self) -> bool:
        """Whether one of the texts may be the reason."""
        return self.status in TEXT_STATUSES


def count_call_texts(dimensions: int) -> int:
    """Return the maximum number of texts of a call whose vectors have so many dimensions.

    Args:
        dimensions: dimensions of each vector in the answer.
    """
    return max(1, MAX_CALL_BYTES // (dimensions * NUMBER_BYTES))


class UpstreamClient:
    """Connections to an embeddings API, used by one event loop.

    What the API says of its model or of an error has no key in it and is cut, here, before anyone else sees it.

    Args:
        spec: the API.
        key: API key; None for none. It is sent to the address of the spec only.

    Attributes:
        base64: whether calls ask for base64, as those of OpenAI's protocol do until a server turns out to know none.
        answered: whether a call was answered, so that the server is known to understand what is asked for.
        dimensions: maximum dimensions of the vectors in an answer.
    """

    def __init__(self, spec: UpstreamSpec, key: str | None) -> None:
        self.spec, self.key = spec, key
        self.protocol = PROTOCOLS[spec.protocol]
        self.base64 = spec.protocol == "openai"
        self.answered = False
        self.dimensions = spec.dimensions or MAX_DIMENSIONS
        self.client = EndpointClient(key, spec.timeout, spec.concurrency)

    async def close(self) -> None:
        """Close the connections."""
        await self.client.close()

    async def embed(self, texts: Sequence[str], options: CallOptions) -> ApiAnswer:
        """Send one call for the texts' vectors to the API, and return its answer.

        If it fails and none was answered before, the call is made once more without asking for base64. If that
        succeeds, no later call asks for it. Other failures are not retried.

        Raises:
            CallError: if the answer does not hold one vector for each text.
        """
        try:
            answer = await self._embed(texts, options, self.base64)
        except CallError as error:
            if self.answered or not self.base64 or error.status not in ENCODING_STATUSES or error.no_response:
                raise
            try:
                answer = await self._embed(texts, options, base64=False)
            except CallError:
                raise error from None
            self.base64 = False

        self.answered = True
        return answer

    async def _embed(self, texts: Sequence[str], options: CallOptions, base64: bool) -> ApiAnswer:
        body = self.protocol.build_body(self.spec, texts, options)
        if not base64:
            body.pop("encoding_format", None)

        received = await self._post(orjson.dumps(body), OTHER_BYTES + len(texts) * self.dimensions * NUMBER_BYTES)
        self._require_plausible(received.payload, len(texts))
        content = self._parse_json(received)

        try:
            answer = self.protocol.read_answer(content, received.headers, len(texts))
        except MalformedAnswerError as error:
            message = f": {extract_message(content)}" if isinstance(content, dict) and "error" in content else ""
            raise CallError(self.client.redact(f"it answered {error}{message}"), retryable=False) from None

        return replace(answer, stated={name: self.client.redact(value) for name, value in answer.stated.items()})

    def _require_plausible(self, payload: bytes, texts: int) -> None:
        """Check that a JSON answer has no more values than the vectors of so many texts need, before it is parsed.

        Parsed, 60 MB of empty lists would take gigabytes, and seconds in which this process does nothing else.

        Raises:
            CallError: if it has far more.
        """
        containers = payload.count(b"[") + payload.count(b"{")
        values = payload.count(b",")
        if containers > OTHER_VALUES + 8 * texts or values > OTHER_VALUES + texts * (self.dimensions + 16):
            raise CallError(
                f"it answered {values:,} values in {containers:,} lists and objects for {texts} texts", retryable=False
            )

    async def _post(self, content: bytes, limit: int) -> Received:
        """Send the JSON body of a call to the API, and return the whole response.

        Args:
            content: JSON body.
            limit: maximum bytes of the response.

        Raises:
            CallError: if no response comes, it is too large, or its status is not a success.
        """
        try:
            received = await self.client.post(f"{self.spec.url.rstrip('/')}{self.protocol.path}", content, limit)
        except NoResponseError as error:
            retryable = error.kind not in ("too large", "encoded")
            raise CallError(str(error), retryable, no_response=True) from None

        if received.status >= REDIRECTS:
            raise self._build_status_error(received)

        return received

    def _parse_json(self, received: Received) -> Any:
        """Parse the payload of a response as JSON, and return its value.

        Raises:
            CallError: if it is not JSON, which is retryable: a proxy may answer for a server that restarts.
        """
        try:
            return orjson.loads(received.payload)
        except orjson.JSONDecodeError:
            kind = self.client.redact(received.headers.get("content-type", "nothing it names"))
            raise CallError(f"not JSON but {kind} came back", retryable=True) from None

    def _build_status_error(self, received: Received) -> CallError:
        """Return the error for a response with an HTTP status from 300 on, without raising it. It has the API's own
        message, unless the key was refused.
        """
        status, headers = received.status, received.headers
        if status < REFUSALS:
            return CallError(f"it answered {status}, a redirect, which is not followed", False, status)
        if status in KEY_STATUSES:
            sender = f"the key in {self.spec.api_key_env}" if self.spec.api_key_env else "calls without a key"
            return CallError(f"it refuses {sender} ({status})", False, status)

        try:
            message = extract_message(orjson.loads(received.payload))
        except orjson.JSONDecodeError:
            message = received.reason  # a page for browsers says no more

        after = parse_retry_after(headers.get("retry-after")) if received.retryable else None
        return CallError(f"it answered {status}: {self.client.redact(message)}", received.retryable, status, after)
