import json

import pytest

from lathe.training.synthesis.answer_parsing import (
    Call,
    find_fault,
    is_another_script,
    is_refusal,
    parse_answer,
    parse_document,
    parse_personas,
    parse_queries,
    parse_verdict,
    remove_thoughts,
)
from lathe.training.synthesis.chat import ChatAnswer
from lathe.training.synthesis.job import StagesSettings

PERSONA = {"persona": "A risk officer at a bank.", "task": "Checks limits."}
SPOKEN = "A risk officer at a bank. Checks limits."
QUERIES = ["What did rates do?", "How high is the limit?"]
PASSAGE = "The auditor found that reserves fell short of the covenant by a tenth in March, " * 3
ENGLISH, CHINESE = "What is a bond? A debt.", "什么是债券？债券是一种债务。"

SETTINGS = StagesSettings.model_validate({})


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


def test_parse_personas_of_other_answers_is_empty():
    for said in ("", "A risk officer.", '[{"persona": "A risk officer"}]', '[{"persona": 1, "task": 2}]', "[" * 9000):
        assert parse_personas(said) == [], said


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
        (f"1. **Question 1:** {PLAIN}\n2. Q: {PLAIN[2:]}", [PLAIN, PLAIN[2:]]),
        (f"The second question is: {PLAIN}", [PLAIN]),
        (f"Sure, here is one more from the text.\n\n{PLAIN}", [PLAIN]),
        (f'{PLAIN}\n\n```\n{{\n "persona": {{"name": "A clerk"}}\n}}\n```', [PLAIN]),
        ('{"persona": {"name": "A clerk of the tax office"}, "task": {"title": "Checks forms"}}', []),
        ("合规经理在银行负责监测风险指标。", ["合规经理在银行负责监测风险指标。"]),
    ],
)
def test_plain_paragraphs_and_lists_are_taken_as_they_are(said, expected):
    assert parse_personas(said) == parse_queries(said) == expected


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
    ("said", "expected"),
    [
        (
            "How is a bond taxed in 2.5 years?\nWho pays the tax on it?",
            ["How is a bond taxed in 2.5 years?", "Who pays the tax on it?"],
        ),
        (
            "Q: How is a bond taxed?\nA: It is not.\nQ: Who pays the tax on it?",
            ["How is a bond taxed?", "Who pays the tax on it?"],
        ),
        ('Rates are low. "How is a bond taxed?" And why?', ["How is a bond taxed?"]),
        ("债券怎么征税？谁来缴纳税款？", ["债券怎么征税？", "谁来缴纳税款？"]),
        ("Filings on covered calls by banks", ["Filings on covered calls by banks"]),
    ],
)
def test_parse_queries_takes_the_questions_of_prose_if_it_asks_some(said, expected):
    assert parse_queries(said) == expected


def test_parse_verdict_takes_a_leading_yes_or_no_or_a_json_truth_value():
    for said in ("yes", "True", '{"answer": "Yes"}', "```json\n[true]\n```"):
        assert parse_verdict(said) == ["yes"], said
    for said in ("**No**, common knowledge is enough.", '{"needs_documents": false}'):
        assert parse_verdict(said) == ["no"], said
    for said in ("Nobody can say.", "It takes documents: yes", ""):
        assert parse_verdict(said) == [], said


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
    assert find_fault(text, SETTINGS.documents, sample) == fault


def test_is_another_script_compares_with_the_script_of_the_seed():
    assert not is_another_script("債券とは借金のことです。カタカナも。", "これは何ですか。")
    assert is_another_script(ENGLISH, CHINESE) and not is_another_script(CHINESE, CHINESE)


def test_is_refusal_recognizes_refusals_and_no_texts_that_resemble_them():
    for text in ("I’m sorry, no.", "**I cannot** do that", "抱歉，我不能", "Unfortunately, I must stop"):
        assert is_refusal(text), text
    for text in ("1. I can't log in, why?", "Sorry state of the ledgers", "No."):
        assert not is_refusal(text), text


def parse(stage, settings, text, reason="stop", count=2):
    """Return the items of an answer, and the faults of the dropped ones."""
    call = Call(stage, "?", "m", {}, "t", "s", count, ENGLISH)
    items, dropped = parse_answer(ChatAnswer(text, reason, 1, 1, True), call, settings)
    return items, [fault for fault, _ in dropped]


def test_parse_answer_keeps_distinct_usable_items_up_to_the_count_and_names_faults():
    said = json.dumps(["short?", *QUERIES, QUERIES[0], "One more than was wanted?"])
    assert parse("queries", SETTINGS.queries, said, count=3) == ([*QUERIES, "One more than was wanted?"], ["too short"])
    assert parse("queries", SETTINGS.queries, said, count=2) == (QUERIES, ["too short"])


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
    assert parse("personas", SETTINGS.personas, said, reason) == ([], [why])


def test_parse_answer_keeps_the_finished_items_of_a_list_that_was_cut_off():
    said = "\n".join(f"{number}. {query}" for number, query in enumerate([*QUERIES, "What does"], 1))
    assert parse("queries", SETTINGS.queries, said, "length") == (QUERIES, [])
    assert parse("queries", SETTINGS.queries, "1. What does", "length") == ([], ["cut off"])
    assert parse("queries", SETTINGS.queries, '["What did rates do?", "How', "length") == ([], ["cut off"])


def test_parse_answer_keeps_the_finished_sentences_of_a_passage_that_was_cut_off():
    whole = PASSAGE.replace("March, ", "March of 2.5 years. ").strip()
    assert parse("documents", SETTINGS.documents, f"{whole} The auditor found 3.5", "length") == ([whole], [])
    assert parse("documents", SETTINGS.documents, PASSAGE + "and", "length") == ([], ["cut off"])
    assert parse("documents", SETTINGS.documents, "It fell. " + PASSAGE, "length") == ([], ["too short"])
