"""What an adaptation publishes: a chain, a trained encoder, or nothing."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from lathe.service.chains.registry import Registry
from lathe.service.encoders.trained import TrainedEncoders
from lathe.service.errors import ConflictError
from lathe.service.home import Home
from lathe.service.publishing import adaptations
from lathe.service.publishing.adaptations import run_adaptation
from lathe.service.publishing.context import PublishContext
from lathe.service.settings import Settings
from lathe.training.comparison import compare
from lathe.training.deciding import adapt
from lathe.training.deciding.adapt_report import describe_trial
from lathe.training.deciding.requests import AdaptRequest
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.fitting.out_of_domain import OutOfDomainTexts
from lathe.transforms.progress import no_progress
from tests.training.fitting.numbered import pairs_of, write

WORDS = ["ledger", "lathe", "rain", "committee", "interest", "tomato", "wall", "spring", "bank", "hill"]


@pytest.fixture
def context(tmp_path, monkeypatch):
    """Return the setting of an adaptation whose out-of-domain texts are 40 sentences."""
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("\n".join(f"{' '.join(WORDS)} {n} {' '.join(reversed(WORDS))}" for n in range(40)))
    monkeypatch.setattr(adapt, "list_built_in_corpora", lambda _: {"sentences": str(sentences)})
    home = Home(tmp_path / "home")
    home.open()
    settings, trained = Settings(home=home.root, device="cpu"), TrainedEncoders(home.trained)
    return PublishContext(settings, Registry(home.chains), trained, "lathe adapt")


@pytest.fixture
def request_of(tmp_path):
    """Return a function that builds a request with queries that share words with their documents."""
    pairs = [
        pair | {"query": f"what of the {WORDS[n % 10]} {n}", "document": f"the {WORDS[n % 10]} of {n} and {n % 7}"}
        for n, pair in enumerate(pairs_of(range(300)))
    ]
    documents = write(tmp_path / "documents.jsonl", [{"text": pair["document"]} for pair in pairs])
    fit, test = write(tmp_path / "pairs.jsonl", pairs[:255]), write(tmp_path / "test.jsonl", pairs[255:])

    def build(**fields):
        return AdaptRequest(source=documents, pairs=fit, test_pairs=test, **fields)

    return build


@pytest.fixture
def encoder(tiny_model):
    return Encoder(EncoderSpec("tiny", str(tiny_model)), "cpu")


def recommend(monkeypatch, change, coded):
    """Let an adaptation recommend a change, whatever was measured."""
    try_all = adaptations.try_candidates

    @contextmanager
    def try_and_recommend(*arguments, **named):
        with try_all(*arguments, **named) as result:
            trials = result.rivals if coded else result.floats
            yield replace(result, recommended=next(trial for trial in trials if trial.candidate.name == change))

    monkeypatch.setattr(adaptations, "try_candidates", try_and_recommend)


def test_a_trained_encoder_is_published_with_a_chain_of_codes_on_it(context, request_of, encoder, monkeypatch):
    recommend(monkeypatch, "fine_tuning", coded=True)
    published = run_adaptation(request_of(name="mine", bytes=8), encoder, context, no_progress).published

    assert (published["encoder"]["encoder"], published["encoder"]["promoted"]) == ("mine@1", True)
    certificate = published["encoder"]["certificate"]
    assert certificate["relevance"]["judged"]["queries"] == 45
    manifest = TrainedEncoders(context.home.trained).check_version("mine", 1)
    assert manifest["base"]["name"] == "tiny"
    assert manifest["encoder"]["fingerprint"] != encoder.fingerprint
    chain = context.registry.load("mine").chain
    assert chain.metadata["encoder"]["fingerprint"] == manifest["encoder"]["fingerprint"]
    assert published["chain"]["certificate"]["relevance"]["queries"] == 45


def test_a_chain_is_published_on_the_encoder_as_it_is(context, request_of, encoder, monkeypatch):
    recommend(monkeypatch, "query_adapter", coded=False)
    published = run_adaptation(request_of(name="mine", train=False), encoder, context, no_progress).published
    assert set(published) == {"chain"}
    assert context.registry.load("mine").chain.metadata["encoder"]["fingerprint"] == encoder.fingerprint
    assert not context.home.trained.exists() or not list(context.home.trained.iterdir())


@pytest.mark.parametrize("bytes_", [None, 8])
def test_the_published_chain_is_the_one_that_was_measured(context, request_of, encoder, monkeypatch, bytes_):
    """nDCG@10 on the queries that were set aside, computed here by mteb's definition, is what was printed."""
    recommend(monkeypatch, "query_adapter", coded=bytes_ is not None)
    request = request_of(name="mine", train=False, bytes=bytes_)
    adaptation = run_adaptation(request, encoder, context, no_progress)
    chain = context.registry.load("mine").chain
    searches = adaptation.result.searches
    documents = chain.floats(encoder.encode(searches.documents).vectors)
    scores = []
    for query, answers in searches.reported.items():
        mapped = chain.transform_queries(encoder.encode([query]).vectors)
        best = np.argsort(-(mapped @ documents.T)[0], kind="stable")[:10]
        gains = [1 / np.log2(rank + 2) for rank, row in enumerate(best) if searches.documents[row] in answers]
        scores.append(sum(gains) / sum(1 / np.log2(rank + 2) for rank in range(min(len(answers), 10))))
    printed = describe_trial(adaptation.result.recommended, adaptation.result)["report"]["ndcg_at_10"]
    assert np.mean(scores) == pytest.approx(printed, abs=1e-6)
    certificate = adaptation.published["chain"]["certificate"]
    assert certificate["relevance"]["ndcg_at_10"]["after"] == pytest.approx(printed, abs=1e-6)
    assert certificate["n_fit"] + certificate["n_heldout"] == len(searches.documents)


@pytest.mark.parametrize(("promote", "live"), [(None, False), (True, True)])
def test_a_gain_that_may_be_chance_goes_live_only_on_request(context, request_of, encoder, monkeypatch, promote, live):
    recommend(monkeypatch, "debias", coded=False)
    adaptation = run_adaptation(request_of(name="mine", train=False, promote=promote), encoder, context, no_progress)
    result = adaptation.result
    reported = [trial.scores_of(result.searches.report) for trial in (result.recommended, result.baseline)]
    assert compare(*reported).sign <= 0
    assert adaptation.to_json()["sentence"].startswith(
        "Nothing is certain to help; the likeliest is to debias: nDCG@10"
    )
    assert adaptation.published["chain"]["promoted"] is live


def test_a_published_chain_is_certified_with_the_prompt_of_documents(context, request_of, tiny_model, monkeypatch):
    recommend(monkeypatch, "debias", coded=False)
    used, encode = [], OutOfDomainTexts.encode
    monkeypatch.setattr(
        OutOfDomainTexts,
        "encode",
        lambda texts, encoder, report: used.append(encoder) or encode(texts, encoder, report),
    )
    prompted = Encoder(
        EncoderSpec("tiny", str(tiny_model), prompts={"document": "passage: ", "query": "query: "}), "cpu"
    )
    run_adaptation(request_of(name="mine", train=False), prompted, context, no_progress)
    assert [encoder.default_prompt_name for encoder in used] == ["document"]


def test_nothing_is_published_without_a_name_or_where_nothing_helps(context, request_of, encoder, monkeypatch):
    recommend(monkeypatch, "as_is", coded=False)
    for name in (None, "mine"):
        adaptation = run_adaptation(request_of(name=name, train=False), encoder, context, no_progress)
        assert adaptation.published == {}
        assert adaptation.to_json()["recommended"] == "as_is"
    assert context.registry.names() == []


def test_the_name_of_another_encoder_is_refused_before_the_work(context, request_of, encoder):
    with pytest.raises(ConflictError):
        run_adaptation(request_of(name="all-MiniLM-L6-v2"), encoder, context, no_progress)
