import json

import pytest

from lathe.training.datasets.data_set import find_pairs
from lathe.training.datasets.folder import FileDataSet
from lathe.training.finetuning.job import SourceSettings


@pytest.fixture
def synthesize(run, tmp_path):
    """Run `lathe train synthesize` in this process, into the same folder."""

    def command(*arguments):
        return run("train", "synthesize", *arguments, "--out", tmp_path / "out")

    return command


def require_one_line(ended, message):
    """Assert that a command failed, and the last line on stderr contains a message."""
    status, printed, err = ended
    assert (status, printed) == (1, "")
    last = err.splitlines()[-1]
    assert last.startswith("lathe: ") and message in last
    assert "Traceback" not in err


def test_synthesize_writes_pairs_and_prints_calls_tokens_and_cost(synthesize, synthesis_job, tmp_path, chat_server):
    config = synthesis_job(prices={"input": 1000, "output": 10000, "currency": "EUR"})
    status, printed, err = synthesize("--config", config, "--yes")
    assert status == 0, err
    table = {line.split()[0]: line.split()[1:] for line in printed.splitlines()[1:6]}
    assert table["seeds"] == ["4", "none"] and table["documents"] == ["8", "8", "8", "none", "none"]
    assert "25 requests in" in printed and "1,200 tokens asked, 480 answered in all runs, 6.00 EUR" in printed
    assert f"8 pairs are in {tmp_path / 'out' / 'pairs.jsonl'}" in printed
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["complete"] and report["pairs"] == 8 and report["cost"]["amount"] == 6.0
    found = find_pairs(FileDataSet("p", tmp_path / "out" / "pairs.jsonl"), SourceSettings(jsonl="pairs.jsonl"))
    assert len(found.pairs) == 8


def test_synthesize_sends_no_request_without_yes(synthesize, synthesis_job, chat_server):
    require_one_line(synthesize("--config", synthesis_job()), "use --yes to start")
    assert chat_server.bodies == []


def test_synthesize_write_templates_copies_the_prompt_templates(run, tmp_path):
    status, printed, err = run("train", "synthesize", "--write-templates", tmp_path / "mine")
    assert status == 0, err
    assert len(printed.splitlines()) == 4 and "$question" in (tmp_path / "mine" / "personas.txt").read_text()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sauces": 1}, "job.yaml: unknown setting sauces; there are endpoint, seeds"),
        ({"seeds": 0}, "seeds.jsonl has no rows"),
    ],
)
def test_synthesize_prints_one_line_for_an_invalid_job(synthesize, synthesis_job, given, message):
    require_one_line(synthesize("--config", synthesis_job(**given), "--yes"), message)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((404, {}, b'{"error": {"message": "no model tester"}}'), "404: no model tester"),
        ((200, {"content-length": 500}, b'{"choi'), "the connection was cut"),
    ],
)
def test_synthesize_stops_after_the_first_request_to_an_unusable_endpoint(
    synthesize, synthesis_job, chat_server, reply, message
):
    chat_server.script = lambda server, body: reply
    require_one_line(synthesize("--config", synthesis_job(), "--yes"), message)
    assert len(chat_server.bodies) == 1
