import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from lathe.training.datasets.folder import FolderDataSet
from lathe.training.datasets.records import normalize_text
from lathe.training.encoder.encoder import Encoder
from lathe.training.finetuning.job import SourceSettings
from lathe.training.finetuning.run import MODEL
from research.reze_experiment.conditions import build_conditions
from research.reze_experiment.plan import build_plan
from research.reze_experiment.targets import Target
from research.reze_experiment.unit import PRETRAINING, Work, run_unit


@pytest.fixture(scope="module")
def spec(tiny_spec):
    """Return the tiny model's spec with the maximum length of the training."""
    return replace(tiny_spec, max_length=16)


@pytest.fixture(scope="module")
def loaded(spec):
    return Encoder(spec, "cpu")


@pytest.fixture
def units(settings_of, spec, loaded, tmp_path):
    """Return a function that builds an experiment's units."""

    def build(targets=("tone",), **given):
        return build_plan(settings_of(targets=targets, **given), spec, "cpu", loaded, tmp_path / "out").units

    return build


def test_build_conditions_makes_each_method_its_sweeps_and_its_variants(settings_of):
    found = build_conditions(
        settings_of(loss_weights=(0.5, 2), centers=("mean",), variants={"kept": {"strength": 0.1}})
    )
    given = {condition.method: condition.regularizer.settings for condition in found}
    assert len(given) == len(found)
    weights = {f"{method}, weight {weight:g}" for method in ("distill", "reze") for weight in (0.5, 2)}
    assert set(given) == {"ft", "pft", "distill", "reze", "reze, mean", "kept"} | weights
    assert (given["ft"], given["pft"]) == (None, None)
    for name, regularizer in given.items():
        if regularizer is not None:
            assert regularizer.target == ("reference" if name.startswith("distill") else "debiased")
            assert regularizer.loss_weight == float(name.partition("weight ")[2] or 1)
            assert regularizer.center == ("mean" if name == "reze, mean" else "median")
            assert regularizer.strength == (0.1 if name == "kept" else 0.7)


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        (("none",), {("none", 0)}),
        (("ft",), {("ft", 8), ("ft", 16)}),
        (("ft", "none"), {("none", 0), ("ft", 8), ("ft", 16)}),
        (("reze",), {("reze", 0), ("reze", 8), ("reze", 16)}),
        (("pft", "pft_flow"), {("pft", 0), ("pft", 8), ("pft", 16), ("pft_flow", 8), ("pft_flow", 16)}),
    ],
)
def test_list_missing_has_each_method_at_each_size_and_pretrained_ones_at_0_rows(units, methods, expected):
    found = [cell for unit in units(methods=methods, rows=(8, 16)) for cell in unit.list_missing()]
    assert len(found) == len(set(found)) and set(found) == expected


def test_the_key_of_a_unit_depends_on_the_base_models_weights(settings_of, spec, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(spec.model, folder)
    changed = replace(spec, model=str(folder))
    keys = []
    for _ in range(2):
        (unit,) = build_plan(
            settings_of(("tone",), methods=("ft",)), changed, "cpu", Encoder(changed, "cpu"), tmp_path
        ).units
        keys.append(unit.key)
        weights = load_file(folder / "model.safetensors")
        name = next(name for name in weights if "word_embeddings" in name)
        save_file(weights | {name: weights[name].flip(0).contiguous()}, folder / "model.safetensors", {"format": "pt"})
    assert keys[0] != keys[1]


def test_domain_texts_include_the_targets_tests_and_no_text_of_a_mixture(units):
    found = units(("tone", "search"), methods=("reze",))
    domain = {normalize_text(text) for text in found[0].domain}
    assert len(domain) == len(found[0].domain) >= 40 and len({unit.domain for unit in found}) == 1
    for unit in found:
        assert not domain & {normalize_text(text) for text in (*unit.mixture.anchors, *unit.mixture.positives)}
    assert any(text.startswith("the ") for text in domain) and any(text.startswith("what of") for text in domain)


def texts(split, start):
    return [f"{split} text {n}" for n in range(start, start + 12)]


def halves(split, start, label):
    return [{"sentence1": text, "sentence2": f"{text}, again"} | label(n) for n, text in enumerate(texts(split, start))]


TESTED = {
    "pair_classification": lambda split, start: halves(split, start, lambda n: {"label": n % 2}),
    "sts": lambda split, start: halves(split, start, lambda n: {"score": n % 6}),
    "clustering": lambda split, start: [{"text": t, "label": "ab"[n % 2]} for n, t in enumerate(texts(split, start))],
    "classification": lambda split, start: [
        {"text": t, "label": "ab"[n % 2]} for n, t in enumerate(texts(split, start))
    ],
}


@pytest.mark.parametrize("task", TESTED)
def test_read_training_pairs_leaves_out_anchors_of_the_test(tmp_path, write_data_set, task):
    """A text counts as tested whether or not its row would make a pair to train on."""
    tested = TESTED[task]("any", 0)
    leaked = TESTED[task]("ANY", 1)[:11]  # the same texts in another case, with the labels of their neighbours
    files = {"train.jsonl": [*TESTED[task]("own", 0), *leaked], "test.jsonl": tested}
    folder = write_data_set(tmp_path / task, {"task": task}, files)
    target = Target(FolderDataSet(task, task, folder), SourceSettings(folder=folder))
    known = {normalize_text(row.get("sentence1") or row["text"]) for row in tested}
    found = target.read_training_pairs()
    assert found
    for pair in found:
        assert not {normalize_text(line) for line in pair.anchor.split("\n")} & known


def test_a_unit_that_was_killed_after_its_last_checkpoint_is_finished(units, tmp_path):
    (unit,) = units(methods=("pft",), rows=())
    unit = replace(unit, shown=False)
    work = unit.out / "work" / unit.key
    _, trained = Work(unit, work).pretrain()
    assert trained.steps > 0
    shutil.rmtree(work / MODEL)  # the kill came before the model was written
    (work / PRETRAINING).unlink()
    run_unit(unit)
    (result,) = unit.log.read()
    assert result.steps == trained.steps
    assert result.seconds_per_step is None or math.isfinite(result.seconds_per_step)


def test_plain_pretraining_stores_the_relations_before_and_after_without_a_regularizer(units):
    (unit,) = units(methods=("pft",), rows=())
    run_unit(unit)
    (result,) = unit.log.read()
    assert (result.method, result.rows) == ("pft", 0)
    (path,) = (unit.out / "relations").iterdir()
    before, after = np.load(path).astype(np.float32)
    assert before.shape == after.shape == (len(unit.mixture), 32)
    assert 1e-5 < np.abs(before - after).max() < 1
