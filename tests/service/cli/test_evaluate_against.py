import json
import random

import pytest

pytestmark = pytest.mark.usefixtures("kept_scoring_process")

SUBJECTS = {
    "finance": ["profit", "ledger", "debt", "loan", "dividend", "equity"],
    "garden": ["sparrow", "tulip", "hedge", "robin", "compost", "pond"],
}
ENDINGS = ["rose in the first quarter.", "was seen again today.", "is late this year!", "fell behind the wall."]
TYPES = ["Classification", "STS", "Retrieval"]
ENCODERS = ["model", "model:layer1-max", "bag-of-words"]


def rows_of(domain):
    """Rows of three tasks about the subjects of a domain; what belongs together shares words."""
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
    """Two suites of the same types of task; the second has a data set that cannot be read."""
    root = tmp_path_factory.mktemp("data")
    first, second = (write_suite(root / domain, rows_of(domain)) for domain in SUBJECTS)
    write_suite(second, {"torn": ("sts", {})})
    return first, second


def comparing(first, second, out, encoders, *more):
    """Return the arguments of `lathe evaluate --against`."""
    asked = ("--suite", first, "--against", second, "--out", out, "--encoder", ",".join(map(str, encoders)))
    return ("evaluate", *asked, "--processes", 1, *more)


def require_one_line(ended, message):
    """Assert that a command failed with one line on stderr that contains a message."""
    status, printed, err = ended
    assert (status, printed) == (1, "")
    assert err.startswith("lathe: ") and len(err.splitlines()) == 1
    assert message in err


@pytest.mark.trial
def test_evaluate_against_compares_two_suites_in_text_json_and_html(run, suites, tmp_path, tiny_model):
    """Figures agree with each suite's own evaluation; a data set that cannot be read is named."""
    out = tmp_path / "out"
    status, printed, err = run(*comparing(*suites, out, [tiny_model, f"{tiny_model}:layer1-max", "bag-of-words"]))
    assert status == 0, err
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


def test_evaluate_against_prints_one_line_for_equal_or_missing_suites_and_for_chains(run, suites, tmp_path):
    first, second = suites
    require_one_line(run(*comparing(first, first, tmp_path, ["bag-of-words"])), "hold the same data sets")
    require_one_line(run(*comparing(first, "nowhere", tmp_path, ["bag-of-words"])), "there is no suite 'nowhere'")
    more = ("--chain", "compact")
    wanted = "--against compares encoders by their raw vectors; leave chains and other methods out"
    require_one_line(run(*comparing(first, second, tmp_path, ["bag-of-words"], *more)), wanted)
    assert list(tmp_path.iterdir()) == []
