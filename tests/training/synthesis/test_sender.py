import pytest

from lathe.training.errors import JobError
from lathe.training.synthesis.report import as_json, summarize_run


def match_stage(stage):
    """Return a function that tells whether a prompt is one of a stage's."""
    marks = {"personas": "objects, like", "queries": "strings, like", "filter": "yes or no", "documents": "passage"}
    return lambda prompt: marks[stage] in prompt


def is_probe(body):
    """Return whether a request is the one that checks the endpoint."""
    return body["messages"][0]["content"] == "Say yes."


@pytest.mark.parametrize(
    ("stage", "said", "reason"),
    [
        ("personas", "Hello!", "not as asked"),
        ("queries", '["short?"]', "too short"),
        ("documents", "Too little.", "too short"),
    ],
)
def test_unusable_answers_are_asked_for_again_and_then_rejected_with_the_reason(
    synthesize, chat_server, tmp_path, read_lines, stage, said, reason
):
    """A later run does not ask for them again."""
    is_asked = match_stage(stage)
    chat_server.script = lambda server, body: said if is_asked(body["messages"][0]["content"]) else None
    outcome = synthesize(seeds=1, limits={"attempts": 2})
    figures = as_json(outcome)["stages"][stage]
    assert figures["answers"] == 2 * figures["calls"] == figures["asked_again"][reason]
    assert figures["rejected"] == {reason: figures["calls"]} and outcome.is_complete
    rejected = [row for row in read_lines(tmp_path / "out" / "rejected.jsonl") if row["stage"] == stage]
    assert [(row["reason"], row["attempts"]) for row in rejected] == [(reason, 2)] * figures["calls"]
    asked = len(chat_server.bodies)
    synthesize(seeds=1, limits={"attempts": 2})
    assert len(chat_server.bodies) == asked, "what is rejected is not asked again"


def test_a_retry_after_of_hours_ends_the_run(synthesize, chat_server):
    chat_server.script = lambda server, body: None if is_probe(body) else (429, {"retry-after": "7200"}, b"{}")
    with pytest.raises(JobError, match="asks to wait 120 minutes.*the same command goes on"):
        synthesize()


@pytest.mark.parametrize(
    ("failure", "kind"),
    [((500, {}, b"oops"), "server error 500"), ((429, {}, b'{"error": {"message": "slow down"}}'), "rate limit")],
)
def test_temporary_failures_are_retried_and_counted_by_kind(synthesize, chat_server, failure, kind):
    turns = iter(range(100))
    chat_server.script = lambda server, body: None if is_probe(body) or next(turns) % 3 else failure
    outcome = synthesize()
    assert outcome.is_complete and len(outcome.pipeline.pairs) == 8
    assert outcome.sender.failures.keys() == {kind} and outcome.sender.failures[kind] >= 7


def test_a_refused_call_is_left_for_the_next_run_and_the_others_are_answered(synthesize, chat_server):
    poison = "What is a bond?"
    chat_server.script = lambda server, body: (
        (400, {}, b'{"error": {"message": "flagged"}}') if poison in body["messages"][0]["content"] else None
    )
    outcome = synthesize()
    found = as_json(outcome)
    assert found["this_run"]["failures"] == {"refused with 400": 1} and not found["complete"]
    assert found["pairs"] == 6 and "1 calls were not answered" in " ".join(summarize_run(found))
    chat_server.script = None
    assert len(synthesize().pipeline.pairs) == 8


def test_five_failed_calls_in_a_row_end_the_run_and_keep_its_answers(synthesize, chat_server):
    chat_server.script = lambda server, body: (
        (500, {}, b'{"error": {"message": "out of memory"}}') if len(server.bodies) > 6 else None
    )
    with pytest.raises(JobError, match="5 calls in a row were not answered, the last: 500: out of memory. What was"):
        synthesize(seeds=20, limits={"retries": 1})
    chat_server.reset()
    synthesize(seeds=20)
    assert len(chat_server.prompts) == 20 - 5 + 20 + 40 + 40


def test_a_rejected_key_ends_the_run_at_once(synthesize, chat_server, monkeypatch):
    monkeypatch.setenv("LLM_KEY", "sk-secret")
    chat_server.script = lambda server, body: (
        None if is_probe(body) else (401, {}, b'{"error": {"message": "bad key sk-secret"}}')
    )
    with pytest.raises(JobError, match="does not take the key: 401: bad key …"):
        synthesize(seeds=20, endpoint={"key_variable": "LLM_KEY"}, limits={"concurrency": 1})
    assert len(chat_server.prompts) == 1
