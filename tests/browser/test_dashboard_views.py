"""What the dashboard shows without a key: in both themes, on small screens, by keyboard, without colour."""

import json
import re
from pathlib import Path

import axe_playwright_python
import pytest
from playwright.sync_api import expect

from tests.helpers import eventually

pytestmark = pytest.mark.services

PAGES = [
    *("#/", "#/chains", "#/chains/compact", "#/indexes", "#/indexes/notes", "#/try", "#/compare", "#/jobs"),
    *("#/fit", "#/adapt", "#/migrate", "#/train", "#/nowhere"),
]
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
GAIN = {"ndcg_at_10": 0.5, "gain": 0.01, "ci95": 0.02}
TRIAL = {"change": "debias", "bytes": None, "vector_bytes": 64, "problem": None, "report": GAIN, "fit_seconds": 0.1}
ADAPTED = {
    **{"id": "adapted", "kind": "adapt", "state": "succeeded", "progress": 1, "message": "done", "error": None},
    **{"created_at": "2026-01-01T00:00:00+00:00", "finished_at": "2026-01-01T00:01:00+00:00"},
    "result": {
        **{"sentence": "Debias.", "notes": ["Measure out of domain too."], "recommended": "debias", "bytes": None},
        "trials": [TRIAL | {"out_of_domain": {"pydoc": GAIN}, "encodes_documents_again": False, "encode_seconds": 0}],
    },
}
"""A job that adapted an encoder, and recommends to debias."""
SETTLED = ".page > *:not(.hint), #problem"


def tile(page, name):
    """Return the value of a tile on the overview page."""
    return page.locator(".tiles > div").filter(has=page.get_by_text(name, exact=True)).locator(".value")


def test_overview_shows_encoders_and_bytes_saved_at_once_and_charts_once_a_request_arrives(open_page, server, texts):
    with open_page() as page:
        expect(page.locator("main")).to_contain_text("2 of 2 encoders ready")
        expect(page.get_by_role("table", name="Encoders")).to_contain_text("all-MiniLM-L6-v2")
        row = page.get_by_role("row", name=re.compile("^compact@1"))
        expect(row).to_contain_text("1,536 B → 512 B")
        expect(row).to_contain_text("67 %")
        expect(row).to_contain_text(re.compile(r"[\d.]+ kB in \d+ vectors"))  # of all tests so far
        saved, vectors = re.search(r"([\d.]+) kB in (\d+) vectors", row.inner_text()).groups()
        assert float(saved) == pytest.approx(int(vectors) * 1.024, rel=0.005)  # 1,536 - 512 bytes each
        expect(page.get_by_role("heading", name="Running jobs")).to_have_count(0)
        expect(page.get_by_role("img")).to_have_count(0)
        unseen = [f"Unseen by the tests so far: {text}" for text in texts[:8]]
        server.call("POST", "/embed", inputs=unseen, dimensions=64)
        server.call("POST", "/embed", inputs=unseen, dimensions=32)
        expect(page.get_by_role("img", name=re.compile("^Latency. median: [1-9]"))).to_be_visible()
        expect(tile(page, "Found in the cache")).to_have_text(re.compile("^(50|100) %$"))  # in one sample, or in two
        expect(tile(page, "Latency")).to_have_text(re.compile(r"\d m?s"))


@pytest.mark.release
def test_arrow_keys_read_a_chart_whose_focus_outlasts_a_redraw(open_page, server, texts):
    with open_page() as page:
        page.wait_for_selector(SETTLED)
        server.call("POST", "/embed", inputs=texts[:2], dimensions=64)
        page.wait_for_selector("#plot-throughput canvas")
        page.focus("#plot-throughput")
        page.keyboard.press("End")
        legend = page.locator("#chart-throughput .legend")
        expect(legend).to_contain_text("seconds ago0")
        said = page.locator("#chart-throughput [role=status]")
        expect(said).to_have_text(re.compile(r"^seconds ago 0, texts answered [\d.]+, texts encoded "))
        page.wait_for_timeout(3500)  # another sample
        expect(legend).to_contain_text("seconds ago")
        assert page.evaluate("document.activeElement.id") == "plot-throughput"


def test_prometheus_js_computes_quantiles_and_growth_from_histograms(open_page):
    """The page's own reading of Prometheus's format, on figures whose quantiles are known."""
    with open_page() as page:
        found = page.evaluate(
            """async () => {
                const { parseMetrics, quantile, growth } = await import("/dashboard/prometheus.js");
                const text = (a, b, all, sum) => [
                    `s_bucket{le="0.1",route="/a\\\\"b"} ${a}`, `s_bucket{le="0.2",route="/a\\\\"b"} ${b}`,
                    `s_bucket{le="+Inf",route="/a\\\\"b"} ${all}`, `n_total ${sum}`, "# HELP n x"].join("\\n");
                const [before, after] = [parseMetrics(text(1, 1, 1, 5)), parseMetrics(text(5, 9, 11, 12))];
                const of = (share) => quantile(share, before, after, "s", { route: '/a"b' });
                return [of(0.5), of(0.8), of(0.95), growth(before, after, "n_total"), growth(after, before, "n_total"),
                        quantile(0.5, after, after, "s")];
            }"""
        )
    assert found[:2] == pytest.approx([0.125, 0.2])
    assert found[2:] == [0.2, 7, None, None]


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.release)])
def test_axe_finds_no_accessibility_violation_on_any_page(open_page, theme):
    with open_page(color_scheme=theme) as page:
        page.evaluate(AXE)
        page.route("**/jobs/adapted", lambda route: route.fulfill(json=ADAPTED))
        page.route("**/jobs/adapted/log", lambda route: route.fulfill(body=json.dumps({"step": 1, "contrastive": 0.5})))
        for address in [*PAGES, "#/jobs/adapted"]:
            page.evaluate("address => { location.hash = address; }", address)
            page.wait_for_selector(SETTLED)
            if address == "#/try":
                page.click("text=Embed and compare")
                page.wait_for_selector(".heat")
            elif address == "#/indexes/notes":
                page.fill("#search-query", "turtle")
                page.click("#search-submit")
                page.wait_for_selector("#search-results table")
            elif address == "#/jobs/adapted":
                page.wait_for_selector("canvas")
            found = page.evaluate("axe.run()")
            bad = [(rule["id"], [node["target"] for node in rule["nodes"]]) for rule in found["violations"]]
            assert not bad, (address, bad)


@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.release)])
def test_no_page_is_wider_than_the_screen(open_page, width):
    with open_page(viewport={"width": width, "height": 800}) as page:
        for address in PAGES:
            page.evaluate("address => { location.hash = address; }", address)
            page.wait_for_selector(SETTLED)
            page.wait_for_timeout(100)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, address


@pytest.mark.release
def test_the_theme_follows_the_system_or_a_stored_choice(open_page):
    def ground(page):
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    with open_page(color_scheme="dark") as page:
        dark = ground(page)
        page.click("#theme")
        light = ground(page)
        assert dark != light and page.inner_text("#theme") == "Theme: light"
        page.reload()
        assert ground(page) == light
        assert page.evaluate("Object.keys(localStorage)") == ["lathe-theme"]
        page.click("#theme")
        page.click("#theme")
        assert ground(page) == dark and page.inner_text("#theme") == "Theme: auto"


def test_chain_page_shows_certificate_figures_and_plots(open_page, server):
    found = server.call("GET", "/chains/compact")["certificate"]
    with open_page("#/chains/compact") as page:
        card = page.locator(".figure-card", has_text="Local Spearman")
        expect(card.locator(".value")).to_have_text(f"{found['local_spearman']:.3f}")
        expect(card).to_contain_text("neighbours")
        for picture in ("Quality by number of dimensions", "Spectrum"):
            expect(page.get_by_role("img", name=re.compile(picture))).to_be_visible()
        page.click("summary")
        expect(page.get_by_role("table", name="Quality by size").locator("tbody tr")).to_have_count(4)
        expect(page.locator("main")).to_contain_text("Drift of live traffic")


def test_try_page_compares_texts_before_and_after_a_chain_and_escapes_markup(open_page, server):
    texts = ["A cat sat down.", "<img src=x onerror=alert(1)>", "Rates rose again."]
    raw = server.call("POST", "/embed", inputs=texts)
    with open_page("#/try/compact@1") as page:
        page.fill("#try-texts", "\n".join(texts))
        page.fill("#try-size", "32")
        page.click("text=Embed and compare")
        expect(page.locator("#try-result")).to_contain_text("384 numbers before and 32 after")
        expect(page.locator("#try-result .texts li").nth(1)).to_contain_text("<img src=x onerror=alert(1)>")
        cosine = sum(a * b for a, b in zip(raw[0], raw[2], strict=True))
        first = page.get_by_role("table", name=re.compile("^Cosines before")).locator("tbody tr").first
        assert float(first.locator("td").nth(2).inner_text().replace("−", "-")) == pytest.approx(cosine, abs=0.006)
        page.fill("#try-texts", "one alone")
        page.click("text=Embed and compare")
        expect(page.locator("#try-result")).to_contain_text("Give 2 to 16 texts, one per line. There is 1.")


def test_a_calibrated_index_shows_probabilities_and_how_true_they_are(open_page, server, texts):
    judged, stored = texts[:80], texts[20:]  # nothing answers the first twenty queries
    server.call("PUT", "/indexes/calibrated", chain="none", encoder="all-MiniLM-L6-v2", text_field="text")
    server.call("POST", "/indexes/calibrated/upsert", ids=stored, texts=stored)
    pairs = [{"query": text[: len(text) // 2], "document": text} for text in judged]
    job = server.call("POST", "/indexes/calibrated/calibrate", pairs=pairs)["job_id"]
    eventually(lambda: server.call("GET", f"/jobs/{job}")["finished_at"], 180)
    assert server.call("GET", f"/jobs/{job}")["error"] is None
    calibration = server.call("GET", "/indexes/calibrated")["calibration"]
    with open_page("#/indexes/calibrated") as page:
        expect(page.locator("main")).to_contain_text(calibration["sentence"])
        for picture in ("Reliability", "Share of queries answered"):
            expect(page.get_by_role("img", name=re.compile(picture))).to_be_visible()
        page.fill("#search-query", judged[0])
        page.click("#search-submit")
        first = page.get_by_role("table", name="Results").locator("tbody tr").first
        expect(first.locator("meter")).to_be_visible()
        expect(first).to_contain_text("%")


def test_an_api_error_is_shown_with_its_message(open_page):
    with open_page("#/chains/nobody", allowed=["404"]) as page:
        expect(page.get_by_role("alert")).to_contain_text("There is no chain 'nobody'")
    with open_page("#/compare/nobody@1/%E0%A4", allowed=["404", "422", "400"]) as page:
        expect(page.locator("main")).to_contain_text("There is no certificate of nobody@1")


@pytest.mark.release
def test_an_unreachable_server_is_reported_and_the_shown_content_stays(open_page):
    with open_page("#/chains", allowed=["ERR_FAILED"]) as page:
        page.wait_for_selector("text=compact")
        page.route("**/chains", lambda route: route.abort())
        expect(page.get_by_role("alert")).to_contain_text("The server does not answer.")
        expect(page.get_by_role("alert")).to_contain_text("tries again every few seconds")
        assert page.is_visible("text=compact")
        page.unroute("**/chains")
        page.click("text=Try again")
        expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.release
def test_try_page_is_usable_by_keyboard_alone(open_page):
    with open_page() as page:
        page.wait_for_selector(SETTLED)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "view"
        page.locator("#nav a", has_text="Try it").focus()
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("Try it")
        assert page.evaluate("document.activeElement.tagName") == "H1"  # where reading goes on
        page.wait_for_selector("#try-form")
        for _ in range(8):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.type") == "submit":
                break
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.keyboard.press("Enter")
        expect(page.locator(".heat")).to_have_count(2)
