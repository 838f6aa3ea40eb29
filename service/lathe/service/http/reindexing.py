"""Queueing of the jobs that reindex an index, for requests of indexes and for promotions of encoders."""

import orjson

from lathe.service.errors import BadValueError, ConflictError, NotSupportedError
from lathe.service.http.schemas import ReindexBody
from lathe.service.index.spec_resolver import ReindexRequest, SpecResolver
from lathe.service.jobs.inputs import FILE_OF_NEW_TEXTS
from lathe.service.jobs.requests import ReindexJob
from lathe.service.jobs.store import Job
from lathe.service.services import Services
from lathe.transforms.artifact import MANIFEST, TENSORS


def queue_reindex(name: str, services: Services, body: ReindexBody) -> Job:
    """Check a reindex request, queue its job with any new texts, and return the job.

    What can be checked before the work begins is checked here, so that the client is told at once.
    """
    index = services.indexes.get(name)
    backend = services.indexes.capabilities
    if not backend.reindexing:
        raise NotSupportedError(
            f"an index in {backend.name} cannot be reindexed in place: export it with `lathe index export {name}`, "
            "create another with the settings you want, and import into that"
        )

    request = ReindexRequest(**body.model_dump(exclude={"texts"}))
    spec, artifact, encoder = build_specs(services).resolve_reindexed(request, index)
    if body.texts and encoder is None:
        raise BadValueError("texts are encoded again only by another encoder: name it in `encoder`", param="texts")
    files = {} if artifact is None else dict(zip((MANIFEST, TENSORS), artifact, strict=True))
    if body.texts:
        files[FILE_OF_NEW_TEXTS] = orjson.dumps(body.texts)

    text_field = spec.text_field or "text"
    job = ReindexJob(encoder=encoder.spec if encoder else None, index=name, spec=spec, text_field=text_field)
    with services.submitting_reindex:  # of two requests at once, the second sees the first's job
        if services.list_reindex_jobs(name):
            raise ConflictError(f"the index {name} is being reindexed already", param="name")
        return services.jobs.submit("reindex", job.to_json(), files)


def build_specs(services: Services) -> SpecResolver:
    """Build the resolver of the settings of indexes from the served encoders and chains."""
    embedder = services.embedder
    return SpecResolver(
        services.registry,
        embedder.resolver,
        lambda name: embedder.find_engine(name, param="encoder").require_ready(),
        lambda: [engine.require_ready() for engine in embedder.engines.values()],
    )
