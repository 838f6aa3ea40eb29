import pytest
from starlette.testclient import TestClient

from lathe.service.app import create_app
from lathe.service.http.openapi import VECTOR_HEADERS
from lathe.service.settings import read_settings

PAGE = "https://app.example.org"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type, x-stainless-lang",
}


@pytest.fixture
def client_of(tmp_path):
    """A client of an app whose encoder is never loaded."""

    def start(**settings):
        return TestClient(
            create_app(read_settings(home=tmp_path, **settings)),
            base_url="http://localhost",
            raise_server_exceptions=False,
        )

    return start


def names(header):
    return {name.strip() for name in header.split(",")}


def test_without_cors_origins_no_cors_headers_are_sent(client_of):
    client = client_of()
    answers = [client.get("/health/live", headers={"origin": PAGE}), client.options("/embed", headers=PREFLIGHT)]
    assert [answer.status_code for answer in answers] == [200, 405]
    assert not [header for answer in answers for header in answer.headers if header.startswith("access-control")]


def test_a_listed_origin_may_send_keys_and_read_the_response_headers(client_of):
    client = client_of(cors_origins=f"https://other.example.org, {PAGE}", api_keys="use")
    asked = client.options("/embed", headers=PREFLIGHT)
    assert asked.status_code == 200 and asked.headers["access-control-allow-origin"] == PAGE
    assert {"authorization", "x-stainless-lang"} <= names(asked.headers["access-control-allow-headers"])
    assert {"POST", "PUT", "DELETE"} <= names(asked.headers["access-control-allow-methods"])
    answer = client.get("/health/live", headers={"origin": PAGE})
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert names(answer.headers["access-control-expose-headers"]) == {*VECTOR_HEADERS, "retry-after"}


def test_error_responses_have_cors_headers(client_of):
    client = client_of(cors_origins=PAGE, api_keys="use")
    for path, status in (("/chains", 401), ("/nowhere", 404)):
        answer = client.get(path, headers={"origin": PAGE})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, PAGE)


def test_an_unlisted_origin_gets_no_cors_headers(client_of):
    client = client_of(cors_origins=PAGE)
    refused = client.options("/embed", headers=PREFLIGHT | {"origin": "https://evil.example.org"})
    assert refused.status_code == 400
    for answer in (refused, client.get("/health/live", headers={"origin": f"{PAGE}.evil.org"})):
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("origins", ["*", PAGE])
def test_cors_never_allows_credentials(client_of, origins):
    client = client_of(cors_origins=origins)
    answers = [client.get("/health/live", headers={"origin": PAGE, "cookie": "a=b"})]
    answers.append(client.options("/embed", headers=PREFLIGHT))
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == origins
        assert "access-control-allow-credentials" not in answer.headers


def test_cors_origins_are_parsed_from_a_comma_separated_list_and_lowercased(monkeypatch):
    monkeypatch.setenv("LATHE_CORS_ORIGINS", " HTTPS://App.example.org ,http://localhost:3000,http://[::1]:8000,")
    origins = ("https://app.example.org", "http://localhost:3000", "http://[::1]:8000")
    assert read_settings().cors_origins == origins
    monkeypatch.setenv("LATHE_CORS_ORIGINS", "")
    assert read_settings().cors_origins == ()


@pytest.mark.parametrize("value", ["app.example.org", f"{PAGE}/", f"*,{PAGE}", "https://*.example.org", "null"])
def test_an_invalid_cors_origin_is_rejected(value):
    with pytest.raises(ValueError, match="LATHE_CORS_ORIGINS: .*not an origin"):
        read_settings(cors_origins=value)
