"""Requests from pages of other origins to a server without keys on the same machine."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.services

ATTACK = """async ([url, bodies]) => {
  for (const [path, content] of Object.entries(bodies)) {
    for (const type of ["text/plain", "application/x-www-form-urlencoded", ""]) {
      const body = new Blob([JSON.stringify(content)], { type });
      await fetch(url + path, { method: "POST", mode: "no-cors", body }).catch(() => null);
    }
    await fetch(url + path, {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(content),
    }).catch(() => null);
  }
}"""


class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>Kittens</title>")

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def elsewhere():
    """Start another web server and return its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as pages:
        threading.Thread(target=pages.serve_forever, args=(0.01,), daemon=True).start()
        yield pages.server_port
        pages.shutdown()


@pytest.fixture
def page(browser):
    opened = browser.new_page()
    yield opened
    opened.close()


def items(server):
    """Return three items of the index `notes`."""
    return server.call("POST", "/indexes/notes/get", ids=["a", "b", "planted"])["items"]


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        pytest.param("127.0.0.1", marks=pytest.mark.release),
        pytest.param("rebound.example", marks=pytest.mark.release),
    ],
)
def test_a_page_of_another_origin_can_neither_delete_nor_insert_items(server, page, elsewhere, host, texts):
    """From another site, from the same host on another port, and from a name that resolves to this machine."""
    before = items(server)
    assert [item is not None for item in before] == [True, True, False]
    page.goto(f"http://{host}:{elsewhere}/")
    bodies = {
        "/indexes/notes/delete": {"ids": ["a"]},
        "/indexes/notes/upsert": {"ids": ["planted"], "texts": [texts[2]]},
    }
    page.evaluate(ATTACK, [server.url, bodies])
    assert items(server) == before


def test_a_host_name_that_resolves_to_the_server_but_is_not_allowed_is_answered_403(server, page):
    """DNS rebinding: to the browser the page and the server are one origin then."""
    port = urlsplit(server.url).port
    assert page.goto(f"http://rebound.example:{port}/chains").status == 403
    assert page.goto(f"http://rebound.example:{port}/").status == 403
    assert page.goto(f"http://localhost:{port}/").status == 200


@pytest.mark.parametrize("path", ["docs", pytest.param("redoc", marks=pytest.mark.release)])
def test_docs_pages_work_under_their_content_security_policy(server, page, path):
    page.goto(f"{server.url}/{path}")
    page.get_by_text("Embed texts").first.wait_for(state="attached")
