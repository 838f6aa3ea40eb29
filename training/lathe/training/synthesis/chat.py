"""OpenAI's chat completions protocol: one request to an endpoint, and the answer or a `CallError`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from lathe.training.endpoint import read_key, split_address
from lathe.training.endpoint_client import UNREADABLE, CallError, EndpointClient, extract_message
from lathe.training.errors import JobError
from lathe.training.synthesis.job import EndpointSettings


@dataclass(frozen=True)
class Endpoint:
    """Address and key of an endpoint of the chat completions protocol. The key is left out of the repr.

    Attributes:
        url: address that `/chat/completions` is appended to.
        host: host, followed by the port if the address has one.
        key: API key; None for an endpoint without keys.
    """

    url: str
    host: str
    key: str | None = field(repr=False)


def read_endpoint(settings: EndpointSettings) -> Endpoint:
    """Read an endpoint's address from settings and the API key from the environment. An invalid address raises.

    Raises:
        JobError: if the address is not valid, or the environment variable of the key is not set.
    """
    url = settings.base_url.rstrip("/")
    try:
        parts = split_address(url, "endpoint.base_url", "http://localhost:8000/v1")
        key = None if settings.key_variable is None else read_key(settings.key_variable, "endpoint.key_variable")
    except ValueError as error:
        raise JobError(str(error)) from error

    if parts.path.endswith("/completions"):
        raise JobError(f"endpoint.base_url is {url!r}; leave /chat/completions out, it is appended")

    return Endpoint(url, f"{parts.hostname}{f':{parts.port}' if parts.port else ''}", key)


MAX_ANSWER_BYTES = 16_000_000
"""Maximum size of a response. A larger response is not an answer."""
BYTES_PER_TOKEN = 4
"""Approximate UTF-8 bytes of a token, to estimate tokens if the endpoint does not count them."""
NOT_JSON, OTHER_JSON = "not JSON", "other JSON"
"""Kinds of failures for a response with a success status that is not an answer."""


@dataclass(frozen=True)
class ChatAnswer:
    """Answer of a language model.

    Attributes:
        text: text of the answer or of the refusal; may be empty.
        finish_reason: why the answer ends: `stop`, `length`, `content_filter`, or "" if unknown.
        prompt_tokens: number of tokens of the prompt.
        completion_tokens: number of tokens of the answer.
        counted: whether the endpoint counted the tokens. If not, both numbers are estimated from lengths.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    counted: bool


async def ask_model(
    client: EndpointClient, endpoint: Endpoint, model: str, prompt: str, parameters: Mapping[str, Any]
) -> ChatAnswer:
    """Send one prompt to a model, without retries, and return the answer. Raise `CallError` if there is none.

    Raises:
        CallError: if the request fails, or the response is not an answer.
    """
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], **parameters}
    try:
        headers, payload = await client.post(f"{endpoint.url}/chat/completions", orjson.dumps(body), MAX_ANSWER_BYTES)
    except CallError as error:
        if error.kind == UNREADABLE:  # a model that did not stop writing may stop at the next attempt
            raise CallError(NOT_JSON, str(error), retryable=True) from error
        raise

    quoted = client.redact(payload.decode("utf-8", "replace"))
    try:
        response = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        kind = client.redact(headers.get("content-type", "an unknown type"))
        raise CallError(NOT_JSON, f"the response is not JSON but {kind}: {quoted!r}", retryable=True) from error

    # The status is a success, so only the body tells that there is no answer.
    if isinstance(response, dict) and response.get("error"):
        message = client.redact(extract_message(response))
        raise CallError(OTHER_JSON, f"the response is an error: {message}", retryable=True)
    if not isinstance(response, dict) or not isinstance(response.get("choices"), list):
        raise CallError(OTHER_JSON, f"the response is JSON without choices: {quoted}", retryable=True)

    return _read_answer(response, prompt)


def _read_answer(response: Mapping[str, Any], prompt: str) -> ChatAnswer:
    """Read the answer of a chat completion's first choice, with estimates of uncounted tokens. Raise without message.

    A refusal without content becomes an answer with the text of the refusal and the finish reason `content_filter`.

    Raises:
        CallError: if the first choice has no message.
    """
    try:
        choice = response["choices"][0]
        message = choice["message"]
        content, refusal = message.get("content"), message.get("refusal")
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise CallError(OTHER_JSON, "the response is JSON without a message", retryable=True) from error

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
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if isinstance(prompt, int) and isinstance(completion, int) and prompt >= 0 and completion >= 0:
        return prompt, completion
    return None


def _extract_text(content: Any) -> str:
    """Return the text of a message's content: a string, or the joined texts of a list of parts. Return "" otherwise."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def estimate_tokens(text: str) -> int:
    """Estimate the number of tokens of a text from its length in bytes. The estimate is at least 1."""
    return 1 + len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN
