import numpy as np
import orjson
import pytest

from lathe.training.encoder.encoder import Encoder
from lathe.training.errors import JobError
from lathe.training.finetuning.certificate import JudgedTexts, certify_encoder, certify_job, read_job_tests
from lathe.training.finetuning.job import TrainingJob
from lathe.training.finetuning.requests import NewTraining
from lathe.training.fitting.requests import read_gate_value

WORDS = ["ledger", "lathe", "rain", "committee", "interest", "tomato", "wall", "spring", "bank", "hill"]
ANSWERS = {f"what of the {word} {n}?": [f"the {word} of {n} is old"] for n, word in enumerate(WORDS)}


def ignore(*_):
    pass


@pytest.fixture
def encoder(tiny):
    return Encoder(tiny, "cpu")


def test_an_encoder_compared_with_itself_gains_nothing_and_the_certificate_says_so(encoder, out_of_domain_texts):
    judged = {"questions": JudgedTexts.from_answers(ANSWERS, distractors=["a rival", "the lathe of 1 is old"])}
    certificate = certify_encoder(encoder, encoder, judged, out_of_domain_texts.parent, ignore)
    measures = certificate["relevance"]["questions"]
    assert (measures["queries"], measures["documents"]) == (10, 11)
    assert measures["ndcg_at_10"]["gain"] == measures["ndcg_at_10"]["ci95"] == 0
    assert certificate["out_of_domain"]["pydoc"]["queries"] == 100
    assert any("the gain is not significant" in warning for warning in certificate["warnings"])
    assert any("10 queries" in warning for warning in certificate["warnings"])
    orjson.dumps(certificate)
    assert read_gate_value("relevance.questions.ndcg_at_10.gain", certificate) == 0


def test_prompts_of_a_source_stand_before_its_texts(encoder, tmp_path):
    class Recorder:
        def __getattr__(self, name):
            return getattr(encoder, name)

        def encode(self, texts, *arguments, **options):
            seen.extend(texts)
            return encoder.encode(texts, *arguments, **options)

    seen = []
    prompts = TrainingJob.model_validate(
        {"sources": [{"jsonl": "x", "prompts": {"anchor": "query: ", "positive": "passage: "}}]}
    )
    judged = {"q": JudgedTexts.from_answers(ANSWERS, prompts=prompts.sources[0].prompts)}
    certify_encoder(Recorder(), Recorder(), judged, tmp_path, ignore, corpora={})
    assert len(seen) == 40 and all(text.startswith(("query: ", "passage: ")) for text in seen)


def test_relevant_documents_stay_when_a_corpus_is_sampled(monkeypatch):
    monkeypatch.setattr("lathe.training.finetuning.certificate.MAX_DOCUMENTS", 15)
    judged = JudgedTexts.from_answers(ANSWERS, distractors=[f"rival {n}" for n in range(100)])
    assert len(judged.documents) == 15
    assert {judged.documents[row] for row in judged.relevant[:, 1]} == {
        text for texts in ANSWERS.values() for text in texts
    }
    np.testing.assert_array_equal(np.unique(judged.relevant[:, 0]), np.arange(10))


def test_a_jobs_tests_are_test_splits_held_out_pairs_and_the_target(tmp_path, write_data_set):
    rows = [{"anchor": f"a {word} {n}", "positive": f"{word} of {n}"} for n in range(5) for word in WORDS]
    write_data_set(tmp_path / "tested", {"task": "pairs"}, {"train.jsonl": rows[:10], "test.jsonl": rows[5:20]})
    write_data_set(tmp_path / "untested", {"task": "pairs"}, {"train.jsonl": rows[20:]})
    job = TrainingJob.model_validate({"sources": [{"folder": tmp_path / name} for name in ("tested", "untested")]})
    tests = read_job_tests(job)
    assert set(tests.judged) == {"tested", "untested"} and tests.target is None
    assert set(tests.judged["tested"].queries) == {
        row["anchor"] for row in rows[10:20]
    }  # what is trained on is left out
    assert len(tests.judged["untested"].queries) == 6  # a fifth
    assert set(read_job_tests(job).judged["untested"].queries) == set(tests.judged["untested"].queries)


def test_a_target_that_is_no_search_is_measured_by_its_main_score(
    tmp_path, write_data_set, encoder, out_of_domain_texts
):
    rows = [{"sentence1": word, "sentence2": f"{word} of {n}", "score": n / 9} for n, word in enumerate(WORDS)]
    pairs = [{"anchor": f"a {word}", "positive": f"the {word}"} for word in WORDS]
    write_data_set(tmp_path / "alike", {"task": "sts"}, {"test.jsonl": rows})
    write_data_set(tmp_path / "pairs", {"task": "pairs"}, {"train.jsonl": pairs})
    settings = {"sources": [{"folder": tmp_path / "pairs"}], "target": {"folder": tmp_path / "alike"}}
    tests = read_job_tests(TrainingJob.model_validate(settings))

    certificate = certify_job(encoder, encoder, tests, out_of_domain_texts.parent, ignore)

    measured = certificate["tasks"]["alike"]
    assert measured["metric"] == "cosine_spearman" and measured["gain"] == 0
    assert measured["before"] == measured["after"] != 0
    assert read_gate_value("tasks.alike.gain", certificate) == 0


def test_a_request_is_checked_before_any_data_are_read():
    job = {"sources": [{"jsonl": "pairs.jsonl"}]}
    assert NewTraining(name="mine", method="pft", job=job).check().sources[0].jsonl.name == "pairs.jsonl"
    for changed, message in (
        ({"method": "rezee"}, "did you mean reze?"),
        ({"gates": {"recall_at_10": 0.5}}, "there is no gate 'recall_at_10'"),
        ({"job": {"sources": [{"jsonl": "x"}], "trainings": {}}}, "unknown setting trainings; did you mean training?"),
    ):
        with pytest.raises(JobError, match=message.replace("?", r"\?")):
            NewTraining(**({"name": "mine", "method": "pft", "job": job} | changed)).check()
