"""How poor the texts of a small model are, as far as counting shows it.

Copies are measured by the longest run of consecutive words that two texts share.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from lathe.training.synthesis.answer_log import AnswerLog
from lathe.training.synthesis.job import STAGES
from lathe.training.synthesis.near_duplicates import split_words

QUESTION_WORD = re.compile(
    r"\W*(who|whose|what|which|when|where|why|how|is|are|was|were|do|does|did|can|could|should|would|will|has|have)\b",
    re.IGNORECASE,
)
"""Beginning of a question in English."""
REQUEST_WORD = re.compile(
    r"\W*(explain|describe|compare|list|find|show|give|provide|summari[sz]e|identify|tell|search|analy[sz]e|look|get"
    r"|report|define|discuss|outline|determine|calculate)\b",
    re.IGNORECASE,
)
"""Beginning of a request in English."""
MIN_ECHO = 6
"""Words in a row of the prompt from which a text repeats its instructions."""
COPIED = 0.5
"""Share of a query's words in one run that another text has, from which the query is a copy."""


def classify_query(text: str) -> str:
    """Return whether a query is a `question`, a `request`, a few `keywords`, or a `statement`, which asks nothing."""
    if text.rstrip("\"'”) ").endswith("?") or QUESTION_WORD.match(text):
        return "question"
    if REQUEST_WORD.match(text):
        return "request"
    return "keywords" if len(text.split()) <= 6 and not text.rstrip().endswith(".") else "statement"


def longest_shared_run(one: str, other: str) -> int:
    """Return the length in words of the longest run of consecutive words that two texts share."""
    mine, theirs = split_words(one), split_words(other)
    return SequenceMatcher(None, mine, theirs, autojunk=False).find_longest_match().size


def share_copied(text: str, origin: str) -> float:
    """Return the length of the longest run of words that two texts share, divided by the number of words of `text`."""
    return longest_shared_run(text, origin) / max(1, len(split_words(text)))


def describe_answers(log: AnswerLog) -> dict[str, dict[str, Any]]:
    """Return, by stage, the numbers of calls, answers and tokens, the shares of usable answers, and the faults."""
    found: dict[str, dict[str, Any]] = {}
    for stage in STAGES:
        records = [record for record in log if record.stage == stage]
        first = [record for record in records if record.attempt == 1]
        faults = Counter(record.dropped[0][0] for record in records if not record.items)
        found[stage] = {
            "calls": len({record.key for record in records}),
            "answers": len(records),
            "usable_at_once": sum(bool(record.items) for record in first) / max(1, len(first)),
            "usable": sum(bool(record.items) for record in records) / max(1, len(records)),
            "answered_calls": len({record.key for record in records if record.items}),
            "used_although_cut_off": sum(record.finish_reason == "length" and bool(record.items) for record in records),
            "asked_again_after_a_usable_answer": sum(
                count - 1 for count in Counter(record.key for record in records if record.items).values()
            ),
            "faults": dict(faults.most_common()),
            "verdicts": dict(Counter(item for record in records if stage == "filter" for item in record.items)),
            "dropped_items": dict(
                Counter(reason for record in records if record.items for reason, _ in record.dropped).most_common()
            ),
            "finish_reasons": dict(Counter(record.finish_reason for record in records).most_common()),
            "prompt_tokens": sum(record.prompt_tokens for record in records),
            "completion_tokens": sum(record.completion_tokens for record in records),
        }
    return found


def describe_pairs(
    pairs: Sequence[Mapping[str, Any]], seeds: Sequence[Mapping[str, str]], templates: Path
) -> dict[str, Any]:
    """Return shares and means over pairs: forms of queries, copies, echoes of the prompt, lengths.

    Args:
        pairs: rows of pairs.jsonl.
        seeds: rows of the file of seeds.
        templates: folder of the prompts.
    """
    prompts = {path.stem: path.read_text() for path in templates.glob("*.txt")}
    forms = Counter(classify_query(pair["anchor"]) for pair in pairs)
    copies = [share_copied(pair["anchor"], pair["positive"]) for pair in pairs]
    questions = [seed["question"] for seed in seeds]
    of_seeds = [max(share_copied(pair["anchor"], question) for question in questions) for pair in pairs]
    opens = [pair["positive"].lower().startswith(pair["anchor"].lower().rstrip("?. ")) for pair in pairs]
    return {
        "pairs": len(pairs),
        "forms": {name: count / len(pairs) for name, count in forms.most_common()},
        "mean_share_of_query_copied_into_document": mean(copies),
        "queries_copied_into_document": mean(share >= COPIED for share in copies),
        "documents_that_open_with_the_query": mean(opens),
        "queries_copied_from_seed": mean(share >= COPIED for share in of_seeds),
        "queries_that_repeat_the_prompt": mean(
            longest_shared_run(pair["anchor"], prompts["queries"]) >= MIN_ECHO for pair in pairs
        ),
        "documents_that_repeat_the_prompt": mean(
            longest_shared_run(pair["positive"], prompts["documents"]) >= MIN_ECHO for pair in pairs
        ),
        "words_of_query": mean(len(split_words(pair["anchor"])) for pair in pairs),
        "words_of_document": mean(len(split_words(pair["positive"])) for pair in pairs),
    }


def mean(values: Iterable[float]) -> float:
    """Return the mean of numbers or truth values.

    The result is 0 if there are none.
    """
    listed = [float(value) for value in values]
    return sum(listed) / len(listed) if listed else 0.0
