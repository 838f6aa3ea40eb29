"""What routes hand to jobs: queries and judged pairs as files, and the reindexing and calibration of an index.

An index is reindexed for requests of indexes and for promotions of encoders.
"""

from pathlib import Path
from typing import TypeVar

import orjson

from lathe.service.errors import BadValueError, ConflictError, NotSupportedError
from lathe.service.index.spec import (
    CalibrateRequest,
    CheckupRequest,
    IndexSpec,
    ReindexRequest,
    require_originals,
)
from lathe.service.index.spec_resolver import SpecResolver
from lathe.service.jobs.job import (
    FILE_OF_NEW_TEXTS,
    FILE_OF_PAIRS,
    FILE_OF_QUERIES,
    FILE_OF_QUERY_TEXTS,
    FILE_OF_TEST_PAIRS,
    Job,
)
from lathe.service.jobs.kinds.calibrate import CalibrateJob
from lathe.service.jobs.kinds.checkup import CheckupJob
from lathe.service.jobs.kinds.reindex import ReindexJob
from lathe.service.jobs.sources import receive_source, resolve_allowed_path
from lathe.service.services import Services
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.fitting.requests import Pairs, RowSource, SourcedRequest
from lathe.training.journal import serialize_lines
from lathe.transforms.artifact import MANIFEST, TENSORS

IndexInputs = TypeVar("IndexInputs", CalibrateRequest, CheckupRequest)
PAIR_FILES = {"pairs": FILE_OF_PAIRS, "test_pairs": FILE_OF_TEST_PAIRS}
"""Name of the file in which pairs of a field go with the job."""


def store_pairs(request: SourcedRequest, files: dict[str, bytes], data_root: Path | None) -> dict[str, str]:
    """Return the paths from which a job reads pairs of query and document, by field. Pairs that were sent become files.

    The files are added to `files`.

    Raises:
        BadValueError: if the list of pairs is empty.
        ForbiddenError, UnknownNameError, BadValueError: as `resolve_allowed_path`, for a file.
    """
    paths = {}
    for field, name in PAIR_FILES.items():
        pairs: Pairs | None = getattr(request, field, None)
        if isinstance(pairs, str):
            paths[field] = resolve_allowed_path(pairs, data_root, field)
        elif pairs is not None:
            if not pairs:
                raise BadValueError("the list of pairs is empty", param="pairs")
            paths[field] = name
            files[name] = serialize_lines(pair.model_dump() for pair in pairs)
    return paths


def store_queries(
    queries: RowSource | None, dimensions: int | None, files: dict[str, bytes], data_root: Path | None
) -> dict[str, str]:
    """Return the path from which the job reads queries, as `{"queries": path}`, or {} without queries.

    Queries in the request are added to `files`.

    Raises:
        BadValueError: if they do not have the dimensions of the rows to fit on.
    """
    if queries is None:
        return {}
    received = receive_source(queries, data_root)
    if None not in (dimensions, received.dimensions) and dimensions != received.dimensions:
        raise BadValueError(
            f"the queries have {received.dimensions} dimensions, the fitted vectors {dimensions}", param="queries"
        )
    if not received.files:
        return {"queries": received.path}
    name = FILE_OF_QUERY_TEXTS if received.texts else FILE_OF_QUERIES
    files[name] = received.files[received.path]
    return {"queries": name}


def queue_calibration(name: str, services: Services, request: CalibrateRequest) -> Job:
    """Check a request to calibrate an index, queue its job with the data sent, and return the job.

    Raises:
        NotSupportedError: if the backend cannot calibrate indexes.
        ConflictError: if the index's metric is not cosine.
        ServiceError, SourceError: if the queries or pairs cannot be used.
    """
    spec = _get_local_spec(name, services, "calibrated")
    if spec.metric != "cosine":
        raise ConflictError(f"only an index with the metric cosine can be calibrated, not {spec.metric}")
    request, files, encoder = _receive_inputs(request, spec, services, bool(request.pairs))
    job = CalibrateJob(encoder=encoder, index=name, request=request, files=tuple(files))
    return services.jobs.submit("calibrate", job.to_json(), files)


def queue_checkup(name: str, services: Services, request: CheckupRequest) -> Job:
    """Check a request to check an index, queue its job with the queries sent, and return the job.

    Raises:
        NotSupportedError: if the backend cannot check indexes.
        ServiceError, SourceError: if the queries cannot be used.
    """
    spec = _get_local_spec(name, services, "checked")
    require_originals(spec, "a checkup")
    request, files, encoder = _receive_inputs(request, spec, services, spec.text_field is not None)
    job = CheckupJob(encoder=encoder, index=name, request=request, files=tuple(files))
    return services.jobs.submit("checkup", job.to_json(), files)


def _get_local_spec(name: str, services: Services, done: str) -> IndexSpec:
    """Return the settings of an index in the state folder. `done` says what another cannot be, for the error.

    Raises:
        NotSupportedError: if indexes are in another backend.
        UnknownNameError: if there is no such index.
    """
    index, backend = services.indexes.get(name), services.indexes.capabilities
    if not backend.reindexing:
        raise NotSupportedError(f"an index in {backend.name} cannot be {done}: only one in the state folder can")
    return index.spec


def _receive_inputs(
    request: IndexInputs, spec: IndexSpec, services: Services, has_texts: bool
) -> tuple[IndexInputs, dict[str, bytes], EncoderSpec | None]:
    """Return a request with the paths of its data, the files of data sent with it, and the encoder of its texts.

    The encoder is None without texts, so that the job need not wait for it. `has_texts` says whether the job encodes
    other texts than its queries.

    Raises:
        ServiceError, SourceError: if the queries or pairs cannot be used.
    """
    files: dict[str, bytes] = {}
    paths = store_queries(request.queries, spec.width, files, services.settings.data_root)
    paths |= store_pairs(request, files, services.settings.data_root)
    needed = has_texts or (request.queries is not None and request.queries.vectors is None)
    encoder = services.embedder.find_engine(spec.encoder).spec if needed and spec.encoder is not None else None
    return request.with_paths(paths), files, encoder


def queue_reindex(name: str, services: Services, request: ReindexRequest) -> Job:
    """Check a request to reindex an index, queue its job with any new texts, and return the job.

    What can be checked before the work begins is checked here, so that the client is told at once.
    """
    index = services.indexes.get(name)
    backend = services.indexes.capabilities
    if not backend.reindexing:
        raise NotSupportedError(
            f"an index in {backend.name} cannot be reindexed in place: export it with `lathe index export {name}`, "
            "create another with the settings you want, and import into that"
        )

    spec, artifact, encoder = build_spec_resolver(services).resolve_reindexed(request, index)
    if request.texts and encoder is None:
        raise BadValueError("texts are encoded again only by another encoder: name it in `encoder`", param="texts")
    files = {} if artifact is None else dict(zip((MANIFEST, TENSORS), artifact, strict=True))
    if request.texts:
        files[FILE_OF_NEW_TEXTS] = orjson.dumps(request.texts)

    text_field = spec.text_field or "text"
    job = ReindexJob(encoder=encoder.spec if encoder else None, index=name, spec=spec, text_field=text_field)
    with services.submitting_reindex:  # of two requests at once, the second sees the first's job
        if services.list_reindex_jobs(name):
            raise ConflictError(f"the index {name} is being reindexed already", param="name")
        return services.jobs.submit("reindex", job.to_json(), files)


def build_spec_resolver(services: Services) -> SpecResolver:
    """Return a resolver of index settings that knows the served encoders and the chains."""
    embedder = services.embedder
    return SpecResolver(
        services.registry,
        embedder.resolver,
        lambda name: embedder.find_engine(name, param="encoder").get_ready_info(),
        lambda: [engine.get_ready_info() for engine in embedder.engines.values()],
    )
