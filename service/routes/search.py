"""Searching an index; beside encoding, two steps off the event loop: what is asked, and the answer."""

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.answers import ERRORS, VECTOR_HEADERS
from service.bodies import SearchBody, declared, parse, read_unparsed
from service.codec import JSON, dump_json
from service.errors import BadValueError, ConflictError, TooLargeError
from service.index.bridge import Bridge
from service.index.filters import Filter, parse_filter
from service.index.payloads import require_small
from service.index.protocol import SearchIndex, Serving
from service.index.reducer import Vectors
from service.index.spec import IndexSpec
from service.routes.originals import encoded_texts, given_vectors, require_said, require_space, space_said
from service.services import USE, Services, ServicesDep

router = APIRouter(prefix="/indexes", tags=["indexes"], responses=ERRORS)

RESULTS_MOST = 1_000_000
"""Queries times candidates of one request."""


@dataclass(frozen=True)
class Question:
    """What a search asks, checked.

    Attributes:
        body: of the request.
        serving: what answers, whatever happens to the index meanwhile.
        bridge: takes the queries to it; None where they are of its own encoder.
        wanted: the filter; None if there is none.
        reduced: the queries went through the index's chain already.
    """

    body: SearchBody
    serving: Serving
    bridge: Bridge | None
    wanted: Filter | None
    reduced: bool

    @property
    def spec(self) -> IndexSpec:
        """Where the queries belong."""
        return self.serving.spec if self.bridge is None else self.bridge.spec


@router.post(
    "/{name}/search",
    dependencies=USE,
    openapi_extra=declared(SearchBody),
    responses={200: {"description": "Items", "headers": VECTOR_HEADERS}},
)
async def search(name: str, request: Request, services: ServicesDep) -> Response:
    """The nearest items to each query, best first."""
    body = await read_unparsed(request, services.settings)
    question = await run_in_threadpool(understood, body, name, request, services)
    texts = question.body.texts is not None
    queries = await encoded_texts(request, question.body, question.spec, services) if texts else None
    return await run_in_threadpool(answered, question, queries, services)


def understood(content: bytes, name: str, request: Request, services: Services) -> Question:
    """What a request asks.

    Raises:
        ServiceError: for what makes no sense, or belongs to another space.
    """
    body = parse(content, SearchBody)
    if body.ef is not None and body.ef < body.k:
        raise BadValueError(f"ef ({body.ef}) must be at least k ({body.k})", param="ef")
    wanted = parse_filter(body.filter) if body.filter is not None else None
    index = services.indexes.get(name)
    serving = index.serving()
    bridge = bridge_for(body.encoder, index, serving.spec)
    if bridge is None and body.encoder is not None:
        require_own_encoder(body.encoder, name, serving.spec, services)
    spec = serving.spec if bridge is None else bridge.spec
    said = space_said(body, request)
    if body.vectors is not None:
        require_said(said, spec)
    require_space(said, spec, of_originals=bridge is not None and body.texts is None)
    reduced = body.texts is None and said == spec.space_id != spec.raw_space_id
    if reduced and body.rescore is not None:
        raise BadValueError("reduced queries cannot be rescored: send the encoder's own vectors", param="rescore")
    return Question(body, serving, bridge, wanted, reduced)


def answered(question: Question, queries: Vectors | None, services: Services) -> Response:
    """The answer to a question.

    Args:
        question: what is asked.
        queries: the encoded texts; None where the question has vectors.
        services: of the server.
    """
    body, bridge, spec = question.body, question.bridge, question.serving.spec
    if queries is None:
        queries = given_vectors(body, question.spec, services, question.reduced)
    if len(queries) * body.k * (body.rescore or 1) > RESULTS_MOST:
        raise TooLargeError(f"queries × k × rescore may be at most {RESULTS_MOST:,}", param="k")
    results = question.serving.search(
        queries if bridge is None else bridge(queries),
        body.k,
        body.ef,
        body.rescore,
        question.wanted,
        question.reduced,
    )
    require_small(item for items in results for item in items)
    content: dict[str, Any] = {"results": results, "space_id": spec.space_id, "chain": spec.chain}
    if bridge is not None:
        content["aligned"] = bridge.describe()
    headers = {"x-space-id": spec.space_id, "x-chain": spec.chain, "x-dimensions": str(spec.dimensions)}
    return Response(dump_json(content), 200, headers, media_type=JSON)


def bridge_for(encoder: str | None, index: SearchIndex, spec: IndexSpec) -> Bridge | None:
    """What takes queries of an encoder to the space that serves; None where none is needed, or there."""
    bridge = index.bridge
    if bridge is None or encoder != bridge.spec.encoder or bridge.spec.generation == spec.generation:
        return None
    return bridge


def require_own_encoder(encoder: str, name: str, spec: IndexSpec, services: Services) -> None:
    """Raise `ConflictError` for queries of another encoder than the index's."""
    engine = services.embedder.engine(encoder, param="encoder")
    if engine.require_ready().fingerprint != spec.encoder_fingerprint:
        raise ConflictError(
            f"the index {name} holds vectors of {spec.encoder or 'another encoder'} (space {spec.raw_space_id}), "
            f"not of {encoder}; reindex it with that encoder",
            param="encoder",
            code="space_mismatch",
        )
