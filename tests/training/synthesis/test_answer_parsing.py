import json

import pytest

from training.synthesis.answer_parsing import (
    parse_document,
    parse_personas,
    parse_queries,
    parse_verdict,
    remove_thoughts,
)
from training.synthesis.calls import Call, parse_answer
from training.synthesis.chat import Answer
from training.synthesis.faults import find_fault, is_another_script, is_refusal
from training.synthesis.job import DocumentStage, FilterStage, PersonaStage, QueryStage

PERSONA = {"persona": "A risk officer at a bank.", "task": "Checks limits."}
SPOKEN = "A risk officer at a bank. Checks limits."
QUERIES = ["What did rates do?", "How high is the limit?"]
PASSAGE = "The auditor found that reserves fell short of the covenant by a tenth in March, " * 3
ENGLISH, CHINESE = "What is a bond? A debt.", "什么是债券？债券是一种债务。"


@pytest.mark.parametrize(
    "said",
    [
        json.dumps([PERSONA]),
        json.dumps(PERSONA),
        json.dumps({"personas": [PERSONA]}),
        f"```json\n{json.dumps([PERSONA], indent=2)}\n```",
        f"Here you are [as asked]:\n{json.dumps([PERSONA])}\nI hope that helps {{really}}!",
        f"<think>Should it be [1, 2]?</think>\n{json.dumps([PERSONA])}",
        f"It should be a list.</think>{json.dumps([PERSONA])}",
    ],
)
def test_parse_personas_finds_personas_in_json_code_fences_and_prose(said):
    assert parse_personas(remove_thoughts(said)) == [SPOKEN]


@pytest.mark.parametrize(
    "said", ["", "A risk officer.", '[{"persona": "A risk officer"}]', '[{"persona": 1, "task": 2}]', "[" * 9000, "[1]"]
)
def test_parse_personas_of_other_answers_is_empty(said):
    assert parse_personas(said) == []


PLAIN = "A compliance officer at a bank, responsible for tracking indicators, with a focus on risk."


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (PLAIN, [PLAIN]),
        (f'"{PLAIN}"', [PLAIN]),
        (f"Sure, here is one:\n\n{PLAIN}", [PLAIN]),
        (f"{PLAIN}\n\nNo more.\n\n{PLAIN[2:]}", [PLAIN, PLAIN[2:]]),
        (f"1. {PLAIN}\n2. {PLAIN[2:]}", [PLAIN, PLAIN[2:]]),
        (f"[{PLAIN}", []),
    ],
)
@pytest.mark.parametrize("parse", [parse_personas, parse_queries])
def test_plain_paragraphs_and_lists_are_taken_as_they_are(parse, said, expected):
    assert parse(said) == expected


@pytest.mark.parametrize(
    "said",
    [
        json.dumps(QUERIES),
        json.dumps({"queries": QUERIES}),
        json.dumps([{"query": text} for text in QUERIES]),
        "```\n" + json.dumps(QUERIES) + "\n```",
        f"1. {QUERIES[0]}\n2) {QUERIES[1]}",
        f'Some of them:\n- "{QUERIES[0]}"\n* {QUERIES[1]}\n',
        f"As in [1]:\n{json.dumps(QUERIES)}",
    ],
)
def test_parse_queries_finds_queries_in_json_lists_and_prose(said):
    assert parse_queries(said) == QUERIES


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("yes", ["yes"]),
        ("**No**, common knowledge is enough.", ["no"]),
        ("True", ["yes"]),
        ('{"needs_documents": false}', ["no"]),
        ('{"answer": "Yes"}', ["yes"]),
        ("```json\n[true]\n```", ["yes"]),
        ("Nobody can say.", []),
        ("It takes documents: yes", []),
        ("", []),
    ],
)
def test_parse_verdict_takes_a_leading_yes_or_no_or_a_json_truth_value(said, verdict):
    assert parse_verdict(said) == verdict


@pytest.mark.parametrize(
    "said",
    [
        "A passage.\n\nIts end.",
        "```\nA passage.\n\nIts end.\n```",
        "Sure, here is the passage:\n\nA passage.\n\nIts end.",
        '{"document": "A passage.\\n\\nIts end."}',
    ],
)
def test_parse_document_removes_fences_introductions_and_json_around_a_passage(said):
    assert parse_document(said) == ["A passage.\n\nIts end."]


def test_lone_surrogates_are_replaced_by_question_marks():
    (found,) = parse_queries('["What is \\ud83d a bond?"]')
    assert found.encode() and found == "What is ? a bond?"


@pytest.mark.parametrize(
    ("text", "sample", "fault"),
    [
        (PASSAGE, ENGLISH, None),
        ("", ENGLISH, "empty"),
        ("As an AI language model, " + PASSAGE, ENGLISH, "refused"),
        (PASSAGE[:199], ENGLISH, "too short"),
        (PASSAGE * 30, ENGLISH, "too long"),
        (CHINESE * 30, ENGLISH, "another script"),
        (PASSAGE + "Signed by [Your Name] on {{date}}.", ENGLISH, "blanks left open"),
        ("It rose again and again. " * 30, ENGLISH, "repeats itself"),
        (PASSAGE + " See note [3] and α, β.", ENGLISH, None),
        (PASSAGE, "42?", None),
    ],
)
def test_find_fault_names_the_fault_of_a_passage(text, sample, fault):
    assert find_fault(text, DocumentStage(), sample) == fault


def test_is_another_script_compares_with_the_script_of_the_seed():
    assert not is_another_script("債券とは借金のことです。カタカナも。", "これは何ですか。")
    assert is_another_script(ENGLISH, CHINESE) and not is_another_script(CHINESE, CHINESE)


@pytest.mark.parametrize(
    "text", ["I’m sorry, no.", "**I cannot** do that", "抱歉，我不能", "Unfortunately, I must stop"]
)
def test_is_refusal_recognizes_refusals(text):
    assert is_refusal(text)


@pytest.mark.parametrize("text", ["1. I can't log in, why?", "Sorry state of the ledgers", "No."])
def test_is_refusal_is_false_for_texts_that_resemble_refusals(text):
    assert not is_refusal(text)


def parse(stage, settings, text, reason="stop", count=2):
    """Return the items of an answer, and the faults of the dropped ones."""
    call = Call(stage, "?", "m", {}, "t", "s", count, ENGLISH)
    found = parse_answer(Answer(text, reason, 1, 1, True), call, settings)
    return found.items, [fault for fault, _ in found.dropped]


def test_parse_answer_keeps_distinct_usable_items_up_to_the_count_and_names_faults():
    said = json.dumps(["short?", *QUERIES, QUERIES[0], "One more than was wanted?"])
    assert parse("queries", QueryStage(), said, count=3) == ([*QUERIES, "One more than was wanted?"], ["too short"])
    assert parse("queries", QueryStage(), said, count=2) == (QUERIES, ["too short"])


@pytest.mark.parametrize(
    ("said", "reason", "why"),
    [
        (json.dumps([PERSONA]), "length", "cut off"),
        (json.dumps([PERSONA]), "content_filter", "refused"),
        ("<think>and so on", "stop", "empty"),
        ("I cannot do that.", "stop", "refused"),
        ("Whatever.", "", "not as asked"),
    ],
)
def test_parse_answer_gives_the_fault_of_an_unusable_answer(said, reason, why):
    assert parse("personas", PersonaStage(), said, reason) == ([], [why])


def test_parse_answer_accepts_a_verdict_cut_off_after_the_yes_or_no():
    assert parse("filter", FilterStage(), "Yes, because the figures of", "length") == (["yes"], [])
    assert parse("filter", FilterStage(), "The figures of", "length") == ([], ["cut off"])


def test_parse_answer_accepts_an_english_verdict_for_a_chinese_seed():
    call = Call("filter", "?", "m", {}, "t", "s", 1, CHINESE)
    assert parse_answer(Answer("yes", "stop", 1, 1, True), call, FilterStage()).items == ["yes"]
