"""The run of a fit request up to the registered chain: shared by `lathe fit` and `POST /fit-transform`."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from lathe.service.chains.names import require_name
from lathe.service.chains.registry import Registry
from lathe.service.errors import UnavailableError
from lathe.service.home import Home
from lathe.service.registries import open_registry
from lathe.service.settings import Settings
from lathe.training.encoder.opening import open_encoder
from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import FitError
from lathe.training.fitting.earlier_version import EarlierVersion
from lathe.training.fitting.engines import LOCAL, Engine
from lathe.training.fitting.fit import FittedChain, fit_chain
from lathe.training.fitting.fit_request import FitRequest
from lathe.training.sources.local import RootedFile
from lathe.transforms.files import create_file
from lathe.transforms.progress import Progress, part_of
from lathe.transforms.vectors import row_blocks

if TYPE_CHECKING:
    from lathe.service.jobs.requests import FitJob

PATIENCE_SECONDS = 300.0
"""Seconds for which a fit waits for Redis to come back, or to have room, before it gives up publishing its chain."""
PASSING_CODES = ("redis_unreachable", "redis_full")
"""Codes of refusals that may pass within `PATIENCE_SECONDS`."""
T = TypeVar("T")


def run_fit(
    request: FitRequest,
    encoder: TextEncoder | None,
    registry: Registry,
    workspace: Path,
    on_progress: Progress,
    command: str | None = None,
    vectors_to: Path | None = None,
    target_encoder: TextEncoder | None = None,
    job: str | None = None,
    engine: Engine = LOCAL,
) -> dict[str, Any]:
    """Fit a chain, add it to the registry, and make it live if wanted and its gates hold.

    Requests for dimensions get the chain only if the request says `serve_dimensions`.

    Gates are the request's bounds on the certificate: a chain that fails one is registered all the same, but not live.
    While Redis is unreachable or full, publishing waits up to `PATIENCE_SECONDS`.

    Args:
        request: what to fit.
        encoder: encoder of the texts, or of the vectors; None for vectors without an encoder.
        registry: registry to which the version is added.
        workspace: folder for encoded vectors during the fit.
        on_progress: called with progress in [0, 1] and a message.
        command: the user's command, for the provenance.
        vectors_to: .npy file for the source's vectors as the new chain transforms them; None to write none.
        target_encoder: encoder whose space the outputs should match, for steps fitted on pairs.
        job: id of the job that fits; with Redis, a job that runs twice publishes one version.
        engine: computes encodings and moments.

    Returns:
        `{chain: "name@1", promoted, failed_gates, size_routes, certificate}`; `promoted` is whether the version is
        live, `size_routes` lists the sizes that were routed to it.

    Raises:
        TrainingError, TransformError: if the fit cannot be done, or `vectors_to` is no .npy file in an existing folder;
            nothing is registered then.
    """
    require_name(request.name)
    if vectors_to is not None and (vectors_to.suffix != ".npy" or not vectors_to.parent.is_dir()):
        raise FitError(f"{vectors_to} must be a .npy file in a folder that is there")
    earlier = None if request.add_to is None else _load_earlier_version(registry, request.add_to)
    with fit_chain(request, encoder, workspace, on_progress, command, target_encoder, earlier, engine) as fitted:
        if vectors_to is not None:
            _write_vectors(fitted, vectors_to)
        promote = False if fitted.failed_gates else request.promote
        version, live = _wait_for_redis(
            lambda: registry.publish(fitted.chain, request.name, promote, job, fitted.statistics), on_progress
        )
        serve = partial(registry.size_routes.serve_dimensions, request.name)
        served = _wait_for_redis(serve, on_progress) if live and request.serve_dimensions else []
    return {
        "chain": f"{request.name}@{version}",
        "promoted": live,
        "failed_gates": fitted.failed_gates,
        "size_routes": served,
        "certificate": fitted.certificate,
    }


def _load_earlier_version(registry: Registry, ref: str) -> EarlierVersion:
    found = registry.load(ref)
    return EarlierVersion.read(found.ref, found.chain, found.folder)


def _wait_for_redis(change: Callable[[], T], on_progress: Progress) -> T:
    """Call `change` and return its result; while Redis is unreachable or full, retry each second and say so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return change()
        except UnavailableError as error:
            if error.code not in PASSING_CODES or time.monotonic() > deadline:
                raise
            on_progress(1.0, f"waiting: {error.message}")
            time.sleep(1)


def _write_vectors(fitted: FittedChain, path: Path) -> None:
    """Write the source's vectors, transformed by the new chain in blocks, to a .npy file `(n, k)`.

    The file appears under its name only when it is complete.
    """
    vectors, chain = fitted.encoded.vectors, fitted.chain
    like = chain.transform(vectors[:1])  # codes have a width and dtype of their own
    staging = path.with_name(f".{path.name}.partial")
    create_file(staging).close()
    out = np.lib.format.open_memmap(staging, "w+", like.dtype, (vectors.shape[0], like.shape[1]))
    start = 0
    for block in row_blocks(vectors):
        out[start : start + len(block)] = chain.transform(block)
        start += len(block)
    out.flush()
    del out
    staging.replace(path)


def run_fit_job(asked: "FitJob", folder: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
    """Load the encoders, run `run_fit` for a fit job, and return its result, with `vectors_url` if it wrote vectors.

    Inputs named in `asked.files` are read from the job's folder, to which `vectors.npy` is written if asked for.
    """
    request = asked.request
    here = {name: str(RootedFile(folder, name)) for name in asked.files}
    request = replace(
        request,
        source=here.get(request.source, request.source),
        targets=here.get(str(request.targets), request.targets),
        queries=here.get(str(request.queries), request.queries),
        pairs=here.get(str(request.pairs), request.pairs),
        test_pairs=here.get(str(request.test_pairs), request.test_pairs),
    )
    on_progress(0.0, "loading the encoder")
    store = None if request.personal_data else settings.upstream_store
    encoder, target_encoder = (
        open_encoder(spec, settings.device, store) if spec else None for spec in (asked.encoder, asked.target_encoder)
    )
    vectors_to = folder / "vectors.npy" if asked.transform else None
    home = Home(settings.home)
    registry = _wait_for_redis(lambda: open_registry(home, settings.redis_url), part_of(on_progress, 0.0, 0.0))
    result = run_fit(
        request,
        encoder,
        registry,
        home.vectors,
        on_progress,
        command="POST /fit-transform",
        vectors_to=vectors_to,
        target_encoder=target_encoder,
        job=folder.name,
    )
    return result | ({"vectors_url": f"/jobs/{folder.name}/vectors"} if vectors_to else {})
