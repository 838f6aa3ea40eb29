"""Measures on the way: the best step is kept, and a training that gets no better ends."""

from dataclasses import replace

import numpy as np
import orjson
import pytest

from training.errors import JobError
from training.finetuning.evaluators import HeldOutEvaluator, TaskEvaluator, hold_out, open_evaluation_data
from training.finetuning.extras import EvaluatorSettings
from training.finetuning.job import Job
from training.finetuning.mixture import Mixture
from training.finetuning.run import run_training

WORDS = ["ledger", "lathe", "rain", "committee", "interest", "tomato", "wall", "spring", "bank", "hill"]
TRAINING = {"precision": "float32", "batch_size": 4, "log_steps": 4, "checkpoint_steps": 4, "max_length": 12}
ROWS = [{"anchor": f"{WORDS[n % 10]} {n}", "positive": f"the {WORDS[n % 10]} of {n}"} for n in range(40)]
SETTINGS = EvaluatorSettings(every=2)

pytestmark = pytest.mark.usefixtures("little_garbage")


class Stop(BaseException):
    """Stands for Ctrl-C."""


def mixture_of(*sources):
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
    """A maker of jobs on forty pairs, which are measured as given."""

    def build(evaluate, **given):
        path = tmp_path / "pairs.jsonl"
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in ROWS))
        wanted = {"sources": [{"jsonl": path}], "evaluate": evaluate, "training": TRAINING | given}
        return Job.model_validate(wanted)

    return build


@pytest.fixture
def go(tmp_path, tiny, undrawn):
    """A runner of a job; it can be stopped at a step."""

    def finish(job, out="out", stop_at=None):
        def progress(_, sentence):
            if stop_at and sentence.startswith(f"step {stop_at} "):
                raise Stop

        with undrawn():
            return run_training("pft", job, tiny, "cpu", tmp_path / out, progress)

    return finish


def measures(out):
    lines = [orjson.loads(line) for line in (out / "training" / "progress.jsonl").read_bytes().splitlines()]
    return {line["step"]: line["measured"] for line in lines if "measured" in line}


@pytest.mark.parametrize(("metric", "expected"), [("mrr", (1 + 1 / 3 + 1) / 3), ("accuracy", 2 / 3)])
def test_held_out_pairs_are_ranked_among_those_of_their_source(metric, expected):
    at = {"a": (1, 0), "b": (0, 1), "c": (0.6, 0.8), "x": (1, 0), "y": (0, 1), "z": (0.8, 0.6), "u": (1, 0)}
    vectors = {text: np.array(place, np.float32) for text, place in at.items()}
    several = [("a", "x"), ("b", "x"), ("c", "z"), ("c", "y")]  # b has y and z before x
    held = HeldOutEvaluator(mixture_of(several, [("a", "u")]), SETTINGS.model_copy(update={"metric": metric}))
    found = held.measure(lambda texts: np.stack([vectors[text] for text in texts]))
    assert found == pytest.approx((expected + 1) / 2)


def test_a_fifth_of_each_source_is_held_out_at_most_and_an_anchor_is_on_one_side():
    many = [(f"q{n // 2}", f"p{n}") for n in range(40)]
    few = [(f"r{n}", f"t{n}") for n in range(4)]
    mixture = mixture_of(many, few)
    rest, held = hold_out(mixture, SETTINGS.model_copy(update={"rows": 6}), 0)
    assert len(held.pairs) == 6 and len(rest) == 38 and (held.pairs.sources == 0).all()
    assert not set(rest.anchors) & set(held.pairs.anchors)
    again, _ = hold_out(mixture, SETTINGS.model_copy(update={"rows": 6}), 0)
    assert again.anchors == rest.anchors
    assert len(hold_out(mixture, SETTINGS, 0)[1].pairs) == 8
    with pytest.raises(JobError, match="no source has pairs enough"):
        hold_out(mixture_of(few), SETTINGS, 0)


def test_the_best_step_is_kept_and_its_model_gives_what_was_measured(job_of, go, tmp_path, tiny):
    from training.encoder.encoder import Encoder

    job = job_of({"every": 2}, learning_rate=3e-2, epochs=3)
    outcome = go(job)
    found = measures(tmp_path / "out")
    assert list(found) == list(range(0, outcome.summary["steps"] + 1, 2))
    trained = {step: value for step, value in found.items() if step}
    best = max(trained, key=lambda step: (trained[step], -step))
    assert (outcome.summary["kept"], outcome.summary["best"]) == (best, trained[best])
    _, held = hold_out(mixture_of([(row["anchor"], row["positive"]) for row in ROWS]), SETTINGS, 0)
    served = Encoder(replace(tiny, model=str(outcome.model), max_length=12), "cpu")
    measured = held.measure(lambda texts: served.encode(texts, plain=True).vectors)
    assert measured == pytest.approx(trained[best], abs=1e-6)
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"mrr was best at step {best}" in page
    assert outcome.summary["pairs"] == 32


def test_a_training_that_gets_no_better_ends(job_of, go, tmp_path):
    outcome = go(job_of({"every": 1, "patience": 2}, learning_rate=1e-30, epochs=3))
    assert (outcome.summary["steps"], outcome.summary["kept"]) == (3, 1)
    assert list(measures(tmp_path / "out")) == [0, 1, 2, 3]


def test_a_stopped_run_knows_its_best_step(job_of, go, tmp_path):
    job = job_of({"every": 2}, learning_rate=3e-2, epochs=3)
    whole = go(job, "whole")
    with pytest.raises(Stop):
        go(job, "stopped", stop_at=20)
    again = go(job, "stopped")
    assert 0 < again.summary["resumed_from"] <= 20
    assert again.summary["kept"] == whole.summary["kept"]
    assert measures(tmp_path / "stopped") == pytest.approx(measures(tmp_path / "whole"), abs=1e-6)


@pytest.fixture
def data_set(tmp_path, write_data_set):
    """A maker of a folder with pairs that mean the same, or not, as its test."""

    def build(name):
        rows = [
            {"sentence1": f"{WORDS[n % 10]} {n}", "sentence2": f"{WORDS[n % 7]} {n}", "score": n % 5} for n in range(12)
        ]
        return write_data_set(tmp_path / name, {"task": "sts"}, {"test.jsonl": rows})

    return build


def test_a_data_set_is_measured_by_mteb_and_its_texts_are_not_trained_on(job_of, go, data_set, tmp_path):
    evaluate = {"every": 4, "folder": data_set("dev"), "metric": "pearson"}
    outcome = go(job_of(evaluate))
    lines = (tmp_path / "out" / "training" / "progress.jsonl").read_text()
    assert '"pearson of dev"' in lines and outcome.summary["best"] is not None
    (report,) = outcome.mixture.reports
    assert report.dropped == {"shares a text with what is measured on the way": 12}
    with pytest.raises(JobError, match="mteb measures no 'bleu' on dev, but .*cosine_spearman"):
        go(job_of(evaluate | {"metric": "bleu"}), "other")


def test_the_test_of_the_target_is_not_measured_on_the_way(data_set, tmp_path):
    from training.finetuning.job import TargetSettings
    from training.finetuning.opening import open_target

    target = open_target(TargetSettings(folder=data_set("target")))
    with pytest.raises(JobError, match="target shares .* texts with the test of the target target"):
        open_evaluation_data(EvaluatorSettings(every=1, folder=tmp_path / "target"), target)
    with pytest.raises(ValueError, match="held-out pairs are measured by mrr or accuracy, not by 'ndcg'"):
        EvaluatorSettings(every=1, metric="ndcg")
    assert isinstance(TaskEvaluator(target, EvaluatorSettings(every=1, folder=tmp_path / "target")).metric, str)
