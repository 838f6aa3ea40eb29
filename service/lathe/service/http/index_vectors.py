"""Vectors for an index from the texts or vectors of a request body, and checks that they belong in its space."""

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from lathe.service.chains.resolve import InputType
from lathe.service.codec import as_vectors
from lathe.service.encoders.engine.work import EncodeOptions
from lathe.service.errors import ConflictError
from lathe.service.http.disconnect import wait_for_encoding
from lathe.service.http.schemas import TextsOrVectors
from lathe.service.http.texts import list_texts
from lathe.service.index.encoding import find_index_engine
from lathe.service.index.reducer import Vectors, require_directions, require_finite_norms
from lathe.service.index.spec import IndexSpec
from lathe.service.services import Services


def get_space_id(body: TextsOrVectors, request: Request) -> str | None:
    """Return the space id that the request names in its body, else in its header `x-space-id`.

    The result is None if it names none.
    """
    return body.space_id or request.headers.get("x-space-id")


def require_space(space_id: str | None, spec: IndexSpec, originals_only: bool) -> None:
    """Raise `ConflictError` if the space that a request names for its vectors is not the index's.

    A space is a set of comparable vectors.

    Args:
        space_id: space that the request names; None passes.
        spec: settings of the index.
        originals_only: whether only the space of the original vectors passes, not that of the reduced ones.
    """
    if space_id not in (None, spec.raw_space_id) and (originals_only or space_id != spec.space_id):
        raise ConflictError(
            f"the vectors belong to the space {space_id}, the index to {spec.space_id} "
            f"(its original vectors to {spec.raw_space_id})",
            param="space_id",
            code="space_mismatch",
        )


def require_space_id(space_id: str | None, spec: IndexSpec) -> None:
    """Raise `ConflictError` if a request must name the space of its vectors and does not.

    It must if the index has held vectors of another encoder before.
    """
    if space_id is None and spec.vectors > 1:
        raise ConflictError(
            f"space_id is missing: this index was moved to another encoder, so vectors must name their space; "
            f"that of {spec.encoder} is {spec.raw_space_id}",
            param="space_id",
            code="space_unnamed",
        )


async def encode_body_texts(
    request: Request, body: TextsOrVectors, spec: IndexSpec, services: Services, side: InputType
) -> Vectors:
    """Encode the texts in a request body with the index's encoder, and return original vectors `(n, d)`.

    They are not reduced by the chain. Without a `prompt_name`, texts get the encoder's prompt for their side of a
    search, if it has one. The encoding is cancelled if the client disconnects.

    Raises:
        ServiceError: if the texts are not valid, or the encoder is not served, not ready or overloaded.
    """
    texts = list_texts(body.texts, services.settings.max_texts, "texts")
    engine = find_index_engine(services.embedder, spec)
    prompt_name = engine.require_ready().choose_prompt(body.prompt_name or None, side)
    pending = await run_in_threadpool(
        services.embedder.begin, texts, engine, None, None, EncodeOptions(prompt_name, body.long_text)
    )
    await wait_for_encoding(request, pending.work)
    return (await run_in_threadpool(pending.wait_for_answer)).vectors


def parse_body_vectors(body: TextsOrVectors, spec: IndexSpec, services: Services, reduced: bool = False) -> Vectors:
    """Check the vectors in a request body, and return them as an array `(n, d)`, or `(n, k)` if `reduced`.

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
    require_finite_norms(vectors)
    if spec.metric == "cosine":
        require_directions(vectors)
    return vectors
