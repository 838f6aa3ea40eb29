import html
import json

import numpy as np
import pytest

from lathe.training.advice.sizes import REDUCERS
from lathe.training.sources.docstrings import read_docstring_paragraphs


@pytest.fixture(scope="module")
def texts():
    """Return up to 1,100 distinct texts of docstrings."""
    return list(dict.fromkeys(" ".join(text.split()) for text in read_docstring_paragraphs()))[:1100]


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """Let fits take few steps. A real fit of every size takes a thousand, and its time is not what is tested here."""
    monkeypatch.setitem(REDUCERS, "nested GeoPres", "geopres:{k},nested=true,steps=40")


@pytest.fixture
def advise(run, tiny_model, tmp_path):
    """Run `lathe advise` on lines of text with a tiny encoder and return what it printed, or the error."""

    def ask(lines, *arguments, status=0):
        (tmp_path / "some.txt").write_text("\n".join(lines))
        found = run("advise", "--source", tmp_path / "some.txt", "--encoder", tiny_model, *arguments)
        assert found[0] == status, found[2]
        return found[1] if status == 0 else found[2]

    return ask


def test_advise_prints_its_measurements_and_a_recommendation_and_writes_a_self_contained_page(advise, texts, tmp_path):
    out = advise(texts, "--report", tmp_path / "page.html")
    for part in ("Mean direction", "whitening:epsilon=1e-6", "nested GeoPres", "Do the first coordinates hold more"):
        assert part in out
    assert "Of floats, the smallest chain that keeps enough" in out and "Cost: " in out
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == 3 and "Of floats, the smallest chain that keeps enough" in page
    assert "src=" not in page and "<script" not in page and "href=" not in page.split("<svg")[0]


def test_advise_json_holds_all_measurements_and_is_the_same_each_time(advise, texts):
    """Timings and what is derived from them may differ."""
    found, again = (json.loads(advise(texts[:260], "--json", "--sample-rows", 200)) for _ in range(2))
    assert (found["rows"], found["distinct"], found["heldout"], found["source"]) == (260, 200, 100, "some.txt")
    assert {trial["method"] for trial in found["debiasing"]["trials"]} == {
        "nothing", "R1", "R2", "ABTT-1", "ABTT-2", "ABTT-3", "whitening",
    }  # fmt: skip
    assert found["encoder"]["dimensions"] == 16 and found["sentences"] and found["capped"]
    assert any("looking at 1,000 rows might tell" in said for said in found["sentences"])
    for one in (found, again):
        for trial in (one["sizes"]["full"], *one["sizes"]["trials"]):
            assert trial.pop("gemm_ms") > 0
        for chain in (one["best"], one["second"]):
            if chain:
                chain.pop("cost")
        one["sentences"] = [said for said in one["sentences"] if "similarities" not in said]
    assert found == again


def test_advise_with_fit_fits_the_recommended_chain_and_measures_its_transfer(advise, run, texts):
    out = advise(texts, "--keep", "0.01", "--fit", "advised", "--json")
    found = json.loads(out)
    assert found["fit"]["chain"] == "advised@1" and found["best"]["dimensions"] == 8
    assert found["confirmed"]["dimensions"] == 8
    assert [(one["text"], one["rows"]) for one in found["transfer"]] == [("held out", 550), ("out of domain", 550)]
    assert "advised" in run("chains", "list")[1]


def test_advise_with_fit_fits_nothing_if_it_recommends_no_chain(advise, texts):
    assert "nothing was fitted: no chain is recommended, there are too few" in advise(texts[:20], "--fit", "none-of-it")
    found = json.loads(advise(texts[:20], "--fit", "none-of-it", "--json"))
    assert found["fit"] is None and "nothing was fitted" in found["fit_error"] and found["distinct"] == 20


def test_advise_with_fit_succeeds_without_a_fit_if_raw_vectors_are_best(run, tmp_path):
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).standard_normal((300, 16)).astype(np.float32))
    status, out, _ = run("advise", "--source", tmp_path / "rows.npy", "--fit", "nothing")
    assert status == 0 and "Of floats, no chain is better than the vectors as they are." in out
    assert "nothing was fitted: no chain is recommended, the raw vectors are best" in out
    assert "No chain is recommended, so that there is none to try on out-of-domain text." in out


@pytest.mark.trial
def test_advise_prints_its_advice_and_exits_1_if_the_fit_fails(run, tiny_model, tmp_path):
    rows = np.random.default_rng(0).standard_normal((1200, 48)) * np.arange(1, 49) ** -1.0
    np.save(tmp_path / "rows.npy", rows.astype(np.float32))
    arguments = ("--source", tmp_path / "rows.npy", "--encoder", tiny_model, "--fit", "misfit", "--json")
    status, out, err = run("advise", *arguments)
    assert status == 1 and "48" in err and "16" in err
    assert json.loads(out)["fit"] is None and json.loads(out)["best"]["steps"]


def test_advise_says_how_many_more_rows_are_needed_if_there_are_too_few(advise, texts):
    out = advise(texts[:10])
    assert "Nothing can be recommended yet." in out and "about 90 more distinct rows would do" in out


def test_advise_refuses_texts_that_are_all_the_same(advise):
    assert "1 distinct rows" in advise(["the same text again and again and again and again"] * 50, status=1)


@pytest.mark.trial
def test_advise_judges_texts_too_short_for_split_half_retrieval_by_geometry_alone(advise, texts):
    words = sorted({word.casefold() for text in texts for word in text.split()})[:200]
    out = advise(words)
    assert "cannot be told" in out and "Only 0 of 100 held-out texts are long enough" in out
    assert "Of floats, " in out and "large enough" not in out


def test_advise_counts_repeated_texts_once_and_notes_their_share(advise, texts):
    found = json.loads(advise(texts[:150] * 10, "--json"))
    assert (found["rows"], found["distinct"]) == (1500, 150)
    assert any("90.0 % of the rows repeat others" in note for note in found["notes"])


@pytest.mark.trial
def test_advise_notes_texts_in_several_scripts(advise, texts):
    cyrillic = [f"Это предложение номер {number} о погоде и о том что будет завтра" for number in range(60)]
    found = json.loads(advise([*texts[:100], *cyrillic], "--json"))
    assert any("Cyrillic" in note and "language" in note for note in found["notes"])


@pytest.mark.trial
def test_advise_works_on_vectors_without_an_encoder(run, tmp_path):
    """It says what was not measured, and refuses `--encoder` without `--fit`."""
    rows = np.random.default_rng(0).standard_normal((1200, 48)) * np.arange(1, 49) ** -1.0 + 0.3
    np.save(tmp_path / "rows.npy", rows.astype(np.float32))
    status, out, _ = run("advise", "--source", tmp_path / "rows.npy", "--json")
    found = json.loads(out)
    chosen = found["debiasing"]["by_halves"], found["debiasing"]["chosen"]
    assert status == 0 and found["encoder"] is None and chosen == ("nothing", "R2")
    assert found["cut"] == 0 and found["best"]["dimensions"] < 48
    assert any("vectors without texts" in said and "not measured here" in said for said in found["sentences"])
    assert "Of the neighbours that the raw vectors have among 600 rows the whole chain finds" in found["best"]["cost"]
    status, _, err = run("advise", "--source", tmp_path / "rows.npy", "--encoder", "all-MiniLM-L6-v2")
    assert status == 1 and "--fit" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--source", "absent.txt"], "no file or folder"),
        (["--source", "pydoc:", "--report", "absent/page.html"], "a file in an existing folder"),
        (["--source", "pydoc:", "--report", "."], "a file in an existing folder"),
        (["--source", "pydoc:", "--fit", "no good name"], "name"),
    ],
)
def test_advise_prints_one_line_for_an_invalid_source_report_or_name(run, arguments, said):
    status, out, err = run("advise", *arguments)
    assert (status, out) == (1, "") and said in err and len(err.strip().splitlines()) == 1


def test_advise_names_the_index_to_build_or_what_is_possible(run, tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1100, 12)) @ rng.normal(size=(12, 32)) + 0.1 * rng.normal(size=(1100, 32))
    np.save(tmp_path / "rows.npy", rows.astype(np.float32))
    command = ("advise", "--source", tmp_path / "rows.npy", "--rows", "50000", "--recall", "0.5")
    status, out, err = run(*command, "--memory", "20MB")
    assert status == 0, err
    chosen = next(line.split() for line in out.splitlines() if " ← " in line and line.startswith(("codes:", "none")))
    assert "among 50,000 rows recall@10" in out and "by 550 rows measured" in out
    name = chosen[0].replace(":", "")
    assert f"lathe index import --name NAME --source SOURCE --chain {name} --m {chosen[2]}" in out
    status, out, _ = run(*command, "--memory", "1MB", "--json")
    plan = json.loads(out)["index_plan"]
    assert status == 0 and plan["chosen"] is None and len(plan["settings"]) > 10
    assert "no setting is expected to reach recall 0.5 within 1 MB: the smallest graph" in plan["problem"]
    status, _, err = run(*command, "--memory", "much")
    assert status == 1 and "--memory is 'much'" in err


def test_advise_prints_statistics_of_the_vectors(run, tmp_path):
    rows = np.random.default_rng(0).standard_normal((120, 16)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows / np.linalg.norm(rows, axis=1, keepdims=True))
    status, out, _ = run("advise", "--source", tmp_path / "rows.npy")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert status == 0 and "rank 16 of 16 dimensions" in lines
    assert "rows of unit length 100 % 0 rows are zero" in lines
    assert any(line.startswith("directions for 90%") for line in lines)


def test_advise_prints_the_decision_and_its_commands_first_then_the_evidence(run, tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1200, 12)) @ rng.normal(size=(12, 32)) + 0.01 * rng.normal(size=(1200, 32))
    np.save(tmp_path / "rows.npy", rows.astype(np.float32))
    page = tmp_path / "page.html"
    arguments = ("--source", tmp_path / "rows.npy", "--for", "pgvector", "--rows", 50_000, "--report", page)
    status, out, err = run("advise", *arguments)
    assert status == 0, err
    first, *others = out.splitlines()
    assert first.startswith("In pgvector, store halfvec(") and "for 50,000 rows" in first and "recall@10 of" in first
    assert any(line.startswith("  CREATE INDEX ON items USING hnsw") for line in others[:8])
    assert "What it can hold" in out and "by exact searches" in out
    assert html.escape(first, quote=False) in page.read_text() or first in page.read_text()
    status, out, _ = run("advise", *arguments[:-2], "--json")
    found = json.loads(out)
    assert found["sentence"] == first == found["decision"]["sentence"]
    assert run("advise", "--source", tmp_path / "rows.npy", "--for", "oracle")[0] == 2
