import os
import signal
import time
import zlib

import numpy as np
import pytest
from prometheus_client import REGISTRY

from lathe.service.encoders.cache import VectorCache
from lathe.service.encoders.embedder import Embedder, EmbedRequest
from lathe.service.encoders.engine.work import EncodeOptions, EncoderInfo
from lathe.service.redis.cache import COSINE, MAX_WAITING, OLD, PATIENCE_SECONDS, STATE, YOUNG, SharedCache
from lathe.training.encoder.spec import DEFAULT_ENCODER
from tests.helpers import eventually

pytestmark = pytest.mark.services

WIDTH = 384
BOUND = 1_000_000
PROMPTS = {"query": "find: ", "passage": ""}
INFO = EncoderInfo(DEFAULT_ENCODER, "f" * 32, WIDTH, 256, PROMPTS, None, "cpu", 1024, None)


def random_vectors(count, seed=0):
    """Draw normal vectors `(count, WIDTH)`."""
    return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)


def unit(vectors):
    """Scale vectors to unit norm, as float32."""
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def keys_of(*texts, info=INFO, **options):
    """Compute the cache keys of texts."""
    encode_options = EncodeOptions(**options)
    return VectorCache(1).compute_keys(info, encode_options, info.prompt_key(encode_options.prompt_name), texts)


def counts_of(vectors):
    """Return how many tokens of each vector's text were read, and how many cut."""
    return np.arange(len(vectors)) + 3, np.zeros(len(vectors), np.int64)


def counted(name, **labels):
    """Return the value of a counter of the shared cache."""
    return REGISTRY.get_sample_value(f"lathe_shared_cache_{name}_total", labels) or 0


def seconds_of(call):
    """Time a call and return the seconds and what it returned."""
    begun = time.perf_counter()
    found = call()
    return time.perf_counter() - begun, found


@pytest.fixture
def open_cache(open_replica):
    """Open a replica and its part of the cache."""

    def open_one(name="replica", **options):
        return open_replica(name, **({"cache_bytes": BOUND, "cache_seconds": 3600} | options)).cache

    return open_one


def put(cache, keys, vectors):
    """Write vectors to the shared cache and wait until they are written."""
    cache.write_batch(keys, vectors, *counts_of(vectors))


def test_a_vector_cached_by_one_replica_is_found_by_another(open_cache):
    here, there = open_cache("here"), open_cache("there")
    keys, vectors = keys_of("a", "b", "c"), unit(random_vectors(2))
    before = counted("hits"), counted("misses")
    here.put(keys[:2], vectors, *counts_of(vectors))
    vectors[:] = 0  # it is written later, from a copy
    first, second, third = eventually(lambda: found if (found := there.get(keys, True, WIDTH))[0] else None)
    np.testing.assert_allclose([first.vector, second.vector], unit(random_vectors(2)), atol=1e-4)
    assert (first.tokens, second.tokens, third) == (3, 4, None)
    assert counted("hits") - before[0] == 2 and counted("misses") - before[1] >= 1
    assert VectorCache(BOUND, second_level=there).get(INFO, keys, True)[1].tokens == 4
    assert there.get([], True, WIDTH) == []


def test_the_tokens_that_were_cut_are_stored_with_a_vector(open_cache):
    cache, keys, vectors = open_cache(), keys_of("a", "b"), unit(random_vectors(2))
    cache.write_batch(keys, vectors, counts_of(vectors)[0], np.array([0, 70_000]))
    found = cache.get([*keys, *keys_of("a", normalize=False)], True, WIDTH)
    assert found.pop() is None  # what keys depend on is tested of those of the server's own cache
    assert [(entry.tokens, entry.cut) for entry in found] == [(3, 0), (4, 70_000)]
    np.testing.assert_allclose([entry.vector for entry in found], vectors, atol=1e-4)


def spread(seed):
    """Draw unit vectors whose entries differ by orders of magnitude."""
    rng = np.random.default_rng(seed)
    return unit(random_vectors(200, seed) * np.exp(rng.normal(size=WIDTH) * 2).astype(np.float32))


def rounded_worst():
    """Build a unit vector whose entries lie halfway between two float16 values."""
    down, up = 1 + 2.0**-11, 1 + 3 * 2.0**-11
    large, small = np.tile([down, up], 192)[:255] * 2.0**-4, np.tile([down, up], 192)[:129] * 2.0**-8
    return np.concatenate([large, small]).astype(np.float32)[None]


def test_cached_unit_vectors_have_at_least_the_stated_cosine_and_norm_1(open_cache):
    worst = rounded_worst()
    np.testing.assert_allclose(np.linalg.norm(worst), 1, atol=2e-5)
    vectors = np.concatenate([unit(random_vectors(300)), spread(1), np.eye(WIDTH, dtype=np.float32)[:3], worst])
    cache, keys = open_cache(), keys_of(*map(str, range(len(vectors))))
    put(cache, keys, vectors)
    found = np.stack([entry.vector for entry in cache.get(keys, True, WIDTH)])
    assert found.dtype == np.float32
    lengths = np.linalg.norm(found.astype(float), axis=1)
    np.testing.assert_allclose(lengths, 1, rtol=0, atol=1e-6)
    originals = np.linalg.norm(vectors.astype(float), axis=1)
    cosines = (found.astype(float) * vectors.astype(float)).sum(axis=1) / lengths / originals
    assert cosines.min() >= COSINE


def test_unnormalized_vectors_are_cached_as_float16_and_not_cached_if_they_overflow(open_cache):
    cache, vectors = open_cache(), 30 * random_vectors(4)
    vectors[1, 7], vectors[2, 0], vectors[3, 5] = 70_000, np.nan, -np.inf
    keys = keys_of(*"abcd", normalize=False)
    put(cache, keys, vectors)
    first, *others = cache.get(keys, False, WIDTH)
    np.testing.assert_array_equal(first.vector, vectors[0].astype(np.float16).astype(np.float32))
    assert others == [None, None, None]


def test_the_shared_cache_stays_within_its_bytes_and_has_the_newest_vectors(open_cache, redis_server):
    cache, client = open_cache(), redis_server.client
    for batch in range(60):
        vectors = unit(random_vectors(40, seed=batch))
        put(cache, keys_of(*(f"{batch} {row}" for row in range(40))), vectors)
        if batch % 10 == 9:
            used = sum(client.memory_usage(key, samples=0) or 0 for key in (YOUNG, OLD, STATE))
            assert used <= 1.3 * BOUND
    assert used >= 0.4 * BOUND  # it is made use of
    newest = [key for batch in range(52, 60) for key in keys_of(*(f"{batch} {row}" for row in range(40)))]
    assert all(cache.get(newest, True, WIDTH))
    assert not any(cache.get(keys_of(*(f"0 {row}" for row in range(40))), True, WIDTH))


def test_cached_vectors_and_all_keys_expire(open_cache, redis_server):
    cache, client, vectors = open_cache(cache_seconds=2), redis_server.client, unit(random_vectors(1))

    def lives():
        ttls = {key: client.pttl(key) for key in client.keys("lathe:cache:*")}
        assert all(-2 == left or 0 < left <= 2000 for left in ttls.values()), ttls
        return set(ttls)

    for attempt in range(5):
        eventually(lambda: not client.keys("lathe:cache:*"))
        begun, pauses, seen = time.monotonic(), [], set()
        put(cache, keys_of(f"first {attempt}"), vectors)
        assert lives() == {YOUNG.encode(), STATE.encode()}
        while cache.get(keys_of(f"first {attempt}"), True, WIDTH) != [None]:
            last = time.monotonic()
            put(cache, keys_of(f"another {attempt} {len(pauses)}"), vectors)
            seen.update(lives())
            time.sleep(0.1)
            pauses.append(time.monotonic() - last)
        if max(pauses) < 0.5:  # a busy machine can pause for longer than a half of the cache lives
            break
    assert 0.9 < time.monotonic() - begun < 3.5 and OLD.encode() in seen
    eventually(lambda: not client.keys("lathe:cache:*"))


def test_damaged_entries_are_counted_and_treated_as_misses(open_cache, redis_server):
    cache, client = open_cache(), redis_server.client
    keys = keys_of(*"abcdefghijk")
    put(cache, keys[:1], unit(random_vectors(1)))
    good = client.hget(YOUNG, keys[0])
    nan = np.full(WIDTH, np.nan, np.float16).tobytes()
    flipped = good[:-1] + bytes([good[-1] ^ 1])
    damaged = [b"", b"x", good[:4], good[:-1], good + b"x", good[: -len(nan)] + nan, flipped]
    other = [np.ones(WIDTH + 1, np.float16).tobytes(), nan, good[8:] + b"x"]  # as if they had been written so
    damaged += [zlib.crc32(b"\1\0\0\0" + vector).to_bytes(4, "little") + b"\1\0\0\0" + vector for vector in other]
    client.hset(YOUNG, mapping=dict(zip(keys[1:], damaged, strict=True)))
    noted = REGISTRY.get_sample_value("lathe_redis_damaged_total", {"what": "vector"}) or 0
    entry, *misses = cache.get(keys, True, WIDTH)
    assert entry.tokens == 3 and misses == [None] * len(damaged)
    assert REGISTRY.get_sample_value("lathe_redis_damaged_total", {"what": "vector"}) == noted + len(damaged)
    before = counted("failures", operation="read")
    client.set(OLD, "no hash")
    assert cache.get(keys, True, WIDTH) == [None] * 11 and counted("failures", operation="read") == before + 1
    assert cache.connection.up  # Redis is there, and its other keys


def test_without_redis_the_shared_cache_misses_without_waiting_until_redis_is_back(open_replica, own_redis):
    cache = open_replica("replica", own_redis.url, cache_bytes=BOUND, cache_seconds=60).cache
    keys, vectors = keys_of("a", "b"), unit(random_vectors(2))
    put(cache, keys, vectors)
    before = counted("failures", operation="read") + counted("failures", operation="write"), counted("misses")
    own_redis.stop()
    seconds, found = seconds_of(lambda: cache.get(keys, True, WIDTH))
    assert found == [None, None] and seconds < 0.5
    eventually(lambda: not cache.connection.up, 3)
    taken = [seconds_of(lambda: cache.get(keys, True, WIDTH))[0] for _ in range(100)]
    assert np.median(taken) < PATIENCE_SECONDS / 10  # a machine may be slow; that nobody is asked is counted below
    assert seconds_of(lambda: cache.put(keys, vectors, *counts_of(vectors)))[0] < PATIENCE_SECONDS / 2
    after = counted("failures", operation="read") + counted("failures", operation="write"), counted("misses")
    assert after[1] - before[1] == 202 and after[0] - before[0] <= 1
    own_redis.start()
    eventually(lambda: cache.connection.up, 5)
    cache.put(keys, vectors, *counts_of(vectors))
    eventually(lambda: all(cache.get(keys, True, WIDTH)))


def test_an_unresponsive_redis_delays_only_the_first_request_by_half_a_second_and_failures_are_counted(
    open_replica, own_redis
):
    replica = open_replica("replica", own_redis.url, cache_bytes=BOUND, cache_seconds=60)
    cache, keys, vectors = replica.cache, keys_of("a"), unit(random_vectors(1))
    put(cache, keys, vectors)
    assert all(cache.get(keys, True, WIDTH))
    os.kill(own_redis.process.pid, signal.SIGSTOP)
    try:
        seconds, found = seconds_of(lambda: cache.get(keys, True, WIDTH))
        assert found == [None] and seconds < 0.5
        for call in (lambda: cache.get(keys, True, WIDTH), lambda: cache.put(keys, vectors, *counts_of(vectors))):
            assert seconds_of(call)[0] < PATIENCE_SECONDS / 2  # once was enough
    finally:
        os.kill(own_redis.process.pid, signal.SIGCONT)
    eventually(lambda: all(cache.get(keys, True, WIDTH)))
    replica.stop_replicator()  # it would be the first to notice
    own_redis.stop()
    before = counted("failures", operation="read") + counted("failures", operation="write")
    # On a slow machine, the write of before may be the first to find Redis gone, and not the read.
    eventually(lambda: cache.get(keys, True, WIDTH) == [None] and not cache.connection.up)
    assert counted("failures", operation="read") + counted("failures", operation="write") > before
    written = counted("failures", operation="write")
    replica.connection.mark_up()
    cache.put(keys, vectors, *counts_of(vectors))
    eventually(lambda: counted("failures", operation="write") == written + 1)


def test_writes_over_the_queue_limit_are_dropped_and_counted(open_replica):
    connection = open_replica().connection
    cache, vectors = SharedCache(connection, BOUND, 60), unit(random_vectors(1))  # not started: nobody writes
    before = counted("failures", operation="write")
    for number in range(MAX_WAITING + 3):
        cache.put(keys_of(str(number)), vectors, *counts_of(vectors))
    assert counted("failures", operation="write") == before + 3
    cache.stop()


def test_a_full_redis_refuses_new_vectors_and_serves_cached_ones(open_cache, redis_server):
    cache, vectors = open_cache(), unit(random_vectors(1))
    put(cache, keys_of("a"), vectors)
    before = counted("failures", operation="write")
    redis_server.client.config_set("maxmemory", 100_000)
    try:
        cache.put(keys_of("b"), vectors, *counts_of(vectors))
        eventually(lambda: counted("failures", operation="write") == before + 1)
        assert cache.connection.up
        assert cache.get(keys_of("a"), True, WIDTH)[0].tokens == 3
    finally:
        redis_server.client.config_set("maxmemory", 0)


# A whole service


@pytest.fixture(scope="module")
def app(start_app, start_redis, new_home):
    """Start an app with a shared cache."""
    with start_app(home=new_home(), redis_url=start_redis().url, redis_cache_bytes=BOUND) as app:
        yield app


def embed(app, texts, **body):
    """Embed texts and return the vectors and the inference time."""
    answer = app.client.post("/embed", json={"inputs": texts} | body)
    assert answer.status_code == 200, answer.text
    return np.array(answer.json()), float(answer.headers["x-inference-time"])


def test_embed_answers_from_the_shared_cache_within_its_stated_cosine(app, sentences):
    services, cache = app.services, app.services.replica.cache
    encoder = services.embedder.default.get_ready_info()
    raw, _ = embed(app, sentences)
    reduced, _ = embed(app, sentences, dimensions=64)
    keys = services.embedder.cache.compute_keys(encoder, EncodeOptions(), None, sentences)
    found = eventually(lambda: found if all(found := cache.get(keys, True, WIDTH)) else None)
    cosines = (np.stack([entry.vector for entry in found]).astype(float) * raw).sum(axis=1)
    assert cosines.min() >= COSINE - 1e-9
    for body, before in (({}, raw), ({"dimensions": 64}, reduced)):
        services.embedder.cache.entries.clear()
        again, inference = embed(app, sentences, **body)
        assert inference == 0
        np.testing.assert_allclose(again, before, atol=2e-4)
        np.testing.assert_allclose(np.linalg.norm(again, axis=1), 1, atol=1e-6)


def test_with_a_cache_of_zero_bytes_the_shared_cache_is_unused_too(app):
    services, shared = app.services, app.services.replica.cache
    without = Embedder([services.embedder.default], services.registry, VectorCache(0, shared))
    texts = ["a text that only this test sends"]
    before = counted("hits"), counted("misses")
    for _ in range(2):
        answer = without.begin(EmbedRequest(texts, without.default, EncodeOptions())).wait_for_answer()
        assert answer.timings["inference"] > 0
    embed(app, ["another"])  # written behind the first, had that been put
    keys = services.embedder.cache.compute_keys(
        without.default.get_ready_info(), EncodeOptions(), None, ["another", *texts]
    )
    eventually(lambda: shared.get(keys[:1], True, WIDTH) != [None])
    assert counted("hits") - before[0] == 1 and shared.get(keys[1:], True, WIDTH) == [None]
