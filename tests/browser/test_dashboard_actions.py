"""Actions in the dashboard: searches, fits, adaptations, trainings, promotions, cancelling."""

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
        expect(page.locator("#key-why")).to_contain_text("This action needs an admin key")
        give_key(page, "wrong")
        expect(page.locator("#key-why")).to_contain_text("The server does not know this key.")
        expect(page.locator("#key-held")).to_be_hidden()
        give_key(page, server.key)
        expect(page).to_have_url(re.compile("#/jobs/"))
        expect(page.locator("main")).to_contain_text("notes@1 is live", timeout=180_000)
        expect(page.locator(".figure-card", has_text="Local Spearman")).to_be_visible()
        assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
        page.click("#key-forget")
        expect(page.locator("#key-held")).to_be_hidden()
        page.click("text=notes@1")
        expect(page.locator("main")).to_contain_text("Version 1 is live")
    found = server.call("GET", "/chains/notes")
    assert (found["provenance"]["rows"], found["provenance"]["gates"]) == (80, {"local_spearman": 0.1})


@pytest.mark.release
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
        "a.csv": (b"x", "choose a .txt, .jsonl or .npy file"),
        "a.npy": (b"x", "not a .npy file"),
        "b.npy": (as_npy(np.ones(3)), "must hold a matrix"),
        "a.jsonl": (b'{"text": "one"}\n{"title": "two"}', 'Line 2 has no field "text"'),
        "b.jsonl": (b"{", "Line 1 is not JSON"),
        "empty.txt": (b"\n \n", "no rows"),
    }
    with open_page("#/fit") as page:
        page.on("request", lambda request: pytest.fail("sent") if request.method == "POST" else None)
        page.fill("#fit-name", "mine")
        page.click("text=Start the fit")
        expect(page.locator("#fit-problem")).to_contain_text("give a file or a path on the server")
        for name, (content, sentence) in files.items():
            page.set_input_files("#fit-file", {"name": name, "mimeType": "", "buffer": content})
            page.click("text=Start the fit")
            expect(page.locator("#fit-problem")).to_contain_text(sentence)


def test_chain_page_promotes_below_gates_after_confirmation_and_rolls_back(open_page, server, rows, give_key):
    with open_page(f"#/chains/{rows}", allowed=[*ASKED, "409"]) as page:
        page.click("#promote-2")
        expect(page.locator("#confirm-dialog")).to_contain_text("Make rows@2 live?")
        page.click("#confirm-no")
        page.click("#promote-2")
        page.click("#confirm-yes")
        give_key(page, server.key)
        expect(page.locator("#confirm-title")).to_have_text("This version fails its gates")
        expect(page.locator("#confirm-text")).to_contain_text("recall_at_10")
        page.click("#confirm-yes")
        expect(page.locator("#notices")).to_contain_text("rows@2 is live")
        expect(page.locator("main")).to_contain_text("Version 2 is live")
        page.click("#rollback")
        page.click("#confirm-yes")
        expect(page.locator("main")).to_contain_text("Version 1 is live")
        expect(page.locator("#rollback")).to_have_count(0)
    assert server.call("GET", f"/chains/{rows}")["live"] == 1


@pytest.mark.release
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


def test_index_page_searches_with_filter_and_rescoring_and_shows_documents(open_page, server, texts):
    server.call("PUT", "/indexes/library", chain="compact", text_field="text")
    metadata = [{"year": 2000 + place, "tags": ["old"]} for place in range(12)]
    ids = [f"d{place}" for place in range(12)]
    server.call("POST", "/indexes/library/upsert", ids=ids, texts=texts[:12], metadata=metadata)
    with open_page("#/indexes/library", allowed=["400"]) as page:
        listed = page.get_by_role("table", name="The first 10 of 12 documents")
        expect(listed.locator("tbody tr")).to_have_count(10)
        expect(listed.locator("tbody tr").first).to_contain_text(texts[0])
        page.fill("#search-query", texts[5])
        with page.expect_request("**/search") as sent:
            page.keyboard.press("Enter")
        assert json.loads(sent.value.post_data) == {"texts": [texts[5]], "k": 10, "rescore": 4, "filter": None}
        results = page.get_by_role("table", name="Results").locator("tbody tr")
        expect(results.first).to_contain_text("d5")
        expect(page.locator("#search-results")).to_contain_text("10 found after rescoring")
        page.fill("#search-filter", '{"year": {"gte": 2009}}')
        page.fill("#search-rescore", "")
        page.click("#search-submit")
        expect(page.locator("#search-results")).to_contain_text("3 found with the filter, without rescoring")
        page.fill("#search-filter", '{"year": {"least": 2009}}')
        page.click("#search-submit")
        expect(page.locator("#search-results").get_by_role("alert")).to_contain_text("least")
        page.fill("#search-filter", "{")
        page.click("#search-submit")
        expect(page.locator("#search-results").get_by_role("alert")).to_contain_text("Filter: this is not JSON")
        page.fill("#lookup-ids", "d11, nobody")
        page.click("#lookup-submit")
        expect(page.locator("#documents")).to_contain_text("There is no document with the id nobody.")
        expect(page.locator("#documents tbody tr")).to_have_text(re.compile("^d11.*year: 2011"))
        page.click("#lookup-first")
        expect(listed).to_be_visible()


@pytest.fixture
def submit(server, give_key):
    """Return a function that submits a form with files and chosen options, waits for a word of the job's sentence, and
    returns the job.
    """

    def run(page, form, files, chosen, word):
        for field, (name, content) in files.items():
            page.set_input_files(field, {"name": name, "mimeType": "", "buffer": content.encode()})
        for field, option in chosen.items():
            page.select_option(field, option)
        page.click(f"#{form}-submit")
        give_key(page, server.key)
        expect(page).to_have_url(re.compile("#/jobs/"))
        expect(page.locator("#recommendation")).to_contain_text(word, timeout=180_000)
        job = server.call("GET", page.url.split("#")[1])
        expect(page.locator("#recommendation")).to_have_text(job["result"]["sentence"])
        return job

    return run


@pytest.mark.release
def test_adapt_page_starts_a_job_that_shows_its_recommendation_first(open_page, server, texts, submit):
    pairs = [{"query": " ".join(text.split()[:3]), "document": text} for text in texts[:60]]
    files = {
        "#adapt-file": ("documents.txt", "\n".join(texts[:120])),
        "#adapt-pairs-file": ("judged.jsonl", "\n".join(map(json.dumps, pairs))),
    }
    with open_page("#/adapt", allowed=[*ASKED, "404"]) as page:
        page.click("#adapt-submit")
        expect(page.locator("#adapt-problem")).to_contain_text("Documents: give a file or a path on the server.")
        job = submit(page, "adapt", files, {"#adapt-encoder": "tiny"}, "vectors")
        rows = page.get_by_role("table", name="Changes that were tried").locator("tbody tr")
        expect(rows).to_have_count(len(job["result"]["trials"]))
        expect(rows.filter(has_text="recommended")).to_have_count(1)
        expect(rows.filter(has_text="Fine-tune the encoder").first).to_contain_text("Not tried")
        page.goto(f"{server.url}/#/jobs")
        expect(page.locator(f"#job-{job['id']}")).to_contain_text(job["result"]["sentence"])


@pytest.mark.release
def test_migrate_page_starts_a_job_that_shows_its_decision_first(open_page, texts, submit):
    pairs = [{"query": " ".join(text.split()[:3]), "document": text} for text in texts[:60]]
    files = {
        "#migrate-file": ("rows.txt", "\n".join(texts[:160])),
        "#migrate-pairs-file": ("judged.jsonl", "\n".join(map(json.dumps, pairs))),
    }
    with open_page("#/migrate", allowed=ASKED) as page:
        chosen = {"#migrate-encoder": "tiny", "#migrate-to": "all-MiniLM-L6-v2"}
        job = submit(page, "migrate", files, chosen, "nDCG@10")
        rows = page.get_by_role("table", name="Choices, cheapest first").locator("tbody tr")
        expect(rows).to_have_count(len(job["result"]["choices"]))
        expect(rows.filter(has_text="recommended")).to_have_count(1)


@pytest.mark.release
def test_train_page_sends_the_job_and_its_page_charts_loss_and_held_out_quality_while_it_runs(open_page):
    job = {"id": "t1", "kind": "train", "state": "running", "progress": 0.5, "message": "step 4 of 8", "error": None}
    job |= {"result": None, "created_at": "2026-01-01T00:00:00+00:00", "finished_at": None}
    log = [{"step": step, "steps": 8, "contrastive": 1 / step, "grad_norm": 3.0} for step in (2, 4)]
    log += [{"step": 4, "steps": 8, "metric": "nDCG@10", "measured": 0.75}]
    lines = "\n".join(map(json.dumps, log)) + '\n{"step": 6, "ste'
    with open_page("#/train") as page:
        page.route("**/train", lambda route: route.fulfill(status=202, json={"job_id": "t1", "status_url": "/jobs/t1"}))
        page.route("**/jobs/t1", lambda route: route.fulfill(json=job))
        page.route("**/jobs/t1/log", lambda route: route.fulfill(body=lines))
        page.route("**/jobs/t1/events", lambda route: route.fulfill(body=""))
        page.fill("#train-paths", "questions.jsonl\n finance/fiqa \n")
        page.fill("#train-name", "finance")
        page.fill("#train-settings", '{"training": {"epochs": 2}}')
        page.select_option("#train-encoder", "tiny")
        page.select_option("#train-method", "reze")
        with page.expect_request("**/train") as sent:
            page.click("#train-submit")
        sources = [{"jsonl": "questions.jsonl", "anchor": "anchor", "positive": "positive"}, {"folder": "finance/fiqa"}]
        settings = {"encoder": "tiny", "sources": sources, "training": {"epochs": 2}}
        assert json.loads(sent.value.post_data) == {"name": "finance", "method": "reze", "job": settings}
        expect(page.get_by_role("progressbar")).to_have_attribute("value", "0.5")
        expect(page.locator("#job-message")).to_have_text("step 4 of 8")
        expect(page.get_by_role("img", name=re.compile("^Loss. contrastive: 0.25$"))).to_be_visible()
        expect(page.get_by_role("img", name=re.compile("^Held-out quality. nDCG@10: 0.75$"))).to_be_visible()


@pytest.mark.release
def test_overview_shows_a_running_job_and_asks_for_a_key_only_on_request(open_page, server, keyed, vectors, give_key):
    steps = [{"kind": "geopres", "dimensions": 6, "steps": 1_000_000}]
    body = {"name": "longer", "steps": steps, "source": {"vectors": vectors.tolist()}}
    job = server.call("POST", "/fit-transform", **body)["job_id"]
    with open_page() as page:
        expect(page.locator(f"#job-{job}").get_by_role("progressbar")).to_be_visible()
        server.call("DELETE", f"/jobs/{job}")
        expect(page.locator(f"#job-{job}")).to_have_count(0)
    with open_page(at=keyed, allowed=ASKED) as page:
        expect(page.locator("main")).to_contain_text("Chains, indexes and jobs are shown only with a key.")
        expect(page.locator("#key-dialog")).to_be_hidden()
        page.click("#enter-key")
        give_key(page, "use-key")
        expect(page.get_by_role("heading", name="Live chains")).to_be_visible()


def test_dashboard_asks_for_a_key_and_shows_what_the_key_does_not_allow(open_page, keyed, give_key):
    with open_page("#/chains", at=keyed, allowed=ASKED) as page:
        page.click("#key-cancel")
        expect(page.get_by_role("alert")).to_contain_text("This server answers only with a key")
        page.wait_for_timeout(5500)  # it asks again, but not whoever looks
        expect(page.locator("#key-dialog")).to_be_hidden()
        page.click("text=Enter a key")
        give_key(page, "use-key")
        expect(page.get_by_role("alert")).to_have_count(0)
        page.click("#nav >> text=Jobs")
        expect(page.locator("main")).to_contain_text("No job has been started yet")
        page.click("#nav >> text=New job")
        page.fill("#fit-name", "mine")
        page.fill("#fit-path", "pydoc:")
        page.click("text=Start the fit")
        expect(page.locator("#key-why")).to_contain_text("This key allows use only.")
        page.keyboard.press("Escape")
        expect(page.locator("#fit-problem")).to_contain_text("allows use only")
        expect(page.locator("#key-held")).to_be_visible()


def test_a_checkup_is_started_and_its_findings_stay_on_the_page_of_the_index(open_page, server, texts, give_key):
    server.call("PUT", "/indexes/checked", chain="none", encoder="all-MiniLM-L6-v2", text_field="text")
    server.call("POST", "/indexes/checked/upsert", ids=texts[:40], texts=texts[:40])
    vectors = server.call("POST", "/indexes/checked/get", ids=texts[20:22], vectors=True)["items"]
    swapped = [vectors[1]["vector"], vectors[0]["vector"]]
    metadata = [{"text": text} for text in texts[20:22]]
    server.call("POST", "/indexes/checked/upsert", ids=texts[20:22], vectors=swapped, metadata=metadata)
    with open_page("#/indexes/checked", allowed=ASKED) as page:
        page.click("#checkup-submit")
        give_key(page, server.key)
        expect(page.locator("#checkup-summary")).to_contain_text("Recall@10 is", timeout=180_000)
        findings = page.get_by_role("table", name="Findings").locator("tbody tr")
        expect(findings.first).to_contain_text("5 % of the rows are vectors of another text")
        expect(findings.first).to_contain_text("lathe index reindex checked --encode")
        page.goto(page.url.partition("#")[0] + "#/indexes/checked")
        expect(page.locator("#checkup-submit")).to_have_text("Check again")
        expect(page.locator("#checkup-summary")).to_contain_text("Recall@10 is")
