import html
import json
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from lathe.training.deciding.evidence import REDUCERS
from lathe.training.deciding.places import decision
from lathe.training.sources.readers import extract_paragraphs, read_docstrings


@pytest.fixture(scope="module")
def texts():
    """Return 240 distinct texts of docstrings."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [library / f"{name}.py" for name in ("argparse", "doctest", "tarfile", "inspect")]
    return extract_paragraphs(text for file in files for text in read_docstrings(file))[:240]


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


def test_advise_json_with_evidence_holds_all_measurements_and_is_the_same_each_time(advise, texts):
    found, again = (json.loads(advise(texts * 2, "--json", "--evidence", "--sample-rows", 200)) for _ in range(2))
    assert (found["rows"], found["distinct"], found["heldout"], found["source"]) == (480, 200, 100, "some.txt")
    assert {trial["method"] for trial in found["evidence"]["debiasing"]["trials"]} == {
        "nothing", "R1", "R2", "ABTT-1", "ABTT-2", "ABTT-3", "whitening",
    }  # fmt: skip
    assert found["encoder"]["dimensions"] == 16 and found["sentences"] and found["capped"]
    assert any("measuring 1,000 rows might tell" in said for said in found["sentences"])
    assert found == again


def test_advise_with_fit_fits_the_decisions_chain_and_prints_its_advice_all_the_same_if_the_fit_fails(
    run, rows, tiny_model
):
    command = ("advise", "--source", rows, "--for", "memory", "--rows", 50_000_000, "--recall", 0.2)
    command += ("--fit", "advised", "--json")
    status, out, err = run(*command)
    assert status == 0, err
    found = json.loads(out)
    steps = found["decision"]["chosen"]["candidate"]["form"]["steps"]
    assert found["fit"]["chain"] == "advised@1" and steps == "pca:8,center=none"
    assert found["sentence"] == found["decision"]["sentence"] and found["evidence"] is None
    assert "advised" in run("chains", "list")[1]
    status, out, err = run(*command, "--encoder", tiny_model)
    assert status == 1 and "24" in err and "16" in err
    assert json.loads(out)["fit"] is None and json.loads(out)["decision"]["chosen"]


def test_advise_with_fit_fits_nothing_if_the_decision_takes_no_chain(advise, run, rows, texts):
    assert "was fitted: the advice recommends none" in advise(texts[:20], "--fit", "none-of-it")
    found = json.loads(advise(texts[:20], "--fit", "none-of-it", "--json"))
    assert found["fit"] is None and "was fitted" in found["fit_error"] and found["distinct"] == 20
    status, out, _ = run("advise", "--source", rows, "--for", "memory", "--fit", "nothing")
    assert status == 0 and "store float16" in out and "vectors of less than 1 GB are not worth a chain" in out
    assert "was fitted: the advice recommends none" in out


def test_advise_prints_one_line_for_an_invalid_source_report_name_or_encoder(run, rows):
    for arguments, said in [
        (["--source", "absent.txt"], "no file or folder"),
        (["--source", "pydoc:", "--report", "absent/page.html"], "a file in an existing folder"),
        (["--source", "pydoc:", "--report", "."], "a file in an existing folder"),
        (["--source", "pydoc:", "--fit", "no good name"], "name"),
        (["--source", rows, "--encoder", "all-MiniLM-L6-v2"], "--fit"),
    ]:
        status, out, err = run("advise", *arguments)
        assert (status, out) == (1, "") and said in err and len(err.strip().splitlines()) == 1


def test_advise_prints_the_decision_its_commands_and_its_notes_alone_unless_evidence_is_asked_for(run, rows):
    status, out, err = run("advise", "--source", rows, "--for", "faiss", "--rows", 50_000)
    assert status == 0, err
    first, *others = out.splitlines()
    assert first.startswith("In FAISS, store ") and "python - <<'END'" in others and "END" in others
    assert "by exact searches" in out and "Mean direction" not in out and "recall@10 alone" not in out


def test_advise_prints_the_decision_and_its_commands_first_then_the_evidence(run, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(decision, "CHAIN_BYTES", 0)
    page = tmp_path / "page.html"
    arguments = ("--source", rows, "--for", "pgvector", "--rows", 50_000, "--report", page)
    status, out, err = run("advise", *arguments)
    assert status == 0, err
    first, *others = out.splitlines()
    assert first.startswith("In pgvector, store halfvec(") and "for 50,000 rows" in first and "recall@10 of" in first
    assert any(line.startswith("CREATE INDEX CONCURRENTLY ON items USING hnsw") for line in others[:8])
    for part in (
        "What it can hold",
        "by exact searches",
        "Mean direction",
        "whitening:epsilon=1e-6",
        "Fewer dimensions",
    ):
        assert part in out
    written = page.read_text()
    assert html.escape(first, quote=False) in written or first in written
    assert written.count("<svg") == 2 and "<script" not in written
    assert run("advise", "--source", rows, "--for", "oracle")[0] == 2
