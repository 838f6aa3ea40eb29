"""Fitting of chains, as jobs."""

from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from lathe.service.chains.loaded_chain import LoadedChain
from lathe.service.chains.names import require_name
from lathe.service.codec import as_vectors, dump_json, dump_npy
from lathe.service.encoders.engine.engine import Engine
from lathe.service.errors import BadValueError, ConflictError
from lathe.service.http.answers import answer_job
from lathe.service.http.json_body import read_json, validate_json
from lathe.service.http.openapi import ERRORS, describe_body
from lathe.service.http.schemas import FitBody, PairBody, SourceBody
from lathe.service.http.unknown_names import StrictRoute
from lathe.service.jobs.inputs import (
    FILE_OF_PAIRS,
    FILE_OF_QUERIES,
    FILE_OF_QUERY_TEXTS,
    FILE_OF_TARGETS,
    FILE_OF_TEST_PAIRS,
)
from lathe.service.jobs.requests import FitJob
from lathe.service.jobs.sources import (
    receive,
    require_distinct,
    resolve_allowed_path,
)
from lathe.service.jobs.store import Job
from lathe.service.services import ADMIN, Services, ServicesDep
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.fitting.earlier_version import require_moments
from lathe.training.fitting.fit import require_no_targets
from lathe.training.fitting.fit_request import CODES, FitRequest
from lathe.training.fitting.gates import require_gates
from lathe.training.fitting.pairs import divide_pairs, gather_pairs, require_query_pairs_or_none
from lathe.training.fitting.personal_data import require_query_files
from lathe.training.fitting.targets import require_pairs_or_none
from lathe.transforms.base import Transform
from lathe.transforms.chain import Chain, build_steps

router = APIRouter(route_class=StrictRoute, tags=["jobs"], responses=ERRORS)


@router.post("/fit-transform", dependencies=ADMIN, openapi_extra=describe_body(FitBody), status_code=202)
async def fit_transform(request: Request, services: ServicesDep) -> Response:
    """Queue the fit of a chain; answer 202 with the URL of the job."""
    services.require_writable()
    job = await run_in_threadpool(_create_fit_job, services, await read_json(request, services.settings))
    return await answer_job(job.id)


def _create_fit_job(services: Services, json_body: bytes) -> Job:
    """Check a fit as far as possible before the work begins, then queue its job with the data sent.

    The fit is of new steps, or adds rows to a version. Vectors for which neither the request nor that version names an
    encoder are fitted without one.
    """
    body = validate_json(json_body, FitBody)
    require_name(body.name)
    require_gates(body.gates)
    version = None if body.add_to is None else _load_version_with_moments(body.add_to, services)
    chain = _build_new_chain(body) if version is None else version.chain
    encoder = body.encoder or (chain.metadata.get("encoder") or {}).get("name")
    engine = services.embedder.find_engine(encoder, param="encoder")
    source = receive(body.source, services.settings.data_root)
    spec: EncoderSpec | None = engine.spec
    dimensions = engine.info.dimensions if engine.info else None
    if not source.texts and encoder is None:
        spec, dimensions = None, source.width
    elif None not in (dimensions, source.width) and dimensions != source.width:
        raise ConflictError(
            f"the source's vectors have {source.width} dimensions, those of {engine.spec.name} have {dimensions}",
            param="source.vectors",
            code="space_mismatch",
        )
    require_distinct(source, "a fit")
    if version is not None:
        _require_same_encoder(version, spec, engine)
    if dimensions is not None:
        chain.signature(dimensions)
    request = FitRequest(
        name=body.name,
        steps=[] if version else _list_steps(chain, body),
        source=source.path,
        normalize=body.normalize,
        gates=body.gates,
        promote=body.promote,
        seed=body.seed,
        targets=None if body.targets is None else _locate_targets(body.targets, services, source.files),
        keep_moments=body.keep_moments,
        add_to=version.ref if version else None,
        bytes=body.bytes,
        queries=None if body.queries is None else _locate_queries(body.queries, services, source.files, dimensions),
        pairs=_store_pairs(body.pairs, FILE_OF_PAIRS, source.files),
        test_pairs=_store_pairs(body.test_pairs, FILE_OF_TEST_PAIRS, source.files),
        personal_data=body.personal_data,
        prompt_name=body.prompt_name,
        serve_dimensions=body.serve_dimensions,
    )
    require_query_files(request)
    target = (
        services.embedder.find_engine(body.target_encoder, param="target_encoder").spec if body.target_encoder else None
    )
    if version is None:
        require_pairs_or_none(chain, request.targets, target)
        require_query_pairs_or_none(chain, request.pairs, request.test_pairs)
    else:
        require_no_targets(request, target)
    _require_usable_pairs(body)
    files = tuple(source.files)
    job = FitJob(encoder=spec, request=request, target_encoder=target, transform=body.transform, files=files)
    return services.jobs.submit("fit", job.to_json(), source.files)


def _load_version_with_moments(ref: str, services: Services) -> LoadedChain:
    loaded = services.registry.load(ref)
    require_moments(loaded.ref, loaded.chain.metadata)
    return loaded


def _require_same_encoder(version: LoadedChain, spec: EncoderSpec | None, engine: Engine) -> None:
    """Raise `ConflictError` if the added rows are not of the encoder that the version was fitted on.

    An encoder that is still loading passes: its fingerprint is not known yet. `spec` is None for vectors without an
    encoder.
    """
    if spec is not None and engine.info is None:
        return
    fingerprint = engine.info.fingerprint if spec is not None and engine.info else None
    if fingerprint != version.encoder_fingerprint:
        raise ConflictError(
            f"{version.ref} was fitted on vectors of {version.encoder_fingerprint or 'no encoder'}, "
            f"these would be of {fingerprint or 'no encoder'}",
            param="encoder",
            code="space_mismatch",
        )


def _build_new_chain(body: FitBody) -> Chain:
    codes = [] if body.bytes is None else [{"kind": CODES, "bytes": body.bytes}]
    # An object of two sides is one step, which codes may follow as they follow a list.
    steps = [step.spec() for step in build_steps(body.steps)] if isinstance(body.steps, dict) else body.steps or []
    chain = Chain(build_steps([*steps, *codes]), body.normalize)
    if body.queries is not None and not any(isinstance(s, Transform) and s.takes_queries for s in chain.transforms):
        raise BadValueError("no step is fitted on queries; give bytes, or a step such as codes", param="queries")
    return chain


def _list_steps(chain: Chain, body: FitBody) -> list[dict[str, Any]]:
    """Return the specs of a chain's steps, without codes that a budget of bytes adds."""
    return chain.specs() if body.bytes is None else chain.specs()[:-1]


def _store_pairs(pairs: list[PairBody] | None, name: str, files: dict[str, bytes]) -> str | None:
    if pairs is None:
        return None
    if not pairs:
        raise BadValueError("the list of pairs is empty", param="pairs")
    files[name] = b"\n".join(dump_json({"query": pair.query, "document": pair.document}) for pair in pairs)
    return name


def _require_usable_pairs(body: FitBody) -> None:
    fit, test = (
        None if pairs is None else gather_pairs((pair.query, pair.document) for pair in pairs)
        for pairs in (body.pairs, body.test_pairs)
    )
    if fit is not None or test is not None:
        divide_pairs(fit, test, body.seed, quote=not body.personal_data)


def _locate_queries(source: SourceBody, services: Services, files: dict[str, bytes], dimensions: int | None) -> str:
    """Return the path or file name from which a fitting job reads example queries, which weight its codes."""
    received = receive(source, services.settings.data_root)
    if None not in (dimensions, received.width) and dimensions != received.width:
        raise BadValueError(
            f"the queries have {received.width} dimensions, the fitted vectors {dimensions}", param="queries"
        )
    if not received.files:
        return received.path
    name = FILE_OF_QUERY_TEXTS if received.texts else FILE_OF_QUERIES
    files[name] = received.files[received.path]
    return name


def _locate_targets(source: SourceBody, services: Services, files: dict[str, bytes]) -> str:
    """Return the path of the target vectors of a fit on pairs; add vectors sent with the request to the job's files."""
    if source.texts is not None:
        raise BadValueError("targets are vectors; for texts name their target_encoder", param="targets.texts")
    if source.path is not None:
        return resolve_allowed_path(source.path, services.settings.data_root)
    rows = source.vectors or []
    files[FILE_OF_TARGETS] = dump_npy(as_vectors(rows, max_rows=len(rows) + 1))
    return FILE_OF_TARGETS
