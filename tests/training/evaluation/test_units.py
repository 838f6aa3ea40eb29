"""Values of units: their means are the scores, and their intervals are those of independent computations."""

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import average_precision_score, ndcg_score

from lathe.training.datasets.layouts import LAYOUTS
from lathe.training.datasets.mteb_tasks import build_task
from lathe.training.datasets.records import Search, Tables
from lathe.training.evaluation.comparison import compare_scores
from lathe.training.evaluation.encoders import TextVectors, text_key
from lathe.training.evaluation.model import Collector, RescoringModel, StoredModel, list_texts
from lathe.training.evaluation.suites import open_suite
from lathe.training.evaluation.units import MAX_JACKKNIFE_GROUPS, jackknife
from lathe.training.evaluation.worker import load_task, measure
from lathe.transforms import Chain, parse_steps

pytestmark = pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning")

WIDTH = 12


class Noisy(Collector):
    """Encoder that maps a text to a direction by its number, plus noise that depends on text and seed only."""

    def __init__(self, noise, seed=0):
        super().__init__()
        self.noise, self.seed = noise, seed

    def encode(self, inputs, **_):
        return self.embed(list_texts(inputs))

    def embed(self, texts):
        found = np.empty((len(texts), WIDTH), np.float32)
        for row, text in enumerate(texts):
            number = int("".join(c for c in text if c.isdigit()) or 0)
            found[row] = np.random.default_rng(number % 60).standard_normal(WIDTH)
            found[row] += self.noise * np.random.default_rng([self.seed, *text.encode()]).standard_normal(WIDTH)
        return found / np.linalg.norm(found, axis=1, keepdims=True)


def build_search(queries=60, documents=60):
    """Build a search where document n answers query n. Every fourth query has a second answer."""
    relevant = {f"q{n}": {f"d{n}": 1} | ({f"d{(n + 7) % documents}": 1} if n % 4 == 0 else {}) for n in range(queries)}
    corpus = {f"d{n}": ("", f"document {n}") for n in range(documents)}
    return Search(corpus, {f"q{n}": f"query {n}" for n in range(queries)}, relevant, None)


@pytest.fixture(scope="module")
def search():
    return build_task(LAYOUTS["retrieval"], "search", "en", build_search())


@pytest.fixture(scope="module")
def scored_pairs():
    """Return a task of 80 pairs of sentences with grades that their numbers go with."""
    random = np.random.default_rng(3)
    rows = {
        "sentence1": [f"one {n}" for n in range(80)],
        "sentence2": [f"two {n + random.integers(0, 3)}" for n in range(80)],
        "score": [float(n) for n in random.integers(0, 6, 80)],
    }
    return build_task(LAYOUTS["sts"], "pairs", "en", Tables({"test": rows}))


@pytest.mark.parametrize("task", [name for name in LAYOUTS if name != "summarization"])
def test_the_values_of_units_have_the_score_as_their_mean(data_set_of, task):
    """For every layout but summarization, which has no values."""
    (entry,) = open_suite(str(data_set_of(task))).entries
    load_task.cache_clear()
    found = measure(Noisy(0.5), load_task(entry)[0], with_units=True)
    assert found.units is not None
    assert found.units.score == pytest.approx(found.score, abs=1e-4)
    # The mean of jackknife pseudo-values is the score less an estimate of its bias, which is of order 1/n.
    tolerance = 0.25 if task in ("sts", "pair_classification") else 1e-4
    assert found.units.values.mean() == pytest.approx(found.score, abs=tolerance)
    assert found.units.units >= len(found.units.values) or task == "clustering"


def test_values_of_queries_are_their_ndcg_as_scikit_learn_computes_it(search):
    model, data = Noisy(1.0), build_search()
    found = measure(model, search, with_units=True).units
    cosines = model.embed(list(data.queries.values())) @ model.embed([text for _, text in data.corpus.values()]).T
    gains = np.array([[data.relevant[query].get(key, 0) for key in data.corpus] for query in data.queries])
    expected = {q: ndcg_score(gains[[row]], cosines[[row]], k=10) for row, q in enumerate(data.queries)}
    assert 0.2 < found.score < 0.95
    assert found.values == pytest.approx([expected[query] for query in sorted(expected)], abs=1e-6)


def test_the_own_text_of_a_query_is_left_out_of_its_results_and_no_other_document_is():
    """The score is that without these documents. Ids that queries and documents share by chance leave nothing out."""
    data = build_search()
    shared = {key.replace("d", "q"): key for key in data.corpus}  # document n has the id of query n
    corpus = {new: data.corpus[key] for new, key in shared.items()}
    relevant = {q: {key.replace("d", "q"): 1 for key in judged} for q, judged in data.relevant.items()}
    own = {f"own {q}": ("", text.upper()) for q, text in list(data.queries.items())[:20]}
    tasks = [
        build_task(LAYOUTS["retrieval"], "search", "en", Search(documents, data.queries, relevant))
        for documents in (corpus, own | corpus)
    ]

    class Lowercase(Noisy):
        def embed(self, texts):
            return super().embed([text.lower() for text in texts])

    plain, with_own = (measure(Lowercase(0.5), task, with_units=True).units.values for task in tasks)
    # A query's text may still stand in the results of others.
    assert np.mean(with_own[:20]) > 0.9 * np.mean(plain[:20])


@pytest.mark.parametrize("layout", ["sts", "pair_classification"])
def test_the_jackknife_interval_over_pairs_is_near_a_paired_bootstrap_of_the_metric(scored_pairs, layout):
    """The metric is computed again on every resample of the pairs, with scipy and scikit-learn."""
    task = scored_pairs
    rows = task.dataset["test"]
    gold = np.asarray(rows["score"][:])
    if layout == "pair_classification":
        splits = {"sentence1": rows["sentence1"][:], "sentence2": rows["sentence2"][:], "label": (gold > 2).astype(int)}
        task = build_task(LAYOUTS[layout], "pairs", "en", Tables({"test": splits}))
        gold = np.asarray(splits["label"])
    models = Noisy(1.5), Noisy(0.3)
    cosines = [(model.embed(rows["sentence1"][:]) * model.embed(rows["sentence2"][:])).sum(axis=1) for model in models]
    metric = average_precision_score if layout == "pair_classification" else lambda g, c: stats.spearmanr(g, c)[0]
    random, resampled = np.random.default_rng(1), []
    while len(resampled) < 300:
        rows_drawn = random.integers(0, len(gold), len(gold))
        before, after = (metric(gold[rows_drawn], found[rows_drawn]) for found in cosines)
        resampled.append(100 * (after - before))
    one, other = (measure(model, task, with_units=True) for model in models)
    found = compare_scores(one.units.values, other.units.values, 100 * (other.score - one.score))
    reach = (found.high - found.low) / 2
    assert reach == pytest.approx(1.96 * np.std(resampled), rel=0.25)


def test_a_jackknife_of_many_units_leaves_out_groups_with_the_same_error():
    values = np.random.default_rng(0).random(3 * MAX_JACKKNIFE_GROUPS)
    found = jackknife(lambda chosen: float(values[chosen].mean()), len(values))
    assert (found.units, len(found.values)) == (len(values), MAX_JACKKNIFE_GROUPS)
    errors = [np.std(v, ddof=1) / np.sqrt(len(v)) for v in (found.values, values)]
    assert errors[0] == pytest.approx(errors[1], rel=0.1)


def build_stored(chain=None, noise=1.0):
    """Return the model of a chain with the vectors of the search's texts."""
    data = build_search()
    texts = [*data.queries.values(), *(text for _, text in data.corpus.values())]
    return StoredModel(TextVectors(map(text_key, texts), Noisy(noise).embed(texts)), chain=chain)


def fit(steps):
    rows = np.random.default_rng(5).standard_normal((300, WIDTH)).astype(np.float32) + 0.5
    return Chain(parse_steps(steps)).fit(rows)


TWO_SIDES = '{"query": [{"kind": "mc"}], "document": []}'


@pytest.mark.parametrize("steps", [TWO_SIDES, "int8"], ids=["two sides", "codes"])
def test_a_chain_maps_queries_of_a_search_as_queries(search, steps):
    """Maps of queries alone count, and queries are not quantized, as in an index."""
    chain, data = fit(steps), build_search()
    found = measure(build_stored(chain), search, with_units=True).units
    queries = chain.transform_queries(Noisy(1.0).embed(list(data.queries.values())))
    documents = chain.floats(Noisy(1.0).embed([text for _, text in data.corpus.values()]))
    cosines = queries @ (documents / np.linalg.norm(documents, axis=1, keepdims=True)).T
    gains = np.array([[data.relevant[query].get(key, 0) for key in data.corpus] for query in data.queries])
    expected = {query: ndcg_score(gains[[row]], cosines[[row]], k=10) for row, query in enumerate(data.queries)}
    assert found.values == pytest.approx([expected[query] for query in sorted(expected)], abs=1e-6)
    as_documents = chain.floats(Noisy(1.0).embed(list(data.queries.values())))
    assert np.abs(queries - as_documents).max() > 1e-3


def test_rescored_candidates_have_the_score_of_the_raw_vectors_if_they_are_all_found(search):
    """Forty of sixty documents are candidates: in eight dimensions of twelve these miss few, in one they miss many."""
    raw, found = measure(build_stored(), search).score, {}
    for steps in ("pca:8", "pca:1"):
        chain = fit(steps)
        found[steps] = measure(RescoringModel(build_stored(chain)), search).score
        assert measure(build_stored(chain), search).score < found[steps]
    assert found["pca:8"] == pytest.approx(raw, abs=0.02)
    assert found["pca:1"] < raw - 0.05
