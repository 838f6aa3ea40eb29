"""The app under Ray Serve: `serve run service.ray_serve:build min_replicas=1 max_replicas=4`.

client ── Ray's proxy ──┬── replica: the app ── its encoders' workers
                        └── replica: the app ── …      as many as requests in flight ask for
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

from service import logs
from service.app import create_app
from service.memory import keep_freed_blocks
from service.processes.program import environment_without_keys
from service.settings import Settings, read_settings

BESIDE_TEXTS = 1000
"""Requests of a replica that wait for no encoder: events of jobs, reductions, bodies that are still read."""

LAST_WORDS_SECONDS = 10
"""For the end of the app, after its requests'; a replica is killed after that."""


class Arguments(BaseModel):
    """What `build` takes; names and meanings are Ray's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_replicas: int = Field(1, ge=1)
    max_replicas: int = Field(1, ge=1)
    target_ongoing_requests: float = Field(16, gt=0)
    """Requests in flight, for each replica; more call for another one. An encoder makes its next pass of what waits: a
    few leave it half empty, and those beyond a full pass only wait."""
    upscale_delay_s: float = Field(30, ge=0)
    downscale_delay_s: float = Field(600, ge=0)
    num_cpus: int = Field(1, ge=1)
    """Of each replica; in place of LATHE_THREADS, which would count the cores of one machine."""
    num_gpus: float = Field(0, ge=0)
    """Of each replica; one without sees no GPU."""

    @model_validator(mode="after")
    def check(self) -> "Arguments":
        """Refuse a range without a number in it."""
        if self.max_replicas < self.min_replicas:
            raise ValueError(f"max_replicas={self.max_replicas} is less than min_replicas={self.min_replicas}")
        return self

    @property
    def autoscaling(self) -> AutoscalingConfig:
        """When Ray adds and removes replicas."""
        return AutoscalingConfig(**self.model_dump(exclude={"num_cpus", "num_gpus"}))


def build(arguments: Arguments) -> Application:
    """The application, with the settings of the process that builds it.

    Raises:
        ValueError: if replicas would share nothing, anybody could use them, or a setting cannot be used.
    """
    settings = read_settings(threads=arguments.num_cpus)
    require_shared(settings, arguments.max_replicas)
    require_keys(settings)
    options = {"num_cpus": arguments.num_cpus, "num_gpus": arguments.num_gpus}
    deployment = serve.deployment(
        name="Lathe",
        ray_actor_options=options,
        autoscaling_config=arguments.autoscaling,
        max_ongoing_requests=most_requests(settings),
        graceful_shutdown_timeout_s=settings.shutdown_seconds + LAST_WORDS_SECONDS,
    )
    return deployment(serve.ingress(app_builder(settings))()).bind()


def app_builder(settings: Settings) -> Callable[[], ASGIApp]:
    """Makes the app in a replica, whose node may have other variables: Lathe's travel with the application."""
    variables = {k: v for k, v in environment_without_keys().items() if k.startswith("LATHE_")}
    variables["LATHE_THREADS"] = str(settings.threads)  # of the replica, not of the process that builds it

    def make_app() -> ASGIApp:
        import torch

        os.environ.update(variables)  # jobs read them
        keep_freed_blocks()
        torch.set_num_threads(settings.threads)
        logs.configure(settings.log_level)
        app = create_app(settings)
        wait_for_encoders(app)
        return OneRequestId(app)

    return make_app


def wait_for_encoders(app: FastAPI) -> None:
    """Have the app's start wait until its encoders are loaded: Ray sends requests to a replica that has started."""
    start = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(started: FastAPI) -> AsyncIterator[Any]:
        async with start(started) as state:
            for engine in list(started.state.services.embedder.engines.values()):
                await run_in_threadpool(engine.settled.wait)
            yield state

    app.router.lifespan_context = lifespan


class OneRequestId:
    """Leaves out the request's id of an answer: Ray's proxy, which made it or passed it on, adds the same."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""

        async def pass_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [(name, value) for name, value in message["headers"] if name != b"x-request-id"]
            await send(message)

        await self.app(scope, receive, pass_on)


def most_requests(settings: Settings) -> int:
    """More than Lathe lets in, of one text each: its own 429 answers before Ray would make anybody wait unseen."""
    return settings.max_queued_texts * len(settings.hosted) + BESIDE_TEXTS


def require_shared(settings: Settings, replicas: int) -> None:
    """Raise `ValueError` where several replicas would each have chains and jobs of their own."""
    if replicas > 1 and not settings.redis_url:
        raise ValueError(
            f"max_replicas={replicas} needs LATHE_REDIS_URL: without it each replica has its own chains and "
            "jobs, and a change reaches only one of them"
        )


def require_keys(settings: Settings) -> None:
    """Raise `ValueError` without keys, unless told otherwise: which address is listened on is Ray's setting."""
    if not settings.api_keys and not settings.public_without_keys:
        raise ValueError(
            "who reaches the proxy of Ray Serve is not Lathe's to see: set LATHE_API_KEYS or LATHE_API_KEYS_FILE, or "
            "LATHE_PUBLIC_WITHOUT_KEYS=true if all of them may use it"
        )
