from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from lathe.training.errors import EvaluationError
from lathe.training.evaluation.methods import EvaluatedMethod
from lathe.training.evaluation.suites import Suite
from lathe.transforms import Chain, local_spearman, parse_steps
from research.fitted_methods.corpus import read_corpus_sentences, split_corpus
from research.fitted_methods.evaluation import FittedRequest
from research.fitted_methods.method_cache import MethodCache
from research.fitted_methods.methods import (
    RANDOM_SEEDS,
    build_reducer,
    label_method,
    list_debiasing_methods,
)

WIDTH = 24
ENCODER, DIGEST = "f" * 32, "c" * 32
PCA = build_reducer("pca:6", "pca", 6).on(ENCODER, DIGEST)


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
    return label_method(EvaluatedMethod("mine@1", "chain", chain, "k", ENCODER))


def fit_or_load(cache, method, corpus):
    """Return the cached method, the chain in its folder and its measures, fitting it if missing."""
    one, measures = cache.load_or_fit(method.on(ENCODER, DIGEST), ENCODER, corpus, lambda _: None)
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


def test_method_cache_fits_a_method_once_and_then_loads_the_chain(cache, corpus):
    told = []
    first, measures = cache.load_or_fit(PCA, ENCODER, corpus, told.append)
    assert told == ["fitting pca:6"]
    before = files(cache.folder)
    assert cache.load_or_fit(PCA, ENCODER, None, told.append) == (first, {})  # no corpus to fit or measure on
    assert cache.load_or_fit(PCA, ENCODER, corpus, told.append) == (first, measures)
    assert files(cache.folder) == before and len(told) == 1
    assert Chain.load(first.folder) == Chain(parse_steps("pca:6")).fit(corpus.fit)


def test_a_nested_chain_is_also_compared_at_requested_smaller_sizes(nested, cache, corpus, rows):
    sizes = [Fraction(size) for size in (6, 12, 18, 6)]
    chain = EvaluatedMethod(nested.name, nested.group, nested.chain, nested.key, nested.encoder_fingerprint)
    request = FittedRequest(Suite("", "", ()), [], Path(), chains=[chain], sizes=sizes)
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


def test_read_corpus_sentences_takes_distinct_sentences_of_64_to_512_characters(tmp_path):
    """Fewer than 120 are refused."""
    path = tmp_path / "corpus.txt"
    right = [f"sentence {number} ".ljust(64 + number, "x") for number in range(120)]
    path.write_text("\n".join(["short", *right, *right[:10], "x" * 513]))
    assert read_corpus_sentences(str(path)) == right
    path.write_text("\n".join(["short", *right[1:], *right[1:]]))
    with pytest.raises(EvaluationError, match="has 119 sentences of .*; methods are fitted on 120 or more"):
        read_corpus_sentences(str(path))
