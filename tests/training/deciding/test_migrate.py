"""The decision to stay, to search through a bridge, or to encode again."""

from types import SimpleNamespace

import numpy as np
import pytest

from lathe.training.deciding import migrate
from lathe.training.deciding.migrate import ADAPT, AGAIN, BRIDGE, SMALL, STAY, Cost, Migration, decide_migration
from lathe.training.deciding.requests import MigrateRequest
from lathe.training.deciding.trial import Trial
from lathe.training.encoder.encoder import Encoding
from lathe.training.encoder.spec import UpstreamSpec
from lathe.training.errors import FitError
from lathe.training.fitting.requests import QueryPair
from lathe.transforms.chain import Chain
from lathe.transforms.codes import Int8
from lathe.transforms.linear import Truncation
from lathe.transforms.progress import no_progress
from tests.training.conftest import HashingEncoder

QUERIES = 100


class NoisyEncoder(HashingEncoder):
    """Encoder of "document N" and "query N" as one vector of N, with noise in queries, turned by an orthogonal map."""

    def __init__(self, name, noise, turn=0, upstream=None, width=16, stray=0):
        self.name, self.fingerprint, self.noise = name, name, noise
        self.spec = SimpleNamespace(upstream=upstream)
        self.turn = np.linalg.qr(np.random.default_rng(turn).normal(size=(width, width)))[0][:16]
        self.stray = stray  # so much more noise have half of the numbers of a query, which a map can learn to weaken

    def encode(self, texts, prompt_name=None, **options):
        rows = []
        for text in texts:
            kind, number = text.split()
            row = np.random.default_rng(int(number)).normal(size=16)
            if kind == "query":
                row = row + self.noise * (1 + self.stray * (np.arange(16) < 8)) * np.random.default_rng(
                    10_000 + int(number)
                ).normal(size=16)
            rows.append(row @ self.turn)
        rows = np.array(rows) / np.linalg.norm(rows, axis=1, keepdims=True)
        return Encoding(rows.astype(np.float32), np.full(len(texts), 5))


def sizes_of(found):
    return {trial.candidate.name: trial.vector_bytes for trial in found.trials}


@pytest.fixture
def decide(tmp_path):
    """Return a function that decides between two encoders of 600 documents with 100 judged queries."""
    source = tmp_path / "documents.txt"
    source.write_text("\n".join(f"document {n}" for n in range(600)))

    def judge(count):
        return [QueryPair(query=f"query {n}", document=f"document {n}") for n in range(count)]

    def run(present, new, queries=QUERIES, pairs=None, source_of_queries=None, stored=None, **fields):
        if source_of_queries:
            fields["queries"] = {"path": str(source_of_queries)}
        pairs = judge(queries) if queries and pairs is None else pairs
        request = MigrateRequest(to=new.name, source={"path": str(source)}, pairs=pairs, sample_rows=400, **fields)
        return decide_migration(request, present, new, no_progress, stored)

    return run


def test_nothing_moves_for_an_encoder_that_is_no_better(decide):
    found = decide(NoisyEncoder("old", 0.5), NoisyEncoder("new", 0.5, turn=1))
    assert found.recommended.candidate is STAY
    assert found.write_sentence().startswith("Stay: new changes nDCG@10 by +0.0")
    assert f"not a gain beyond chance among {len(found.searches.documents)} of 600 rows" in found.write_sentence()
    worse = decide(NoisyEncoder("old", 0.5), NoisyEncoder("new", 3, turn=1))
    assert worse.recommended.candidate is STAY and "which is a loss among" in worse.write_sentence()


def test_a_bridge_is_recommended_where_it_gains_as_much_as_encoding_again(decide):
    found = decide(NoisyEncoder("old", 2), NoisyEncoder("new", 0.2, turn=1))
    assert found.recommended.candidate is BRIDGE and "no row is encoded again" in found.write_sentence()
    assert found.compare(BRIDGE).low > 20


def test_rows_are_encoded_again_where_a_bridge_loses(decide):
    present = NoisyEncoder("old", 2)
    present.turn[:, 6:] = 0  # what these dimensions say cannot be mapped to the present vectors
    found = decide(present, NoisyEncoder("new", 0.2, turn=1), price=2)
    assert found.recommended.candidate is AGAIN
    assert found.cost.rows == 600 and found.cost.tokens == 3000 and found.cost.money == 0.006
    sentence = found.write_sentence()
    assert sentence.startswith("Encode again: new changes nDCG@10 by +") and "A bridge changes it by" in sentence
    assert "600 rows take" in sentence and "0.003 M tokens, 0.01 at 2 a million" in sentence


def test_queries_are_mapped_where_an_adapter_gains_as_much_as_another_encoder(decide):
    found = decide(NoisyEncoder("old", 0.6, stray=4), NoisyEncoder("new", 0.6, turn=1, stray=4), queries=400)
    assert found.recommended.candidate is ADAPT, found.format()
    sentence = found.write_sentence()
    assert sentence.startswith("Stay, and map queries: an adapter of the judged searches changes nDCG@10 by +")
    few = decide(NoisyEncoder("old", 0.6, stray=4), NoisyEncoder("new", 0.6, turn=1, stray=4))
    assert few.find(ADAPT) is None and "Mapping queries was not tried: " in few.format()


def test_a_wider_encoder_is_also_measured_in_the_bytes_of_now(decide):
    found = decide(NoisyEncoder("old", 2), NoisyEncoder("new", 0.2, turn=1, width=24))
    assert sizes_of(found) == {"stay": 64, "bridge": 64, "encode again, as small": 64, "encode again": 96}
    assert found.recommended.candidate in (BRIDGE, SMALL)
    # The documents have 16 independent numbers, so as many dimensions lose nothing.
    assert found.find(SMALL).points.mean() == pytest.approx(found.find(AGAIN).points.mean(), abs=1)


def test_all_choices_are_measured_in_codes_where_vectors_are_stored_as_codes(decide):
    found = decide(NoisyEncoder("old", 1), NoisyEncoder("new", 0.2, turn=1, width=24), bytes=2)
    assert sizes_of(found) == dict.fromkeys(["stay", "bridge", "encode again"], 2)
    floats = decide(NoisyEncoder("old", 1), NoisyEncoder("new", 0.2, turn=1, width=24))
    assert all(trial.points.mean() < floats.find(trial.candidate).points.mean() for trial in found.trials)


def test_the_chain_that_was_measured_is_the_one_that_is_certified(decide, tmp_path, monkeypatch):
    monkeypatch.setattr(migrate, "list_built_in_corpora", lambda _: {})
    present, new = NoisyEncoder("old", 2), NoisyEncoder("new", 0.2, turn=1, width=24)
    present.turn[:, 6:] = 0  # so that no bridge is as good
    found = decide(present, new, bytes=6)
    assert found.recommended.candidate is AGAIN and found.chain_name == "new-6-bytes"
    fitted = found.certify(new, tmp_path, "lathe migrate", no_progress)
    assert fitted.chain is found.recommended.chain
    after = fitted.certificate["relevance"]["ndcg_at_10"]["after"]
    assert 100 * after == pytest.approx(found.recommended.points.mean(), abs=1e-6)
    assert fitted.certificate["bytes_per_vector"]["after"] == 6
    fit_rows, heldout_rows = found.searches.fit_rows, found.searches.heldout_rows
    assert (fitted.certificate["n_fit"], fitted.certificate["n_heldout"]) == (len(fit_rows), len(heldout_rows))
    # Nothing learns from relevant documents or from those that the chain is certified on.
    relevant = [n for n, text in enumerate(found.searches.documents) if int(text.split()[1]) < QUERIES]
    assert not set(fit_rows) & {*relevant, *heldout_rows}
    floats = decide(present, NoisyEncoder("new", 0.2, turn=1))
    assert floats.recommended.candidate is AGAIN and not floats.takes_chain
    assert floats.certify(new, tmp_path, None, no_progress) is None


def test_staying_is_measured_through_the_chain_of_now_and_so_are_the_bytes(decide):
    """An index stores 4 of 16 dimensions: to stay loses what these lose, and the new encoder is reduced to them too."""
    rows = NoisyEncoder("old", 0).encode([f"document {n}" for n in range(300)]).vectors
    stored = Chain([Truncation(4)]).fit(rows)
    found = decide(NoisyEncoder("old", 0.5), NoisyEncoder("new", 0.5, turn=1), stored=stored)
    assert sizes_of(found) == {"stay": 16, "bridge": 16, "encode again, as small": 16, "encode again": 64}
    floats = decide(NoisyEncoder("old", 0.5), NoisyEncoder("new", 0.5, turn=1))
    assert found.find(STAY).points.mean() < floats.find(STAY).points.mean() - 5
    coded = decide(NoisyEncoder("old", 0.5), NoisyEncoder("new", 0.5, turn=1), stored=Chain([Int8()]).fit(rows))
    assert sizes_of(coded) == dict.fromkeys(["stay", "bridge", "encode again"], 16)


def test_searches_that_nobody_judged_are_compared_with_the_new_encoders_nearest_rows(decide, tmp_path):
    (tmp_path / "queries.txt").write_text("\n".join(f"query {n}" for n in range(50)))
    same = decide(
        NoisyEncoder("old", 0.5), NoisyEncoder("new", 0.5), queries=0, source_of_queries=tmp_path / "queries.txt"
    )
    assert len(same.find(STAY).points) == 50 and same.find(STAY).points.mean() == 100 and same.recommended is None


def test_without_judged_queries_nothing_is_recommended(decide):
    found = decide(NoisyEncoder("old", 0), NoisyEncoder("new", 0, turn=1), queries=0)
    assert found.recommended is None and found.to_json()["measure"] == "agreement_at_10"
    assert found.find(STAY).points.mean() == pytest.approx(100, abs=1)
    assert "nothing about which are better" in found.write_sentence()


def test_an_api_costs_its_own_price_and_no_time_of_this_machine(decide):
    upstream = UpstreamSpec(url="https://api.example.org/v1", protocol="openai", model="large", price=0.5)
    cost = decide(NoisyEncoder("old", 2), NoisyEncoder("new", 0.2, upstream=upstream)).cost
    assert (cost.seconds, cost.price) == (None, 0.5)
    assert cost.describe() == "600 rows are 0.003 M tokens, 0.00 at 0.5 a million"


def test_the_cheapest_choice_that_no_other_beats_is_recommended():
    noise = [np.random.default_rng(seed).normal(size=200) for seed in range(3)]

    def recommend(*gains):
        candidates = zip((STAY, BRIDGE, AGAIN), gains, noise, strict=True)
        trials = [Trial(candidate, 64, scores=(gain + own) / 100) for candidate, gain, own in candidates]
        searches, request = SimpleNamespace(choose=np.arange(200)), SimpleNamespace(pairs="judged.jsonl")
        found = Migration(request, "old", "new", "rows", searches, trials, Cost(9, 9, None, None), ())
        return found.recommended.candidate

    assert recommend(0, 0, 0) is STAY
    assert recommend(0, 5, 5) is BRIDGE
    assert recommend(0, 5, 9) is AGAIN
    assert recommend(0, -9, 5) is AGAIN


def test_without_rows_to_fit_a_bridge_on_the_other_choices_are_compared(decide, tmp_path):
    (tmp_path / "documents.txt").write_text("\n".join(f"document {n}" for n in range(60)))
    found = decide(NoisyEncoder("old", 2), NoisyEncoder("new", 0.2), queries=40)
    assert [trial.candidate for trial in found.trials] == [STAY, AGAIN] and found.recommended.candidate is AGAIN
    assert "30 rows are left to fit it on, and 60 are needed" in found.format()


def test_where_all_documents_are_relevant_they_are_fitted_on(decide, tmp_path):
    """In a FAQ every row answers a judged query."""
    (tmp_path / "documents.txt").write_text("\n".join(f"document {n}" for n in range(QUERIES)))
    found = decide(NoisyEncoder("old", 2), NoisyEncoder("new", 0.2, turn=1), bytes=4)
    assert [trial.candidate for trial in found.trials] == [STAY, AGAIN] and len(found.searches.fit_rows) == 50


def test_one_encoder_twice_few_queries_and_few_rows_are_refused(decide, tmp_path):
    old, new = NoisyEncoder("old", 1), NoisyEncoder("new", 1)
    with pytest.raises(FitError, match="give the same vectors"):
        decide(old, old)
    with pytest.raises(FitError, match="2 different queries; at least 30"):
        decide(old, new, pairs=[QueryPair(query=f"query {n}", document="document 1") for n in range(2)])
    (tmp_path / "documents.txt").write_text("document 1\ndocument 2")
    with pytest.raises(FitError, match="the source has 2"):
        decide(old, new, queries=0)
