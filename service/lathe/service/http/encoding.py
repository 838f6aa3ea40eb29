"""Encoding of the texts of a request: their checks, and its cancellation if the client has disconnected.

Texts and vectors for an index are checked to belong in its space.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from lathe.service.chains.resolve import InputType, NotAtOnceError
from lathe.service.codec import as_vectors, require_rows
from lathe.service.encoders.embedder import EmbedRequest
from lathe.service.encoders.engine.work import EncodeOptions, Work
from lathe.service.errors import BadValueError, ConflictError, ServiceError
from lathe.service.http.schemas import TextsOrVectors
from lathe.service.index.encoding import find_index_engine
from lathe.service.index.reducer import Vectors, require_directions, require_finite_norms
from lathe.service.index.spec import IndexSpec
from lathe.service.services import Services
from lathe.training.sources.rows import count_written_numbers, explain_written_vector

MAX_INLINE_TEXTS = 4
"""Maximum texts of a request that is handled on the event loop, body and response: a change of threads costs 0.1 ms, a
vector 0.02."""

MAX_INLINE_BYTES = 16_384
"""Maximum bytes of a body that is parsed and looked up on the event loop."""

T = TypeVar("T")


async def call_inline_if(inline: bool, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function on the event loop if it takes less than a change of threads, else in a thread."""
    return function(*arguments) if inline else await run_in_threadpool(function, *arguments)


async def call_at_once_if(inline: bool, function: Callable[..., T], argument: Any) -> T:
    """Call a function with `at_once` on the event loop if `inline`, and return its result.

    If not `inline`, or if the function raises `NotAtOnceError`, call it without `at_once` in a thread.
    """
    if inline:
        with suppress(NotAtOnceError):
            return function(argument, at_once=True)
    return await run_in_threadpool(function, argument)


def read_space_id(body: TextsOrVectors, request: Request) -> str | None:
    """Return the id of the embedding space that a request names in its body or header `x-space-id`, or None."""
    return body.space_id or request.headers.get("x-space-id")


def require_space(space_id: str | None, body: TextsOrVectors, spec: IndexSpec, originals_only: bool) -> None:
    """Raise `ConflictError` unless a request's vectors belong to the embedding space of the index.

    Vectors must name their space if the index has held vectors of another encoder before.

    Args:
        space_id: id of the space that the request names; None if it names none.
        body: body with texts or vectors.
        spec: settings of the index.
        originals_only: whether only the space of the original vectors passes, not the space of the reduced ones.
    """
    if space_id is None and body.vectors is not None and spec.moves:
        raise ConflictError(
            f"space_id is missing: this index was moved to another encoder, so vectors must name their space; "
            f"that of {spec.encoder} is {spec.raw_space_id}",
            param="space_id",
            code="space_unnamed",
        )
    if space_id not in (None, spec.raw_space_id) and (originals_only or space_id != spec.space_id):
        raise ConflictError(
            f"the vectors belong to the space {space_id}, the index to {spec.space_id} "
            f"(its original vectors to {spec.raw_space_id})",
            param="space_id",
            code="space_mismatch",
        )


async def encode_body_texts(
    request: Request, body: TextsOrVectors, spec: IndexSpec, services: Services, side: InputType
) -> Vectors:
    """Encode the texts in a request body with the index's encoder into vectors `(n, d)`, before any chain.

    Without a `prompt_name`, texts get the encoder's prompt for queries or for documents, as `side` says, if it has one.
    The encoding is cancelled if the client disconnects.

    Raises:
        ServiceError: if the texts are not valid, or the encoder is not served, not ready or overloaded.
    """
    texts = list_texts(body.texts, services.settings.max_texts, "texts")
    engine = find_index_engine(services.embedder, spec)
    prompt_name = engine.get_ready_info().choose_prompt(body.prompt_name or None, side)
    embed_request = EmbedRequest(texts, engine, EncodeOptions(prompt_name, body.long_text))
    is_small = len(texts) <= MAX_INLINE_TEXTS
    pending = await call_at_once_if(is_small, services.embedder.begin, embed_request)
    await wait_for_encoding(request, pending.work)
    return (await call_inline_if(is_small, pending.wait_for_answer)).vectors


def parse_body_vectors(body: TextsOrVectors, spec: IndexSpec, services: Services, reduced: bool = False) -> Vectors:
    """Check the vectors in a request body, and return them as an array `(n, d)`, or `(n, k)` if they are `reduced`.

    Args:
        body: body with vectors.
        spec: settings of the index.
        services: services with the limit of vectors per request.
        reduced: whether the vectors are reduced ones, `(n, k)`, instead of original ones, `(n, d)`.

    Raises:
        ServiceError: if there are none or too many, their dimensions differ from the index's, a number or norm is not
            finite in float32, or one is zero although the metric is cosine.
    """
    dimensions = spec.dimensions if reduced else spec.width
    vectors = as_vectors(body.vectors or [], services.settings.max_vectors, dimensions)
    squares = require_finite_norms(vectors)
    if spec.metric == "cosine":
        require_directions(vectors, squares)
    return vectors


def list_texts(inputs: Any, max_texts: int, param: str) -> list[str]:
    """Check the texts of a request, one or several, and return them as a list. Raise for empty texts and token ids.

    Raises:
        BadValueError: if there are no texts, a text is empty, or there are token ids.
        TooLargeError: if there are too many texts.
    """
    texts = [inputs] if isinstance(inputs, str) else inputs
    require_rows(len(texts), max_texts, param)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise BadValueError(
                f"{param} holds token ids, which mean nothing to another tokenizer: send texts "
                "(with LangChain's OpenAIEmbeddings set check_embedding_ctx_length=False)",
                param=param,
            )
        if count := count_written_numbers(text):
            raise BadValueError(f"{param}[{index}] is {explain_written_vector(count)}", param=param)
        if not text:
            raise BadValueError(f"{param}[{index}] is an empty text", param=param)
    return texts


async def wait_for_encoding(request: Request, work: Work | None) -> None:
    """Wait until a request's texts are encoded. If the client disconnects, cancel the encoding and raise an error.

    Args:
        request: request whose client is watched.
        work: the encoding; None returns at once.

    Raises:
        ServiceError: 499 if the client disconnected.
        Exception: the error with which the encoding failed.
    """
    if work is None:
        return
    # Cancelling the work's future frees its place in the queue, and ends the wait below.
    watch = asyncio.ensure_future(_cancel_on_disconnect(request, work))
    try:
        await asyncio.wrap_future(work.future)
    except asyncio.CancelledError:
        if watch.done():
            raise ServiceError("the client disconnected", status=499) from None
        raise  # the server itself cancelled the request
    finally:
        watch.cancel()


async def _cancel_on_disconnect(request: Request, work: Work) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    work.future.cancel()
