from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from tokenizers import Tokenizer, models, pre_tokenizers

from lathe.training.evaluation.suites import Suite
from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.regularizers.regularizer import RegularizerSettings
from lathe.training.finetuning.regularizers.shrinkage import compute_source_moments, fit_shrinkage
from lathe.transforms.learned.losses import LOSSES
from research.evidence.bag_of_words import summarize
from research.evidence.corect.__main__ import build_summary
from research.evidence.families import AFTER, BEFORE, write_around_texts
from research.evidence.recount import (
    analyse_averages,
    build_effects_table,
    build_norms_table,
    correlate_gains,
    count_ahead,
    list_effects,
    read_figures,
    read_runs,
)
from research.evidence.requests import REDUCERS, LayerDebiasing, LossComparison, Reduction
from research.evidence.shrinkage import compare_forms, turn
from research.evidence.tables import (
    build_debiasing_table,
    build_losses_table,
    build_retention_table,
    compute_noise,
    select_encoders,
)
from research.evidence.unnormalized import PaperReduction, build_tables, correlate_measures
from research.evidence.unnormalized import list_retentions as list_unnormalized
from research.fitted_methods.evaluation import FittedRequest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def figures():
    """Return scores of one encoder of 64 dimensions, of which every reducer keeps half."""
    raw = {f"task {n}": 0.4 + n / 50 for n in range(8)}
    half = {task: value / 2 for task, value in raw.items()}
    methods = {steps.format(k=64 // share): half for steps in REDUCERS.values() for share in (2, 4, 8, 16)}
    return {"scores": {"one": {"control": raw} | methods}}


def test_retention_is_the_ratio_of_mean_scores_and_differences_are_paired(figures):
    scores = figures["scores"]["one"]
    scores["geopres:16"] = {task: 0.6 * value for task, value in scores["control"].items()}
    lines = [line.split(" | ") for line in build_retention_table(figures).splitlines()[2:]]
    assert [line[1] for line in lines] == [*REDUCERS, "GeoPres − PCA", "GeoPres − truncation"]
    assert lines[0][2:4] == ["50.0 % [50.0, 50.0]", "60.0 % [60.0, 60.0]"]
    assert lines[-1][2:4] == ["+0.0 [+0.0, +0.0]", "+10.0 [+10.0, +10.0]"]


def test_reducers_and_methods_on_layers_are_those_of_all_fitted_methods():
    """Their names and steps are the same, so that scores in a folder are used."""
    request = {"suite": Suite("", "", ()), "encoders": [], "out": Path()}
    sizes = [Fraction(1, share) for share in (2, 4, 8, 16)]
    everything = FittedRequest(**request, ladder=True, sizes=sizes).methods(64)
    known = {(method.name, method.steps, method.normalize) for method in everything}
    for kind, count in ((Reduction, 17), (LayerDebiasing, 7)):
        methods = kind(**request).methods(64)
        assert methods[0].name == "control" and len(methods) == count
        assert {(method.name, method.steps, method.normalize) for method in methods} <= known


@pytest.fixture
def unnormalized():
    """Return scores of an encoder of 32 dimensions that grow with the measures of the geometry."""
    methods = PaperReduction(Suite("", "", ()), [], Path()).methods(32)[1:]
    kept = {method.name: 0.5 + place / 100 for place, method in enumerate(methods)}
    raw = {f"task {n}": 0.4 + n / 50 for n in range(8)}
    scores = {name: {task: value * share for task, value in raw.items()} for name, share in kept.items()}
    measures = {
        name: {"local_spearman": share, "positional": share, "angular": -share, "recall_at_10": share**2}
        for name, share in kept.items()
    }
    return {"scores": {"one": {"control": raw} | scores}, "intrinsic": {"one": measures}}, kept


def test_reductions_of_the_papers_protocol_are_not_normalized_and_have_its_recipe():
    methods = PaperReduction(Suite("", "", ()), [], Path(), training={"steps": 7, "batch": 9}).methods(64)
    control, *reducers = methods
    assert control.name == "control" and not any(method.normalize for method in reducers)
    assert {method.size for method in reducers} == {32, 16, 8, 4}
    assert len({method.name for method in reducers}) == len(reducers) == 36
    assert "geopres:16,preset=paper,steps=7,batch=9" in {method.steps for method in reducers}


def test_unnormalized_retentions_and_correlations_come_from_the_same_tasks(unnormalized):
    figures, kept = unnormalized
    figures["scores"]["one"]["PCA, 16"] = figures["scores"]["one"]["PCA, 16"] | {"task 7": None}
    found = {name: (retained, ahead) for _, name, retained, ahead in list_unnormalized(figures)}
    assert [one.value for one in found["truncation"][0]] == pytest.approx(
        [kept[f"truncation, {k}"] for k in (16, 8, 4, 2)]
    )
    assert all(one.value == 0 for one in found["PCA, the paper's"][1])
    rho = {name: one.spearman.value for name, one in correlate_measures(figures, "one").items()}
    assert rho == pytest.approx({"local_spearman": 1, "positional": -1, "angular": 1, "recall_at_10": 1})


@pytest.fixture
def debiased():
    """Return findings of six encoders on which R2 gains more the larger ‖μ‖ is, and R1 half as much."""
    norms = {"a": 0.2, "b": 0.6, "c": 0.7, "d": 0.75, "e": 0.8, "f": 0.9}
    cells = []
    for encoder, norm in norms.items():
        for label, factor in (("R1", 0.5), ("R2", 1.0)):
            test = {"t": factor * (norm - 0.5), "sigma_cell": factor * norm}
            families = {"Retrieval": test, "Classification": test}
            difference = {"value": factor * norm, "low": None, "high": None}
            cells.append({"encoder": encoder, "label": label, "families": families, "difference": difference})
    return {"mean_norms": norms, "read_corpus_sentences": 1000, "findings": {"cells": cells}}


def test_effects_count_where_r2_leads_and_share_out_its_sigma(debiased):
    rows = list_effects(debiased, "Retrieval")
    assert [row.encoder for row in rows] == ["f", "e", "d", "c", "b", "a"]
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert count_ahead(rows) == {"t": 5, "sigma": 6, "encoders": 6}


def test_gains_are_correlated_with_norms_over_all_encoders_and_over_large_norms(debiased):
    """Fewer than five encoders tell nothing."""
    found = correlate_gains(debiased)
    assert found["R2, classification t"].n == 6
    assert found["R2, classification t, ‖μ‖ ≥ 0.5"].n == 5
    assert all(one.pearson.value == pytest.approx(1) for one in found.values())


def test_noise_of_a_mean_is_that_of_means_of_random_unit_vectors():
    rows = np.random.default_rng(0).standard_normal((200, 900, 30)) + 0.1
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    center = rows.mean(axis=(0, 1))
    errors = ((rows.mean(axis=1) - center) ** 2).sum(axis=1).mean() ** 0.5
    assert compute_noise(float(np.linalg.norm(center)), 1000) == pytest.approx(errors, rel=0.02)


def test_runs_are_correlated_one_by_one_and_too_small_ones_are_left_out(debiased):
    run = debiased | {"scores": dict.fromkeys(debiased["mean_norms"])}
    few = select_encoders(run, ["f", "a"])
    assert list(few["mean_norms"]) == ["f", "a"] and {cell["encoder"] for cell in few["findings"]["cells"]} == {
        "a",
        "f",
    }
    (line,) = build_norms_table({"six": run, "two": few}).splitlines()[2:]
    assert line.startswith("| six | 6 | 1.00 [")


def test_the_variance_of_averages_is_that_of_a_two_way_analysis_without_repetition():
    """With two suites, the F of the suites is the square of the paired t."""
    means = np.random.default_rng(0).random((7, 2)) + [[0, 0.5]]
    found = analyse_averages(means)
    assert found.f["suite"] == pytest.approx(stats.ttest_rel(means[:, 0], means[:, 1]).statistic ** 2)
    assert sum(found.sums.values()) == pytest.approx(((means - means.mean()) ** 2).sum())
    assert found.p["suite"] == pytest.approx(stats.ttest_rel(means[:, 0], means[:, 1]).pvalue)


@pytest.fixture
def mixture():
    """Return relations of six sources that lie apart in some directions, with their mixture."""
    random = np.random.default_rng(0)
    sources = np.repeat(np.arange(6), 50)
    means = random.standard_normal((6, 8)) * np.array([2, 1, 1, 0.5, 0, 0, 0, 0])
    relations = (means[sources] + random.standard_normal((300, 8))).astype(np.float32)
    names = [f"source {n}" for n in range(6)]
    return relations, Mixture([""] * 300, [""] * 300, sources, names, [])


def test_turned_directions_give_the_printed_form_and_its_mirror(mixture):
    """With no direction turned the factors are those as printed.

    Each chosen one is below 1 in one of two mirrors.
    """
    relations, pairs = mixture
    before = compute_source_moments(relations, pairs.sources, 6)
    printed = fit_shrinkage(before, RegularizerSettings(denominator="literal"))
    signed = fit_shrinkage(before, RegularizerSettings())
    straight, mirrored = (turn(printed, np.full(8, sign), RegularizerSettings()) for sign in (1.0, -1.0))
    np.testing.assert_allclose(straight.shrink, printed.shrink)
    assert 0 < (printed.shrink != 1).sum() < (signed.shrink != 1).sum()
    assert ((straight.shrink != 1) & (mirrored.shrink != 1)).sum() == 0
    np.testing.assert_allclose(np.minimum(straight.shrink, mirrored.shrink), signed.shrink)


def test_forms_of_equation_6_are_compared_on_the_same_relations(mixture):
    found = compare_forms(*mixture)
    assert found.pairs == 300 and len(found.turned_factors) == 100
    assert found.printed.factors < found.signed.factors == sum(found.signed.by_source.values())
    assert found.signed.between < found.printed.between < 1
    assert found.turned_cosine < 1


def test_every_loss_of_geopres_is_compared_at_two_sizes_under_a_name_of_its_own():
    request = LossComparison(Suite("", "", ()), [], Path())
    control, *methods = request.methods(64)
    assert control.name == "control" and len({method.name for method in methods}) == 2 * len(LOSSES)
    assert {method.size for method in methods} == {16, 8}
    assert [method.steps for method in methods if method.label == "blend"] == ["geopres:16", "geopres:8"]


def test_bags_are_compared_by_type_and_over_all_tasks():
    scores = {f"task {n}": {"type": "STS" if n < 3 else "Retrieval", "hashed": 0.4, "exact": 0.5} for n in range(6)}
    found = summarize(scores)
    assert list(found) == ["STS", "Retrieval", "all tasks"]
    assert found["all tasks"]["tasks"] == 6
    assert found["STS"]["difference"]["value"] == pytest.approx(10)


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


def test_the_page_has_the_tables_of_the_raw_figures():
    page, raw = (ROOT / "research/evidence.md").read_text(), ROOT / "research/results"
    runs = read_runs(raw)
    for name in ("families", "layers of smollm2-135m", "layers of gemma3-270m"):
        assert build_debiasing_table(runs[name]) in page
    assert build_effects_table(list_effects(runs["families"], "Retrieval")) in page
    assert build_norms_table(runs) in page
    assert build_summary(read_figures(raw, "evidence-corect")) in page
    assert build_retention_table(read_figures(raw, "evidence-reducers")["reducers"]) in page
    assert build_losses_table(read_figures(raw, "evidence-losses")["losses"]) in page
    names = ("evidence-unnormalized", "evidence-unnormalized-transformers")
    assert build_tables(*(read_figures(raw, name)["unnormalized"] for name in names)) in page
