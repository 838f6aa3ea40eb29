import hashlib
from dataclasses import replace

import numpy as np
import pytest
from prometheus_client import REGISTRY

from lathe.service.chains.registry import STARTERS, Registry
from lathe.service.chains.resolve import NotAtOnceError
from lathe.service.encoders.cache import ENTRY_BYTES, VectorCache
from lathe.service.encoders.embedder import Embedder, EmbedRequest
from lathe.service.encoders.engine.work import EncodedTexts, EncodeOptions, EncoderInfo, Work
from lathe.training.encoder.spec import DEFAULT_ENCODER, EncoderSpec
from lathe.transforms.chain import Chain

PROMPTS = {"query": "find: ", "same": "find: ", "passage": ""}
INFO = EncoderInfo(DEFAULT_ENCODER, "f" * 32, 384, 256, PROMPTS, None, "cpu", 1024, None)
ENTRY = 384 * 4 + ENTRY_BYTES


def keys_of(*texts, info=INFO, **options):
    """Compute the cache keys of texts."""
    encode_options = EncodeOptions(**options)
    return VectorCache(1).compute_keys(info, encode_options, info.prompt_key(encode_options.prompt_name), texts)


def vectors_of(count, width=384):
    """Return distinct vectors `(count, width)`, and how many tokens of each text were read, and how many cut."""
    vectors = np.arange(count * width, dtype=np.float32).reshape(count, width)
    return vectors, np.arange(count), np.zeros(count, np.int64)


def test_a_cached_vector_is_returned_unchanged():
    cache, keys = VectorCache(10 * ENTRY), keys_of("a", "b", "c")
    vectors, tokens, cut = vectors_of(2)
    cache.put(keys[:2], vectors, tokens, cut)
    kept = vectors.copy()
    vectors[:] = 0  # the cache has its own
    first, second, missing = cache.get(INFO, keys, True)
    np.testing.assert_array_equal([first.vector, second.vector], kept)
    assert [first.tokens, second.tokens] == [0, 1] and missing is None


def test_the_least_recently_used_vectors_are_evicted():
    cache, keys = VectorCache(3 * ENTRY), keys_of(*"abcd")
    for key in keys[:3]:
        cache.put([key], *vectors_of(1))
    cache.get(INFO, [keys[0]], True)
    cache.put([keys[3]], *vectors_of(1))
    assert [entry is not None for entry in cache.get(INFO, keys, True)] == [True, False, True, True]
    assert REGISTRY.get_sample_value("lathe_cache_bytes") == 3 * ENTRY


def test_the_cache_stays_within_its_bytes_and_skips_larger_vectors():
    cache = VectorCache(10 * ENTRY + 1)
    keys = keys_of(*map(str, range(100)))
    cache.put(keys, *vectors_of(100))
    assert sum(entry is not None for entry in cache.get(INFO, keys, True)) == 10
    cache.put(keys_of("wide"), *vectors_of(1, width=10 * 384 + 1000))
    assert cache.get(INFO, keys_of("wide"), True) == [None] and cache.get(INFO, keys[-1:], True) != [None]


def test_a_size_of_zero_bytes_turns_the_cache_off_and_truncate_false_does_not_use_it():
    cache = VectorCache(0)
    assert not cache.can_serve(EncodeOptions())
    cache.put(keys_of("a"), *vectors_of(1))
    assert cache.get(INFO, keys_of("a"), True) == [None]
    assert VectorCache(1).can_serve(EncodeOptions()) and not VectorCache(1).can_serve(EncodeOptions(long_text="error"))


def test_cache_keys_depend_on_text_fingerprint_dtype_prompt_truncation_and_norm_only():
    others = [
        keys_of("text "),
        keys_of("text", info=replace(INFO, fingerprint="e" * 32)),
        keys_of("text", info=replace(INFO, spec=replace(DEFAULT_ENCODER, dtype="bfloat16"))),
        keys_of("text", prompt_name="query"),
        keys_of("text", prompt_name="passage"),  # an empty prompt may be one all the same
        keys_of("text", truncation_side="left"),
        keys_of("text", normalize=False),
        keys_of("\ud800"),
    ]
    assert len({keys_of("text")[0], *(key for (key,) in others)}) == len(others) + 1
    assert keys_of("text", prompt_name="query") == keys_of("text", prompt_name="same")
    assert keys_of("text", prompt_name="query") == keys_of("text", info=replace(INFO, default_prompt_name="same"))
    assert keys_of("text", info=replace(INFO, spec=EncoderSpec(name="another"), device="cuda")) == keys_of("text")


class Double:
    """Fake engine and its queue: a text's vector is drawn from its hash, and the admitted texts are recorded."""

    spec = DEFAULT_ENCODER

    def __init__(self, fingerprint):
        self.info = replace(INFO, fingerprint=fingerprint)
        self.asked = []
        self.queue = self

    def get_ready_info(self):
        return self.info

    def admit(self, texts, options, max_length, chain=None, keep_raw=False, positions=None):
        assert max_length == self.info.max_length
        self.asked.append(texts)
        seeds = [int(hashlib.md5(text.encode()).hexdigest()[:8], 16) for text in texts]
        raw = np.stack([np.random.default_rng(seed).standard_normal(384, np.float32) for seed in seeds])
        raw = raw / np.linalg.norm(raw, axis=1, keepdims=True) if options.normalize else raw
        vectors = raw if chain is None else Chain.load(chain.folder).fold(chain.dimensions, chain.normalize).floats(raw)
        work = Work(texts, options, chain, keep_raw, 256)
        kept = raw if keep_raw and chain else None
        lengths = np.array([len(text) for text in texts])
        work.future.set_result(EncodedTexts(vectors, kept, lengths, np.zeros_like(lengths), 1.0, 2.0))
        return work


@pytest.fixture
def embedders():
    """Return the same embedder with a cache and without one."""
    registry = Registry(STARTERS, shipped=True)
    engine = Double(registry.load("compact").encoder_fingerprint)
    return [Embedder([engine], registry, VectorCache(size)) for size in (10**6, 0)]


def answer(embedder, texts, chain=None, dimensions=None, **options):
    """Embed texts and wait for the answer."""
    return embedder.begin(
        EmbedRequest(texts, embedder.default, EncodeOptions(**options), chain, dimensions)
    ).wait_for_answer()


@pytest.mark.parametrize(
    "asked",
    [
        {"normalize": False},
        {"chain": "compact"},
        {"chain": "compact", "dimensions": 32},
        {"chain": "debias", "normalize": False},
    ],
)
def test_embedder_answers_are_the_same_with_texts_cached_fully_partly_or_not(embedders, asked):
    cached, uncached = embedders
    engine = cached.default
    first, second = ["a", "bb", "ccc", "bb"], ["dddd", "ccc", "a", "e", "bb"]
    for texts, missing in ((first, [first]), (second, [["dddd", "e"]]), (second, [])):
        engine.asked.clear()
        with_cache = answer(cached, texts, **asked)
        assert engine.asked == missing
        without = answer(uncached, texts, **asked)
        np.testing.assert_allclose(with_cache.vectors, without.vectors, rtol=0, atol=1e-5)
        assert with_cache.tokens == without.tokens == sum(map(len, texts))
        assert with_cache.target.space_id == without.target.space_id
        assert with_cache.vectors.dtype == np.float32


def test_all_chains_share_the_cached_encoder_vectors(embedders):
    cached, _ = embedders
    answer(cached, ["a", "bb"], chain="compact")
    others = [{}, {"chain": "debias"}, {"chain": "compact", "dimensions": 8}, {"chain": "debias", "normalize": False}]
    for asked in others:
        found = answer(cached, ["bb", "a"], **asked)
        assert found.timings == {} and found.build_headers()["x-inference-time"] == "0.000"
    assert len(cached.default.asked) == 1
    answer(cached, ["a"], normalize=False)  # raw vectors of their own length are other vectors
    assert len(cached.default.asked) == 2


def counted(name):
    """Return the value of a cache counter."""
    return REGISTRY.get_sample_value(f"lathe_cache_{name}_total", {"encoder": DEFAULT_ENCODER.name}) or 0


def test_embed_answers_a_repeated_request_from_the_cache(client):
    texts = [f"a text that only the cache's own test sends, number {number}" for number in range(4)]
    before = counted("hits"), counted("misses")
    first = client.post("/embed", json={"inputs": texts, "dimensions": 64})
    second = client.post("/embed", json={"inputs": texts[::-1], "dimensions": 64})
    np.testing.assert_allclose(second.json()[::-1], first.json(), rtol=0, atol=1e-5)
    assert float(first.headers["x-inference-time"]) > 0 == float(second.headers["x-inference-time"])
    assert (counted("hits") - before[0], counted("misses") - before[1]) == (4, 4)
    measured = client.post("/embed", json={"inputs": texts, "dimensions": 64, "truncate": False})
    assert float(measured.headers["x-inference-time"]) > 0 and counted("hits") == before[0] + 4
    np.testing.assert_allclose(measured.json(), first.json(), rtol=0, atol=1e-5)
    usage = [client.post("/v1/embeddings", json={"input": some}).json()["usage"] for some in (texts, ["new", *texts])]
    assert usage[1]["total_tokens"] == usage[0]["total_tokens"] + 3


@pytest.mark.parametrize("asked", [{"dimensions": 32}, {"chain": "debias", "dimensions": 384}])
def test_a_request_begins_at_once_only_when_its_chain_is_in_memory_and_folded(embedders, asked):
    """A first request loads and folds the chain. A request without a chain needs neither."""
    embedder, _ = embedders
    names = {"chain": None, "dimensions": None} | asked

    def begin(at_once):
        engine, options = embedder.default, EncodeOptions()
        return embedder.begin(EmbedRequest(["text"], engine, options, **names), at_once)

    assert embedder.begin(EmbedRequest(["raw"], embedder.default, EncodeOptions()), at_once=True).work is not None
    with pytest.raises(NotAtOnceError):
        begin(at_once=True)
    expected = begin(at_once=False).wait_for_answer().vectors
    np.testing.assert_array_equal(begin(at_once=True).wait_for_answer().vectors, expected)
    embedder.registry.loaded.clear()
    with pytest.raises(NotAtOnceError):
        begin(at_once=True)


def test_a_request_never_begins_at_once_where_another_server_is_asked_for_cached_vectors(embedders):
    embedder, _ = embedders
    embedder.cache.second_level = object()
    with pytest.raises(NotAtOnceError):
        embedder.begin(EmbedRequest(["text"], embedder.default, EncodeOptions()), at_once=True)
