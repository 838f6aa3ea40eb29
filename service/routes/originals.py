"""The vectors that a body of texts or vectors means, and whether they belong in an index."""

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from service.bodies import TextsOrVectors
from service.codec import as_vectors
from service.embedder import Answer
from service.engine.work import EncodeOptions
from service.errors import ConflictError
from service.hangup import finished
from service.index.reducer import Vectors, require_directions, require_lengths
from service.index.spec import IndexSpec
from service.routes.embed import checked_texts
from service.services import Services


def space_said(body: TextsOrVectors, request: Request) -> str | None:
    """The space a caller says its vectors belong to, in the body or as the header that `/embed` answers."""
    return body.space_id or request.headers.get("x-space-id")


def require_space(said: str | None, spec: IndexSpec, of_originals: bool) -> None:
    """Raise `ConflictError` for vectors of another space than the originals', or, where that will do, the index's."""
    if said not in (None, spec.raw_space_id) and (of_originals or said != spec.space_id):
        raise ConflictError(
            f"the vectors belong to the space {said}, the index to {spec.space_id} "
            f"(its originals to {spec.raw_space_id})",
            param="space_id",
            code="space_mismatch",
        )


def require_said(said: str | None, spec: IndexSpec) -> None:
    """Raise `ConflictError` for vectors of an unnamed space, where an index has held those of another encoder."""
    if said is None and spec.vectors > 1:
        raise ConflictError(
            f"this index was embedded anew, so vectors must say where they belong: space_id {spec.raw_space_id} "
            f"for those of {spec.encoder}",
            param="space_id",
            code="space_unnamed",
        )


async def encoded_texts(request: Request, body: TextsOrVectors, spec: IndexSpec, services: Services) -> Vectors:
    """The texts of a body as the index's encoder gives them `(n, d)`.

    Raises:
        ServiceError: if they cannot be encoded here.
    """
    texts = checked_texts(body.texts, services.settings, "texts")
    engine = services.embedder.engine_of_index(spec)
    pending = await run_in_threadpool(
        services.embedder.begin, texts, engine, None, None, EncodeOptions(body.prompt_name)
    )
    await finished(request, pending.work)
    answer: Answer = await run_in_threadpool(pending.answer)
    return answer.vectors


def given_vectors(body: TextsOrVectors, spec: IndexSpec, services: Services, reduced: bool = False) -> Vectors:
    """The vectors of a body: originals `(n, d)`, or reduced ones `(n, k)`.

    Raises:
        ServiceError: for vectors of another width, or of no direction where only that counts.
    """
    width = spec.dimensions if reduced else spec.width
    vectors = as_vectors(body.vectors or [], services.settings.max_vectors, width)
    require_lengths(vectors)
    if spec.metric == "cosine":
        require_directions(vectors)
    return vectors
