"""Actions in the dashboard that need a key: fits, promotions, cancelling."""

import base64
import io
import json
import re

import numpy as np
import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.services

ASKED = ["401", "403"]


def as_npy(rows):
    """Return the bytes of an array as .npy."""
    buffer = io.BytesIO()
    np.save(buffer, rows)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def rows(server, vectors):
    """Fit two versions of a chain on vectors and return its name. The second is not live and below its gate."""
    for body in ({}, {"gates": {"recall_at_10": 1.5}}):
        body |= {"name": "rows", "steps": [{"kind": "pca", "dimensions": 4}], "source": {"vectors": vectors.tolist()}}
        job = server.call("POST", "/fit-transform", **body)["job_id"]
        with server.client.stream("GET", f"/jobs/{job}/events") as events:
            assert "succeeded" in list(events.iter_lines())[-2]
    return "rows"


def test_fit_page_fits_a_text_file_after_asking_for_the_admin_key(open_page, server, texts, give_key):
    """The key is stored nowhere in the browser and can be forgotten."""
    lines = "\n".join(texts[:80]).encode()
    with open_page("#/fit", allowed=ASKED) as page:
        page.set_input_files("#fit-file", {"name": "notes.txt", "mimeType": "text/plain", "buffer": lines})
        page.fill("#fit-name", "notes")
        page.select_option("#fit-encoder", "tiny")
        page.select_option("#fit-choice", "debias")
        page.click("#gate-add")
        page.fill("#gate-value-0", "0.1")
        page.click("text=Start the fit")
        expect(page.locator("#key-why")).to_contain_text("the admin key is missing or unknown")
        give_key(page, "wrong")
        expect(page.locator("#key-why")).to_contain_text("The key was refused")
        expect(page.locator("#key-held")).to_be_hidden()
        give_key(page, server.key)
        expect(page).to_have_url(re.compile("#/jobs/"))
        expect(page.locator("main")).to_contain_text("notes@1 is live", timeout=90_000)
        expect(page.locator(".figure-card", has_text="Local Spearman")).to_be_visible()
        assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
        page.click("#key-forget")
        expect(page.locator("#key-held")).to_be_hidden()
        page.click("text=notes@1")
        expect(page.locator("main")).to_contain_text("Live is notes@1")
    found = server.call("GET", "/chains/notes")
    assert (found["provenance"]["rows"], found["provenance"]["gates"]) == (80, {"local_spearman": 0.1})


def test_fit_page_sends_npy_rows_unchanged(open_page, server, vectors, give_key):
    expected = as_npy(vectors[:60].astype(np.float64))
    with open_page("#/fit", allowed=ASKED) as page:
        page.set_input_files("#fit-file", {"name": "rows.npy", "mimeType": "", "buffer": expected})
        page.fill("#fit-name", "mine")
        page.fill("#fit-rows", "50")
        page.select_option("#fit-encoder", "")
        page.select_option("#fit-choice", "free")
        page.fill("#fit-steps", '[{"kind": "pca", "dimensions": 6}]')
        page.select_option("#fit-promote", "no")
        with page.expect_request("**/fit-transform") as sent:
            page.click("text=Start the fit")
            give_key(page, server.key)
        body = json.loads(sent.value.post_data)
        assert body["promote"] is False and "encoder" not in body
        rows = [np.frombuffer(base64.b64decode(row, validate=True), "<f4") for row in body["source"]["vectors"]]
        np.testing.assert_array_equal(rows, vectors[:50])
        expect(page.locator("main")).to_contain_text("mine@1 is not live")


def test_fit_page_refuses_an_unusable_file_without_sending_a_request(open_page):
    files = {
        "a.csv": (b"x", "a .txt, .jsonl or .npy file is needed"),
        "a.npy": (b"x", "not a .npy file"),
        "b.npy": (as_npy(np.ones(3)), "must hold a matrix"),
        "a.jsonl": (b'{"text": "one"}\n{"title": "two"}', 'line 2 has no field "text"'),
        "b.jsonl": (b"{", "line 1 is not JSON"),
        "empty.txt": (b"\n \n", "no rows"),
    }
    with open_page("#/fit") as page:
        page.on("request", lambda request: pytest.fail("sent") if request.method == "POST" else None)
        page.fill("#fit-name", "mine")
        page.click("text=Start the fit")
        expect(page.locator("#fit-problem")).to_contain_text("give a file or a source")
        for name, (content, sentence) in files.items():
            page.set_input_files("#fit-file", {"name": name, "mimeType": "", "buffer": content})
            page.click("text=Start the fit")
            expect(page.locator("#fit-problem")).to_contain_text(sentence)


def test_fit_page_says_how_many_rows_of_a_too_large_file_fit(open_page):
    with open_page("#/fit") as page:
        page.route("**/info", lambda route: route.fulfill(json=route.fetch().json() | {"max_body_bytes": 2100}))
        page.reload()
        page.fill("#fit-name", "mine")
        lines = "\n".join(["ten bytes."] * 20).encode()
        page.set_input_files("#fit-file", {"name": "a.txt", "mimeType": "", "buffer": lines})
        page.click("text=Start the fit")
        expect(page.locator("#fit-problem")).to_contain_text("a request may hold 2.10 kB, which the first 7 rows fill")


def test_chain_page_promotes_below_gates_after_confirmation_and_rolls_back(open_page, server, rows, give_key):
    with open_page(f"#/chains/{rows}", allowed=[*ASKED, "409"]) as page:
        page.click("#promote-2")
        expect(page.locator("#confirm-dialog")).to_contain_text("Make rows@2 live?")
        page.click("#confirm-no")
        page.click("#promote-2")
        page.click("#confirm-yes")
        give_key(page, server.key)
        expect(page.locator("#confirm-title")).to_have_text("Below its gates")
        expect(page.locator("#confirm-text")).to_contain_text("recall_at_10")
        page.click("#confirm-yes")
        expect(page.locator("#notices")).to_contain_text("rows@2 is live")
        expect(page.locator("main")).to_contain_text("Live is rows@2")
        page.click("#rollback")
        page.click("#confirm-yes")
        expect(page.locator("main")).to_contain_text("Live is rows@1")
        expect(page.locator("#rollback")).to_have_count(0)
    assert server.call("GET", f"/chains/{rows}")["live"] == 1


def test_jobs_page_shows_and_cancels_a_running_job(open_page, server, vectors, give_key):
    steps = [{"kind": "geopres", "dimensions": 6, "steps": 1_000_000}]
    body = {"name": "long", "steps": steps, "source": {"vectors": vectors.tolist()}}
    job = server.call("POST", "/fit-transform", **body)["job_id"]
    with open_page("#/jobs", allowed=ASKED) as page:
        expect(page.locator(".job", has_text=job)).to_contain_text("running")
        page.click(f"#cancel-{job}")
        page.click("#confirm-yes")
        give_key(page, server.key)
        expect(page.locator(".job", has_text=job)).to_contain_text("cancelled")
        expect(page.locator(f"#cancel-{job}")).to_have_count(0)


def test_dashboard_asks_for_a_key_and_shows_what_the_key_does_not_allow(open_page, keyed, give_key):
    with open_page("#/chains", at=keyed, allowed=ASKED) as page:
        page.click("#key-cancel")
        expect(page.get_by_role("alert")).to_contain_text("the API key is missing or unknown")
        page.wait_for_timeout(5500)  # it asks again, but not whoever looks
        expect(page.locator("#key-dialog")).to_be_hidden()
        page.click("text=Give a key")
        give_key(page, "use-key")
        expect(page.get_by_role("alert")).to_have_count(0)
        page.click("#nav >> text=Jobs")
        expect(page.locator("main")).to_contain_text("No job was started yet")
        page.click("#nav >> text=Fit")
        page.fill("#fit-name", "mine")
        page.fill("#fit-path", "pydoc:")
        page.click("text=Start the fit")
        expect(page.locator("#key-why")).to_contain_text("allows use only")
        page.keyboard.press("Escape")
        expect(page.locator("#fit-problem")).to_contain_text("allows use only")
        expect(page.locator("#key-held")).to_be_visible()
