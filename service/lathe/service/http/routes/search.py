"""Route that searches in an index.

The checks of a small request, and a quick search, run on the event loop, because a change of threads takes longer.
Others run in a thread.
"""

from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from lathe.service.errors import BadValueError, ConflictError, TooLargeError
from lathe.service.http.answers import build_json_response
from lathe.service.http.encoding import (
    MAX_INLINE_BYTES,
    call_inline_if,
    encode_body_texts,
    parse_body_vectors,
    read_space_id,
    require_space,
)
from lathe.service.http.json_body import read_json, validate_json
from lathe.service.http.openapi import ERRORS, VECTOR_HEADERS, IndexName, describe_body
from lathe.service.http.routing import StrictDirectRoute
from lathe.service.http.schemas import SearchBody
from lathe.service.index.bridge import Bridge
from lathe.service.index.items import require_small_response
from lathe.service.index.protocol import SearchIndex, Serving
from lathe.service.index.query import Filter, Query, parse_filter
from lathe.service.index.reducer import Vectors
from lathe.service.index.spec import IndexSpec
from lathe.service.services import Services, ServicesDep

router = APIRouter(route_class=StrictDirectRoute, prefix="/indexes", tags=["indexes"], responses=ERRORS)

MAX_RESULTS = 1_000_000
"""Maximum queries times candidates of one request."""

MOVING_SECONDS = 5
"""Seconds after which queries of an encoder that an index is moving to may be tried again."""


@dataclass(frozen=True)
class _SearchRequest:
    """A checked search request.

    Attributes:
        serving: state of the index that is searched, even if the index changes meanwhile.
        bridge: maps queries of another encoder to the index's embedding space; None for queries of its own encoder.
        reduced: whether the queries are reduced by the index's chain already.
    """

    body: SearchBody
    serving: Serving
    bridge: Bridge | None
    filter: Filter | None
    reduced: bool

    @property
    def query_spec(self) -> IndexSpec:
        """Settings with the encoder and embedding space of the queries, from the bridge or else from the index."""
        return self.serving.spec if self.bridge is None else self.bridge.spec


@router.post(
    "/{name}/search",
    openapi_extra=describe_body(SearchBody),
    responses={200: {"description": "Items", "headers": VECTOR_HEADERS}},
)
async def search(name: IndexName, request: Request, services: ServicesDep) -> Response:
    """Return the nearest items of the index to each query, best first.

    In a calibrated index each has the `probability` that it is right; null if fewer than ten items are found.
    """
    json_body = await read_json(request, services.settings, any_content_type=True)
    is_small = len(json_body) <= MAX_INLINE_BYTES and services.indexes.is_open(name)
    checked, queries = await call_inline_if(is_small, _check_search, name, request, services, json_body)
    if queries is None:
        queries = await encode_body_texts(request, checked.body, checked.query_spec, services, "query")
    body = checked.body
    query = Query(
        queries, body.k, body.ef, body.rescore, checked.filter, checked.reduced, body.min_probability, body.exact
    )
    return await call_inline_if(checked.serving.is_quick(query), _search_and_respond, checked, query)


def _check_search(
    name: str, request: Request, services: Services, json_body: bytes
) -> tuple[_SearchRequest, Vectors | None]:
    """Parse and check the JSON body of a search.

    Returns the request with the state of the index to search, and the queries if they are vectors, else None. The
    queries must belong to the vectors of the index. They may be texts, vectors of the index's encoder, vectors reduced
    by its chain or, while the index moves to another encoder, vectors of that one. Reduced ones cannot be rescored.
    """
    body = validate_json(json_body, SearchBody)
    if body.ef is not None and body.ef < body.k:
        raise BadValueError(f"ef ({body.ef}) must be at least k ({body.k})", param="ef")
    item_filter = parse_filter(body.filter) if body.filter is not None else None

    index = services.indexes.get(name)
    # Taken once: the search uses this state even if the index is cut over to another meanwhile.
    serving = index.get_serving()
    if body.min_probability is not None and not serving.is_calibrated:
        backend = services.indexes.capabilities
        advice = f"calibrate it with POST /indexes/{name}/calibrate"
        if not backend.reindexing:
            advice = f"an index in {backend.name} cannot be calibrated"
        raise BadValueError(f"hits of the index {name} have no probability: {advice}", param="min_probability")
    if body.exact and not services.indexes.capabilities.in_state_folder:
        raise BadValueError(f"an index in {services.indexes.capabilities.name} is not searched exactly", param="exact")
    bridge = _find_bridge(body.encoder, index, serving.spec)
    if bridge is None and body.encoder is not None:
        _require_own_encoder(body.encoder, name, serving.spec, services)

    spec = serving.spec if bridge is None else bridge.spec
    space_id = read_space_id(body, request)
    require_space(space_id, body, spec, originals_only=bridge is not None and body.texts is None)
    reduced = body.texts is None and space_id == spec.space_id != spec.raw_space_id
    if reduced and body.rescore is not None:
        raise BadValueError("reduced queries cannot be rescored: send the encoder's own vectors", param="rescore")
    checked = _SearchRequest(body, serving, bridge, item_filter, reduced)
    queries = None if body.texts is not None else parse_body_vectors(body, checked.query_spec, services, reduced)
    return checked, queries


def _search_and_respond(checked: _SearchRequest, query: Query) -> Response:
    """Search the index for the query of a checked request, and return the response.

    Vectors of another encoder are first mapped to the index's embedding space by the bridge (a linear map).
    """
    bridge, spec = checked.bridge, checked.serving.spec
    if len(query.vectors) * query.k * (query.rescoring or 1) > MAX_RESULTS:
        raise TooLargeError(f"queries × k × rescore may be at most {MAX_RESULTS:,}", param="k")
    if bridge is not None:
        query = replace(query, vectors=bridge(query.vectors))
    results = checked.serving.search(query)
    require_small_response(item for items in results for item in items)
    content: dict[str, Any] = {"results": results, "space_id": spec.space_id, "chain": spec.chain}
    if bridge is not None:
        content["aligned"] = bridge.describe()
    headers = {"x-space-id": spec.space_id, "x-chain": spec.chain, "x-dimensions": str(spec.dimensions)}
    return build_json_response(content, headers)


def _find_bridge(encoder: str | None, index: SearchIndex, spec: IndexSpec) -> Bridge | None:
    """Return the linear map from a new encoder's queries to the index's embedding space, or None if there is none.

    There is one while the index moves to this encoder, once the map is fitted.
    """
    bridge = index.bridge
    if bridge is None or encoder != bridge.spec.encoder or bridge.spec.generation == spec.generation:
        return None
    return bridge


def _require_own_encoder(encoder: str, name: str, spec: IndexSpec, services: Services) -> None:
    engine = services.embedder.find_engine(encoder, param="encoder")
    if engine.get_ready_info().fingerprint != spec.encoder_fingerprint:
        moving = any(encoder == request.spec.encoder for request in services.list_reindex_jobs(name).values())
        advice = (
            "it is being reindexed with that encoder, whose queries it takes after some seconds: try again"
            if moving
            else "reindex it with that encoder"
        )
        raise ConflictError(
            f"the index {name} holds vectors of {spec.encoder or 'another encoder'} (space {spec.raw_space_id}), "
            f"not of {encoder}; {advice}",
            param="encoder",
            code="space_mismatch",
            retry_after=MOVING_SECONDS if moving else None,
        )
