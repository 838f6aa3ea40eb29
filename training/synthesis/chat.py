"""The protocol of OpenAI's chat completions: one request, and one answer or one kind of failure.

ChatError (Exception)
├── again      429, 408, 5xx, no connection, a time-out, a cut connection, something that is no answer
└── not again  401, 403, 404, 400 …: another try would end the same

Nothing is sent anywhere else: redirects are not followed, proxies and .netrc of the environment are not used.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Self

import httpx2
import orjson

from training.synthesis.endpoint import Endpoint
from training.synthesis.job import EndpointSettings

CONNECT_SECONDS = 15.0
ANSWER_BYTES = 16_000_000
"""More is no answer."""
TOKEN_BYTES = 4
"""Of UTF-8, about: what tokens are counted by where the endpoint does not."""
SAID = 200
"""Characters of an endpoint's own words that a message repeats."""
UNAUTHORIZED = 401
RATE_LIMIT, REQUEST_TIMEOUT, SERVER_ERRORS = 429, 408, 500
REDIRECTS, REFUSALS = 300, 400
TIME_OUT = "time-out"
"""What a failure is counted as where nothing came in time: of a model that is being loaded, say."""


class ChatError(Exception):
    """A request that brought no answer.

    Attributes:
        kind: in few words, to be counted.
        again: whether another try may end better.
        status: of the HTTP answer; 0 where there was none.
        after: seconds that the endpoint asks to wait.
    """

    def __init__(self, kind: str, message: str, again: bool, status: int = 0, after: float | None = None) -> None:
        super().__init__(message)
        self.kind, self.again, self.status, self.after = kind, again, status, after


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        text: perhaps empty.
        finish_reason: why it ends there: `stop`, `length`, `content_filter`, or empty.
        prompt_tokens: as the endpoint counted them.
        completion_tokens: likewise.
        counted: False where the endpoint counts nothing, and these are guesses by length.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    counted: bool


class Chat:
    """A connection to an endpoint.

    Args:
        endpoint: where.
        settings: of the job.
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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.client.aclose()

    async def ask(self, model: str, prompt: str, parameters: Mapping[str, Any]) -> Answer:
        """Ask once.

        Raises:
            ChatError: if no answer comes.
        """
        body = {"model": model, "messages": [{"role": "user", "content": prompt}], **parameters}
        try:
            async with asyncio.timeout(self.settings.timeout):  # of the whole, however slowly it drips
                response, payload = await self.send(orjson.dumps(body))
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise ChatError(TIME_OUT, f"no answer within {self.settings.timeout:g} s", again=True) from error
        except (httpx2.ConnectError, httpx2.InvalidURL) as error:
            raise ChatError("no connection", f"no connection: {self.hidden(str(error))}", again=True) from error
        except httpx2.HTTPError as error:
            raise ChatError("cut connection", f"the connection was cut: {self.hidden(str(error))}", True) from error
        if response.status_code >= REDIRECTS:
            raise self.refusal(response, payload)
        return read_answer(self.parsed(response, payload), prompt)

    async def send(self, body: bytes) -> tuple[httpx2.Response, bytes]:
        """Post a body; what comes back, whole."""
        kind = {"content-type": "application/json", "accept": "application/json"}
        url = f"{self.endpoint.url}/chat/completions"
        async with self.client.stream("POST", url, content=body, headers=kind) as response:
            payload = bytearray()
            async for part in response.aiter_bytes():
                payload += part
                if len(payload) > ANSWER_BYTES:
                    raise ChatError("not JSON", f"more than {ANSWER_BYTES:,} bytes came back", again=True)
        return response, bytes(payload)

    def parsed(self, response: httpx2.Response, payload: bytes) -> dict[str, Any]:
        """The object that came back.

        Raises:
            ChatError: if it is none.
        """
        try:
            found = orjson.loads(payload)
        except orjson.JSONDecodeError as error:
            kind = response.headers.get("content-type", "nothing it names")
            message = f"not JSON but {kind} came back: {self.hidden(payload.decode('utf-8', 'replace'))!r}"
            raise ChatError("not JSON", message, again=True) from error
        if isinstance(found, dict) and found.get("error"):
            raise ChatError("other JSON", f"an error came back: {self.hidden(words_of(found))}", again=True)
        if not isinstance(found, dict) or not isinstance(found.get("choices"), list):
            said = self.hidden(payload.decode("utf-8", "replace"))
            raise ChatError("other JSON", f"JSON without choices came back: {said}", again=True)
        return found

    def refusal(self, response: httpx2.Response, payload: bytes) -> ChatError:
        """What a status that is not 200 means."""
        status = response.status_code
        try:
            said = self.hidden(words_of(orjson.loads(payload)))
        except orjson.JSONDecodeError:
            said = self.hidden(payload.decode("utf-8", "replace"))
        message = f"{status}: {said or response.reason_phrase}"
        if status == RATE_LIMIT:
            return ChatError("rate limit", message, True, status, seconds_of(response.headers.get("retry-after")))
        if status >= SERVER_ERRORS or status == REQUEST_TIMEOUT:
            after = seconds_of(response.headers.get("retry-after"))
            return ChatError(f"server error {status}", message, True, status, after)
        if status < REFUSALS:
            where = self.hidden(response.headers.get("location", "nowhere"))
            message = f"{status}: it points to {where}, which is not followed"
        return ChatError(f"refused with {status}", message, again=False, status=status)

    def hidden(self, text: str) -> str:
        """An endpoint's own words, shortened and on one line, without the key."""
        text = text.replace(self.endpoint.key, "…") if self.endpoint.key else text
        return " ".join(text.split())[:SAID]


def words_of(found: Any) -> str:
    """What a body says about an error."""
    error = found.get("error", found) if isinstance(found, dict) else found
    message = error.get("message", error) if isinstance(error, dict) else error
    return message if isinstance(message, str) else orjson.dumps(message).decode()


def seconds_of(header: str | None) -> float | None:
    """A Retry-After: seconds, or a date; None where it is neither."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        until = parsedate_to_datetime(header)
    except ValueError:
        return None
    return max(0.0, ((until if until.tzinfo else until.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds())


def read_answer(found: Mapping[str, Any], prompt: str) -> Answer:
    """The first choice.

    Raises:
        ChatError: if it is no message.
    """
    try:
        choice = found["choices"][0]
        message = choice["message"]
        content, refusal = message.get("content"), message.get("refusal")
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ChatError("other JSON", "JSON without a message came back", again=True) from error
    said, refused, reason = text_of(content), text_of(refusal), choice.get("finish_reason")
    counts = counted_tokens(found.get("usage"))
    prompt_tokens, completion_tokens = counts or (guessed_tokens(prompt), guessed_tokens(said or refused))
    return Answer(
        text=said or refused,
        finish_reason="content_filter" if refused and not said else reason if isinstance(reason, str) else "",
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        counted=counts is not None,
    )


def counted_tokens(usage: Any) -> tuple[int, int] | None:
    """Tokens of the prompt and of the answer, as the endpoint counted them; None where it does not."""
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if isinstance(prompt, int) and isinstance(completion, int) and prompt >= 0 and completion >= 0:
        return prompt, completion
    return None


def text_of(content: Any) -> str:
    """A message's text, which some endpoints send in parts."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def guessed_tokens(text: str) -> int:
    """About how many tokens a text has."""
    return 1 + len(text.encode("utf-8", "replace")) // TOKEN_BYTES
