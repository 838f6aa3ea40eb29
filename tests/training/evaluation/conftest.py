"""Folders of data as a user would write them, of a few rows each."""

import pytest

ROWS = 10
NUMBERS = range(ROWS)
CLASSES = [{"text": f"text {row} is {row % 2 * 30}", "label": ["east", "west"][row % 2]} for row in range(20)]
PAIRS = [{"anchor": f"Frage {n}", "positive": f"answer {n}"} for n in NUMBERS]
SENTENCES = [{"sentence1": f"pair {n} is 0", "sentence2": f"pair {n} is {2 * n}"} for n in NUMBERS]
GRADED = [
    {
        "text": f"long text {n}",
        "human_summaries": ["by a person 0"],
        "machine_summaries": [f"text {n} by machine {m}" for m in range(4)],
        "relevance": [4, 3.5, 2, 1],
    }
    for n in NUMBERS
]
FILES = {
    "retrieval": {
        "corpus.jsonl": [{"_id": f"d{n}", "title": f"T{n}", "text": f"document {n}"} for n in range(30)],
        "queries.jsonl": [{"_id": f"q{n}", "text": f"query {n}"} for n in NUMBERS],
    },
    "reranking": {
        "test.jsonl": [{"query": f"query {n}", "positive": [f"good {n}"], "negative": ["bad 30"]} for n in NUMBERS]
    },
    "classification": {"train.jsonl": CLASSES, "test.jsonl": CLASSES[:ROWS]},
    "clustering": {"test.jsonl": CLASSES[:ROWS]},
    "sts": {"test.jsonl": [row | {"score": 5 - n / 2} for n, row in enumerate(SENTENCES)]},
    "pair_classification": {"test.jsonl": [row | {"label": int(n < 5)} for n, row in enumerate(SENTENCES)]},
    "pairs": {"test.jsonl": PAIRS},
    "translations": {"test.jsonl": PAIRS},
    "summarization": {"test.jsonl": GRADED},
}
"""By task, ten rows to evaluate; who knows the last number of every text can tell what belongs together."""


@pytest.fixture
def data_set_of(tmp_path, write_data_set):
    """A writer of a data set that measures something, by its task."""

    def build(task):
        meta = {"task": "pairs", "language": "de-en"} if task == "translations" else {"task": task}
        judged = {"test": [(f"q{n}", f"d{n}", 1) for n in NUMBERS]} if task == "retrieval" else None
        return write_data_set(tmp_path / task, meta, FILES[task], judged)

    return build
