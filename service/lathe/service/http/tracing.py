"""Traces of requests, exported to an OpenTelemetry collector.

    caller's traceparent ─► span "POST /embed" ─► batch ─► OTLP over HTTP ─► collector
                            http.route, status

The standard OTEL_* variables configure the export. The instrumentation writes the whole URL into a span. It is
therefore given a request without path and query: only the route's template is recorded, once it is known, so that
nothing of a caller's URL gets into a trace.
"""

from importlib.metadata import version
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lathe.service.http.middleware import get_route, is_probe
from lathe.service.http.root_path import get_path_below_root
from lathe.service.logs import log_context

MISSING = "LATHE_TRACING needs packages that are not installed: pip install 'lathe-service[otel]'"
"""Message of the error when the packages for tracing are not installed."""


def add_tracing(app: Starlette) -> None:
    """Add middleware that traces the app's requests, except those of health and metrics.

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
    """Middleware that records a span for each request.

    Unsent spans are exported when the app ends.
    """

    def __init__(self, app: ASGIApp) -> None:
        from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware

        self.app = app
        self.provider = _open_provider()
        self.traced = OpenTelemetryMiddleware(
            self.answer, tracer_provider=self.provider, exclude_spans=["receive", "send"]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app on an HTTP request and record a trace of it. Health checks and metrics are not traced.

        Path and query are hidden from the instrumentation. Other scopes are passed on. At shutdown, unsent spans are
        exported.
        """
        if scope["type"] == "http" and not is_probe(get_path_below_root(scope)):
            hidden: Scope = {**scope, "path": "", "query_string": b"", "original": scope}
            await self.traced(hidden, receive, send)
            return
        await self.app(scope, receive, send)
        if scope["type"] == "lifespan":
            await run_in_threadpool(self.provider.shutdown)

    async def answer(self, hidden: Scope, receive: Receive, send: Send) -> None:
        """Run the app on the original request inside its span, and name the span by the matched route.

        Log lines of the request hold the trace id.
        """
        from opentelemetry.trace import format_trace_id, get_current_span

        scope: Scope = hidden["original"]
        span = get_current_span()

        async def name_and_send(message: Message) -> None:
            route = get_route(scope)
            if route and message["type"] == "http.response.start":
                span.update_name(f"{scope['method']} {route}")
                span.set_attribute("http.route", route)
            await send(message)

        with log_context(trace_id=format_trace_id(span.get_span_context().trace_id)):
            await self.app(scope, receive, name_and_send)


def _open_provider() -> Any:
    """Return an OpenTelemetry tracer provider that exports spans in batches.

    The service's name is "lathe" unless `OTEL_SERVICE_NAME` is set.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.name": "lathe", "service.version": version("lathe-service")})
    provider = TracerProvider(resource=resource.merge(OTELResourceDetector().detect()))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
