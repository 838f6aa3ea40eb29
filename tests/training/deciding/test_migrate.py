"""The decision to stay, to search through a bridge, or to encode again."""

from types import SimpleNamespace

import numpy as np
import pytest

from lathe.training.deciding import migrate
from lathe.training.deciding.migrate import Cost, Migration, certify_recommended, decide_migration
from lathe.training.deciding.migrate_request import MigrateRequest
from lathe.training.encoder.encoder import Encoding
from lathe.training.encoder.spec import UpstreamSpec
from lathe.training.errors import FitError
from lathe.training.fitting.requests import QueryPair
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


@pytest.fixture
def decide(tmp_path):
    """Return a function that decides between two encoders of 600 documents with 100 judged queries."""
    source = tmp_path / "documents.txt"
    source.write_text("\n".join(f"document {n}" for n in range(600)))

    def judge(count):
        return [QueryPair(query=f"query {n}", document=f"document {n}") for n in range(count)]

    def run(present, new, queries=QUERIES, pairs=None, source_of_queries=None, **fields):
        if source_of_queries:
            fields["queries"] = {"path": str(source_of_queries)}
        pairs = judge(queries) if queries and pairs is None else pairs
        request = MigrateRequest(to=new.name, source={"path": str(source)}, pairs=pairs, sample_rows=500, **fields)
        return decide_migration(request, present, new, no_progress)

    return run


def test_nothing_moves_for_an_encoder_that_is_no_better(decide):
    found = decide(NoisyEncoder("old", 0.5), NoisyEncoder("new", 0.5, turn=1))
    assert found.recommended == "stay"
    assert found.write_sentence().startswith("Stay: new changes nDCG@10 by +0.0")
    assert f"no gain beyond chance among {found.documents} of 600 rows" in found.write_sentence()
    worse = decide(NoisyEncoder("old", 0.5), NoisyEncoder("new", 3, turn=1))
    assert worse.recommended == "stay" and "which is a loss among" in worse.write_sentence()


def test_a_bridge_is_recommended_where_it_gains_as_much_as_encoding_again(decide):
    found = decide(NoisyEncoder("old", 2), NoisyEncoder("new", 0.2, turn=1))
    assert found.recommended == "bridge" and "no row is encoded again" in found.write_sentence()
    assert found.compare("bridge").low > 20


def test_rows_are_encoded_again_where_a_bridge_loses(decide):
    present = NoisyEncoder("old", 2)
    present.turn[:, 6:] = 0  # what these dimensions say cannot be mapped to the present vectors
    found = decide(present, NoisyEncoder("new", 0.2, turn=1), price=2)
    assert found.recommended == "encode again"
    assert found.cost.rows == 600 and found.cost.tokens == 3000 and found.cost.money == 0.006
    sentence = found.write_sentence()
    assert sentence.startswith("Encode again: new changes nDCG@10 by +") and "A bridge changes it by" in sentence
    assert "600 rows take" in sentence and "0.003 M tokens, 0.01 at 2 a million" in sentence


def test_queries_are_mapped_where_an_adapter_gains_as_much_as_another_encoder(decide):
    found = decide(NoisyEncoder("old", 0.6, stray=4), NoisyEncoder("new", 0.6, turn=1, stray=4), queries=400)
    assert found.recommended == "map queries", found.format()
    sentence = found.write_sentence()
    assert sentence.startswith("Stay, and map queries: an adapter of the judged searches changes nDCG@10 by +")
    few = decide(NoisyEncoder("old", 0.6, stray=4), NoisyEncoder("new", 0.6, turn=1, stray=4))
    assert "map queries" not in few.scores and "Mapping queries was not tried: " in few.format()


def test_a_wider_encoder_is_also_measured_in_the_bytes_of_now(decide):
    found = decide(NoisyEncoder("old", 2), NoisyEncoder("new", 0.2, turn=1, width=24))
    assert found.vector_bytes == {"stay": 64, "bridge": 64, "encode again, as small": 64, "encode again": 96}
    assert found.recommended in ("bridge", "encode again, as small")
    # The documents have 16 independent numbers, so as many dimensions lose nothing.
    assert found.scores["encode again, as small"].mean() == pytest.approx(found.scores["encode again"].mean(), abs=1)


def test_all_choices_are_measured_in_codes_where_vectors_are_stored_as_codes(decide):
    found = decide(NoisyEncoder("old", 1), NoisyEncoder("new", 0.2, turn=1, width=24), bytes=2)
    assert found.vector_bytes == dict.fromkeys(["stay", "bridge", "encode again"], 2)
    floats = decide(NoisyEncoder("old", 1), NoisyEncoder("new", 0.2, turn=1, width=24))
    assert all(found.scores[name].mean() < floats.scores[name].mean() for name in found.scores)


def test_the_chain_that_was_measured_is_the_one_that_is_certified(decide, tmp_path, monkeypatch):
    monkeypatch.setattr(migrate, "list_built_in_corpora", lambda _: {})
    present, new = NoisyEncoder("old", 2), NoisyEncoder("new", 0.2, turn=1, width=24)
    present.turn[:, 6:] = 0  # so that no bridge is as good
    found = decide(present, new, bytes=6)
    assert found.recommended == "encode again" and found.chain_name == "new-6-bytes"
    request = MigrateRequest(to="new", source={"path": str(tmp_path / "documents.txt")}, bytes=6)
    fitted = certify_recommended(found, request, new, tmp_path, "lathe migrate", no_progress)
    assert fitted.chain is found.chains["encode again"]
    after = fitted.certificate["relevance"]["ndcg_at_10"]["after"]
    assert 100 * after == pytest.approx(found.scores["encode again"].mean(), abs=1e-6)
    assert fitted.certificate["bytes_per_vector"]["after"] == 6
    assert (fitted.certificate["n_fit"], fitted.certificate["n_heldout"]) == (len(found.fitted), len(found.heldout))
    floats = decide(present, NoisyEncoder("new", 0.2, turn=1))
    assert floats.recommended == "encode again" and floats.chain is None
    assert certify_recommended(floats, request, new, tmp_path, None, no_progress) is None


def test_searches_that_nobody_judged_are_compared_with_the_new_encoders_nearest_rows(decide, tmp_path):
    (tmp_path / "queries.txt").write_text("\n".join(f"query {n}" for n in range(50)))
    same = decide(
        NoisyEncoder("old", 0.5), NoisyEncoder("new", 0.5), queries=0, source_of_queries=tmp_path / "queries.txt"
    )
    assert len(same.scores["stay"]) == 50 and same.scores["stay"].mean() == 100 and same.recommended is None


def test_without_judged_queries_nothing_is_recommended(decide):
    found = decide(NoisyEncoder("old", 0), NoisyEncoder("new", 0, turn=1), queries=0)
    assert found.recommended is None and found.to_json()["measure"] == "agreement_at_10"
    assert found.scores["stay"].mean() == pytest.approx(100, abs=1)
    assert "nothing about which are better" in found.write_sentence()


def test_an_api_costs_its_own_price_and_no_time_of_this_machine(decide):
    upstream = UpstreamSpec(url="https://api.example.org/v1", protocol="openai", model="large", price=0.5)
    cost = decide(NoisyEncoder("old", 2), NoisyEncoder("new", 0.2, upstream=upstream)).cost
    assert (cost.seconds, cost.price) == (None, 0.5)
    assert cost.describe() == "600 rows are 0.003 M tokens, 0.00 at 0.5 a million"


def test_the_cheapest_choice_that_no_other_beats_is_recommended():
    noise = [np.random.default_rng(seed).normal(size=200) for seed in range(3)]

    def recommend(*gains):
        scores = {
            name: gain + own for name, gain, own in zip(("stay", "bridge", "encode again"), gains, noise, strict=True)
        }
        return Migration("old", "new", "rows", True, scores, {}, 9, Cost(9, 9, None, None), ()).recommended

    assert recommend(0, 0, 0) == "stay"
    assert recommend(0, 5, 5) == "bridge"
    assert recommend(0, 5, 9) == "encode again"
    assert recommend(0, -9, 5) == "encode again"


def test_without_rows_to_fit_a_bridge_on_the_other_choices_are_compared(decide, tmp_path):
    (tmp_path / "documents.txt").write_text("\n".join(f"document {n}" for n in range(QUERIES + 20)))
    found = decide(NoisyEncoder("old", 2), NoisyEncoder("new", 0.2))
    assert list(found.scores) == ["stay", "encode again"] and found.recommended == "encode again"
    assert "16 rows are left to fit it on" in found.format()


def test_one_encoder_twice_few_queries_and_few_rows_are_refused(decide, tmp_path):
    old, new = NoisyEncoder("old", 1), NoisyEncoder("new", 1)
    with pytest.raises(FitError, match="give the same vectors"):
        decide(old, old)
    with pytest.raises(FitError, match="2 different queries; at least 30"):
        decide(old, new, pairs=[QueryPair(query=f"query {n}", document="document 1") for n in range(2)])
    (tmp_path / "documents.txt").write_text("document 1\ndocument 2")
    with pytest.raises(FitError, match="2 different rows"):
        decide(old, new, queries=0)
