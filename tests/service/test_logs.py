import json
import logging
import os
import time

import pytest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from lathe.service import logs
from lathe.service.http.middleware import RequestMiddleware
from lathe.service.settings import read_settings

SECRET = "what-a-caller-sent"


async def answer(request):
    await request.body()
    return PlainTextResponse("ok", headers={"x-chain": "compact@1", "x-dimensions": "128"})


async def warn_in_a_thread(request):
    await run_in_threadpool(logging.getLogger("lathe.service.index").warning, "index %s: %s", "docs", "slow")
    return PlainTextResponse("ok")


async def fail(request):
    raise KeyError(SECRET)


@pytest.fixture
def configured():
    """Return the function that configures logging as a server does. Restore the test's own logging afterwards."""
    root, ours = logging.getLogger(), logging.getLogger("lathe.service")
    before = root.handlers, root.level, ours.level
    yield logs.configure
    root.handlers = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


@pytest.fixture
def client():
    """Return a client of a small app with the request middleware."""
    app = Starlette(
        routes=[
            Route("/chains/{name}", answer, methods=["GET", "POST"]),
            Route("/health/live", answer),
            Route("/metrics", answer),
            Route("/warn", warn_in_a_thread),
            Route("/fail", fail),
        ]
    )
    app.add_middleware(RequestMiddleware)
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)


@pytest.fixture
def lines(capsys):
    """Return a function that parses the lines logged since its last call."""
    return lambda: [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_each_request_is_logged_as_one_json_line_with_its_route_and_sizes(configured, client, lines):
    configured("info")
    answered = client.post("/chains/mine", content=b"12345", headers={"x-request-id": "r-1"})
    (line,) = lines()
    assert list(line)[:4] == ["timestamp", "level", "logger", "event"]
    assert line.pop("timestamp").endswith("Z") and line.pop("milliseconds") > 0
    assert line == {
        "level": "info",
        "logger": "lathe.service.http.middleware",
        "event": "request",
        "request_id": answered.headers["x-request-id"],
        "method": "POST",
        "route": "/chains/{name}",
        "status": 200,
        "bytes_in": 5,
        "chain": "compact@1",
        "dimensions": 128,
    }


def test_keys_bodies_paths_queries_and_headers_of_a_request_are_never_logged(configured, client, capsys):
    configured("debug")
    headers = {"authorization": f"Bearer {SECRET}", "x-request-id": f"{SECRET} with a blank", "user-agent": SECRET}
    for path in (f"/chains/{SECRET}?key={SECRET}", f"/nowhere/{SECRET}", "/fail"):
        client.request("POST" if "chains" in path else "GET", path, content=SECRET.encode(), headers=headers)
    logged = capsys.readouterr().out
    assert SECRET not in logged
    statuses = [line["status"] for line in map(json.loads, logged.splitlines()) if line["event"] == "request"]
    assert statuses == [200, 404, 500]


def test_an_unexpected_error_is_logged_with_its_frames_and_health_and_metrics_at_debug_only(configured, client, lines):
    """The message of an error may hold what a caller sent."""
    configured("info")
    for path in ("/health/live", "/metrics"):
        client.get(path)
    answered = client.get("/fail")
    failed, request = lines()
    assert answered.status_code == request["status"] == 500
    assert (failed["level"], failed["event"], failed["error"]) == ("error", "request failed", "KeyError")
    assert "in fail" in failed["frames"]
    assert failed["request_id"] == request["request_id"] == answered.headers["x-request-id"]
    configured("debug")
    client.get("/health/live")
    assert [(line["level"], line["route"]) for line in lines()] == [("debug", "/health/live")]


def test_log_lines_written_during_a_request_carry_its_request_id(configured, client, lines):
    configured("info")
    client.get("/warn", headers={"x-request-id": "r-2"})
    logging.getLogger("lathe.service.jobs").warning("later")
    warned, _, later = lines()
    assert (warned["event"], warned["logger"], warned["request_id"]) == (
        "index docs: slow",
        "lathe.service.index",
        "r-2",
    )
    assert "request_id" not in later


def test_other_libraries_log_in_the_same_format_from_warning_on_or_the_configured_level(configured, client, lines):
    configured("debug")
    logging.getLogger("uvicorn.error").info("Application startup complete.")
    logging.getLogger("urllib3").debug("GET /?key=1")
    try:
        raise RuntimeError("gone")
    except RuntimeError:
        logging.getLogger("uvicorn.error").exception("it broke")
    (line,) = lines()
    assert (line["level"], line["logger"], line["event"]) == ("error", "uvicorn.error", "it broke")
    assert line["exception"].endswith("RuntimeError: gone")
    configured("error")
    client.get("/warn")
    logging.getLogger("uvicorn.error").warning("hushed")
    logging.getLogger("lathe.service.jobs").error("heard")
    assert [line["event"] for line in lines()] == ["heard"]


def test_every_record_is_one_line_of_json_whatever_its_extra_values(configured, lines):
    configured("info")
    for odd in ("\udcff", 2**70, b"bytes", {1, 2}, float("nan"), "two\nlines"):
        logging.getLogger("lathe.service").info("odd", extra={"odd": odd})
        (line,) = lines()
        assert line["event"] == "odd" and "odd" in line


def test_log_level_setting_ignores_case_and_rejects_unknown_levels(monkeypatch):
    assert read_settings().log_level == "info"
    monkeypatch.setenv("LATHE_LOG_LEVEL", "WARNING")
    assert read_settings().log_level == "warning"
    monkeypatch.setenv("LATHE_LOG_LEVEL", "loud")
    with pytest.raises(ValueError, match="LATHE_LOG_LEVEL.*debug"):
        read_settings()


def test_lines_that_nobody_reads_are_dropped_and_counted_and_nothing_waits(configured):
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream, os.fdopen(reader, "rb") as read:
        handler = logs.LineHandler(stream)
        handler.setFormatter(logs.JsonFormatter())
        log = logging.Logger("lathe.service.test")
        log.addHandler(handler)
        begun = time.monotonic()
        for number in range(5000):
            log.info("line %d %s", number, "x" * 100)
        log.info("long %s", "y" * 200_000)
        assert time.monotonic() - begun < 5
        assert handler.dropped > 3000
        os.set_blocking(reader, False)
        written = read.read()
        dropped = handler.dropped
        log.info("after")
        notice, after = read.read().splitlines()
    assert f"{dropped:,} lines of this log were dropped" in json.loads(notice)["event"]
    assert json.loads(after)["event"] == "after"
    assert [json.loads(line)["event"].split()[1] for line in written.splitlines()[:10]] == [*map(str, range(10))]
