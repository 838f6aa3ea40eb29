import json
import logging
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from lathe.service import logs
from lathe.service.app import create_app
from lathe.service.http.middleware import RequestMiddleware
from lathe.service.http.tracing import add_tracing
from lathe.service.settings import read_settings

SECRET = "what-a-caller-sent"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


class Collector:
    """Takes spans over OTLP, as a real collector does."""

    def __init__(self):
        self.bodies = bodies = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                bodies.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def resources(self):
        assert {path for path, _ in self.bodies} <= {"/v1/traces"}
        return [each for _, body in self.bodies for each in ExportTraceServiceRequest.FromString(body).resource_spans]

    def spans(self):
        return [span for resource in self.resources() for scope in resource.scope_spans for span in scope.spans]


def as_dict(attributes):
    """Convert span attributes to a dict."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@pytest.fixture
def collector(monkeypatch):
    """Start an OTLP collector, and point the exporter at it."""
    with Collector() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        yield found


async def answer(request):
    await request.body()
    return PlainTextResponse("ok")


async def fail(request):
    raise RuntimeError(SECRET)


async def log_a_warning(request):
    logging.getLogger("lathe.service.index").warning("slow")
    return PlainTextResponse("ok")


def traced():
    """Build a client of a small app with tracing."""
    app = Starlette(
        routes=[
            Route("/chains/{name}", answer, methods=["POST"]),
            Route("/health/live", answer),
            Route("/metrics", answer),
            Route("/fail", fail),
            Route("/warn", log_a_warning),
        ]
    )
    app.add_middleware(RequestMiddleware)
    add_tracing(app)
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)


def test_a_span_has_the_route_and_continues_the_callers_trace(collector):
    with traced() as client:
        headers = {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"}
        assert client.post("/chains/mine", content=b"body", headers=headers).status_code == 200
    (span,) = collector.spans()
    attributes = as_dict(span.attributes)
    assert (span.name, attributes["http.route"]) == ("POST /chains/{name}", "/chains/{name}")
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE_ID, "b7ad6b7169203331")
    assert span.kind == span.SPAN_KIND_SERVER and attributes["http.status_code"] == 200
    assert span.end_time_unix_nano > span.start_time_unix_nano


def test_spans_contain_no_keys_paths_queries_bodies_or_error_messages(collector):
    with traced() as client:
        headers = {"authorization": f"Bearer {SECRET}"}
        client.post(f"/chains/{SECRET}?key={SECRET}", content=SECRET, headers=headers)
        client.get(f"/nowhere/{SECRET}", headers=headers)
        client.get(f"/fail?{SECRET}", headers=headers)
        for path in ("/health/live", "/metrics"):  # which are not traced
            assert client.get(path).status_code == 200
    assert [span.name for span in collector.spans()] == ["POST /chains/{name}", "GET", "GET /fail"]
    assert [as_dict(span.attributes)["http.status_code"] for span in collector.spans()] == [200, 404, 500]
    assert collector.spans()[2].status.code == collector.spans()[2].status.STATUS_CODE_ERROR
    assert not [body for _, body in collector.bodies if SECRET.encode() in body]


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, "lathe"),
        ({"OTEL_SERVICE_NAME": "mine"}, "mine"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=ours"}, "ours"),
    ],
)
def test_the_service_name_is_lathe_unless_otel_variables_set_it(collector, monkeypatch, environment, name):
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    with traced() as client:
        client.post("/chains/mine")
    (resource,) = collector.resources()
    attributes = as_dict(resource.resource.attributes)
    assert attributes["service.name"] == name and attributes["telemetry.sdk.language"] == "python"


def test_log_lines_of_a_traced_request_have_its_trace_id(collector):
    written = []
    handler = logging.Handler()
    handler.setFormatter(logs.JsonFormatter())
    handler.emit = lambda record: written.append(json.loads(handler.format(record)))
    logger = logging.getLogger("lathe.service.index")
    logger.addHandler(handler)
    with traced() as client:
        client.get("/warn")
    logger.removeHandler(handler)
    assert [line["trace_id"] for line in written] == [span.trace_id.hex() for span in collector.spans()]


def test_create_app_adds_tracing_only_if_the_setting_is_on(collector, tmp_path):
    def middlewares(**settings):
        app = create_app(read_settings(home=tmp_path, **settings))
        return [middleware.cls.__name__ for middleware in app.user_middleware]

    own = ["RequestMiddleware", "OriginMiddleware", "SheddingMiddleware", "BodyMemoryMiddleware"]
    assert middlewares() == own
    assert middlewares(tracing="true", cors_origins="*") == ["CORSMiddleware", "TraceMiddleware", *own]


def test_tracing_without_its_extra_raises_value_error_with_the_pip_command(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ValueError, match=r"LATHE_TRACING.*pip install 'lathe-service\[otel\]'"):
        create_app(read_settings(home=tmp_path, tracing=True))
