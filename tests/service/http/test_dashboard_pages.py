import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from service.app import create_app
from service.dashboard.assets import read_assets
from service.settings import read_settings

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A client of an app that wants keys and whose encoder is never loaded; it sends no key."""
    app = create_app(read_settings(home=tmp_path_factory.mktemp("home"), api_keys="use", admin_keys="boss"))
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)


def paths():
    return ["/", *(f"/dashboard/{name}" for name in read_assets())]


def test_the_page_and_all_it_is_made_of_are_there_for_browsers_and_head(client):
    for path in paths():
        answer, head = client.get(path), client.head(path)
        assert answer.status_code == head.status_code == 200, path
        assert answer.headers["content-length"] == head.headers["content-length"] == str(len(answer.content))
        assert head.content == b""
    assert client.get("/").headers["content-type"] == "text/html; charset=utf-8"
    assert client.get("/dashboard/main.js").headers["content-type"] == "text/javascript; charset=utf-8"


def test_a_page_may_run_and_ask_for_nothing_but_its_own(client):
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


def test_what_a_browser_has_is_not_sent_again(client):
    first = client.get("/dashboard/main.js")
    tag = first.headers["etag"]
    assert first.headers["cache-control"] == "no-cache"
    for known in (tag, f'"other", {tag}', f"W/{tag}", "*"):
        again = client.get("/dashboard/main.js", headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert "content-security-policy" in again.headers
    assert client.get("/dashboard/main.js", headers={"if-none-match": '"other"'}).status_code == 200
    assert len({asset.etag for asset in read_assets().values()}) == len(read_assets())


@pytest.mark.parametrize("name", ["nothing.js", "__init__.py", "..%2fassets.py", "%2e%2e", "x" * 5000])
def test_anything_else_is_not_found(client, name):
    answer = client.get(f"/dashboard/{name}")
    assert (answer.status_code, answer.json()["error"]["code"]) in ((404, "not_found"), (404, "no_route"))


def test_embedding_at_the_root_is_what_it_was(client):
    answer = client.post("/", json={"inputs": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


def test_nothing_in_the_files_names_another_server_or_writes_markup():
    """Addresses of name spaces aside, which nobody asks for."""
    for name, asset in read_assets().items():
        text = asset.content.decode().replace("http://www.w3.org/2000/svg", "")
        for forbidden in ("http://", "https://", "innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", " style="):
            assert forbidden not in text, (name, forbidden)


def test_every_file_that_a_module_imports_or_the_page_names_is_there():
    for name, asset in read_assets().items():
        text = asset.content.decode()
        for wanted in re.findall(r'from "\./([^"]+)"', text) + re.findall(r'"dashboard/([^"]+)"', text):
            assert wanted in read_assets(), (name, wanted)


def test_a_wheel_holds_the_files(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(ROOT / "service", source / "service", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", str(source)]
    done = subprocess.run([*command, "--wheel-dir", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        for name, asset in read_assets().items():
            assert wheel.read(f"service/dashboard/static/{name}") == asset.content
