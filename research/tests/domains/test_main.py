"""The comparison of two suites as its command runs it."""

import json
import random
import sys

import pytest

from research.domains.__main__ import main

pytestmark = pytest.mark.usefixtures("kept_scoring_process")

SUBJECTS = {
    "finance": ["profit", "ledger", "debt", "loan", "dividend", "equity"],
    "garden": ["sparrow", "tulip", "hedge", "robin", "compost", "pond"],
}
ENDINGS = ["rose in the first quarter.", "was seen again today.", "is late this year!", "fell behind the wall."]
TYPES = ["Classification", "STS", "Retrieval"]
ENCODERS = ["model", "model:layer1-max", "bag-of-words"]


def rows_of(domain):
    """Rows of three tasks about the subjects of a domain.

    What belongs together shares words.
    """
    subjects, chance = SUBJECTS[domain], random.Random(domain)
    texts = [f"The {subjects[n % 6]} of number {n} {ENDINGS[n % 4]}" for n in range(54)]
    classes = [{"text": text, "label": chance.choice([n % 6, 0])} for n, text in enumerate(texts)]
    pairs = [(text, chance.choice(texts)) for text in texts]
    graded = [{"sentence1": a, "sentence2": b, "score": len({*a.split()} & {*b.split()})} for a, b in pairs]
    asked = [{"anchor": f"What of the {subjects[n % 6]}, {n}?", "positive": text} for n, text in enumerate(texts)]
    return {
        "classes": ("classification", {"train": classes, "test": classes}),
        "same": ("sts", {"test": graded}),
        "search": ("pairs", {"test": asked[: 30 if domain == "garden" else 54]}),
    }


@pytest.fixture(scope="module")
def suites(tmp_path_factory, write_suite):
    """Two suites of the same types of task.

    The second has a data set that cannot be read.
    """
    root = tmp_path_factory.mktemp("data")
    first, second = (write_suite(root / domain, rows_of(domain)) for domain in SUBJECTS)
    write_suite(second, {"torn": ("sts", {})})
    return first, second


@pytest.fixture
def compare(monkeypatch, capsys):
    """Return a function that compares two suites and returns what was printed to stdout and stderr."""

    def run(first, second, out, encoders):
        asked = ["--suite", first, "--against", second, "--out", out, "--encoder", ",".join(map(str, encoders))]
        monkeypatch.setattr(sys, "argv", ["research.domains", *map(str, asked), "--processes", "1"])
        main()
        return capsys.readouterr()

    return run


@pytest.mark.release
def test_two_suites_are_compared_in_text_json_and_html(compare, suites, tmp_path, tiny_model):
    """Figures agree with each suite's own evaluation.

    A data set that cannot be read is named.
    """
    out = tmp_path / "out"
    printed, err = compare(*suites, out, [tiny_model, f"{tiny_model}:layer1-max", "bag-of-words"])
    assert err.split()[-2:] == [str(out / "domains.json"), str(out / "domains.html")]
    assert (out / "suite" / "report.html").exists() and (out / "against" / "report.html").exists()
    found, html = json.loads((out / "domains.json").read_text()), (out / "domains.html").read_text()
    assert (found["titles"], found["encoders"]) == (["finance", "garden"], ENCODERS)

    scores = {
        side: {(row["encoder"], row["task"]): row["score"] for row in evaluated["scores"]}
        for side in ("suite", "against")
        if (evaluated := json.loads((out / side / "evaluation.json").read_text()))
    }
    assert [one["type"] for one in found["rankings"]] == [*TYPES, "all types"]
    sts = found["rankings"][1]
    assert sts["means"] == [[scores[side][encoder, "same"] for encoder in ENCODERS] for side in ("suite", "against")]
    assert found["rankings"][2]["p"] >= 1 / 3  # three encoders

    assert [one["type"] for one in found["two_ways"]] == TYPES
    for one in found["two_ways"]:
        assert sum(source["share"] for source in one["sources"]) == pytest.approx(1)
        assert [source["degrees"] for source in one["sources"]] == [2, 1, 2, 3000 - 6]
    search = found["two_ways"][2]
    assert search["examples"] == [54, 30]
    for encoder, means in search["means"].items():  # samples' mean is the score that mteb measured
        expected = [scores[side][encoder, "search"] for side in ("suite", "against")]
        assert means == pytest.approx(expected, abs=0.02), encoder

    names = ["classes", "same", "search"]
    assert found["similarity"]["encoder"] == "model"
    assert (found["similarity"]["names"], found["similarity"]["suites"]) == (names * 2, [0, 0, 0, 1, 1, 1])
    assert found["tokenizer"] == "model"
    assert all(one["tokens_per_text"] > 8 for one in found["suite_texts"])
    assert found["problems"] == ["garden: torn was not evaluated: test.jsonl is missing"]

    assert "garden has 30 examples of Retrieval only, so that samples repeat them." in printed.splitlines()
    assert "Variance of samples' scores: encoder and domain" in printed
    for sentence in found["sentences"]:
        assert sentence in printed
    assert html.count("<svg") == 3
    assert str(tmp_path) not in html and str(suites[0].parent) not in html
