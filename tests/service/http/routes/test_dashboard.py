import re

import pytest
from starlette.testclient import TestClient

from lathe.service.app import create_app
from lathe.service.http.routes.dashboard import read_assets
from lathe.service.settings import read_settings


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """Return a client without a key, of an app that wants keys and whose encoder is never loaded."""
    app = create_app(read_settings(home=tmp_path_factory.mktemp("home"), api_keys="use", admin_keys="boss"))
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)


def paths():
    """Return the paths of the page and all its files."""
    return ["/", *(f"/dashboard/{name}" for name in read_assets())]


def test_the_page_and_its_files_answer_get_and_head_without_a_key(client):
    for path in paths():
        answer, head = client.get(path), client.head(path)
        assert answer.status_code == head.status_code == 200, path
        assert answer.headers["content-length"] == head.headers["content-length"] == str(len(answer.content))
        assert head.content == b""
    assert client.get("/").headers["content-type"] == "text/html; charset=utf-8"
    assert client.get("/dashboard/main.js").headers["content-type"] == "text/javascript; charset=utf-8"


def test_content_security_policy_allows_only_the_servers_own_files(client):
    for path in paths():
        headers = client.get(path).headers
        rules = dict(rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";"))
        assert rules == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "img-src": "'self'",
            "connect-src": "'self'",
            "base-uri": "'none'",
            "form-action": "'none'",
            "frame-ancestors": "'none'",
            "require-trusted-types-for": "'script'",
        }
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_a_file_with_a_known_etag_is_answered_304(client):
    first = client.get("/dashboard/main.js")
    tag = first.headers["etag"]
    assert first.headers["cache-control"] == "no-cache"
    for known in (tag, f'"other", {tag}', f"W/{tag}", "*"):
        again = client.get("/dashboard/main.js", headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert "content-security-policy" in again.headers
    assert client.get("/dashboard/main.js", headers={"if-none-match": '"other"'}).status_code == 200
    assert len({asset.etag for asset in read_assets().values()}) == len(read_assets())


def test_unknown_dashboard_files_are_answered_404(client):
    for name in ("nothing.js", "vendor/uplot/nothing.js", "__init__.py", "..%2fassets.py", "%2e%2e", "x" * 5000):
        answer = client.get(f"/dashboard/{name}")
        assert (answer.status_code, answer.json()["error"]["code"]) in ((404, "not_found"), (404, "no_route")), name


def test_dashboard_files_name_no_other_server_and_write_no_markup():
    """Addresses of name spaces aside, which nobody asks for, and those in the comments of uPlot."""
    for name, asset in read_assets().items():
        text = asset.content.decode().replace("http://www.w3.org/2000/svg", "")
        if name.startswith("vendor/"):
            text = re.sub(r"(?m)(//|^\s*\*).*https?://.*$", "", text)
        for forbidden in ("http://", "https://", "innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", " style="):
            assert forbidden not in text, (name, forbidden)


def test_every_imported_or_referenced_dashboard_file_exists():
    for name, asset in read_assets().items():
        text = asset.content.decode()
        for wanted in re.findall(r'from "\./([^"]+)"', text) + re.findall(r'"dashboard/([^"]+)"', text):
            assert wanted in read_assets(), (name, wanted)


@pytest.mark.parametrize("path", ["/dashboard", "/dashboard/"])
def test_path_of_the_files_alone_leads_to_the_page(client, path):
    assert client.get(path, follow_redirects=True).content == read_assets()["index.html"].content
