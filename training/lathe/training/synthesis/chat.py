"""OpenAI's chat completions protocol: one request, and one answer or one kind of failure.

ChatError (Exception)
├── retryable      429, 408, 5xx, no connection, a time-out, a cut connection, a response that is no answer
└── not retryable  401, 403, 404, 400 …: another try would fail the same way
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import orjson

from lathe.training.endpoint import parse_retry_after, read_key, split_address
from lathe.training.endpoint_client import (
    RATE_LIMIT,
    REDIRECTS,
    REFUSALS,
    EndpointClient,
    NoResponseError,
    Received,
    extract_message,
)
from lathe.training.errors import JobError
from lathe.training.synthesis.job import EndpointSettings


@dataclass(frozen=True)
class Endpoint:
    """Address and key of an endpoint.

    The key is left out of the repr.

    Attributes:
        url: address that `/chat/completions` is appended to.
        host: host, with the port if there is one.
        key: API key; None for an endpoint without keys.
    """

    url: str
    host: str
    key: str | None = field(repr=False)


def open_endpoint(settings: EndpointSettings) -> Endpoint:
    """Check an endpoint's settings and read its key from the environment. Returns the address, the host and the key,
    and nothing is connected.

    Raises:
        JobError: if the address is not valid, or there is no key.
    """
    url = settings.base_url.rstrip("/")
    try:
        parts = split_address(url, "endpoint.base_url", "http://localhost:8000/v1")
        key = None if settings.key_variable is None else read_key(settings.key_variable, "endpoint.key_variable")
    except ValueError as error:
        raise JobError(str(error)) from error

    if parts.path.endswith("/completions"):
        raise JobError(f"endpoint.base_url is what /chat/completions is added to; leave that off {url!r}")

    return Endpoint(url, f"{parts.hostname}{f':{parts.port}' if parts.port else ''}", key)


MAX_ANSWER_BYTES = 16_000_000
"""Maximum size of a response; a larger one is no answer."""
BYTES_PER_TOKEN = 4
"""Approximate UTF-8 bytes of a token, to estimate tokens if the endpoint does not count them."""
UNAUTHORIZED = 401
"""HTTP status of a rejected key."""
TIME_OUT = "time-out"
"""Kind of a failure without an answer in time, for example while a model is being loaded."""


class ChatError(Exception):
    """Error of a request that got no answer.

    Attributes:
        kind: short description, by which failures are counted.
        retryable: whether a retry may succeed.
        status: HTTP status; 0 if there was no response.
        retry_after: seconds that the endpoint asks to wait before a retry; None if it does not.
    """

    def __init__(
        self, kind: str, message: str, retryable: bool, status: int = 0, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind, self.retryable, self.status, self.retry_after = kind, retryable, status, retry_after


@dataclass(frozen=True)
class ChatAnswer:
    """Answer of a language model.

    Attributes:
        text: text of the answer or of the refusal; may be empty.
        finish_reason: why it ends: `stop`, `length`, `content_filter`, or "" if unknown.
        prompt_tokens: tokens of the prompt, as the endpoint counted them.
        completion_tokens: tokens of the answer, as the endpoint counted them.
        counted: False if the endpoint counts no tokens, and both numbers are estimated from lengths.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    counted: bool


class Chat(AbstractAsyncContextManager["Chat"]):
    """Connection to an endpoint, an asynchronous context manager.

    Args:
        endpoint: address and key.
        settings: settings of the endpoint.
    """

    def __init__(self, endpoint: Endpoint, settings: EndpointSettings) -> None:
        self.endpoint, self.settings = endpoint, settings
        self.client = EndpointClient(endpoint.key, settings.timeout)

    async def __aexit__(self, *_: object) -> None:
        """Close the connection."""
        await self.client.close()

    async def ask(self, model: str, prompt: str, parameters: Mapping[str, Any]) -> ChatAnswer:
        """Send one prompt to a model of the endpoint and return the answer. There is no retry.

        Raises:
            ChatError: if no answer comes.
        """
        body = {"model": model, "messages": [{"role": "user", "content": prompt}], **parameters}
        try:
            received = await self.client.post(
                f"{self.endpoint.url}/chat/completions", orjson.dumps(body), MAX_ANSWER_BYTES
            )
        except NoResponseError as error:
            kind = "not JSON" if error.kind in ("too large", "encoded") else error.kind
            raise ChatError(kind, str(error), retryable=True) from error

        if received.status >= REDIRECTS:
            raise self._build_status_error(received)

        return _read_answer(self._decode_response(received), prompt)

    def _decode_response(self, received: Received) -> dict[str, Any]:
        """Decode a response's payload as JSON, and return the object, which has a list of choices.

        Raises:
            ChatError: if it is not such an object, or holds an error message.
        """
        try:
            response = orjson.loads(received.payload)
        except orjson.JSONDecodeError as error:
            kind = self.client.redact(received.headers.get("content-type", "nothing it names"))
            quoted = self.client.redact(received.payload.decode("utf-8", "replace"))
            raise ChatError("not JSON", f"not JSON but {kind} came back: {quoted!r}", retryable=True) from error

        if isinstance(response, dict) and response.get("error"):
            raise ChatError(
                "other JSON", f"an error came back: {self.client.redact(extract_message(response))}", retryable=True
            )
        if not isinstance(response, dict) or not isinstance(response.get("choices"), list):
            quoted = self.client.redact(received.payload.decode("utf-8", "replace"))
            raise ChatError("other JSON", f"JSON without choices came back: {quoted}", retryable=True)

        return response

    def _build_status_error(self, received: Received) -> ChatError:
        """Return the error for a response with an HTTP status from 300 on, with the endpoint's message. It is not
        raised here.

        Statuses 429, 408 and from 500 on may be retried, after the wait that the endpoint names; others may not.
        """
        status = received.status
        try:
            quoted = self.client.redact(extract_message(orjson.loads(received.payload)))
        except orjson.JSONDecodeError:
            quoted = self.client.redact(received.payload.decode("utf-8", "replace"))

        message = f"{status}: {quoted or received.reason}"
        if received.retryable:
            kind = "rate limit" if status == RATE_LIMIT else f"server error {status}"
            retry_after = parse_retry_after(received.headers.get("retry-after"))
            return ChatError(kind, message, True, status, retry_after)

        if status < REFUSALS:
            where = self.client.redact(received.headers.get("location", "nowhere"))
            message = f"{status}: it points to {where}, which is not followed"

        return ChatError(f"refused with {status}", message, retryable=False, status=status)


def _read_answer(response: Mapping[str, Any], prompt: str) -> ChatAnswer:
    """Build the answer from the first choice of a chat completion's JSON. The tokens of prompt and answer are estimated
    if the endpoint did not count them.

    A refusal without text becomes an answer with the finish reason `content_filter`.

    Raises:
        ChatError: if the first choice has no message.
    """
    try:
        choice = response["choices"][0]
        message = choice["message"]
        content, refusal = message.get("content"), message.get("refusal")
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ChatError("other JSON", "JSON without a message came back", retryable=True) from error

    text, refused, reason = _extract_text(content), _extract_text(refusal), choice.get("finish_reason")
    counts = _read_token_counts(response.get("usage"))
    prompt_tokens, completion_tokens = counts or (estimate_tokens(prompt), estimate_tokens(text or refused))
    finish_reason = reason if isinstance(reason, str) else ""

    return ChatAnswer(
        text=text or refused,
        finish_reason="content_filter" if refused and not text else finish_reason,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        counted=counts is not None,
    )


def _read_token_counts(usage: Any) -> tuple[int, int] | None:
    """Return the tokens of prompt and answer that the endpoint counted. The result is None if the counts are missing or
    malformed.
    """
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if isinstance(prompt, int) and isinstance(completion, int) and prompt >= 0 and completion >= 0:
        return prompt, completion
    return None


def _extract_text(content: Any) -> str:
    """Return a message's text, with the parts joined if the content is a list of them. Any other content gives ""."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def estimate_tokens(text: str) -> int:
    """Estimate the number of tokens of a text, at least 1, from its length in bytes."""
    return 1 + len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN
