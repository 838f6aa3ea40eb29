"""Fits up to the registered version: shared by `lathe fit`, `lathe advise` and the jobs."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lathe.service.chains.registry import STARTERS, Registry
from lathe.service.publishing.context import PublishContext
from lathe.service.waiting import wait_for_redis
from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import FitError
from lathe.training.fitting.encoding import LOCAL, FitEngine
from lathe.training.fitting.fit import fit_new_chain
from lathe.training.fitting.fit_state import FittedChain
from lathe.training.fitting.requests import NewFit
from lathe.transforms.artifact import FitDistribution, read_manifest
from lathe.transforms.files import create_file
from lathe.transforms.progress import Progress
from lathe.transforms.statistics import Gaussian
from lathe.transforms.vectors import row_blocks


def run_fit(
    request: NewFit,
    context: PublishContext,
    on_progress: Progress,
    *,
    encoder: TextEncoder | None = None,
    target_encoder: TextEncoder | None = None,
    engine: FitEngine = LOCAL,
    vectors_to: Path | None = None,
) -> dict[str, Any]:
    """Fit a chain of transforms, and publish it as a new version, which goes live if its gates hold.

    Gates are the request's bounds on metrics of the certificate. A chain that fails a gate is registered, but not live.
    Requests for dimensions get the chain only if the request says `serve_dimensions`.

    Args:
        request: what to fit.
        context: registry, folders and provenance.
        on_progress: called with progress in [0, 1] and a message.
        encoder: encoder of the texts, or of the vectors; None for vectors without an encoder.
        target_encoder: encoder whose space the outputs should match, for steps fitted on targets.
        engine: computes encodings and moments.
        vectors_to: .npy file for the source's vectors as the new chain transforms them; None to write none.

    Returns:
        `{chain: "name@1", promoted, failed_gates, size_routes, certificate}`; `promoted` is whether the version is
        live, `size_routes` lists the sizes that were routed to it.

    Raises:
        TrainingError, TransformError: if the fit cannot be done, or `vectors_to` is no .npy file in an existing folder;
            nothing is registered then.
    """
    if vectors_to is not None and (vectors_to.suffix != ".npy" or not vectors_to.parent.is_dir()):
        raise FitError(f"{vectors_to} must be a .npy file in a folder that is there")
    fit = fit_new_chain(
        request,
        encoder,
        context.home.vectors,
        on_progress,
        context.command,
        target_encoder,
        engine,
        None if encoder is None else read_general_gaussian(encoder.fingerprint),
    )
    with fit as fitted:
        if vectors_to is not None:
            _write_vectors(fitted, vectors_to)
        return publish_fitted_chain(
            fitted, request.name, request.promote, context.registry, on_progress, context.job, request.serve_dimensions
        )


def read_general_gaussian(encoder_fingerprint: str) -> Gaussian | None:
    """Read the Gaussian of general texts for an encoder, or return None if the starter chains have another encoder.

    The starter chains were fitted on these texts.
    """
    starter = STARTERS / "codes48" / "1"
    if read_manifest(starter)["encoder"]["fingerprint"] != encoder_fingerprint:
        return None
    return FitDistribution.load(starter).gaussian


def publish_fitted_chain(
    fitted: FittedChain,
    name: str,
    promote: bool | None,
    registry: Registry,
    on_progress: Progress,
    job: str | None = None,
    serve_dimensions: bool = False,
) -> dict[str, Any]:
    """Add a fitted chain to the registry as a new version, and make it live if asked to and no gate failed.

    While Redis is unreachable, full or read-only, publishing waits for Redis, see `wait_for_redis`.

    Args:
        fitted: the chain.
        name: its name.
        promote: whether the version goes live if no gate failed; None for only if no version is live.
        registry: the registry.
        on_progress: called with progress in [0, 1] and a message.
        job: id of the job that fitted it; one that runs twice publishes once.
        serve_dimensions: whether requests for its numbers of dimensions get the chain.

    Returns:
        The dict that `run_fit` describes.
    """
    promote = False if fitted.failed_gates else promote
    add_version = partial(registry.publish, fitted.chain, name, promote, job, fitted.distribution)
    version, live = wait_for_redis(add_version, on_progress)

    served: list[str] = []
    if live and serve_dimensions:
        served = wait_for_redis(partial(registry.size_routes.serve_dimensions, name), on_progress)
    return {
        "chain": f"{name}@{version}",
        "promoted": live,
        "failed_gates": fitted.failed_gates,
        "size_routes": served,
        "certificate": fitted.certificate,
    }


def _write_vectors(fitted: FittedChain, path: Path) -> None:
    """Transform the source's vectors with the new chain, and write them to a .npy file of shape `(n, k)`.

    The file appears under its name only when it is complete.
    """
    assert fitted.encoded is not None  # a fit of a source keeps them
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
    # Unmapped before the rename, so that no write follows once the file has its name.
    del out
    staging.replace(path)
