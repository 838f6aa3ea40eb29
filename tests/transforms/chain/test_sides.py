"""Chains that map queries otherwise than documents, and the steps that do so."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from lathe.transforms import (
    PCA,
    R2,
    Chain,
    InputError,
    Int8,
    QueryAdapter,
    StepError,
    TransformCoding,
    build_steps,
    parse_steps,
)
from lathe.transforms.base import Checkpoint, QueryPairs, measure_relevance
from lathe.transforms.chain import build_leading_query_maps, deserialize_chain, serialize_chain
from lathe.transforms.learned import query_adapter
from lathe.transforms.linear import Normalize

D = 16


def normalize(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def documents():
    return normalize(np.random.default_rng(0).normal(size=(400, D)))


@pytest.fixture(scope="module")
def pairs(documents):
    """Return noisy queries that a linear map has taken away from their documents."""
    rng = np.random.default_rng(1)
    mixing = np.eye(D) + 0.6 * rng.normal(size=(D, D)) / np.sqrt(D)
    queries = ((documents[:300] + 0.3 * rng.normal(size=(300, D))) @ mixing).astype(np.float32)
    return QueryPairs(queries, documents, np.column_stack([np.arange(300)] * 2))


@pytest.fixture(scope="module")
def fresh(documents):
    """Return pairs of other queries, mixed by the same map, and the same documents."""
    rng = np.random.default_rng(1)
    mixing = np.eye(D) + 0.6 * rng.normal(size=(D, D)) / np.sqrt(D)
    queries = ((documents[300:] + 0.3 * np.random.default_rng(2).normal(size=(100, D))) @ mixing).astype(np.float32)
    return QueryPairs(queries, documents, np.column_stack([np.arange(100), np.arange(300, 400)]))


@pytest.fixture(scope="module")
def adapter(documents, pairs):
    return QueryAdapter(learning_rate=3e-3, steps=200).fit(documents, pairs=pairs)


@pytest.fixture(scope="module")
def chains(documents, pairs, adapter):
    """Return fitted chains with steps of two sides first, in the middle, last, and before codes."""
    queries = pairs.queries
    return {
        "adapter": Chain([adapter]),
        "adapter, pca": Chain([adapter, PCA(8).fit(documents)]),
        "pca, adapter": Chain([PCA(8), QueryAdapter(steps=20)]).fit(documents, pairs=pairs),
        "adapter, r2, pca, int8": Chain([QueryAdapter(steps=20), R2(), PCA(8), Int8()]).fit(documents, pairs=pairs),
        "adapter, codes": Chain([adapter, TransformCoding(4, weighting=0.5).fit(documents, queries=queries)]),
        "sides, pca": Chain([*parse_steps('{"query": [{"kind": "mc"}], "document": [{"kind": "r2"}]}'), PCA(8)]).fit(
            documents, queries=queries
        ),
        "sides of queries": Chain(parse_steps('{"query": [{"kind": "r2"}], "document": []}')).fit(documents),
        "sides of documents": Chain(parse_steps('{"query": [], "document": [{"kind": "r2"}]}')).fit(documents),
    }


NAMES = ["adapter", "adapter, pca", "pca, adapter", "adapter, r2, pca, int8", "adapter, codes"]
NAMES += ["sides, pca", "sides of queries", "sides of documents"]
every = pytest.mark.parametrize("name", NAMES)


def mean_ndcg(pairs, queries=None):
    return measure_relevance(pairs if queries is None else replace(pairs, queries=queries))[0].mean()


def test_adapter_learns_a_map_that_finds_documents_of_queries_it_was_not_fitted_on(adapter, fresh):
    """The map that made the queries is linear, so its inverse is within reach."""
    adapted = adapter.query_map().transform(fresh.queries)
    assert mean_ndcg(fresh, adapted) > mean_ndcg(fresh) + 0.05


def test_adapter_leaves_documents_bit_equal_and_in_memory_of_their_own(adapter, documents):
    out = adapter.transform(documents)
    np.testing.assert_array_equal(out, documents)
    assert not np.shares_memory(out, documents)


def test_adapter_keeps_the_identity_where_no_map_is_better(documents):
    """Queries are their documents already, so that everything relevant is found first."""
    rows = QueryPairs(documents, documents, np.column_stack([np.arange(400)] * 2))
    step = QueryAdapter().fit(documents, pairs=rows)
    assert torch.equal(step.weight, torch.eye(D))
    assert "leaves queries as they are" in step.fit_warnings()[0]


def test_adapter_keeps_the_identity_unless_the_gain_exceeds_its_standard_error(documents, pairs, monkeypatch):
    step = QueryAdapter(learning_rate=3e-3, steps=200).fit(documents, pairs=pairs)
    gain, error = step.heldout_gain
    assert gain > error > 0
    assert not torch.equal(step.weight, torch.eye(D))
    monkeypatch.setattr(query_adapter, "MIN_GAIN", gain / error)
    kept = QueryAdapter(learning_rate=3e-3, steps=200).fit(documents, pairs=pairs)
    assert kept.heldout_gain == (gain, error)
    assert torch.equal(kept.weight, torch.eye(D))
    assert f"nDCG@10 by {gain:+.4f} ({error:.4f})" in kept.fit_warnings()[0]


def test_mined_negatives_are_the_nearest_documents_that_are_neither_relevant_nor_excluded(documents):
    relevant, excluded = np.array([[0, 3], [0, 5], [1, 3], [2, 0]]), np.array([[2, 9], [1, 8]])
    queries = documents[[3, 3, 0]] + np.float32(0.01) * documents[[7, 8, 9]]
    config = query_adapter.TrainingConfig(steps=1, batch=2, learning_rate=1e-3, heldout=1)
    batches = query_adapter.PairBatches(
        QueryPairs(queries, documents, relevant, excluded), config, 4, 0, torch.device("cpu")
    )
    scores = normalize(queries) @ documents.T
    for known in (relevant, excluded):
        scores[known[:, 0], known[:, 1]] = -np.inf
    np.testing.assert_array_equal(batches._mined, np.argsort(-scores, axis=1)[:, : query_adapter.MINED])
    found = batches.is_known(torch.tensor([[0], [1]]), torch.tensor([0, 3, 5, 8]))
    assert found.tolist() == [[False, True, True, False], [False, True, False, True]]


def test_resumed_training_of_an_adapter_ends_with_the_same_map(documents, pairs, adapter, tmp_path):
    def stop(fraction, message):
        if fraction > 0.4:
            raise KeyboardInterrupt

    step = QueryAdapter(learning_rate=3e-3, steps=200)
    with pytest.raises(KeyboardInterrupt):
        step.fit(documents, stop, checkpoint=query_adapter_checkpoint(tmp_path), pairs=pairs)
    assert not step.fitted
    step.fit(documents, checkpoint=query_adapter_checkpoint(tmp_path), pairs=pairs)
    assert torch.equal(step.weight, adapter.weight)


def query_adapter_checkpoint(folder):
    return Checkpoint(folder / "state.safetensors", seconds=0, share=1)


@every
def test_folded_sides_of_a_chain_equal_its_own_maps(name, chains, documents, pairs):
    chain = chains[name]
    assert chain.two_sided
    tolerance = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(
        chain.fold(side="query").transform(pairs.queries), chain.transform_queries(pairs.queries), **tolerance
    )
    np.testing.assert_allclose(
        chain.query_chain().transform(pairs.queries), chain.transform_queries(pairs.queries), **tolerance
    )
    ours, folded = chain.transform(documents), chain.fold().transform(documents)
    if chain.quantizer is None:
        np.testing.assert_allclose(folded, ours, **tolerance)
    else:
        assert (ours != folded).mean() < 0.01


@every
def test_saved_and_serialized_chains_map_both_sides_bit_equally(name, chains, documents, tmp_path):
    chain = chains[name]
    chain.save(tmp_path / "chain")
    for loaded in (Chain.load(tmp_path / "chain"), deserialize_chain(serialize_chain(chain))):
        assert loaded == chain
        np.testing.assert_array_equal(loaded.transform(documents), chain.transform(documents))
        np.testing.assert_array_equal(loaded.transform_queries(documents), chain.transform_queries(documents))


def test_steps_after_an_adapter_see_documents_as_they_were_and_those_before_it_map_its_pairs(documents, pairs):
    before = Chain([PCA(8), QueryAdapter(steps=20), Normalize()]).fit(documents, pairs=pairs)
    reduced = PCA(8).fit(documents)
    mapped = pairs.map(reduced.transform, reduced.transform)
    alone = QueryAdapter(steps=20).fit(mapped.documents, pairs=mapped)
    assert torch.equal(before.transforms[1].weight, alone.weight)
    after = Chain([QueryAdapter(steps=20), PCA(8)]).fit(documents, pairs=pairs)
    assert torch.equal(after.transforms[1].weight, reduced.weight)


def test_leading_query_maps_are_those_before_the_first_step_that_changes_documents(chains, documents, adapter):
    for name in ("adapter", "adapter, pca", "adapter, codes"):
        found = build_leading_query_maps(chains[name]).transform(documents)
        np.testing.assert_array_equal(found, adapter.query_map().transform(documents))
    assert build_leading_query_maps(chains["pca, adapter"]) is None


@pytest.mark.parametrize(
    ("count", "reason"), [(199, "at least 200 different queries"), (0, "at least 200 different queries")]
)
def test_adapter_refuses_too_few_queries(count, reason, documents, pairs):
    with pytest.raises(InputError, match=reason):
        QueryAdapter().fit(documents, pairs=pairs.select(np.arange(count)))


def test_equal_queries_are_never_trained_on_and_held_out_at_once(documents, pairs):
    """An encoder may give one vector to different texts."""
    queries = np.repeat(pairs.queries[:100], 3, axis=0)
    repeated = replace(pairs, queries=queries)
    config = query_adapter.TrainingConfig(steps=1, batch=2, learning_rate=1e-3, heldout=20)
    batches = query_adapter.PairBatches(repeated, config, 0, 0, torch.device("cpu"))
    held = set(batches.heldout_rows // 3)
    assert len(batches.heldout_rows) == 60
    assert len(held) == 20
    assert not held & set(batches._trained // 3)
    with pytest.raises(InputError, match="different queries with a relevant document, these are 50"):
        QueryAdapter().fit(documents, pairs=repeated.select(np.arange(150)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"relevant": np.array([[0, 0], [0, 0]])}, "1 pairs repeat, such as query 0, document 0"),
        ({"relevant": np.array([[0, 400]])}, "names document 400; there are 400"),
        ({"relevant": np.array([[-1, 0]])}, "names query -1"),
        ({"relevant": np.array([[0, 0]])}, "299 queries of the pairs have no relevant document"),
        ({"relevant": np.array([0, 1])}, "two columns of row numbers"),
        ({"relevant": np.array([[0.0, 1.0]])}, "two columns of row numbers"),
        ({"queries": np.zeros(D, np.float32)}, "must be a matrix"),
        ({"queries": np.full((300, D), np.nan, np.float32)}, "queries of pairs hold NaN or inf"),
        ({"documents": np.full((400, D), np.inf, np.float32)}, "documents of pairs hold NaN or inf"),
    ],
)
def test_pairs_that_are_none_are_refused(change, reason, pairs):
    with pytest.raises(InputError, match=reason):
        replace(pairs, **change)


def test_chains_refuse_missing_useless_and_other_pairs(documents, pairs):
    with pytest.raises(InputError, match="query_adapter is fitted on queries and their relevant documents: give pairs"):
        Chain([PCA(8), QueryAdapter()]).fit(documents)
    with pytest.raises(InputError, match="give pairs"):
        QueryAdapter().fit(documents)
    with pytest.raises(InputError, match="no step is fitted on pairs of query and document; query_adapter is"):
        Chain([R2()]).fit(documents, pairs=pairs)
    narrow = pairs.map(lambda rows: rows[:, :8], lambda rows: rows)
    with pytest.raises(InputError, match="the queries of the pairs have 8 dimensions, the rows 16"):
        Chain([QueryAdapter()]).fit(documents, pairs=narrow)
    with pytest.raises(InputError, match="the queries of the pairs have 8 dimensions"):
        QueryAdapter().fit(documents, pairs=narrow)
    with pytest.raises(InputError, match="queries of 8 dimensions cannot weight vectors of 16"):
        TransformCoding(4).fit(documents, queries=pairs.queries[:, :8])


def test_relevance_is_measured_as_in_hand_computed_cases():
    documents = np.eye(4, dtype=np.float32)
    queries = np.array([[0.1, 0.9, 0.5, 0], [0, 0, 0, 1]], np.float32)
    pairs = QueryPairs(queries, documents, np.array([[0, 2], [0, 3], [1, 3]]))
    ndcg, recall = measure_relevance(pairs, k=2)
    ideal = 1 + 1 / np.log2(3)
    np.testing.assert_allclose(ndcg, [(1 / np.log2(3)) / ideal, 1])
    np.testing.assert_allclose(recall, [0.5, 1])
    np.testing.assert_allclose(measure_relevance(pairs, k=10)[1], [1, 1])


def test_excluded_documents_are_not_ranked_and_stay_with_their_queries(monkeypatch):
    monkeypatch.setattr("lathe.transforms.base.query_pairs.BLOCK_SCORES", 8)  # two queries at a time
    rows = np.eye(6, dtype=np.float32)
    near = rows + np.float32(0.5) * rows[[1, 2, 3, 4, 5, 0]]  # each query is nearest to itself, then to the next row
    itself = np.column_stack([np.arange(6)] * 2)
    relevant = np.column_stack([np.arange(6), (np.arange(6) + 1) % 6])
    shuffled = itself[[4, 0, 5, 2, 1, 3]]
    assert measure_relevance(QueryPairs(near, rows, relevant), k=1)[1].tolist() == [0] * 6
    pairs = QueryPairs(near, rows, relevant, shuffled)
    assert measure_relevance(pairs, k=1)[1].tolist() == [1] * 6
    assert measure_relevance(pairs.select(np.array([5, 2])), k=1)[1].tolist() == [1, 1]


def test_each_side_is_fitted_on_its_own_rows(chains, documents, pairs):
    step = chains["sides, pca"].transforms[0]
    np.testing.assert_allclose(step.query_side.chain.transforms[0].mean, pairs.queries.mean(0), atol=1e-6)
    alone = R2().fit(documents)
    np.testing.assert_array_equal(step.transform(documents), alone.transform(documents))
    without = chains["sides of queries"].transforms[0]
    np.testing.assert_array_equal(without.transform(documents), documents)
    np.testing.assert_allclose(without.query_map().transform(documents), alone.transform(documents), atol=1e-6)


def test_steps_of_two_sides_are_written_as_an_object_of_two_lists():
    written = '{"query": [{"kind": "pca", "dimensions": 8}], "document": [{"kind": "truncation", "dimensions": 8}]}'
    (step,) = parse_steps(written)
    (same,) = build_steps(json.loads(written))
    (within,) = parse_steps(json.dumps({"kind": "sides"} | json.loads(written)))
    assert step.spec() == same.spec() == within.spec()
    assert build_steps([step.spec()])[0].spec() == step.spec()
    assert Chain([step]).dimensions_after(D) == 8


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ({"query": [{"kind": "mc"}]}, "exactly query and document, .* not query"),
        ({"document": [{"kind": "mc"}]}, "exactly query and document, .* not document"),
        ({}, "not none"),
        ({"query": [], "documents": []}, "not query, documents"),
        ({"query": [], "document": []}, "neither queries nor documents have a step"),
        ({"query": "mc", "document": []}, r"the steps of query are a list, \[\] for none"),
        ({"query": None, "document": [{"kind": "mc"}]}, "the steps of query are a list"),
        ([{"kind": "sides", "query": [{"kind": "mc"}]}], "sides needs document"),
        ({"query": [], "document": [{"kind": "int8"}]}, "int8 ends a chain, for documents alone"),
        ({"query": [{"kind": "query_adapter"}], "document": []}, "query_adapter cannot stand on one side"),
        ({"query": [{"kind": "procrustes"}], "document": []}, "procrustes cannot stand on one side"),
        ({"query": [{"kind": "nothing"}], "document": []}, "unknown kind of step 'nothing'"),
    ],
)
def test_a_missing_side_and_steps_that_cannot_stand_on_one_are_refused(steps, reason):
    with pytest.raises(StepError, match=reason):
        build_steps(steps)


def test_sides_of_different_dimensions_are_refused(documents):
    (step,) = parse_steps('{"query": [{"kind": "pca", "dimensions": 8}], "document": []}')
    with pytest.raises(StepError, match="queries would have 8 dimensions and documents 16"):
        Chain([step]).fit(documents)
    with pytest.raises(InputError, match="queries of 8 dimensions"):
        (step,) = parse_steps('{"query": [{"kind": "mc"}], "document": []}')
        step.fit(documents, queries=documents[:, :8])
