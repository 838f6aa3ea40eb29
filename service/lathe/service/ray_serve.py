"""The app as a Ray Serve deployment: `serve run lathe.service.ray_serve:build min_replicas=1 max_replicas=4`.

client ── Ray's proxy ──┬── replica: the app ── its encoders' workers
                        └── replica: the app ── …      as many as the requests in flight need
"""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, model_validator
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lathe.service import logs
from lathe.service.app import create_app
from lathe.service.processes.program import get_environment_without_keys
from lathe.service.settings import Settings, read_settings
from lathe.training.encoder.devices import keep_freed_blocks

OTHER_REQUESTS = 1000
"""Concurrent requests allowed per replica that wait for no encoder: job events, reductions, bodies being read."""

EXTRA_SHUTDOWN_SECONDS = 10
"""Seconds the app gets to shut down after its requests; Ray then kills the replica."""


class Arguments(BaseModel):
    """Arguments of `build`, with Ray's names and meanings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_replicas: int = Field(1, ge=1)
    max_replicas: int = Field(1, ge=1)
    target_ongoing_requests: float = Field(16, gt=0)
    """Requests in flight per replica above which Ray starts another replica. An encoder batches waiting requests: with
    fewer, its batches are half empty, and requests beyond a full batch only wait."""
    upscale_delay_s: float = Field(30, ge=0)
    downscale_delay_s: float = Field(600, ge=0)
    num_cpus: int = Field(1, ge=1)
    """CPU cores of each replica; replaces LATHE_THREADS, whose default counts all cores of one machine."""
    num_gpus: float = Field(0, ge=0)
    """GPUs of each replica; with 0 it sees no GPU."""

    @model_validator(mode="after")
    def check_replicas(self) -> "Arguments":
        """Return the arguments unchanged. Raise `ValueError` if `max_replicas` is less than `min_replicas`."""
        if self.max_replicas < self.min_replicas:
            raise ValueError(
                f"max_replicas is {self.max_replicas}; it must be at least min_replicas, {self.min_replicas}"
            )
        return self


def build(arguments: Arguments) -> Application:
    """Return the Ray Serve application for the settings in the environment and these arguments.

    Raises:
        ValueError: if several replicas would share no state, the server would be public without keys, or a setting is
            invalid.
    """
    settings = read_settings(threads=arguments.num_cpus)
    _require_shared_state(settings, arguments.max_replicas)
    _require_keys(settings)
    options = {"num_cpus": arguments.num_cpus, "num_gpus": arguments.num_gpus}
    deployment = serve.deployment(
        name="Lathe",
        ray_actor_options=options,
        autoscaling_config=AutoscalingConfig(**arguments.model_dump(exclude={"num_cpus", "num_gpus"})),
        # Ray's limit is above Lathe's own queues, so that Lathe answers 429 first.
        max_ongoing_requests=settings.max_queued_texts * len(settings.hosted) + OTHER_REQUESTS,
        graceful_shutdown_timeout_s=settings.shutdown_seconds + EXTRA_SHUTDOWN_SECONDS,
    )
    return deployment(serve.ingress(_make_app_builder(settings))()).bind()


def _make_app_builder(settings: Settings) -> Callable[[], ASGIApp]:
    """Return a function that builds the app in a replica's process with these settings.

    The function sets this process's `LATHE_` variables, without keys. A replica's node may have other variables, so
    these travel with the application.
    """
    variables = {k: v for k, v in get_environment_without_keys().items() if k.startswith("LATHE_")}
    variables["LATHE_THREADS"] = str(settings.threads)  # of the replica, not of the process that builds it

    def build_app() -> ASGIApp:
        """Set up the replica's process (environment, allocator, threads, logging) and build the app.

        The app starts only when its encoders have loaded or failed.
        """
        import torch

        os.environ.update(variables)  # the processes of jobs read them
        keep_freed_blocks()
        torch.set_num_threads(settings.threads)
        logs.configure(settings.log_level)
        app = create_app(settings)
        _wait_for_encoders(app)
        return _OneRequestId(app)

    return build_app


def _wait_for_encoders(app: FastAPI) -> None:
    """Change the app's lifespan to wait at startup until each encoder has loaded or failed.

    Ray sends requests to a replica as soon as it has started.
    """
    start = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(started: FastAPI) -> AsyncIterator[Any]:
        async with start(started) as state:
            for engine in list(started.state.services.embedder.engines.values()):
                await run_in_threadpool(engine.settled.wait)
            yield state

    app.router.lifespan_context = lifespan


class _OneRequestId:
    """Middleware that removes the response header `x-request-id`, because Ray's proxy adds the same id itself."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def pass_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [(name, value) for name, value in message["headers"] if name != b"x-request-id"]
            await send(message)

        await self.app(scope, receive, pass_on)


def _require_shared_state(settings: Settings, replicas: int) -> None:
    """Raise `ValueError` if several replicas are allowed and have no Redis by which to share chains and jobs."""
    if replicas > 1 and not settings.redis_url:
        raise ValueError(
            f"max_replicas={replicas} needs LATHE_REDIS_URL: without it each replica has its own chains and "
            "jobs, and a change reaches only one of them"
        )


def _require_keys(settings: Settings) -> None:
    """Raise `ValueError` if no API keys are set, and the settings do not allow use without keys.

    Ray decides who can connect.
    """
    if not (settings.api_keys or settings.read_only_keys or settings.public_without_keys):
        raise ValueError(
            "no API keys are set, and Lathe cannot tell who reaches the proxy of Ray Serve: set LATHE_API_KEYS or "
            "LATHE_API_KEYS_FILE, or LATHE_PUBLIC_WITHOUT_KEYS=true if anyone may use it"
        )
