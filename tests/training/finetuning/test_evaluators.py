"""Evaluation during training: the best step is kept, and training stops without improvement."""

from dataclasses import replace

import numpy as np
import orjson
import pytest

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.text_encoder import NO_PROMPT
from lathe.training.errors import JobError
from lathe.training.finetuning.evaluators import HeldOutEvaluator, TaskEvaluator, hold_out, open_evaluation_data
from lathe.training.finetuning.extras import EvaluatorSettings
from lathe.training.finetuning.job import TrainingJob
from lathe.training.finetuning.mixture import Mixture

WORDS = ["ledger", "lathe", "rain", "committee", "interest", "tomato", "wall", "spring", "bank", "hill"]
TRAINING = {"precision": "float32", "batch_size": 4, "log_steps": 4, "checkpoint_steps": 4, "max_length": 12}
ROWS = [{"anchor": f"{WORDS[n % 10]} {n}", "positive": f"the {WORDS[n % 10]} of {n}"} for n in range(40)]
SETTINGS = EvaluatorSettings(every=2)


def mixture_of(*sources):
    """Build a mixture of sources given as lists of (anchor, positive)."""
    pairs = [(place, anchor, positive) for place, some in enumerate(sources) for anchor, positive in some]
    return Mixture(
        anchors=[anchor for _, anchor, _ in pairs],
        positives=[positive for *_, positive in pairs],
        sources=np.array([place for place, *_ in pairs]),
        names=[f"s{place}" for place in range(len(sources))],
        reports=[],
    )


@pytest.fixture
def job_of(tmp_path):
    """Return a function that builds a job on forty pairs with the given evaluator settings."""

    def build(evaluate, **given):
        path = tmp_path / "pairs.jsonl"
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in ROWS))
        wanted = {"sources": [{"jsonl": path}], "evaluate": evaluate, "training": TRAINING | given}
        return TrainingJob.model_validate(wanted)

    return build


def measures(out):
    """Return the measured values by step from the training log."""
    lines = [orjson.loads(line) for line in (out / "training" / "progress.jsonl").read_bytes().splitlines()]
    return {line["step"]: line["measured"] for line in lines if "measured" in line}


@pytest.mark.parametrize(("metric", "expected"), [("mrr", (1 + 1 / 3 + 1) / 3), ("accuracy", 2 / 3)])
def test_held_out_evaluator_ranks_pairs_among_those_of_their_source(metric, expected):
    at = {"a": (1, 0), "b": (0, 1), "c": (0.6, 0.8), "x": (1, 0), "y": (0, 1), "z": (0.8, 0.6), "u": (1, 0)}
    vectors = {text: np.array(place, np.float32) for text, place in at.items()}
    several = [("a", "x"), ("b", "x"), ("c", "z"), ("c", "y")]  # b has y and z before x
    held = HeldOutEvaluator(mixture_of(several, [("a", "u")]), SETTINGS.model_copy(update={"metric": metric}))
    found = held.measure(lambda texts: np.stack([vectors[text] for text in texts]))
    assert found == pytest.approx((expected + 1) / 2)


def test_hold_out_takes_at_most_a_fifth_of_a_source_and_keeps_an_anchor_on_one_side():
    many = [(f"q{n // 2}", f"p{n}") for n in range(40)]
    few = [(f"r{n}", f"t{n}") for n in range(4)]
    mixture = mixture_of(many, few)
    rest, held = hold_out(mixture, SETTINGS.model_copy(update={"rows": 6}), 0)
    assert len(held.pairs) == 6 and len(rest) == 38 and (held.pairs.sources == 0).all()
    assert not set(rest.anchors) & set(held.pairs.anchors)
    again, _ = hold_out(mixture, SETTINGS.model_copy(update={"rows": 6}), 0)
    assert again.anchors == rest.anchors
    assert len(hold_out(mixture, SETTINGS, 0)[1].pairs) == 8
    with pytest.raises(JobError, match="no source has enough pairs"):
        hold_out(mixture_of(few), SETTINGS, 0)


@pytest.mark.release
def test_the_model_of_the_best_step_is_kept_and_scores_its_measured_value_also_after_resuming(
    job_of, run_job, tmp_path, tiny
):
    job = job_of({"every": 2}, learning_rate=3e-2, epochs=2)
    outcome = run_job(job)
    found = measures(tmp_path / "out")
    assert list(found) == list(range(0, outcome.summary["steps"] + 1, 2))
    trained = {step: value for step, value in found.items() if step}
    best = max(trained, key=lambda step: (trained[step], -step))
    assert (outcome.summary["kept"], outcome.summary["best"]) == (best, trained[best])
    _, held = hold_out(mixture_of([(row["anchor"], row["positive"]) for row in ROWS]), SETTINGS, 0)
    served = Encoder(replace(tiny, model=str(outcome.model), max_length=12), "cpu")
    measured = held.measure(lambda texts: served.encode(texts, prompt_name=NO_PROMPT).vectors)
    assert measured == pytest.approx(trained[best], abs=1e-6)
    assert outcome.summary["pairs"] == 32

    with pytest.raises(KeyboardInterrupt):
        run_job(job, out="stopped", stop_at=12)
    again = run_job(job, out="stopped")
    assert 0 < again.summary["resumed_from"] <= 12
    assert again.summary["kept"] == best
    assert measures(tmp_path / "stopped") == pytest.approx(found, abs=1e-6)


def test_a_training_without_improvement_stops_after_patience_evaluations(job_of, run_job, tmp_path):
    outcome = run_job(job_of({"every": 1, "patience": 2}, learning_rate=1e-30, epochs=1))
    assert (outcome.summary["steps"], outcome.summary["kept"]) == (3, 1)
    assert list(measures(tmp_path / "out")) == [0, 1, 2, 3]


@pytest.fixture
def data_set(tmp_path, write_data_set):
    """Return a function that writes a data set with an STS test, and returns its folder."""

    def build(name):
        rows = [
            {"sentence1": f"{WORDS[n % 10]} {n}", "sentence2": f"{WORDS[n % 7]} {n}", "score": n % 5} for n in range(12)
        ]
        return write_data_set(tmp_path / name, {"task": "sts"}, {"test.jsonl": rows})

    return build


def test_a_data_set_evaluated_during_training_shares_no_text_with_the_training_pairs(
    job_of, run_job, data_set, tmp_path
):
    evaluate = {"every": 4, "folder": data_set("dev"), "metric": "pearson"}
    outcome = run_job(job_of(evaluate))
    lines = (tmp_path / "out" / "training" / "progress.jsonl").read_text()
    assert '"pearson of dev"' in lines and outcome.summary["best"] is not None
    (report,) = outcome.mixture.reports
    assert report.dropped == {"shares a text with the evaluation during training": 12}
    with pytest.raises(JobError, match="'bleu' is not measured on dev; allowed: .*cosine_spearman"):
        run_job(job_of(evaluate | {"metric": "bleu"}), out="other")


def test_the_targets_test_is_refused_for_evaluation_during_training(data_set, tmp_path):
    from lathe.training.finetuning.job import TargetSettings
    from lathe.training.finetuning.opening import open_target

    target = open_target(TargetSettings(folder=data_set("target")))
    with pytest.raises(JobError, match="target shares .* texts with the test of the target target"):
        open_evaluation_data(EvaluatorSettings(every=1, folder=tmp_path / "target"), target)
    with pytest.raises(ValueError, match="metric of held-out pairs must be mrr or accuracy, not 'ndcg'"):
        EvaluatorSettings(every=1, metric="ndcg")
    assert isinstance(TaskEvaluator(target, EvaluatorSettings(every=1, folder=tmp_path / "target")).metric, str)
