"""Candidate changes with fast encoders: which are tried, which are not and why, and that a stopped run goes on."""

import json

import pytest

from lathe.training.deciding import adapt
from lathe.training.deciding.adapt import try_candidates
from lathe.training.deciding.adapt_report import format_adaptation, to_json, write_sentence
from lathe.training.deciding.requests import AdaptRequest
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.fitting.requests import QueryPair, RowSource
from lathe.transforms.progress import no_progress
from tests.training.fitting.numbered import NumberEncoder, pairs_of

WORDS = ["ledger", "lathe", "rain", "committee", "interest", "tomato", "wall", "spring", "bank", "hill"]


@pytest.fixture
def little_out_of_domain(monkeypatch, tmp_path):
    """Measure out-of-domain searches on 40 sentences instead of docstrings."""
    texts = tmp_path / "sentences.txt"
    lines = [f"{' '.join(WORDS)} {n} {' '.join(reversed(WORDS))}" for n in range(40)]
    texts.write_text("\n".join(lines))
    monkeypatch.setattr(adapt, "list_built_in_corpora", lambda _: {"sentences": str(texts)})


def request_of(pairs, documents=600, **fields):
    texts = [f"document {n}" for n in range(documents)]
    return AdaptRequest(source=RowSource(texts=texts), pairs=[QueryPair(**pair) for pair in pairs], **fields)


def try_all(request, encoder, workspace):
    with try_candidates(request, encoder, workspace, no_progress, "cpu") as result:
        return result


def test_an_adapter_that_gains_is_recommended_with_its_gain_on_queries_set_aside(tmp_path, little_out_of_domain):
    result = try_all(request_of(pairs_of(range(400)), bytes=8, train=False), NumberEncoder(), tmp_path)
    assert result.recommended.candidate.name == "query_adapter"
    assert result.recommended.bytes == 8
    sentence = write_sentence(result)
    assert sentence.startswith("Map queries and store 8 bytes a vector instead of 64: nDCG@10 of 160 queries")
    assert sentence.endswith("No document is encoded again.")
    assert "* map queries" in format_adaptation(result)
    assert "These queries chose too, a half at a time, and the halves agree: " in format_adaptation(result)
    described = to_json(result)
    assert json.loads(json.dumps(described, allow_nan=False)) == described
    measured = described["trials"][2]
    assert measured["report"]["gain"] > 0.05 and measured["encodes_documents_again"] is False
    assert described["queries"] == {"learn": 240, "choose": 160, "report": 160}
    assert {trial["change"] for trial in described["trials"] if trial["problem"]} == {"fine_tuning", "pre_finetuning"}


def test_queries_that_teach_nothing_leave_the_vectors_as_they_are_or_save_bytes(tmp_path, little_out_of_domain):
    """Queries are about other documents than those that are called relevant."""
    rows = [{"query": f"query {n}", "document": f"document {(7 * n + 3) % 600}"} for n in range(200)]
    result = try_all(request_of(rows, train=False), NumberEncoder(), tmp_path)
    assert result.recommended is result.baseline
    assert write_sentence(result).startswith("Leave the vectors as they are: on the queries to choose by, nothing")
    result = try_all(request_of(rows, train=False, bytes=8), NumberEncoder(), tmp_path)
    assert result.recommended.candidate.name == "as_is" and result.recommended.bytes == 8
    start = "No change improves search beyond chance; to save bytes, store 8 bytes a vector instead of 64: nDCG@10 of"
    assert write_sentence(result).startswith(start)


def test_too_few_queries_are_an_answer(tmp_path):
    result = try_all(request_of(pairs_of(range(100))), NumberEncoder(), tmp_path)
    assert result.recommended.candidate.name == "as_is"
    assert write_sentence(result).startswith("Leave the vectors as they are: 100 different judged queries leave")
    assert "From 150 queries on, debiasing is tried, and from 334 on, a map of queries" in result.shortage
    assert to_json(result)["trials"][0] == {"change": "as_is", "problem": result.shortage}
    assert format_adaptation(result) == write_sentence(result)


@pytest.fixture
def tiny_encoder(tiny_model, undrawn):
    with undrawn():
        yield Encoder(EncoderSpec("tiny", str(tiny_model)), "cpu")


@pytest.fixture
def worded():
    """Return a request whose queries share words with their documents, as few as can train."""

    def word(n):
        return f"{WORDS[n % 10]} {WORDS[n // 10 % 10]} {n}"

    pairs = [QueryPair(query=f"what of {word(n)}", document=f"{word(n)} it is") for n in range(290)]
    texts = [pair.document for pair in pairs]
    return AdaptRequest(source=RowSource(texts=texts), pairs=pairs[:250], test_pairs=pairs[250:], bytes=8)


def test_an_encoder_is_trained_measured_and_there_within_the_block(
    tmp_path, tiny_encoder, worded, little_out_of_domain, write_data_set
):
    rows = [{"anchor": f"{WORDS[n % 10]} {n}", "positive": f"{n} {WORDS[n % 7]}"} for n in range(12)]
    write_data_set(tmp_path / "data" / "labelled", {"task": "pairs"}, {"train.jsonl": rows})
    request = worded.model_copy(update={"folders": [str(tmp_path / "data")], "name": "tiny"})
    with try_candidates(request, tiny_encoder, tmp_path / "work", no_progress, "cpu") as result:
        trained = {trial.candidate.name: trial.encoder for trial in result.trials if trial.encoder}
        assert set(trained) == {"fine_tuning", "pre_finetuning"}
        for spec in trained.values():
            assert Encoder(spec, "cpu").fingerprint != tiny_encoder.fingerprint
    tried = [trial for trial in result.trials if trial.scores is not None]
    assert [trial.candidate.name for trial in tried if trial.bytes is None][-2:] == ["fine_tuning", "pre_finetuning"]
    assert all(trial.seconds > 0 for trial in tried if trial.candidate.encodes_again)
    assert not list((tmp_path / "work").glob("adapt-*"))  # what a named run publishes is elsewhere


@pytest.mark.release
def test_a_run_that_was_stopped_in_training_goes_on_and_repeats_nothing(
    tmp_path, tiny_encoder, worded, little_out_of_domain
):
    steps = []

    def stop(_, message):
        if message.startswith("step 10 "):
            raise KeyboardInterrupt

    def note(_, message):
        if message.startswith("step "):
            steps.append(message)

    with pytest.raises(KeyboardInterrupt), try_candidates(worded, tiny_encoder, tmp_path, stop, "cpu"):
        pass
    with try_candidates(worded, tiny_encoder, tmp_path, note, "cpu") as first:
        pass
    assert first.floats[3].scores is not None
    assert steps
    steps.clear()
    with try_candidates(worded, tiny_encoder, tmp_path, note, "cpu") as again:  # without a name, all is kept for a week
        pass
    assert not steps
    assert again.floats[3].scores.tolist() == first.floats[3].scores.tolist()


def test_a_budget_that_is_too_small_leaves_training_out(tmp_path, tiny_encoder, worded, little_out_of_domain):
    request = worded.model_copy(update={"budget": 1e-3})
    result = try_all(request, tiny_encoder, tmp_path)
    assert "of the budget are left" in result.floats[3].problem
