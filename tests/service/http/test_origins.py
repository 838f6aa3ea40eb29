import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from lathe.service.http.origins import Hosts, OriginMiddleware
from lathe.service.settings import read_settings

PAGE = "https://app.example.org"
CHANGES = {"/indexes/notes/upsert": {"ids": ["a"], "texts": ["b"]}, "/indexes/notes/delete": {"ids": ["a"]}}


@pytest.fixture
def ask():
    """Ask an application of one route behind the check and return the error's code, or None."""

    def send(method, path="/embed", settings=None, **headers):
        built = read_settings(**(settings or {}))
        client = TestClient(OriginMiddleware(PlainTextResponse("served"), built))
        headers = {name.replace("_", "-"): value for name, value in {"host": "localhost:8080", **headers}.items()}
        answer = client.request(method, path, headers=headers)
        assert answer.status_code in (200, 403)
        return answer.json()["error"]["code"] if answer.status_code == 403 else None

    return send


@pytest.mark.parametrize(
    ("headers", "served"),
    [
        ({}, True),  # curl, and every client library
        ({"sec_fetch_site": "none"}, True),
        ({"sec_fetch_site": "same-origin", "origin": "http://localhost:8080"}, True),
        ({"origin": "https://LOCALHOST:8080"}, True),  # TLS ends before the server
        ({"origin": "http://localhost:8081"}, False),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"sec_fetch_site": "cross-site"}, False),
        ({"sec_fetch_site": "same-site", "origin": "http://localhost:9000"}, False),
        ({"sec_fetch_site": "cross-site", "origin": "http://localhost:8080"}, False),
    ],
)
def test_writing_methods_from_other_origins_are_refused_and_reads_served(ask, headers, served):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert ask(method, **headers) == (None if served else "origin_not_allowed"), method
    assert ask("GET", **headers) is ask("HEAD", **headers) is None


def test_requests_from_a_listed_cors_origin_are_served_and_api_keys_do_not_allow_others(ask):
    for origins in ("*", f"http://a.example,{PAGE}"):
        assert ask("POST", settings={"cors_origins": origins}, sec_fetch_site="cross-site", origin=PAGE) is None
        assert ask("POST", settings={"cors_origins": origins}, origin=PAGE) is None
    assert ask("POST", settings={"api_keys": "use"}, origin=PAGE) == "origin_not_allowed"


REFUSED = "host_not_allowed"
LOOPBACK = ["localhost", "LocalHost:1", "localhost.", "a.localhost:8080", "127.0.0.1", "127.8.9.1:80", "[::1]:8080"]
ADDRESSES = ["192.168.0.5:8080", "[2001:db8::1]"]
NAMES = ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8080", "notlocalhost", "lathe:8080"]
NONSENSE = ["", "[::1", "a b", "http://localhost", "localhost/", "localhost:x:y", "localhost@evil.example"]


@pytest.mark.parametrize(
    ("settings", "served"),
    [
        ({}, [*LOOPBACK]),
        ({"host": "localhost"}, [*LOOPBACK]),
        ({"allowed_hosts": "Lathe,10.0.0.1"}, [*LOOPBACK, "lathe:8080", "LATHE", "lathe.", "10.0.0.1:80"]),
        ({"allowed_hosts": "*"}, [*LOOPBACK, *ADDRESSES, *NAMES, *NONSENSE]),
        ({"host": "0.0.0.0", "public_without_keys": True}, [*LOOPBACK, *ADDRESSES]),
        ({"host": "lathe", "public_without_keys": True}, [*LOOPBACK, *ADDRESSES, "lathe:8080"]),
        ({"api_keys": "use"}, [*LOOPBACK, *ADDRESSES, *NAMES, *NONSENSE]),
        ({"host": "0.0.0.0"}, [*LOOPBACK, *ADDRESSES, *NAMES, *NONSENSE]),  # every request needs the admin key
        ({"api_keys": "use", "allowed_hosts": "lathe"}, [*LOOPBACK, *ADDRESSES, "lathe:8080"]),
    ],
)
def test_only_allowed_host_headers_are_served(settings, served):
    tried = {*LOOPBACK, *ADDRESSES, *NAMES, *NONSENSE, *served}
    allow = Hosts(read_settings(**settings)).allow
    assert {host for host in tried if allow(host.encode())} == set(served)


def test_health_routes_are_served_under_any_host_header(ask):
    for path, code in {"/health": None, "/health/ready": None, "/healthy": REFUSED, "/": REFUSED}.items():
        assert ask("GET", path, host="evil.example") == code


def test_the_app_refuses_other_origins_and_unknown_hosts_with_403(client):
    for path, body in CHANGES.items():
        answer = client.post(path, json=body, headers={"origin": PAGE})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")
        assert answer.headers["x-request-id"]
    assert client.post("/embed", json={"inputs": "x"}, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert client.get("/chains", headers={"host": "evil.example"}).status_code == 403


def test_routes_that_change_state_need_a_json_content_type(lathe):
    changes = {"/indexes/none/upsert": "POST", "/indexes/none/delete": "POST", "/indexes/none/reindex": "POST"}
    changes |= {"/chains/none/promote": "POST", "/fit-transform": "POST"}
    changes |= {"/advise": "POST", "/indexes/none": "PUT", "/encoders/none/dimensions/64": "PUT"}

    def ask(path, said):
        headers = lathe.admin | ({} if said is None else {"content-type": said})
        return lathe.client.request(changes[path], path, content=b"{}", headers=headers)

    for path in changes:
        answer = ask(path, None)
        assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_type"), path
        assert ask(path, "Application/JSON; charset=utf-8").status_code != 415, path
    for said in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp", ";"):
        assert ask("/fit-transform", said).status_code == 415, said


def test_routes_that_read_accept_any_content_type(client):
    """`curl -d` sends the content type of a form."""
    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert client.post("/embed", content=b'{"inputs": "x"}', headers=headers).status_code == 200
    assert client.post("/v1/embeddings", content=b'{"input": "x"}', headers=headers).status_code == 200
    assert client.post("/reduce", content=b'{"vectors": [[1]], "chain": "none"}', headers=headers).status_code == 404
    assert client.post("/indexes/none/get", content=b'{"ids": ["a"]}', headers=headers).status_code == 404
    assert client.post("/indexes/none/search", content=b'{"texts": "a"}', headers=headers).status_code == 404


def test_a_redirect_location_contains_no_host(client):
    answer = client.post("/embed/?drift=true", headers={"host": "a.localhost"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "/embed?drift=true")
