import math
import os
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import orjson
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import spearmanr

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec, StoreSettings, VectorStores
from lathe.training.errors import EvaluationError
from lathe.training.evaluation.encoders import RequestedEncoder
from lathe.training.evaluation.methods import CONTROL, EvaluatedMethod
from lathe.training.evaluation.run import Request, evaluate
from lathe.training.evaluation.suites import open_suite
from lathe.training.evaluation.worker import Workers
from lathe.training.workspace import lock_folder
from lathe.transforms import Chain, parse_steps

pytestmark = [
    pytest.mark.usefixtures("scoring_here"),
    pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning"),
]

LIMIT = 20
TOPICS = [
    "The {} of the bank grew by {} per cent.",
    "A {} was seen in the garden {} times.",
    "The {} in the kitchen boiled for {} minutes.",
]
WORDS = ["profit", "ledger", "sparrow", "tulip", "kettle", "soup", "debt", "loan", "robin", "hedge"]
TEXTS = [TOPICS[n % 3].format(WORDS[n % 10], n) for n in range(30)]
HALVES = [(TEXTS[n], TEXTS[(n * 7 + 1 + n % 2) % 30]) for n in range(30)]
SENTENCES = [{"sentence1": a, "sentence2": b, "score": (n * 3) % 5} for n, (a, b) in enumerate(HALVES)][:LIMIT]
LABELLED = [{"sentence1": a, "sentence2": b, "label": n % 2} for n, (a, b) in enumerate(HALVES)]
PAIRS = [{"anchor": f"What of the {WORDS[n % 10]} and {n}?", "positive": TEXTS[n]} for n in range(30)]
SCORED = {"graded": "Summarization", "pair": "PairClassification", "same": "STS"}
SCORED |= {"search": "Retrieval", "twins": "BitextMining"}
GRADED = [
    {
        "text": f"{first} {second}",
        "human_summaries": [second],
        "machine_summaries": [WORDS[n], first, second, f"{WORDS[n - 1]} or {WORDS[n - 2]}"],
        "relevance": [1.5, 4, 5, 0],
    }
    for n, (first, second) in enumerate(HALVES[:5])
]
BLANK = [*GRADED[:2], GRADED[2] | {"text": "  "}, *GRADED[2:]]


@pytest.fixture(scope="module")
def spec(tiny_model):
    return EncoderSpec(name="tiny", model=str(tiny_model), dtype="float32")


@pytest.fixture(scope="module")
def encoder(spec):
    return Encoder(spec)


@pytest.fixture(scope="module")
def suite(tmp_path_factory, write_data_set):
    """Return a suite of five data sets of different types and two broken ones."""
    root = tmp_path_factory.mktemp("suite")
    write_data_set(root / "graded", {"task": "summarization"}, {"test.jsonl": BLANK})
    write_data_set(root / "pair", {"task": "pair_classification"}, {"test.jsonl": LABELLED})
    write_data_set(root / "same", {"task": "sts"}, {"test.jsonl": SENTENCES})
    write_data_set(root / "search", {"task": "pairs"}, {"test.jsonl": PAIRS})
    write_data_set(root / "twins", {"task": "pairs", "language": "de-en"}, {"test.jsonl": PAIRS})
    write_data_set(root / "without rows", {"task": "sts"})
    write_data_set(root / "without meta", None, {"test.jsonl": SENTENCES})
    return open_suite(str(root))


@pytest.fixture(scope="module")
def chains(encoder):
    """Return two chains of one encoder, one of other dimensions without an encoder, and one for later."""
    rows = encoder.encode(TEXTS).vectors
    fits = (("pca:6", rows), ("truncation:6", rows), ("r2", rows[:, :9]), ("r2", rows))
    first, other, narrow, more = (Chain(parse_steps(steps)).fit(data) for steps, data in fits)
    return [
        EvaluatedMethod("first@1", "chain", first, "1" * 64, encoder.fingerprint),
        EvaluatedMethod("other@1", "chain", other, "2" * 64, encoder.fingerprint),
        EvaluatedMethod("narrow@1", "chain", narrow, "3" * 64),
        EvaluatedMethod("more@1", "chain", more, "4" * 64),
    ]


@pytest.fixture(scope="module")
def first(tmp_path_factory, suite, chains, spec, scoring_here):
    """Run the evaluation that these tests examine."""
    folder = tmp_path_factory.mktemp("evaluation")
    request = Request(suite, [RequestedEncoder(spec)], folder / "out", chains=chains[:3], limit=LIMIT)
    told = []
    results = evaluate(request, lambda fraction, message: told.append((fraction, message)))
    return SimpleNamespace(request=request, results=results, told=told)


@pytest.fixture
def copied(first, tmp_path):
    """Return the request on a copy of the evaluation's folder."""
    shutil.copytree(first.request.out, tmp_path / "out")
    return replace(first.request, out=tmp_path / "out")


def files(folder):
    """Return content and modification time of every file below a folder."""
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def lines(out):
    return (out / "scores.jsonl").read_bytes().splitlines()


def by_cell(results):
    """Return scores by task and method."""
    return {(score.task, score.method): score.score for score in results.scores}


def ignore_progress(fraction, message):
    pass


def test_every_method_has_exactly_one_score_on_every_readable_task(first):
    methods = [CONTROL, "first@1", "other@1"]
    found = by_cell(first.results)
    rescored = {("search", f"{name}@1 rescored") for name in ("first", "other")}
    assert set(found) == {(task, method) for task in SCORED for method in methods} | rescored
    assert len(first.results.scores) == len(found) == len(lines(first.request.out))
    assert all(-1 <= score <= 1 for score in found.values())
    assert not any(score.error for score in first.results.scores)
    assert {task.task: task.type for task in first.results.tasks if task.error is None} == SCORED


def test_broken_data_sets_blank_rows_and_unsuited_methods_are_reported_and_the_rest_is_scored(first):
    assert {task.task: task.error for task in first.results.tasks if task.error} == {
        "without rows": "test.jsonl is missing",
        "without meta": "META.json is missing",
    }
    warnings = {task.task: task.warnings for task in first.results.tasks if task.warnings}
    assert warnings == {"graded": ("rows left out because 'text' holds only spaces: test.jsonl line 3",)}
    (result,) = first.results.encoders
    assert result.problems == {"narrow@1": "it takes vectors of 9 dimensions, not 16"}


def test_the_sts_score_of_each_method_is_spearmans_correlation_of_its_cosines(first, encoder):
    sides = [encoder.encode([row[name] for row in SENTENCES]).vectors for name in ("sentence1", "sentence2")]
    grades = [row["score"] for row in SENTENCES]
    keys = {score.method: score.method_key for score in first.results.scores if score.task == "same"}
    found = by_cell(first.results)
    expected = {}
    for method, key in keys.items():
        chain = None if method == CONTROL else Chain.load(first.request.out / "methods" / key)
        a, b = (side if chain is None else chain.transform(side) for side in sides)
        cosines = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        expected[method] = spearmanr(cosines, grades).statistic
    assert found["same", CONTROL] == pytest.approx(expected[CONTROL], abs=1e-6)
    assert {method: found["same", method] for method in expected} == pytest.approx(expected, abs=0.01)  # near ties
    assert abs(expected["first@1"] - expected["other@1"]) > 0.05  # these two cannot have been mixed up


def test_no_vectors_stay_in_the_output_folder_and_those_of_a_killed_run_are_deleted(first, copied):
    left = copied.out / ".vectors-killed"
    left.mkdir()
    (left / "vectors.f32").write_bytes(b"rest")
    evaluate(copied, ignore_progress)
    for out in (first.request.out, copied.out):
        assert not [path for path in out.rglob("*") if "vectors" in path.name]


def test_texts_are_encoded_once_for_all_evaluations_with_the_same_stores(first, tmp_path, monkeypatch):
    stores = VectorStores(StoreSettings(tmp_path / "upstream"), StoreSettings(tmp_path / "encoded"))
    request = replace(first.request, stores=stores)
    assert by_cell(evaluate(replace(request, out=tmp_path / "one"), ignore_progress)) == by_cell(first.results)
    encode, encoded = Encoder.encode, []

    def record(self, texts, *args, **options):
        encoded.extend(texts)
        return encode(self, texts, *args, **options)

    monkeypatch.setattr(Encoder, "encode", record)
    assert by_cell(evaluate(replace(request, out=tmp_path / "two"), ignore_progress)) == by_cell(first.results)
    assert not set(encoded) & set(TEXTS)


def test_progress_says_what_is_done_from_the_first_line_never_decreases_and_ends_at_1(first):
    fractions = [fraction for fraction, _ in first.told]
    assert fractions == sorted(fractions)
    assert first.told[:2] == [(0.0, "loading tiny"), (0.05, "reading 6 data sets")]
    assert first.told[-1] == (1.0, "evaluated")
    assert any(message.startswith("5 of 5: ") for _, message in first.told)


def test_a_resumed_evaluation_computes_only_missing_scores_and_those_of_a_new_method(first, copied, chains):
    path = copied.out / "scores.jsonl"
    kept = lines(copied.out)[::2]
    path.write_bytes(b"\n".join(kept) + b"\n" + lines(copied.out)[1][:40])  # the last line half written
    fitted = files(copied.out / "methods")
    healed = evaluate(replace(copied, chains=chains), ignore_progress)
    found, expected = by_cell(healed), by_cell(first.results)
    assert {cell: score for cell, score in found.items() if cell[1] != "more@1"} == pytest.approx(expected, abs=1e-9)
    assert {task for task, method in found if method == "more@1"} == set(SCORED)
    assert lines(copied.out)[: len(kept)] == kept
    added = [orjson.loads(line) for line in lines(copied.out)[len(kept) :]]
    cells = [(line["task"], line["method"]) for line in added]
    missing = {(orjson.loads(line)["task"], orjson.loads(line)["method"]) for line in lines(first.request.out)[1::2]}
    assert len(cells) == len(set(cells))
    assert set(cells) == missing | {(task, "more@1") for task in SCORED}
    assert {path: content for path, content in files(copied.out / "methods").items() if path in fitted} == fitted


def test_a_folder_in_use_by_another_evaluation_is_refused(first):
    busy = EvaluationError("busy")
    with lock_folder(first.request.out, busy), pytest.raises(EvaluationError, match="another evaluation is writing"):
        evaluate(first.request, ignore_progress)
    with lock_folder(first.request.out, busy):
        pass


def test_the_key_of_a_data_set_depends_on_its_data_and_the_limit_and_not_on_the_folder(suite, tmp_path):
    entry = replace(next(entry for entry in suite.entries if entry.name == "same"), limit=LIMIT)
    shutil.copytree(entry.place, tmp_path / "same")
    copy = replace(entry, place=str(tmp_path / "same"))
    assert copy.key == entry.key
    with (tmp_path / "same" / "test.jsonl").open("ab") as file:
        file.write(b"\n")
    changed = [replace(copy), replace(entry, limit=LIMIT + 1), replace(entry, limit=None)]
    assert len({one.key for one in (entry, *changed)}) == 4


def test_workers_report_a_worker_process_that_dies_and_finish_the_other_jobs():
    with Workers(1, set_up=int) as workers:  # these jobs need no mteb
        found = dict(workers.run([(math.sqrt, (4.0,)), (os._exit, (1,)), (math.sqrt, (9.0,))]))
    assert (found[0], found[2], len(found)) == (2.0, 3.0, 3)
    assert isinstance(found[1], EvaluationError) and "the scoring process died" in str(found[1])


def break_model(word, model, folder, failure):
    """Copy a model into a folder, with a word's row missing from its token table or filled with NaN."""
    shutil.copytree(model, folder)
    tokenizer, weights = orjson.loads((folder / "tokenizer.json").read_bytes()), load_file(folder / "model.safetensors")
    table = weights["embeddings.word_embeddings.weight"]
    if failure == "raises":
        tokenizer["model"]["vocab"][word] = len(table)
        (folder / "tokenizer.json").write_bytes(orjson.dumps(tokenizer))
    else:
        table[tokenizer["model"]["vocab"][word]] = torch.nan
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_encoders_that_cannot_be_loaded_or_fail_on_a_text_are_problems_and_the_others_are_evaluated(
    first, spec, tiny_model, tmp_path
):
    models = {failure: break_model("19", tiny_model, tmp_path / failure, failure) for failure in ("raises", "nan")}
    models["nowhere"] = tmp_path / "missing"
    failing = [
        RequestedEncoder(replace(spec, name=name, model=str(model), max_length=16)) for name, model in models.items()
    ]
    results = evaluate(replace(first.request, encoders=[*failing, *first.request.encoders]), ignore_progress)
    assert [one.member.name for one in results.encoders] == ["tiny"]
    assert by_cell(results) == by_cell(first.results)
    raises, nan, nowhere = results.problems
    assert raises.startswith("raises ") and "IndexError: index out of range" in raises
    assert nan.startswith("nan ") and "gives NaN or inf for this text in float32, number " in nan
    assert nowhere.startswith("the encoder nowhere")


def test_two_encoders_of_one_name_are_refused(first):
    request = replace(first.request, encoders=[*first.request.encoders, *first.request.encoders])
    with pytest.raises(EvaluationError, match="two encoders are called tiny; give them different names"):
        evaluate(request, ignore_progress)


def test_a_failed_score_is_computed_again_and_the_later_line_counts(first, copied):
    path = copied.out / "scores.jsonl"
    failed, *others = map(orjson.loads, lines(copied.out))
    failed |= {"score": None, "error": "RuntimeError: out of memory"}
    path.write_bytes(b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in (failed, *others)))
    again = evaluate(copied, ignore_progress)
    assert by_cell(again) == by_cell(first.results)
    (added,) = map(orjson.loads, lines(copied.out)[len(others) + 1 :])
    assert (added["task"], added["method"], added["error"]) == (failed["task"], failed["method"], None)
    assert by_cell(evaluate(copied, ignore_progress)) == by_cell(first.results)
    assert len(lines(copied.out)) == len(others) + 2
