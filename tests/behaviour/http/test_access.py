import json
import re

import pytest

from lathe.service.app import create_app
from lathe.service.settings import read_settings
from tests.docs.blocks import ROOT


@pytest.fixture(scope="module")
def keyed(start_app, tmp_path_factory):
    with start_app(
        home=tmp_path_factory.mktemp("home"), api_keys="use-1, use-2", admin_keys="boss", read_only_keys="read"
    ) as app:
        yield app.client


def test_a_known_key_may_embed_with_or_without_the_word_bearer(keyed):
    for header in ("Bearer use-1", "bearer use-2", "use-1", "Bearer boss"):
        answer = keyed.post("/embed", json={"inputs": "x"}, headers={"authorization": header})
        assert answer.status_code == 200, header


@pytest.mark.parametrize("header", [None, "Bearer nobody", "Bearer ", "Bearer é"])
def test_requests_without_a_known_key_are_answered_401(keyed, header):
    headers = {} if header is None else {"authorization": header.encode()}
    for path in ("/chains", "/jobs", "/encoders", "/v1/models"):
        assert keyed.get(path, headers=headers).status_code == 401
    assert keyed.post("/embed", json={"inputs": "x"}, headers=headers).status_code == 401


KINDS = {
    "none": (200, 200, 200, 200),
    "read-only, API or admin": (401, 200, 200, 200),
    "API or admin": (401, 403, 200, 200),
    "admin": (401, 403, 403, 200),
}
"""What a request without a key, with a read-only, an API and an admin key gets; 200 stands for anything else."""


def test_every_route_needs_the_key_that_the_page_on_security_says(keyed):
    page = (ROOT / "docs/security.md").read_text()
    rows = re.findall(r"^\| ([a-zA-Z ,-]+) \| (`(?:GET|POST|PUT|DELETE) .*) \|$", page, re.MULTILINE)
    needed = {request: kind for kind, listed in rows for request in re.findall(r"`([^`]+)`", listed)}
    for path, methods in keyed.get("/openapi.json").json()["paths"].items():
        address = re.sub("{version}|{dimensions}", "1", path)
        address = re.sub("{[^}]+}", "no-such-thing", address)
        for method in methods:
            request = f"{method.upper()} {path}"
            found = [
                keyed.request(method, address, headers={"authorization": key} if key else {}).status_code
                for key in (None, "read", "use-1", "boss")
            ]
            answers = tuple(status if status in (401, 403) else 200 for status in found)
            assert answers == KINDS[needed.pop(request)], request
    assert not needed, "the page names requests that there are not"
    assert keyed.post("/chains/compact/rollback", headers={"authorization": "Bearer boss"}).status_code == 409


def test_a_read_only_key_makes_use_need_a_key_and_is_of_no_other_kind():
    settings = read_settings(read_only_keys="read")
    assert settings.needs_key and not read_settings(host="0.0.0.0", read_only_keys="read").admin_key_only
    for kind in ("api_keys", "admin_keys"):
        with pytest.raises(ValueError, match="a read-only key is an API key or an admin key too"):
            read_settings(read_only_keys="a, b", **{kind: "b"})


def test_health_metrics_and_docs_need_no_key(keyed):
    for path in ("/health", "/health/live", "/health/ready", "/metrics", "/docs", "/openapi.json"):
        assert keyed.get(path).status_code == 200


def test_the_generated_admin_key_file_is_readable_by_its_owner_only_and_is_reused(lathe):
    path = lathe.settings.home / "admin.key"
    assert path.stat().st_mode & 0o777 == 0o600
    assert lathe.services.home.read_or_create_admin_key() == path.read_text().strip()
    assert len(path.read_text().strip()) >= 32


def test_a_loopback_server_without_api_keys_needs_a_key_for_administration_only(client):
    assert client.post("/embed", json={"inputs": "x"}, headers={"authorization": "Bearer whatever"}).status_code == 200
    assert client.post("/chains/compact/rollback", headers={"authorization": "Bearer whatever"}).status_code == 401


@pytest.fixture(scope="module")
def public(start_app, tmp_path_factory):
    """Start an app on an address that other machines reach, without API keys, and return it."""
    with start_app(home=tmp_path_factory.mktemp("home"), host="0.0.0.0") as app:
        yield app


def test_a_public_server_without_api_keys_needs_the_admin_key_for_use(public):
    for headers in ({}, {"authorization": "Bearer whatever"}, {"authorization": ""}):
        for path in ("/chains", "/jobs", "/encoders", "/v1/models"):
            assert public.client.get(path, headers=headers).status_code == 401
        answer = public.client.post("/embed", json={"inputs": "x"}, headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert "admin.key" in answer.json()["error"]["message"]
    for path in ("/health/live", "/info", "/"):
        assert public.client.get(path).status_code == 200
    assert public.client.post("/embed", json={"inputs": "x"}, headers=public.admin).status_code == 200
    assert public.client.get("/jobs", headers=public.admin | {"host": "lathe.example.org"}).status_code == 200


@pytest.mark.parametrize(
    ("settings", "needs_key"),
    [
        *(({"host": host}, False) for host in ("localhost", "::1")),
        *(({"host": host}, True) for host in ("0.0.0.0", "example.org")),
        ({"host": "127.0.0.1", "api_keys": "k"}, True),
        ({"host": "0.0.0.0", "public_without_keys": True}, False),
    ],
)
def test_use_needs_a_key_on_a_public_address_or_if_keys_are_set(settings, needs_key):
    assert read_settings(**settings).needs_key is needs_key


@pytest.fixture
def unwritable(tmp_path):
    """Return a state folder with an admin key in which nothing can be created, not even by root."""
    (tmp_path / "admin.key").write_text("boss\n")
    (tmp_path / "chains").write_text("in the way of the folder")
    return tmp_path


def test_a_public_server_that_cannot_generate_an_admin_key_does_not_start(unwritable):
    public = read_settings(home=unwritable, host="0.0.0.0")
    assert create_app(public).state.services.keys.admin == ("boss",)
    (unwritable / "admin.key").unlink()
    with pytest.raises(ValueError, match="no admin key can be generated because the state folder cannot be written"):
        create_app(public)
    create_app(read_settings(home=unwritable, host="0.0.0.0", api_keys="k"))
    create_app(read_settings(home=unwritable, host="0.0.0.0", public_without_keys=True))


def test_openapi_declares_only_the_error_schema_error_answer_and_resolves_all_references(client):
    described = client.get("/openapi.json").json()
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            for status, answer in operation["responses"].items():
                if status >= "400":
                    assert "ErrorAnswer" in str(answer), (path, method, status)
    assert "HTTPValidationError" not in described["components"]["schemas"]
    for ref in re.findall(r'"\$ref": ?"#/components/schemas/([^"]+)"', json.dumps(described)):
        assert ref in described["components"]["schemas"]
    body = described["paths"]["/embed"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "inputs" in body["properties"]


def test_info_has_the_fields_of_text_embeddings_inference_and_of_lathe(client):
    info = client.get("/info").json()
    expected = {"model_id", "model_dtype", "model_type", "max_input_length", "max_client_batch_size", "version", "sha"}
    assert expected | {"encoders", "chains"} <= set(info)
    assert info["max_input_length"] == 256


def test_metrics_label_requests_by_route_and_never_by_path(client):
    client.get("/chains/some-private-name")
    text = client.get("/metrics").text
    assert 'route="/chains/{name}"' in text
    assert "some-private-name" not in text


def test_unknown_paths_and_methods_add_at_most_4_metric_series(client):
    def series():
        lines = client.get("/metrics").text.splitlines()
        return {
            line.rpartition(" ")[0]
            for line in lines
            if line.startswith(("lathe_request_seconds_count", "lathe_requests_total"))
        }

    paths = list(client.get("/openapi.json").json()["paths"])
    for method in ("GET", "TRACE", "PROPFIND"):
        client.request(method, "/nowhere")
    known = series()
    for number, path in enumerate(paths):
        for method in ("TRACE", "MKCOL", "LOCK", "BREW", "PATCH"):
            assert client.request(method, path).status_code in (404, 405)
        client.get(f"/nowhere/{number}")
    assert len(series() - known) <= 4, series() - known


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
def test_docs_pages_load_nothing_from_other_servers_and_forbid_frames(client, path):
    page = client.get(path)
    assert "https://" not in page.text.replace("https://fastapi.tiangolo.com", "")
    assert page.headers["x-frame-options"] == "DENY"
