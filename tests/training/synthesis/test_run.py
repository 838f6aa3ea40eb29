import json
import threading

import pytest

from lathe.training.datasets.data_set import find_pairs
from lathe.training.datasets.folder import FileDataSet
from lathe.training.errors import JobError
from lathe.training.finetuning.job import SourceSettings
from lathe.training.synthesis.report import build_report, summarize_run

PROVENANCE = {"key", "attempt", "model", "endpoint", "template", "parameters", "created_at", "prompt_tokens", "seconds"}


def match_stage(stage):
    """Return a function that tells whether a prompt is one of a stage's."""
    marks = {"personas": "objects, like", "queries": "strings, like", "filter": "yes or no", "documents": "passage"}
    return lambda prompt: marks[stage] in prompt


def is_probe(body):
    """Return whether a request is the one that checks the endpoint."""
    return body["messages"][0]["content"] == "Say yes."


def test_a_synthesis_writes_pairs_that_a_training_source_reads(synthesize, tmp_path, read_lines):
    outcome = synthesize()
    rows = read_lines(tmp_path / "out" / "pairs.jsonl")
    assert outcome.is_complete and len(rows) == 8  # 4 seeds, a persona each, 2 queries each
    found = find_pairs(FileDataSet("pairs", tmp_path / "out" / "pairs.jsonl"), SourceSettings(jsonl="pairs.jsonl"))
    assert [(pair.anchor, pair.positive) for pair in found.pairs] == [(row["anchor"], row["positive"]) for row in rows]
    assert all(row["anchor"].endswith("?") and len(row["positive"]) > 200 for row in rows)


def test_every_pair_has_the_provenance_of_its_answers(synthesize, tmp_path, read_lines, chat_server):
    synthesize()
    answers = {row["key"]: row for path in (tmp_path / "out" / "answers").iterdir() for row in read_lines(path)}
    for row in read_lines(tmp_path / "out" / "pairs.jsonl"):
        assert list(row["provenance"]) == ["personas", "queries", "filter", "documents"]
        for stage, said in row["provenance"].items():
            assert said.keys() >= PROVENANCE and said["endpoint"] == chat_server.url[7:-3]
            assert answers[said["key"]]["stage"] == stage and answers[said["key"]]["seed"] == row["seed"]
        assert row["anchor"] in answers[row["provenance"]["queries"]["key"]]["items"]
        assert [row["positive"]] == answers[row["provenance"]["documents"]["key"]]["items"]
        assert row["seed_place"].startswith("seeds.jsonl line ")


def test_requests_have_the_key_model_and_parameters_of_the_settings(synthesize, chat_server, monkeypatch):
    monkeypatch.setenv("LLM_KEY", "sk-secret")
    endpoint = {"key_variable": "LLM_KEY", "limit_field": "max_completion_tokens", "parameters": {"top_p": 0.9}}
    stages = {"documents": {"model": "larger", "temperature": None, "max_tokens": 77, "parameters": {"min_p": 0.1}}}
    synthesize(seeds=1, endpoint=endpoint, stages=stages)
    assert {headers["authorization"] for headers in chat_server.headers} == {"Bearer sk-secret"}
    probed = [(body["model"], is_probe(body)) for body in chat_server.bodies[:3]]
    assert probed == [("tester", True), ("larger", True), ("tester", False)]
    documents = [body for body in chat_server.bodies if body["model"] == "larger" and not is_probe(body)]
    assert [body.keys() - {"messages"} for body in documents] == [
        {"model", "max_completion_tokens", "top_p", "min_p"}
    ] * 2
    assert documents[0]["max_completion_tokens"] == 77 and documents[0]["min_p"] == 0.1
    others = [body for body in chat_server.bodies if body["model"] == "tester" and not is_probe(body)]
    assert all(body["top_p"] == 0.9 and body["temperature"] in (0, 1) for body in others)


def test_running_a_finished_synthesis_again_sends_nothing_and_writes_the_same_files(synthesize, tmp_path, chat_server):
    synthesize()
    files = [tmp_path / "out" / name for name in ("pairs.jsonl", "rejected.jsonl")]
    before, asked = [path.read_bytes() for path in files], len(chat_server.bodies)
    assert synthesize().sender.sent == 0
    assert len(chat_server.bodies) == asked and [path.read_bytes() for path in files] == before


def test_a_run_stopped_by_its_budget_resumes_with_a_larger_one_to_the_same_pairs(
    synthesize, tmp_path, chat_server, read_lines
):
    """No prompt is sent twice."""
    synthesize(out=tmp_path / "whole")
    asked = sorted(chat_server.prompts)
    chat_server.reset()
    outcome = synthesize(limits={"max_requests": 7})
    assert not outcome.is_complete and outcome.sender.sent == len(chat_server.bodies) == 7
    assert "the budget of 7 requests is spent" in " ".join(summarize_run(build_report(outcome)))
    for most in (15, 100):
        outcome = synthesize(limits={"max_requests": most})
    assert outcome.is_complete and sorted(chat_server.prompts) == asked, "nothing is asked twice"
    whole, resumed = (
        [(row["anchor"], row["positive"]) for row in read_lines(tmp_path / name / "pairs.jsonl")]
        for name in ("whole", "out")
    )
    assert whole == resumed


def test_the_token_budget_is_not_exceeded(synthesize, chat_server, chat_completion):
    passage = (200, {}, chat_completion("Some words of a passage that is long enough. " * 5, completion_tokens=700))
    chat_server.script = lambda server, body: (
        passage if match_stage("documents")(body["messages"][0]["content"]) else None
    )
    outcome = synthesize(limits={"max_tokens": 5000, "concurrency": 1})
    spent = sum(record.tokens for record in outcome.log)
    assert "5,000 tokens has too few left" in outcome.sender.spent
    assert 5000 - 1200 < spent <= 5000  # a passage may have 1,000, with its prompt


def test_only_the_call_of_a_truncated_log_line_is_sent_again(synthesize, tmp_path, chat_server):
    synthesize()
    log = tmp_path / "out" / "answers" / "documents.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:-1]) + lines[-1][:40])
    chat_server.reset()
    assert synthesize().is_complete and len(chat_server.prompts) == 1
    assert len(log.read_bytes().splitlines()) == len(lines)


def test_a_damaged_line_of_the_answer_log_is_refused_with_its_number(synthesize, tmp_path):
    synthesize(seeds=1)
    log = tmp_path / "out" / "answers" / "filter.jsonl"
    log.write_bytes(b"{}\n" + log.read_bytes())
    with pytest.raises(JobError, match="filter.jsonl line 1 is damaged"):
        synthesize(seeds=1)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"seeds": 3}, "seeds"),
        ({"queries": 3}, "queries"),
        ({"stages": {"filter": {"model": "other"}}}, "stages"),
        ({"templates": {"folder": "mine"}}, "templates"),
    ],
)
def test_a_folder_with_answers_of_another_job_is_refused(synthesize, tmp_path, changed, what):
    synthesize(seeds=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "filter.txt").write_text("$query? yes or no")
    with pytest.raises(JobError, match=f"out holds answers that were made with other {what}; name another folder"):
        synthesize(**{"seeds": 1} | changed)


def test_limits_prices_and_the_address_may_change_between_runs(synthesize, chat_server):
    synthesize(seeds=1)
    other = {"base_url": chat_server.url.replace("127.0.0.1", "localhost")}
    outcome = synthesize(seeds=1, endpoint=other, limits={"concurrency": 1}, prices={"input": 1, "output": 2})
    assert outcome.sender.sent == 0
    assert build_report(outcome)["cost"] == {"amount": (6 * 50 + 2 * 6 * 20) / 1e6, "currency": "USD"}


def test_a_folder_in_use_by_another_run_is_refused(synthesize, chat_server, tmp_path):
    entered, leave = threading.Event(), threading.Event()

    def wait(server, body):
        entered.set()
        leave.wait(10)

    chat_server.script = wait
    first = threading.Thread(target=synthesize, kwargs={"seeds": 1})
    first.start()
    assert entered.wait(10)
    with pytest.raises(JobError, match="another run is writing"):
        synthesize(seeds=1)
    leave.set()
    first.join()


def test_queries_that_the_filter_rejects_get_no_document(synthesize, chat_server):
    def judge(server, body):
        prompt = body["messages"][0]["content"]
        if not match_stage("filter")(prompt):
            return None
        return "No." if sum(match_stage("filter")(other) for other in server.prompts) % 2 else "yes"

    chat_server.script = judge
    outcome = synthesize(limits={"concurrency": 1})
    figures = build_report(outcome)["stages"]
    assert figures["filter"]["rejected"] == {"takes no document": 4} and figures["documents"]["calls"] == 4


def test_duplicate_queries_are_kept_once(synthesize, chat_server, tmp_path, read_lines):
    queries = ["What did the auditor of the issuer say about its covenant in 2019?", "A second one about bond yields?"]
    chat_server.script = lambda server, body: (
        json.dumps([queries[0].upper(), queries[1]]) if match_stage("queries")(body["messages"][0]["content"]) else None
    )
    outcome = synthesize()
    assert len(outcome.pipeline.pairs) == 2
    rejected = read_lines(tmp_path / "out" / "rejected.jsonl")
    assert [row["reason"] for row in rejected] == ["duplicate"] * 6
    assert {row["of"] for row in rejected} == {queries[0].upper(), queries[1]}


def test_seeds_queries_and_documents_that_match_a_test_set_are_rejected_and_listed(
    synthesize, chat_server, tmp_path, read_lines, write_lines, write_data_set
):
    clean = synthesize(out=tmp_path / "clean")
    first, last = clean.pipeline.pairs[0], clean.pipeline.pairs[-1]
    run_of_words = " ".join(last.document.split()[20:40])
    write_lines(tmp_path / "held-out.jsonl", [{"text": f"Before it. {run_of_words} And after it."}])
    rows = [{"sentence1": first.query.lower(), "sentence2": "another", "score": score} for score in (1, 2)]
    write_data_set(tmp_path / "suite" / "pairs", {"task": "sts"}, {"test.jsonl": rows})
    seed = {"text": f"what is a {clean.pipeline.pairs[2].seed.question.split()[-1]}"}
    write_lines(tmp_path / "questions.jsonl", [seed])
    test_sets = [{"jsonl": name} for name in ("held-out.jsonl", "questions.jsonl")] + [{"folder": "suite"}]
    outcome = synthesize(test_sets=test_sets)
    rejected = read_lines(tmp_path / "out" / "rejected.jsonl")
    assert [(row["stage"], row["test_set"], row["how"].partition(":")[0]) for row in rejected] == [
        ("seeds", "questions", "the same text"),
        ("queries", "pairs", "the same text"),
        ("documents", "held-out", "13 words in a row"),
    ]
    left_out = {first.query, last.query, *(pair.query for pair in clean.pipeline.pairs[2:4])}
    assert {pair.query for pair in outcome.pipeline.pairs} == {p.query for p in clean.pipeline.pairs} - left_out
    found = build_report(outcome)
    assert found["test_sets"] == {"held-out": 1, "questions": 1, "pairs": 4}
    assert found["seeds"]["rejected"] == {"known to a test set": 1}


def test_no_output_file_contains_the_key(synthesize, chat_server, tmp_path, monkeypatch):
    monkeypatch.setenv("LLM_KEY", "sk-secret")
    chat_server.script = lambda server, body: (
        (400, {}, b'{"error": "no sk-secret"}') if "bond" in body["messages"][0]["content"] else None
    )
    synthesize(endpoint={"key_variable": "LLM_KEY"})
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) >= 9 and not any(b"sk-secret" in path.read_bytes() for path in files)


def test_progress_gives_calls_done_the_rate_and_the_time_left(synthesize):
    told = []
    synthesize(on_progress=lambda fraction, sentence: told.append((fraction, sentence)))
    assert len(told) == 4 + 4 + 8 + 8 and [fraction for fraction, _ in told] == sorted(fraction for fraction, _ in told)
    assert told[-1][0] == 1 and told[-1][1].startswith("documents: 8 of 8, ") and "a minute, 0 s left" in told[-1][1]


def test_without_the_filter_every_query_gets_a_document_and_the_filter_is_not_asked(
    synthesize, chat_server, tmp_path, read_lines
):
    """The same folder can be continued so: answers of the filter are then ignored."""
    chat_server.script = lambda server, body: "No." if "yes or no" in body["messages"][0]["content"] else None
    assert synthesize(seeds=1).pipeline.pairs == []
    asked = len(chat_server.bodies)
    outcome = synthesize(seeds=1, filter=False)
    assert len(outcome.pipeline.pairs) == outcome.pipeline.kept["filter"] == outcome.pipeline.kept["queries"] == 2
    assert outcome.pipeline.calls["filter"] == [] and outcome.is_complete
    assert not any("yes or no" in body["messages"][0]["content"] for body in chat_server.bodies[asked:])
    rows = read_lines(tmp_path / "out" / "pairs.jsonl")
    assert [list(row["provenance"]) for row in rows] == [["personas", "queries", "documents"]] * 2


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
    figures = build_report(outcome)["stages"][stage]
    assert figures["answers"] == 2 * figures["calls"] == figures["asked_again"][reason]
    assert figures["rejected"] == {reason: figures["calls"]} and outcome.is_complete
    rejected = [row for row in read_lines(tmp_path / "out" / "rejected.jsonl") if row["stage"] == stage]
    assert [(row["reason"], row["attempts"]) for row in rejected] == [(reason, 2)] * figures["calls"]
    asked = len(chat_server.bodies)
    synthesize(seeds=1, limits={"attempts": 2})
    assert len(chat_server.bodies) == asked, "what is rejected is not asked again"


def test_a_retry_after_of_hours_ends_the_run(synthesize, chat_server):
    chat_server.script = lambda server, body: None if is_probe(body) else (429, {"retry-after": "7200"}, b"{}")
    with pytest.raises(JobError, match="asks to wait 120 minutes.*the same command resumes"):
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
    found = build_report(outcome)
    assert found["this_run"]["failures"] == {"refused with 400": 1} and not found["complete"]
    assert found["pairs"] == 6 and "1 calls were not answered" in " ".join(summarize_run(found))
    chat_server.script = None
    assert len(synthesize().pipeline.pairs) == 8


def test_five_failed_calls_in_a_row_end_the_run_and_keep_its_answers(synthesize, chat_server):
    chat_server.script = lambda server, body: (
        (500, {}, b'{"error": {"message": "out of memory"}}') if len(server.bodies) > 6 else None
    )
    with pytest.raises(
        JobError, match="5 calls in a row were not answered, the last: 500: out of memory. The answers so far"
    ):
        synthesize(seeds=20, limits={"retries": 1})
    chat_server.reset()
    synthesize(seeds=20)
    assert len(chat_server.prompts) == 20 - 5 + 20 + 40 + 40


def test_a_rejected_key_ends_the_run_at_once(synthesize, chat_server, monkeypatch):
    monkeypatch.setenv("LLM_KEY", "sk-secret")
    chat_server.script = lambda server, body: (
        None if is_probe(body) else (401, {}, b'{"error": {"message": "bad key sk-secret"}}')
    )
    with pytest.raises(JobError, match="rejects the API key: 401: bad key …"):
        synthesize(seeds=20, endpoint={"key_variable": "LLM_KEY"}, limits={"concurrency": 1})
    assert len(chat_server.prompts) == 1
