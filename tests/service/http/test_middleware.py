"""A server below a path of a proxy, which strips the path from requests or passes it on."""

import asyncio
from types import SimpleNamespace

import pytest

from lathe.service.app import create_app
from lathe.service.http.middleware import SheddingMiddleware
from lathe.service.settings import read_settings

ROOT = "/team/lathe"


@pytest.fixture(scope="module")
def app(start_app, tmp_path_factory):
    """Start an app below a path."""
    with start_app(home=tmp_path_factory.mktemp("root") / "home", root_path=ROOT) as app:
        yield app


@pytest.fixture(params=["stripped", "passed on"])
def prefix(request):
    """Return what a proxy puts before the paths that the server sees."""
    return "" if request.param == "stripped" else ROOT


def test_routes_answer_with_and_without_the_prefix(app, prefix):
    assert app.client.post(f"{prefix}/embed", json={"inputs": "x"}).status_code == 200
    assert app.client.post(f"{prefix}/v1/embeddings", json={"input": "x"}).status_code == 200
    assert app.client.get(f"{prefix}/health/ready").status_code == 200
    assert app.client.get(f"{prefix}/").text.startswith("<!doctype html>")
    assert app.client.get(f"{prefix}/dashboard/main.js").status_code == 200
    assert app.client.get(f"{prefix}/chains/compact").json()["name"] == "compact"
    assert app.client.get(f"{prefix}/nothing").status_code == 404


def test_redirects_keep_the_prefix(app, prefix):
    for path in ("/embed/", "/health/", "/chains/compact/"):
        answer = app.client.get(f"{prefix}{path}", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (307, ROOT + path.rstrip("/"))
    for path in ("", "/dashboard"):
        page = app.client.get(f"{ROOT}{path}", follow_redirects=False)
        assert page.headers["location"] == f"{ROOT}/"  # the dashboard's page loads what lies beside it


def test_what_goes_by_the_path_goes_by_the_path_below_the_prefix(app, prefix):
    other = {"host": "some.example.org"}
    assert app.client.get(f"{prefix}/health/live", headers=other).status_code == 200
    assert app.client.get(f"{prefix}/chains", headers=other).status_code == 403
    app.client.get(f"{prefix}/chains/compact")
    metrics = app.client.get(f"{prefix}/metrics").text
    assert 'route="/chains/{name}"' in metrics and ROOT not in metrics


def test_a_root_path_is_a_path_that_no_route_begins_with_and_slashes_at_its_end_do_not_matter(tmp_path):
    assert [read_settings(root_path=path).root_path for path in ("/", "/lathe/", ROOT)] == ["", "/lathe", ROOT]
    for path in ("lathe", "/a b", "/a?b", "/a//b", "https://example.org/lathe"):
        with pytest.raises(ValueError, match="^LATHE_ROOT_PATH: .*is not a path: write /lathe"):
            read_settings(root_path=path)
    for path in ("/v1", "/indexes/docs"):
        with pytest.raises(ValueError, match="LATHE_ROOT_PATH is .*, and the server has routes that begin with /"):
            create_app(read_settings(home=tmp_path, root_path=path))


def ask(path, *rooms_full, method="POST", chunks=2, root_path=""):
    """Send a request. Return the answer, whether the middleware passed it on, and how many body chunks are unread."""
    left, sent, passed = list(range(chunks)), [], []
    queues = [SimpleNamespace(full=full, estimate_retry_seconds=lambda: 7) for full in rooms_full]
    engines = {str(number): SimpleNamespace(queue=queue) for number, queue in enumerate(queues)}

    async def app(scope, receive, send):
        passed.append(scope)

    async def receive():
        left.pop()
        return {"type": "http.request", "body": b"x", "more_body": bool(left)}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "root_path": root_path}
    asyncio.run(SheddingMiddleware(app, SimpleNamespace(engines=engines))(scope, receive, send))
    return sent, bool(passed), len(left)


@pytest.mark.parametrize("path", ["/", "/embed", "/v1/embeddings"])
def test_embedding_requests_are_answered_429_while_every_admission_queue_is_full(path):
    sent, passed, left = ask(path, True, True)
    assert sent[0]["status"] == 429 and (b"retry-after", b"7") in sent[0]["headers"]
    assert b'"overloaded"' in sent[1]["body"]
    assert not passed and left == 0


def test_other_requests_pass_the_load_shedding_middleware():
    """A request also passes if one encoder has room."""
    assert ask("/embed", True, False)[1:] == ask("/reduce", True)[1:] == (True, 2)
    assert ask("/", True, method="GET")[1:] == ask("/health", True, method="GET")[1:] == (True, 2)
