"""Calls to an embeddings API, with retries, rate limits and a circuit breaker."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import orjson

from lathe.training.encoder.batching import estimate_tokens
from lathe.training.encoder.spec import UpstreamSpec
from lathe.training.encoder.upstream.protocols import PROTOCOLS, ApiAnswer, CallOptions, MalformedAnswerError
from lathe.training.endpoint_client import (
    REFUSALS,
    CallError,
    EndpointClient,
    RateLimiter,
    RetryPolicy,
    extract_message,
)
from lathe.training.errors import UpstreamBusyError, UpstreamError, UpstreamUnavailableError

FIRST_PAUSE, MAX_PAUSE = 0.25, 20.0
"""Seconds of the first pause between two attempts of a call, and of the longest pause that the API does not ask for."""

NUMBER_BYTES = 32
"""Maximum bytes of a number in an answer: a double has up to 24 characters, with a comma and white space."""
OTHER_BYTES = 1_000_000
"""Maximum bytes of an answer, not counting the numbers of the vectors."""
OTHER_VALUES = 10_000
"""Maximum JSON values of an answer, not counting the numbers of the vectors."""
MAX_CALL_BYTES = 64_000_000
"""Maximum bytes of all numbers of an answer, which limits the number of texts of a call."""
MAX_DIMENSIONS = 16_384
"""Maximum dimensions of an API's vectors, which are not known before its first answer."""
KEY_STATUSES = (401, 403)
"""HTTP statuses of a refused key. The API's message is not repeated then, as some quote a part of the key."""
ENCODING_STATUSES = (400, 415, 422, 500, 501)
"""HTTP statuses of servers that do not support base64."""
NOT_JSON, OTHER_JSON = "not JSON", "other JSON"
"""Kinds of failures: answers with a success status but without valid vectors."""
MILLION = 1_000_000
MODEL_TOKENS = 64
"""Maximum tokens that a model adds to a text."""

Usage = Literal["calls", "retries", "failures", "texts", "tokens", "cost"]
"""Counters of the use of an API: attempts of calls, retries among them, failed attempts, texts and tokens of answered
calls, and the cost of the tokens in the currency of the price."""

OnUsage = Callable[[Usage, float], None]
"""Function called with a counter and the amount to add to it."""


class UpstreamClient:
    """Client of an embeddings API, with retries, rate limits and a circuit breaker, used by one event loop.

    The key is removed from the API's messages and model names, and these are shortened, before they leave this class.

    Args:
        spec: the API.
        key: API key, sent only to the address of the spec; None for none.
        patience: seconds after the first failure of a call during which the call is tried again.
        on_usage: called with a counter and the amount to add to it.

    Attributes:
        endpoint: connections, rate limits and circuit breaker of the calls.
        base64: whether calls ask for vectors in base64. With OpenAI's protocol they do, unless the server turns out not
            to support it.
        answered: whether a call was answered, so that the server is known to support `base64` as it is.
        dimensions: maximum dimensions of the vectors in an answer.
    """

    def __init__(self, spec: UpstreamSpec, key: str | None, patience: float, on_usage: OnUsage) -> None:
        self.spec, self.on_usage = spec, on_usage
        self.protocol = PROTOCOLS[spec.protocol]
        # A float takes 5 to 6 bytes in base64, and about 12 in JSON.
        self.base64 = spec.protocol == "openai"
        self.answered = False
        self.dimensions = spec.dimensions or MAX_DIMENSIONS
        policy = RetryPolicy(FIRST_PAUSE, MAX_PAUSE, patience=patience)
        limiter = RateLimiter(spec.requests_per_minute, spec.tokens_per_minute)
        self.endpoint = EndpointClient(key, spec.timeout, policy, limiter, spec.concurrency)

    async def send(self, texts: Sequence[str], options: CallOptions, max_length: int) -> ApiAnswer:
        """Send texts to the API in one call, retried while that may help, and return the answer. Usage is counted.

        Failed attempts are repeated while another may succeed and `patience` lasts. Then an `UpstreamError` is raised,
        or the `CallError` if one of the texts may be the reason. Attempts, texts, tokens and cost are counted with
        `on_usage`.

        Args:
            texts: texts of one call.
            options: options of the encoding.
            max_length: tokens that the model reads of a text, for the estimate of the tokens that are used.

        Raises:
            UpstreamError: if there is no answer: `UpstreamBusyError` for a rate limit, `UpstreamUnavailableError` for
                another failure that may pass.
            CallError: if the API refuses the call and one of its texts may be the reason.
        """
        estimate = sum(estimate_tokens(text, max_length) for text in texts)

        async def attempt(tries: int) -> ApiAnswer:
            self.on_usage("calls", 1)
            self.on_usage("retries", min(tries, 1))
            try:
                return _drop_implausible_tokens(await self._embed(texts, options), texts, options)
            except CallError:
                self.on_usage("failures", 1)
                raise

        try:
            answer = await self.endpoint.call(attempt, estimate)
        except CallError as error:
            if error.blames_content:
                raise
            message = f"{self.spec.provider_name}: {error}"
            if error.limited:
                raise UpstreamBusyError(message, error.retry_after) from error
            if error.retryable:
                raise UpstreamUnavailableError(message, max(error.retry_after or 0.0, 1.0)) from error
            raise UpstreamError(message) from error

        # The limiter has reserved the estimate; the difference to the API's count is added or given back.
        used = estimate if answer.tokens is None else answer.tokens
        self.endpoint.limiter.correct_tokens(used - estimate)
        self.on_usage("texts", len(texts))
        self.on_usage("tokens", used)
        if self.spec.price:
            self.on_usage("cost", used * self.spec.price / MILLION)

        return answer

    async def _embed(self, texts: Sequence[str], options: CallOptions) -> ApiAnswer:
        """Make one attempt of a call, and return the answer. A first failure is repeated without base64 if useful.

        If the failure may mean that the server does not support base64, and no call was answered before, the call is
        sent again without base64. If that succeeds, no later call asks for base64; if it fails, the first error is
        raised.

        Raises:
            CallError: if the answer does not hold one vector for each text.
        """
        try:
            answer = await self._post(texts, options, self.base64)
        except CallError as error:
            may_lack_base64 = error.status in ENCODING_STATUSES or error.kind in (NOT_JSON, OTHER_JSON)
            if self.answered or not self.base64 or not may_lack_base64:
                raise
            try:
                answer = await self._post(texts, options, base64=False)
            except CallError:
                raise error from None
            self.base64 = False

        self.answered = True
        return answer

    async def _post(self, texts: Sequence[str], options: CallOptions, base64: bool) -> ApiAnswer:
        """Post the request for the texts' vectors, and return the parsed answer. Another number of vectors raises.

        An answer with another number of vectors, or far too many values, raises. The key is removed from what the
        answer reports of the model.

        Raises:
            CallError: if the answer does not hold one vector for each text.
        """
        body = self.protocol.build_body(self.spec, texts, options)
        if not base64:
            body.pop("encoding_format", None)

        url = f"{self.spec.url.rstrip('/')}{self.protocol.path}"
        limit = OTHER_BYTES + len(texts) * self.dimensions * NUMBER_BYTES
        try:
            headers, payload = await self.endpoint.post(url, orjson.dumps(body), limit)
        except CallError as error:
            raise self._describe_status(error) from None

        self._require_plausible(payload, len(texts))
        content = self._parse_json(headers, payload)
        redact = self.endpoint.redact

        try:
            answer = self.protocol.parse_answer(content, headers, len(texts))
        except MalformedAnswerError as error:
            message = f": {extract_message(content)}" if isinstance(content, dict) and "error" in content else ""
            raise CallError(OTHER_JSON, redact(f"it answered {error}{message}"), retryable=False) from None

        return replace(answer, reported={name: redact(value) for name, value in answer.reported.items()})

    def _describe_status(self, error: CallError) -> CallError:
        """Return an endpoint's error with a message about this API and the HTTP status, unchanged without a status.

        The API's own message is left out if the key was refused, and the target of a redirect is left out.
        """
        if not error.status:
            return error

        message = f"it answered {error}"
        if error.status < REFUSALS:
            message = f"it answered {error.status}, a redirect, which is not followed"
        elif error.status in KEY_STATUSES:
            sender = f"the key in {self.spec.api_key_env}" if self.spec.api_key_env else "calls without a key"
            message = f"it refuses {sender} ({error.status})"

        return CallError(error.kind, message, error.retryable, error.status, error.retry_after)

    def _require_plausible(self, payload: bytes, texts: int) -> None:
        """Raise `CallError` if an answer has far more JSON values than the vectors of `texts` texts.

        The JSON is not parsed. Commas and opening brackets of the payload are counted. Parsing 60 MB of empty lists
        would take gigabytes, and block this process for seconds.
        """
        # Counted in the bytes, because parsing would already allocate the memory that this check limits.
        containers = payload.count(b"[") + payload.count(b"{")
        values = payload.count(b",")
        if containers > OTHER_VALUES + 8 * texts or values > OTHER_VALUES + texts * (self.dimensions + 16):
            message = f"it answered {values:,} values in {containers:,} lists and objects for {texts} texts"
            raise CallError(OTHER_JSON, message, retryable=False)

    def _parse_json(self, headers: Mapping[str, str], payload: bytes) -> Any:
        """Parse the payload of a response as JSON. A payload that is not JSON raises a retryable `CallError`.

        Raises:
            CallError: if it is not JSON. The error is retryable, because a proxy may answer for a server that restarts.
        """
        try:
            return orjson.loads(payload)
        except orjson.JSONDecodeError:
            kind = self.endpoint.redact(headers.get("content-type", "an unknown content type"))
            raise CallError(NOT_JSON, f"the answer is not JSON but {kind}", retryable=True) from None


def _drop_implausible_tokens(answer: ApiAnswer, texts: Sequence[str], options: CallOptions) -> ApiAnswer:
    """Return an answer without its number of tokens if the texts cannot have so many, else the answer unchanged.

    A text has at most one token for each byte of text and prompt, and `MODEL_TOKENS` tokens of the model, such as [CLS]
    and [SEP].
    """
    # An upper bound from bytes alone, since the API's tokenizer is not known.
    max_tokens = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    max_tokens += len(texts) * (len((options.prompt or "").encode()) + MODEL_TOKENS)
    return answer if answer.tokens is None or answer.tokens <= max_tokens else replace(answer, tokens=None)
