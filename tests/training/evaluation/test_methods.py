from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from lathe.training.datasets.layouts import LAYOUTS
from lathe.training.datasets.records import Search
from lathe.training.errors import EvaluationError
from lathe.training.evaluation.corpus import split_corpus
from lathe.training.evaluation.method_cache import MethodCache
from lathe.training.evaluation.methods import (
    CONTROL,
    RANDOM_SEEDS,
    Method,
    build_control_method,
    hash_chain,
    list_debiasing_methods,
    list_reducer_methods,
    parse_size,
    resolve_size,
)
from lathe.training.evaluation.run import Request
from lathe.training.evaluation.store import VectorStore, text_key
from lathe.training.evaluation.suites import Suite
from lathe.transforms import Chain, angular_stress, local_spearman, parse_steps, positional_stress, recall_at_k

WIDTH = 24
ENCODER, DIGEST = "f" * 32, "c" * 32
PCA = Method("pca:6", "sweep", "pca", "pca:6", size=6)


@pytest.fixture(scope="module")
def rows():
    found = np.random.default_rng(0).normal(0.4, 1, size=(400, WIDTH)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def corpus(rows):
    return split_corpus(rows, DIGEST)


@pytest.fixture
def cache(tmp_path):
    return MethodCache(tmp_path / "methods")


@pytest.fixture(scope="module")
def nested(rows):
    """Return the method of a fitted nested chain."""
    chain = Chain(parse_steps("geopres:12,nested=true,steps=5")).fit(rows)
    return Method("mine@1", "chain", "mine@1", size=12, chain=chain, key="k", only=ENCODER)


def fit_or_load(cache, method, corpus):
    """Return the cached method, the chain in its folder and its measures, fitting it if missing."""
    one, measures = cache.load_or_fit(method, ENCODER, corpus, DIGEST, lambda _: None)
    return one, Chain.load(one.folder), measures


def files(folder: Path):
    """Return content and modification time of every file below a folder."""
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_debiasing_methods_equal_a_direct_numpy_computation(cache, corpus):
    """This covers mean-centring, R1, R2 and random directions. Fitting them reports no measures."""
    outputs = {}
    for method in list_debiasing_methods():
        _, chain, measures = fit_or_load(cache, method, corpus)
        outputs[method.name] = chain.transform(corpus.heldout).astype(np.float64)
        assert measures == {}
    mean = corpus.fit.astype(np.float64).mean(axis=0)
    centred = corpus.heldout - mean
    np.testing.assert_allclose(outputs["mean-centring"], centred, atol=1e-6)
    np.testing.assert_allclose(outputs["R1"], centred / np.linalg.norm(centred, axis=1, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(outputs["R2"] @ mean, 0, atol=1e-6)
    seeds = [outputs[name] for name in outputs if name.startswith("random")]
    directions = [np.random.default_rng(seed).standard_normal(WIDTH) for seed in RANDOM_SEEDS]
    for found, direction in zip(seeds, directions, strict=True):
        np.testing.assert_allclose(found @ direction, 0, atol=1e-5)


def test_sizes_are_numbers_and_shares_of_the_dimensions_and_none_if_not_below_them():
    written = {"96": 96, "1/4": 96, "1/3": 128, "0.5": 192, "383": 383, "1": 1}
    assert {size: resolve_size(parse_size(size), 384) for size in written} == written

    assert [resolve_size(parse_size(written), 384) for written in ("384", "385", "1/1000")] == [None] * 3


@pytest.mark.parametrize("written", ["x", "1/0", "0", "3/2"])
def test_parse_size_refuses_an_invalid_size_with_an_example(written):
    with pytest.raises(EvaluationError, match=f"96 or shares such as 1/4, not '{written}'"):
        parse_size(written)


def test_the_key_of_a_method_depends_on_its_map_and_not_on_its_name():
    method = Method("R1", "ladder", "R1", "r1")
    key = method.key_on(ENCODER, DIGEST)
    others = [replace(method, **change) for change in ({"steps": "r2"}, {"normalize": False})]
    keys = [key, *(other.key_on(ENCODER, DIGEST) for other in others)]
    keys += [method.key_on("e" * 32, DIGEST), method.key_on(ENCODER, "d" * 32)]
    assert len(set(keys)) == len(keys) == 5
    assert replace(method, name="x", label="y", group="chain").key_on(ENCODER, DIGEST) == key
    everything = [*list_debiasing_methods(), *list_reducer_methods([6, 12])]
    assert len({one.key_on(ENCODER, DIGEST) for one in everything}) == len(everything)


def test_the_keys_of_raw_vectors_and_fitted_chains_do_not_depend_on_the_corpus(nested):
    for encoder, corpus in ((ENCODER, DIGEST), ("e" * 32, "")):
        assert (build_control_method().key_on(encoder, corpus), nested.key_on(encoder, corpus)) == (CONTROL, "k")
        assert nested.cut(6).key_on(encoder, corpus) == "k-6"


def test_split_corpus_holds_out_a_tenth_and_is_deterministic(rows, corpus):
    assert (len(corpus.fit), len(corpus.heldout)) == (360, 40)
    both = [row.tobytes() for part in (corpus.fit, corpus.heldout) for row in part]
    assert sorted(both) == sorted(row.tobytes() for row in rows)
    np.testing.assert_array_equal(split_corpus(rows, DIGEST).heldout, corpus.heldout)
    assert corpus.mean_norm == pytest.approx(np.linalg.norm(corpus.fit.astype(np.float64).mean(axis=0)), abs=1e-6)


def test_method_cache_fits_a_method_once_and_then_loads_the_chain(cache, corpus):
    told = []
    first, measures = cache.load_or_fit(PCA, ENCODER, corpus, DIGEST, told.append)
    assert told == ["fitting pca:6"]
    before = files(cache.folder)
    assert cache.load_or_fit(PCA, ENCODER, None, DIGEST, told.append) == (first, {})  # no corpus to fit or measure on
    assert cache.load_or_fit(PCA, ENCODER, corpus, DIGEST, told.append) == (first, measures)
    assert files(cache.folder) == before and len(told) == 1
    assert Chain.load(first.folder) == Chain(parse_steps("pca:6")).fit(corpus.fit)


def test_method_cache_needs_no_corpus_and_writes_no_file_for_raw_vectors(cache):
    one, measures = cache.load_or_fit(build_control_method(), ENCODER, None, DIGEST, lambda _: None)
    assert (one.name, one.key, one.folder, one.dimensions, measures) == (CONTROL, CONTROL, None, None, {})
    assert not cache.folder.exists()


def test_hash_chain_differs_for_different_maps_of_equal_tensors(corpus, tmp_path):
    keys = []
    for number, (steps, normalize) in enumerate([("r2", True), ("r2", False), ("rand:seed=1", True), ("r2", True)]):
        Chain(parse_steps(steps), normalize).fit(corpus.fit).save(tmp_path / str(number))
        keys.append(hash_chain(Chain.load(tmp_path / str(number))))
    assert len(set(keys[:3])) == 3 and keys[3] == keys[0]


def test_the_measures_of_a_reduction_are_computed_on_held_out_sentences(cache, corpus):
    _, _, measures = fit_or_load(cache, PCA, corpus)
    after = Chain(parse_steps("pca:6")).fit(corpus.fit).transform(corpus.heldout)
    expected = {
        "local_spearman": local_spearman(corpus.heldout, after),
        "positional": positional_stress(corpus.heldout, after),
        "angular": angular_stress(corpus.heldout, after),
        "recall_at_10": recall_at_k(corpus.heldout, after),
    }
    assert measures == pytest.approx(expected, abs=1e-6)


def test_method_cache_refuses_a_fit_without_a_corpus_and_writes_no_file(cache):
    with pytest.raises(EvaluationError, match="R2 is fitted on sentences: name some with --corpus"):
        cache.load_or_fit(list_debiasing_methods()[1], ENCODER, None, DIGEST, lambda _: None)
    assert files(cache.folder) == {}


def test_a_nested_chain_is_also_compared_at_requested_smaller_sizes(nested, cache, corpus, rows):
    sizes = [Fraction(size) for size in (6, 12, 18, 6)]
    request = Request(Suite("", "", ()), [], Path(), chains=[nested], sizes=sizes)
    methods = request.methods(WIDTH)
    assert len({method.name for method in methods}) == len(methods)
    chains = [(method.name, method.size) for method in methods if method.chain]
    assert chains == [("mine@1", 12), ("mine@1 rescored", None), ("mine@1, 6", 6)]
    one, chain, measures = fit_or_load(cache, nested.cut(6), corpus)
    first = nested.chain.transform(rows)[:, :6]
    cut = chain.transform(rows, one.dimensions)
    np.testing.assert_allclose(cut, first / np.linalg.norm(first, axis=1, keepdims=True), atol=1e-5)
    after = nested.chain.transform(corpus.heldout, 6)
    assert measures["local_spearman"] == pytest.approx(local_spearman(corpus.heldout, after), abs=1e-6)


def test_a_chain_is_also_rescored_on_searches_only_if_its_vectors_are_smaller(rows, nested):
    for steps, size in (("r2", None), ("int8", None), ("truncation:12", 12)):
        chain = Method("one@1", "chain", "one@1", size=size, chain=Chain(parse_steps(steps)).fit(rows), key="k")
        names = [method.name for method in Request(Suite("", "", ()), [], Path(), chains=[chain]).methods(WIDTH)]
        assert ("one@1 rescored" in names) == (steps != "r2")
    rescored = nested.rescored()
    assert [rescored.suits_task(kind) for kind in ("Retrieval", "Reranking", "STS")] == [True, False, False]
    assert nested.suits_task("STS")
    assert rescored.key_on(ENCODER, "") != nested.key_on(ENCODER, "")


def test_a_chain_that_is_not_nested_cannot_be_cut(rows):
    chain = Chain(parse_steps("random_projection:12")).fit(rows)
    assert not Method("flat@1", "chain", "flat@1", size=12, chain=chain, key="k").cuts_to(6)
    assert not list_debiasing_methods()[0].cuts_to(6)


def test_unsuited_reason_names_another_encoder_or_other_dimensions(nested):
    assert nested.unsuited_reason(ENCODER, WIDTH) is None
    assert nested.unsuited_reason("e" * 32, WIDTH) == "it was fitted on another encoder's vectors"
    anyones = replace(nested, only=None)
    assert anyones.unsuited_reason("e" * 32, WIDTH) is None
    assert anyones.unsuited_reason(ENCODER, 384) == "it takes vectors 24 wide, these are 384"
    assert all(
        method.unsuited_reason(ENCODER, 384) is None for method in [build_control_method(), *list_debiasing_methods()]
    )


def test_stored_model_returns_stored_vectors_by_prompt_through_the_chain(nested, rows, tmp_path):
    from mteb.types import PromptType  # seconds of import

    from lathe.training.datasets.mteb_tasks import build_task
    from lathe.training.evaluation.model import Collector, StoredModel

    prompts = {"query": "find: "}
    about = {"task_metadata": build_task(LAYOUTS["pairs"], "x", "en", Search({}, {}, {})).metadata}
    asking, answering = about | {"prompt_type": PromptType.query}, about | {"prompt_type": PromptType.document}
    collector = Collector(prompts)
    collector.encode([{"text": ["a"]}, {"text": ["b", "a"]}], **asking)
    collector.encode([{"text": ["a"]}], **answering)
    assert list(collector.asked) == [("query", "a"), ("query", "b"), (None, "a")]

    store = VectorStore(tmp_path, WIDTH)
    store.add([text_key(text, prompts.get(name)) for name, text in collector.asked], rows[:3])
    raw = StoredModel("e+control", "f-control", prompts, None, store)
    cut = StoredModel("e+mine", "f-mine", prompts, None, store, nested.chain, 6)
    np.testing.assert_array_equal(raw.encode([{"text": ["b"]}, {"text": ["a"]}], **asking), rows[[1, 0]])
    np.testing.assert_array_equal(raw.encode([{"text": ["a"]}], **answering), rows[[2]])
    np.testing.assert_array_equal(cut.encode([{"text": ["a", "b"]}], **asking), nested.chain.transform(rows[:2], 6))
    assert raw.encode([{"text": []}], **asking).shape == (0, WIDTH)
    metas = [model.mteb_model_meta for model in (raw, cut)]
    assert len({meta.name for meta in metas}) == len({meta.revision for meta in metas}) == 2
