import gzip
import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from benchmarks.evidence.__main__ import draw_sentences
from benchmarks.evidence.families import AFTER, BEFORE, write_around_texts
from benchmarks.evidence.tables import build_debiasing_table, build_retention_table, list_retentions

ROOT = Path(__file__).parents[2]
REDUCERS = ("geopres:{k}", "pca:{k}", "pca:{k},center=none", "truncation:{k}")


@pytest.fixture
def figures():
    """Return scores of one encoder of 64 dimensions, of which every reducer keeps half."""
    raw = {f"task {n}": 0.4 + n / 50 for n in range(8)}
    half = {task: value / 2 for task, value in raw.items()}
    methods = {steps.format(k=64 // share): half for steps in REDUCERS for share in (2, 4, 8, 16)}
    return {"scores": {"one": {"control": raw} | methods}}


def test_retention_is_the_ratio_of_mean_scores(figures):
    found = list(list_retentions(figures))
    assert [(encoder, name) for encoder, name, _ in found] == [
        ("one", name) for name in ("GeoPres", "PCA", "PCA, uncentred", "truncation")
    ]
    assert all(one.value == one.low == one.high == pytest.approx(0.5) for _, _, kept in found for one in kept)


def test_tasks_that_a_method_did_not_complete_are_left_out(figures):
    scores = figures["scores"]["one"]
    scores["geopres:32"] = scores["geopres:32"] | {"task 7": None}
    scores["control"] = scores["control"] | {"task 7": 1000.0}
    assert next(list_retentions(figures))[2][0].value == pytest.approx(0.5)


def test_sentences_are_drawn_once_and_in_their_order(tmp_path):
    with gzip.open(tmp_path / "corpus.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"text": f"sentence {n}"}) + "\n" for n in range(100))
    first = draw_sentences(tmp_path / "corpus.jsonl.gz", 20, tmp_path).read_text()
    numbers = [int(json.loads(line)["text"].split()[1]) for line in first.splitlines()]
    assert len(set(numbers)) == 20 and numbers == sorted(numbers)
    assert draw_sentences(tmp_path / "corpus.jsonl.gz", 20, tmp_path).read_text() == first


def test_the_tokenizer_of_a_language_model_writes_around_each_text_and_cuts_the_text_alone(tmp_path):
    words = [*dict.fromkeys([*BEFORE.split(), *AFTER.split(), *"abcdef"])]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model = tmp_path / "model"
    model.mkdir()
    tokenizer.save(str(model / "tokenizer.json"))
    (model / "model.safetensors").write_bytes(b"weights")
    copy = write_around_texts(model, tmp_path / "copy")
    around = Tokenizer.from_file(str(copy / "tokenizer.json"))
    assert around.encode("a b c").tokens == [*BEFORE.split(), "a", "b", "c", *AFTER.split()]
    around.enable_truncation(len(BEFORE.split()) + len(AFTER.split()) + 2)
    assert around.encode("a b c").tokens == [*BEFORE.split(), "a", "b", *AFTER.split()]
    assert (copy / "model.safetensors").read_bytes() == b"weights"
    assert write_around_texts(model, tmp_path / "copy") == copy


@pytest.mark.parametrize(
    ("raw", "part", "build"),
    [
        ("evidence", "debiasing", build_debiasing_table),
        ("evidence-wordllama", "reducers", build_retention_table),
    ],
)
def test_the_page_has_the_tables_of_the_raw_figures(raw, part, build):
    figures = json.loads((ROOT / f"docs/results/{raw}.json").read_bytes())["figures"]
    assert build(figures[part]) in (ROOT / "docs/evidence.md").read_text()
