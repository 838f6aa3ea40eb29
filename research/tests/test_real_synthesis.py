from types import SimpleNamespace

import numpy as np
import pytest

from research.real_synthesis.encoders import measure_round_trips
from research.real_synthesis.texts import describe_pairs, longest_shared_run, share_copied


def test_longest_shared_run_counts_words_without_case_and_punctuation():
    assert longest_shared_run("What is a Bond?", "They ask what IS a bond, mostly") == 4
    assert share_copied("What is a bond today?", "what is a bond") == 0.8
    assert share_copied("", "what") == 0


def test_describe_pairs_counts_copies_and_echoes(tmp_path):
    (tmp_path / "queries.txt").write_text("Answer with nothing but a JSON list of strings.")
    (tmp_path / "documents.txt").write_text("Write the passage.")
    pairs = [
        {"anchor": "What is a bond?", "positive": "What is a bond? A debt."},
        {"anchor": "Answer with nothing but a JSON list", "positive": "Shares rose by a tenth."},
    ]
    found = describe_pairs(pairs, [{"question": "What is a bond?"}], tmp_path)
    assert found["forms"] == {"question": 0.5, "statement": 0.5}
    assert found["documents_that_open_with_the_query"] == found["queries_copied_from_seed"] == 0.5
    assert found["queries_that_repeat_the_prompt"] == 0.5 and found["documents_that_repeat_the_prompt"] == 0


def test_measure_round_trips_ranks_each_querys_own_document():
    vectors = {"a": [1, 0], "b": [0, 1], "near a": [0.9, 0.1], "near b": [0.8, 0.2]}

    def encode(texts, prompt_name):
        return SimpleNamespace(vectors=np.array([vectors[text] for text in texts], np.float32))

    judge = SimpleNamespace(prompts={}, encode=encode)
    found = measure_round_trips(judge, ["a", "b"], {"made": [("near a", "a"), ("near b", "b")]})["made"]
    assert found["ranks"] == [1, 2] and found["found_at_1"]["value"] == 0.5 and found["found_at_10"]["value"] == 1
    assert found["ndcg_at_10"]["value"] == pytest.approx((1 + 1 / np.log2(3)) / 2)
