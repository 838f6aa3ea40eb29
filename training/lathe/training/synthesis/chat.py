"""OpenAI's chat completions protocol: one request, and one answer or one kind of failure.

ChatError (Exception)
├── retryable      429, 408, 5xx, no connection, a time-out, a cut connection, a response that is no answer
└── not retryable  401, 403, 404, 400 …: another try would fail the same way

Requests go to the endpoint alone: redirects are not followed, proxies and .netrc of the environment are not used. The
openai package sends every endpoint the headers that OPENAI_CUSTOM_HEADERS names and a description of the machine, and
reads a response of any size; with its retries, neither budget nor rate limits would see each request.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import httpx2
import orjson

from lathe.training.endpoint import parse_retry_after
from lathe.training.synthesis.endpoint import Endpoint
from lathe.training.synthesis.job import EndpointSettings

CONNECT_SECONDS = 15.0
"""Maximum time to connect, in seconds."""
MAX_ANSWER_BYTES = 16_000_000
"""Maximum size of a response; a larger one is no answer."""
BYTES_PER_TOKEN = 4
"""Approximate UTF-8 bytes of a token, to estimate tokens if the endpoint does not count them."""
MAX_QUOTED = 200
"""Maximum number of characters of an endpoint's own text that an error message repeats."""
UNAUTHORIZED = 401
"""HTTP status of a rejected key."""
RATE_LIMIT, REQUEST_TIMEOUT, SERVER_ERRORS = 429, 408, 500
"""HTTP statuses that can be retried; server errors are all from 500 on."""
REDIRECTS, REFUSALS = 300, 400
"""Lowest HTTP statuses of redirects and of refusals."""
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
class Answer:
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
        headers = {"authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
        self.client = httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(settings.timeout, connect=min(CONNECT_SECONDS, settings.timeout)),
            limits=httpx2.Limits(max_connections=None),
            trust_env=False,
        )

    async def __aexit__(self, *_: object) -> None:
        """Close the connection."""
        await self.client.aclose()

    async def ask(self, model: str, prompt: str, parameters: Mapping[str, Any]) -> Answer:
        """Send one request and return its answer; there is no retry.

        Raises:
            ChatError: if no answer comes.
        """
        body = {"model": model, "messages": [{"role": "user", "content": prompt}], **parameters}
        try:
            async with asyncio.timeout(self.settings.timeout):  # of the whole, however slowly it drips
                response, payload = await self._send(orjson.dumps(body))
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise ChatError(TIME_OUT, f"no answer within {self.settings.timeout:g} s", retryable=True) from error
        except (httpx2.ConnectError, httpx2.InvalidURL) as error:
            raise ChatError("no connection", f"no connection: {self._redact(str(error))}", retryable=True) from error
        except httpx2.HTTPError as error:
            message = f"the connection was cut: {self._redact(str(error))}"
            raise ChatError("cut connection", message, retryable=True) from error
        if response.status_code >= REDIRECTS:
            raise self._build_status_error(response, payload)
        return _read_answer(self._decode_response(response, payload), prompt)

    async def _send(self, body: bytes) -> tuple[httpx2.Response, bytes]:
        """Post a body to the endpoint, and return the response and its whole payload.

        Raises:
            ChatError: if the payload has more than `MAX_ANSWER_BYTES` bytes.
        """
        kind = {"content-type": "application/json", "accept": "application/json"}
        url = f"{self.endpoint.url}/chat/completions"
        async with self.client.stream("POST", url, content=body, headers=kind) as response:
            payload = bytearray()
            async for part in response.aiter_bytes():
                payload += part
                if len(payload) > MAX_ANSWER_BYTES:
                    raise ChatError("not JSON", f"more than {MAX_ANSWER_BYTES:,} bytes came back", retryable=True)
        return response, bytes(payload)

    def _decode_response(self, response: httpx2.Response, payload: bytes) -> dict[str, Any]:
        """Decode a payload and return it as a JSON object that has a list of choices.

        Raises:
            ChatError: if it is not such an object, or holds an error message.
        """
        try:
            found = orjson.loads(payload)
        except orjson.JSONDecodeError as error:
            kind = response.headers.get("content-type", "nothing it names")
            message = f"not JSON but {kind} came back: {self._redact(payload.decode('utf-8', 'replace'))!r}"
            raise ChatError("not JSON", message, retryable=True) from error
        if isinstance(found, dict) and found.get("error"):
            raise ChatError(
                "other JSON", f"an error came back: {self._redact(_extract_message(found))}", retryable=True
            )
        if not isinstance(found, dict) or not isinstance(found.get("choices"), list):
            said = self._redact(payload.decode("utf-8", "replace"))
            raise ChatError("other JSON", f"JSON without choices came back: {said}", retryable=True)
        return found

    def _build_status_error(self, response: httpx2.Response, payload: bytes) -> ChatError:
        """Build, without raising, the error for an HTTP status from 300 on, with the endpoint's message.

        Statuses 429, 408 and from 500 on may be retried, after the wait that the endpoint names; others may not.
        """
        status = response.status_code
        try:
            said = self._redact(_extract_message(orjson.loads(payload)))
        except orjson.JSONDecodeError:
            said = self._redact(payload.decode("utf-8", "replace"))
        message = f"{status}: {said or response.reason_phrase}"
        if status in (RATE_LIMIT, REQUEST_TIMEOUT) or status >= SERVER_ERRORS:
            kind = "rate limit" if status == RATE_LIMIT else f"server error {status}"
            retry_after = parse_retry_after(response.headers.get("retry-after"))
            return ChatError(kind, message, True, status, retry_after)
        if status < REFUSALS:
            where = self._redact(response.headers.get("location", "nowhere"))
            message = f"{status}: it points to {where}, which is not followed"
        return ChatError(f"refused with {status}", message, retryable=False, status=status)

    def _redact(self, text: str) -> str:
        """Return an endpoint's text for a message: without the key, on one line, at most `MAX_QUOTED` characters."""
        text = text.replace(self.endpoint.key, "…") if self.endpoint.key else text
        return " ".join(text.split())[:MAX_QUOTED]


def _extract_message(found: Any) -> str:
    """Return the error message in a JSON response, whatever its layout; as JSON if it is no string."""
    error = found.get("error", found) if isinstance(found, dict) else found
    message = error.get("message", error) if isinstance(error, dict) else error
    return message if isinstance(message, str) else orjson.dumps(message).decode()


def _read_answer(found: Mapping[str, Any], prompt: str) -> Answer:
    """Build the answer from the first choice of a response; estimate the tokens if the endpoint did not count them.

    A refusal without text becomes an answer with the finish reason `content_filter`.

    Raises:
        ChatError: if the first choice has no message.
    """
    try:
        choice = found["choices"][0]
        message = choice["message"]
        content, refusal = message.get("content"), message.get("refusal")
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ChatError("other JSON", "JSON without a message came back", retryable=True) from error
    said, refused, reason = _extract_text(content), _extract_text(refusal), choice.get("finish_reason")
    counts = _read_token_counts(found.get("usage"))
    prompt_tokens, completion_tokens = counts or (estimate_tokens(prompt), estimate_tokens(said or refused))
    return Answer(
        text=said or refused,
        finish_reason="content_filter" if refused and not said else reason if isinstance(reason, str) else "",
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        counted=counts is not None,
    )


def _read_token_counts(usage: Any) -> tuple[int, int] | None:
    """Return the tokens of prompt and answer that the endpoint counted; None if the counts are missing or malformed."""
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if isinstance(prompt, int) and isinstance(completion, int) and prompt >= 0 and completion >= 0:
        return prompt, completion
    return None


def _extract_text(content: Any) -> str:
    """Return a message's text, joining the parts if it is a list of them; "" for anything else."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def estimate_tokens(text: str) -> int:
    """Estimate the number of tokens of a text, from its length in bytes; at least 1."""
    return 1 + len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN
