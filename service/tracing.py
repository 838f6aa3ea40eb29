"""Traces of requests, sent to an OpenTelemetry collector; the standard OTEL_* variables say where and how.

    caller's traceparent ─► span "POST /embed" ─► batch ─► OTLP over HTTP ─► collector
                            http.route, status

The instrumentation writes the whole address into a span. So it is shown a request without one: only
the template of the route is told, once it is known, and a caller's path or query cannot get into a trace.
"""

from importlib.metadata import version
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from service.middleware import is_probe, route_of

MISSING = "LATHE_TRACING needs packages that are not installed: pip install 'lathe[otel]'"


def instrument(app: Starlette) -> None:
    """Trace the requests of an app, health and metrics excepted.

    Raises:
        ValueError: if the extra `otel` is not installed.
    """
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.instrumentation.asgi
        import opentelemetry.sdk.trace.export  # noqa: F401
    except ImportError:
        raise ValueError(MISSING) from None
    app.add_middleware(TraceMiddleware)


class TraceMiddleware:
    """Makes a span of each request; what is not sent yet is sent when the app ends."""

    def __init__(self, app: ASGIApp) -> None:
        from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware

        self.app = app
        self.provider = open_provider()
        self.traced = OpenTelemetryMiddleware(
            self.answer, tracer_provider=self.provider, exclude_spans=["receive", "send"]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the app's life."""
        if scope["type"] == "http" and not is_probe(scope["path"]):
            shown: Scope = {**scope, "path": "", "query_string": b"", "whole": scope}
            await self.traced(shown, receive, send)
            return
        await self.app(scope, receive, send)
        if scope["type"] == "lifespan":
            await run_in_threadpool(self.provider.shutdown)

    async def answer(self, shown: Scope, receive: Receive, send: Send) -> None:
        """Answer the whole request, naming its span once the route is known."""
        from opentelemetry.trace import format_trace_id, get_current_span

        scope: Scope = shown["whole"]
        span = get_current_span()

        async def name_and_send(message: Message) -> None:
            route = route_of(scope)
            if route and message["type"] == "http.response.start":
                span.update_name(f"{scope['method']} {route}")
                span.set_attribute("http.route", route)
            await send(message)

        with bound_contextvars(trace_id=format_trace_id(span.get_span_context().trace_id)):
            await self.app(scope, receive, name_and_send)


def open_provider() -> Any:
    """A tracer provider that exports in batches; `OTEL_SERVICE_NAME` wins over our name."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    ours = Resource.create({"service.name": "lathe", "service.version": version("lathe")})
    provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
