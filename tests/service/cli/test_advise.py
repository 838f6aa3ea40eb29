import html
import json
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from lathe.training.advice.places import decision
from lathe.training.advice.sizes import REDUCERS
from lathe.training.sources.docstrings import distinct_paragraphs, read_docstrings


@pytest.fixture(scope="module")
def texts():
    """Return 240 distinct texts of docstrings."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [library / f"{name}.py" for name in ("argparse", "doctest", "tarfile", "inspect")]
    return distinct_paragraphs(text for file in files for text in read_docstrings(file))[:240]


@pytest.fixture
def rows(tmp_path):
    """Write vectors of 24 dimensions, of which few matter, and return the file's path."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1040, 6)) @ rng.normal(size=(6, 24)) + 0.01 * rng.normal(size=(1040, 24))
    np.save(tmp_path / "rows.npy", rows.astype(np.float32))
    return tmp_path / "rows.npy"


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """Let fits take few steps. A real fit of every size takes a thousand, and its time is not what is tested here."""
    monkeypatch.setitem(REDUCERS, "nested GeoPres", "geopres:{k},nested=true,steps=40")


@pytest.fixture
def advise(run, tiny_model, tmp_path):
    """Run `lathe advise` on lines of text with a tiny encoder and return what it printed."""

    def ask(lines, *arguments):
        (tmp_path / "some.txt").write_text("\n".join(lines))
        status, out, err = run("advise", "--source", tmp_path / "some.txt", "--encoder", tiny_model, *arguments)
        assert status == 0, err
        return out

    return ask


def test_advise_json_holds_all_measurements_and_is_the_same_each_time(advise, texts):
    """Timings and what is derived from them may differ."""
    found, again = (json.loads(advise(texts * 2, "--json", "--sample-rows", 200)) for _ in range(2))
    assert (found["rows"], found["distinct"], found["heldout"], found["source"]) == (480, 200, 100, "some.txt")
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


def test_advise_with_fit_fits_the_recommended_chain_and_prints_its_advice_all_the_same_if_the_fit_fails(
    run, rows, tiny_model
):
    command = ("advise", "--source", rows, "--fit", "advised", "--json")
    status, out, err = run(*command)
    assert status == 0, err
    found = json.loads(out)
    assert found["fit"]["chain"] == "advised@1" and found["best"]["dimensions"] < 24
    assert found["sentence"] == found["decision"]["sentence"]
    assert "advised" in run("chains", "list")[1]
    status, out, err = run(*command, "--encoder", tiny_model)
    assert status == 1 and "24" in err and "16" in err
    assert json.loads(out)["fit"] is None and json.loads(out)["best"]["steps"]


def test_advise_with_fit_fits_nothing_if_it_recommends_no_chain(advise, run, texts, tmp_path):
    assert "nothing was fitted: no chain is recommended, there are too few" in advise(texts[:20], "--fit", "none-of-it")
    found = json.loads(advise(texts[:20], "--fit", "none-of-it", "--json"))
    assert found["fit"] is None and "nothing was fitted" in found["fit_error"] and found["distinct"] == 20
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).standard_normal((300, 16)).astype(np.float32))
    status, out, _ = run("advise", "--source", tmp_path / "rows.npy", "--fit", "nothing")
    assert status == 0 and "Of floats, no chain is better than the vectors as they are." in out
    assert "nothing was fitted: no chain is recommended, the raw vectors are best" in out


def test_advise_prints_one_line_for_an_invalid_source_report_name_or_encoder(run, rows):
    for arguments, said in [
        (["--source", "absent.txt"], "no file or folder"),
        (["--source", "pydoc:", "--report", "absent/page.html"], "a file in an existing folder"),
        (["--source", "pydoc:", "--report", "."], "a file in an existing folder"),
        (["--source", "pydoc:", "--fit", "no good name"], "name"),
        (["--source", rows, "--encoder", "all-MiniLM-L6-v2"], "--fit"),
        (["--source", rows, "--memory", "much"], "--memory is 'much'"),
    ]:
        status, out, err = run("advise", *arguments)
        assert (status, out) == (1, "") and said in err and len(err.strip().splitlines()) == 1


@pytest.mark.release
def test_advise_names_the_index_to_build_or_what_is_possible(run, rows):
    command = ("advise", "--source", rows, "--rows", "50000", "--recall", "0.5")
    status, out, err = run(*command, "--memory", "20MB")
    assert status == 0, err
    chosen = next(line.split() for line in out.splitlines() if " ← " in line and line.startswith(("codes:", "none")))
    assert "among 50,000 rows recall@10" in out and "by 520 rows measured" in out
    name = chosen[0].replace(":", "")
    assert f"lathe index import --name NAME --source SOURCE --chain {name} --m {chosen[2]}" in out
    status, out, _ = run(*command, "--memory", "1MB", "--json")
    plan = json.loads(out)["index_plan"]
    assert status == 0 and plan["chosen"] is None and len(plan["settings"]) > 10
    assert "no setting is expected to reach recall 0.5 within 1 MB: the smallest graph" in plan["problem"]


def test_advise_prints_the_decision_and_its_commands_first_then_the_evidence(run, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(decision, "CHAIN_BYTES", 0)
    page = tmp_path / "page.html"
    arguments = ("--source", rows, "--for", "pgvector", "--rows", 50_000, "--report", page)
    status, out, err = run("advise", *arguments)
    assert status == 0, err
    first, *others = out.splitlines()
    assert first.startswith("In pgvector, store halfvec(") and "for 50,000 rows" in first and "recall@10 of" in first
    assert any(line.startswith("  CREATE INDEX CONCURRENTLY ON items USING hnsw") for line in others[:8])
    for part in ("What it can hold", "by exact searches", "Mean direction", "whitening:epsilon=1e-6", "Cost: "):
        assert part in out
    written = page.read_text()
    assert html.escape(first, quote=False) in written or first in written
    assert written.count("<svg") == 3 and "<script" not in written
    assert run("advise", "--source", rows, "--for", "oracle")[0] == 2
