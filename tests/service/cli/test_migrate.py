import json

import pytest

from lathe.training.measures import cut_in_two
from lathe.training.sources.readers import extract_paragraphs, read_docstrings
from tests.service.conftest import find_library_files

MINILM = "all-MiniLM-L6-v2"


@pytest.fixture
def texts(tmp_path):
    """Write 140 second halves of texts, and the first halves of 40 as judged queries. Return the folder."""
    found = (read for file in find_library_files("argparse", "inspect", "doctest") for read in read_docstrings(file))
    paragraphs = list(dict.fromkeys(extract_paragraphs(found)))
    halves = [halves for text in paragraphs if (halves := cut_in_two(text[:200]))][:140]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"text": second}) for _, second in halves))
    judged = [{"query": first, "document": second} for first, second in halves[:40]]
    (tmp_path / "judged.jsonl").write_text("\n".join(map(json.dumps, judged)))
    return tmp_path


def test_migrate_begins_with_the_decision_and_its_cost(run, texts, tiny_model):
    command = ("migrate", "--source", texts / "rows.jsonl", "--pairs", texts / "judged.jsonl", "--price", 2)
    status, out, err = run(*command, "--from", tiny_model, "--to", MINILM)
    assert status == 0, err
    first, *_ = out.splitlines()
    assert first.startswith(f"Encode again: {MINILM}, in 64 bytes a vector as now, changes nDCG@10 by +")
    assert "on 40 judged queries" in first
    assert "140 rows take" in first and "at 2 a million" in first
    assert "* encode again, as small" in out and "  bridge" in out

    status, out, err = run(*command, "--from", MINILM, "--to", tiny_model, "--json")
    assert status == 0, err
    found = json.loads(out)
    assert found["recommended"] == "stay" and found["sentence"].startswith("Stay: ")
    assert [choice["name"] for choice in found["choices"]] == ["stay", "bridge", "encode again"]
    assert found["choices"][2]["difference"]["high"] < 0 and found["cost"]["rows"] == 140


def test_migrate_without_judged_queries_decides_nothing(run, texts, tiny_model):
    status, out, err = run("migrate", "--source", texts / "rows.jsonl", "--from", tiny_model, "--to", MINILM)
    assert status == 0, err
    assert out.startswith("Undecided: ") and "give judged queries (--pairs)" in out and "* " not in out


def test_migrate_prints_one_line_for_one_encoder_twice_bad_options_or_vectors(run, texts, tiny_model, tmp_path):
    (tmp_path / "few.jsonl").write_text('{"query": "a", "document": "b"}')
    for arguments, said in [
        (["--to", tiny_model], "give the same vectors"),
        (["--to", MINILM, "--price", -1], "--price"),
        (["--to", MINILM, "--sample-rows", 5], "--sample-rows"),
        (["--to", MINILM, "--pairs", tmp_path / "few.jsonl"], "at least 30 are needed"),
    ]:
        status, out, err = run("migrate", "--source", texts / "rows.jsonl", "--from", tiny_model, *arguments)
        assert (status, out) == (1, "") and said in err and len(err.strip().splitlines()) == 1
