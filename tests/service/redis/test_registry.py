import hashlib
import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from prometheus_client import REGISTRY
from redis.client import Pipeline
from redis.exceptions import WatchError

from lathe.service.chains.pointer import Pointer
from lathe.service.chains.version_folder import promote_with_gates
from lathe.service.encoder_settings import TrainedSpecs
from lathe.service.encoders.trained import TrainedEncoders
from lathe.service.errors import UnavailableError, UnknownNameError
from lathe.service.home import Home
from lathe.service.publishing.context import PublishContext, open_trained
from lathe.service.publishing.fits import run_fit
from lathe.service.redis.shared_versions import IDENTITY
from lathe.service.redis.version_record import CHANGES, RecordedVersion, build_key, write_pointer
from lathe.service.settings import Settings
from lathe.training.fitting.requests import NewFit
from lathe.transforms import ArtifactError
from lathe.transforms.artifact import MANIFEST, TENSORS
from tests.helpers import eventually

pytestmark = pytest.mark.services

STARTERS = {"codes48", "compact", "debias"}
SWITCH_SECONDS = 1.0
PATIENCE_SECONDS = 6.0


@pytest.fixture
def within_a_second():
    """Return a function that makes a change and asserts that a condition holds within a second."""

    def check(change, condition):
        begun = time.monotonic()
        changed = change()
        eventually(condition)
        assert time.monotonic() - begun < SWITCH_SECONDS
        return changed

    return check


def refused_count():
    """Return how many versions were refused so far."""
    return REGISTRY.get_sample_value("lathe_registry_refused_total")


def live(replica, name="mine"):
    """Return the live version that a replica serves, or None if it serves none."""
    try:
        return replica.registry.load(name).version
    except UnknownNameError:
        return None


def fails_within_seconds(call, code):
    """Assert that a call raises `UnavailableError` with a code within seconds and return the message."""
    begun = time.monotonic()
    with pytest.raises(UnavailableError) as failed:
        call()
    assert failed.value.code == code and time.monotonic() - begun < PATIENCE_SECONDS
    return failed.value.message


def content_of(folder):
    """Return the content of all files of a folder, by relative path."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def left_over(registry):
    """List unfinished temporary files of a registry."""
    return [path for path in registry.root.glob("*/.*") if path.name != ".lock"]


# Two replicas


def test_changes_at_one_replica_are_served_by_the_other_within_a_second(open_replica, chains, rows, within_a_second):
    here, there = open_replica("here"), open_replica("there")
    within_a_second(lambda: here.registry.publish(chains[0], "mine", None), lambda: live(there) == 1)
    within_a_second(lambda: here.registry.publish(chains[1], "mine", True), lambda: live(there) == 2)
    np.testing.assert_array_equal(there.registry.load("mine").chain.transform(rows), chains[1].transform(rows))
    within_a_second(lambda: there.registry.rollback("mine"), lambda: live(here) == 1)
    within_a_second(lambda: promote_with_gates(there.registry, "mine", 2), lambda: live(here) == 2)
    within_a_second(lambda: promote_with_gates(here.registry, "mine", 1), lambda: live(there) == 1)
    within_a_second(lambda: here.registry.delete("mine", 2), lambda: there.registry.versions("mine") == [1])
    assert here.registry.read_pointer("mine") == there.registry.read_pointer("mine") == Pointer(1, (), 2)
    within_a_second(lambda: here.registry.delete("mine", 1), lambda: "mine" not in there.registry.names())


def test_a_size_route_assigned_by_one_replica_reaches_the_other_within_a_second(open_replica, chains, within_a_second):
    here, there = open_replica("here"), open_replica("there")
    for name in ("first", "second"):
        here.registry.publish(chains[0], name, True)
    taken = within_a_second(
        lambda: here.registry.size_routes.serve_dimensions("first"),
        lambda: there.registry.size_routes.get_current().get("enc") == {"4": "first"},
    )
    assert taken == ["4"]
    within_a_second(
        lambda: there.registry.size_routes.serve_dimensions("second"),
        lambda: here.registry.size_routes.find_chain_for("enc", 4, 8).name == "second",
    )


def test_concurrent_publishes_of_replicas_get_distinct_versions_and_those_of_one_job_get_one(open_replica, chains):
    replicas = [open_replica("here"), open_replica("there")]

    def publish(number, job=None):
        return replicas[number % 2].registry.publish(chains[number % 3], "mine", None, job)

    with ThreadPoolExecutor(4) as pool:
        published = list(pool.map(publish, range(8)))
        assert set(pool.map(publish, range(4), "aaaa")) == {(9, False)}
    assert sorted(version for version, _ in published) == list(range(1, 9))
    assert [version for version, is_live in published if is_live] == [1]
    for number, (version, _) in enumerate(published):
        for replica in replicas:
            eventually(lambda replica=replica, version=version: version in replica.registry.versions("mine"))
            loaded = replica.registry.load(f"mine@{version}")
            assert loaded.digest == replicas[0].registry.load(f"mine@{published[number % 3][0]}").digest


def test_a_change_whose_reply_was_lost_is_made_once(open_replica, chains):
    registry = open_replica("replica").registry
    for chain in chains:
        registry.publish(chain, "mine", True)
    sent, here = [], threading.current_thread()

    class Forgetful(Pipeline):
        def execute(self, *arguments, **more):
            done = super().execute(*arguments, **more)
            if not sent and threading.current_thread() is here:  # not one that looks for news
                sent.append(done)
                raise WatchError("the answer was lost")
            return done

    client = registry.connection.client
    client.pipeline = lambda transaction=True, shard_hint=None: Forgetful(
        client.connection_pool, client.response_callbacks, transaction, shard_hint
    )
    assert registry.rollback("mine").live == 2
    sent.clear()
    assert registry.publish(chains[0], "mine", None) == (4, False)
    assert registry.versions("mine") == [1, 2, 3, 4]
    sent.clear()
    registry.delete("mine", 4)
    del client.pipeline
    assert registry.versions("mine") == [1, 2, 3]


def test_damaged_tensors_of_a_local_copy_are_copied_again_and_never_written_to_redis(
    open_replica, chains, redis_server
):
    replica = open_replica("replica")
    replica.stop_replicator()  # it would be the first to notice
    registry = replica.registry
    registry.publish(chains[0], "mine", None)
    tensors = registry.root / "mine/1/chain.safetensors"
    whole = tensors.read_bytes()
    tensors.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert registry.load("mine").version == 1 and tensors.read_bytes() == whole
    tensors.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    redis_server.client.flushall()
    replica.bring_up_to_date()
    assert not redis_server.client.exists("lathe:chain:mine") and redis_server.client.exists("lathe:chain:compact")


def test_two_replicas_may_share_one_state_folder(open_replica, chains, caplog):
    writer, one, two = open_replica("writer"), open_replica("shared"), open_replica("shared")
    assert one.registry.root == two.registry.root
    for number in range(8):
        writer.registry.publish(chains[number % 3], "mine", True)
    for replica in (one, two):
        eventually(lambda replica=replica: live(replica) == 8)
        assert replica.registry.versions("mine") == list(range(1, 9)) and replica.connection.up
    two.registry.delete("mine", 1)
    eventually(lambda: 1 not in writer.registry.versions("mine"))
    eventually(lambda: left_over(one.registry) == [])  # the other may be writing just now
    assert "failed" not in caplog.text


# What was altered in Redis


def publish_altered(client, chains, how, folder, name="mine"):
    """Write version 2 of a chain as live, altered. Return the key of its files, and the unaltered ones."""
    for number in (1, 2):
        chains[number].save(folder / name / str(number), {"name": name, "version": 2})
    (manifest, tensors), (other, _) = (
        [(folder / name / number / file).read_bytes() for file in (MANIFEST, TENSORS)] for number in ("1", "2")
    )
    found = {"manifest": (other, tensors), "missing": (manifest, None), "cut": (manifest, tensors[:-10])}[how]
    version = RecordedVersion(hashlib.sha256(manifest).hexdigest())
    key = version.files_key
    with client.pipeline() as pipe:
        pipe.hset(build_key("chain", name), "version:2", version.serialize())
        pipe.hset(key, MANIFEST, found[0])
        if found[1] is not None:
            pipe.hset(key, f"{TENSORS}:0", found[1])
        write_pointer(pipe, "chain", name, Pointer(2, (1,), 2))
        pipe.execute()
    return key, {MANIFEST: manifest, f"{TENSORS}:0": tensors}


@pytest.mark.parametrize("how", ["manifest", "missing"])
def test_a_version_altered_in_redis_is_refused_and_the_earlier_one_serves(
    how, open_replica, redis_server, chains, caplog, tmp_path
):
    """Once its files are restored it can be promoted."""
    following, returning = open_replica("following"), open_replica("returning")
    following.registry.publish(chains[0], "mine", True)
    eventually(lambda: live(returning) == 1)
    returning.stop()
    counted = refused_count()
    key, files = publish_altered(redis_server.client, chains, how, tmp_path)
    eventually(lambda: following.registry.refused)
    for replica in (following, open_replica("returning"), open_replica("joining")):
        assert live(replica) == 1 and replica.registry.versions("mine") == [1]
        assert any("mine@2" in warning for warning in replica.warnings()) and replica.connection.up
        with pytest.raises((ArtifactError, UnknownNameError)):
            promote_with_gates(replica.registry, "mine", 2)
        assert replica.registry.read_pointer("mine").live == 1
    assert refused_count() >= counted + 3 and "mine@2 was altered" in caplog.text
    redis_server.client.hset(key, mapping=files)
    promote_with_gates(following.registry, "mine", 2)
    assert live(following) == 2 and following.warnings() == []


@pytest.mark.parametrize("content", [b"[]", None])
def test_malformed_records_in_redis_leave_what_is_served_unchanged(content, open_replica, redis_server, chains, caplog):
    here, there = open_replica("here"), open_replica("there")
    here.registry.publish(chains[0], "mine", True)
    here.registry.size_routes.serve_dimensions("mine")
    routes = eventually(lambda: there.registry.size_routes.read().get("enc"))
    key, client = build_key("chain", "mine"), redis_server.client
    client.hdel(key, "pointer") if content is None else client.hset(key, "pointer", content)
    client.hset("lathe:size_routes", "enc", b"[1]")
    client.xadd(CHANGES, {"chain": "mine"})
    here.registry.publish(chains[1], "mark", None)
    eventually(lambda: live(there, "mark") == 1)
    there.stop()
    for replica in (here, open_replica("there")):
        assert live(replica) == 1 and replica.connection.up
        assert replica.registry.size_routes.read()["enc"] == routes
    with pytest.raises(ArtifactError):
        here.registry.publish(chains[1], "mine", True)
    assert client.hkeys(key).count(b"version:2") == 0 and "copying changes from Redis failed" not in caplog.text


def test_invalid_chain_names_in_redis_are_ignored(open_replica, redis_server, chains):
    here, there = open_replica("here"), open_replica("there")
    client = redis_server.client
    for name in ("../outside", "a/b", ".hidden", ""):
        client.hset(build_key("chain", name), "pointer", Pointer(None, (), 0).serialize())
        client.xadd(CHANGES, {"chain": name})
    client.xadd(CHANGES, {"chain": b"\xff"})
    client.xadd(CHANGES, {"something": "else"})
    client.hset(
        build_key("chain", "mine"), mapping={"pointer": Pointer(1, (), 1).serialize(), "version:../../outside": "{}"}
    )
    client.xadd(CHANGES, {"chain": "mine"})
    here.registry.publish(chains[0], "mark", None)
    eventually(lambda: live(there, "mark") == 1)
    joining = open_replica("joining")
    for replica in (here, there, joining):
        eventually(lambda replica=replica: replica.connection.up)
        assert set(replica.registry.names()) == {"mark"} | STARTERS
        folders = {path.name for path in replica.registry.root.iterdir()}
        assert folders <= {"mark", "mine", ".identity"} | STARTERS
        assert not list(replica.registry.root.parent.parent.rglob("outside"))


# A copy that was damaged


def test_a_damaged_local_copy_is_repaired_from_redis(open_replica, chains, tmp_path):
    replica = open_replica("replica")
    replica.registry.publish(chains[0], "mine", True)
    replica.registry.size_routes.serve_dimensions("mine")
    were = replica.registry.size_routes.read()
    replica.stop()
    for file in ("chains/mine/pointer.json", "size_routes.json", "chains/mine/1/manifest.json"):
        (Home(tmp_path / "replica").shared / file).write_bytes(b"{")
        again = open_replica("replica")
        assert live(again) == 1 and again.registry.size_routes.read() == were and again.warnings() == [], file
        again.stop()


# Redis gone, and back


def test_without_redis_chains_are_served_and_changes_refused_until_it_is_back(
    open_replica, own_redis, chains, rows, caplog
):
    own_redis.stop()
    own_redis.start("--appendonly", "yes")
    here, there = open_replica("here", own_redis.url), open_replica("there", own_redis.url)
    for number in (0, 1):
        here.registry.publish(chains[number], "mine", True)
    here.registry.size_routes.serve_dimensions("mine")
    eventually(lambda: live(there) == 2 and there.registry.size_routes.get_current().get("enc"))
    own_redis.stop()
    registry, before = here.registry, content_of(here.registry.root)
    refused = [
        lambda: registry.publish(chains[2], "mine", True),
        lambda: registry.publish(chains[2], "new", True),
        lambda: promote_with_gates(registry, "mine", 1),
        lambda: registry.rollback("mine"),
        lambda: registry.delete("mine", 1),
        lambda: here.registry.size_routes.assign("enc", "4", "mine@1", replace=True),
    ]
    for call in refused:
        assert "Redis" in fails_within_seconds(call, "redis_unreachable")
    assert {p: c for p, c in content_of(registry.root).items() if p.name != ".lock"} == {
        p: c for p, c in before.items() if p.name != ".lock"
    }
    for replica in (here, there):
        eventually(lambda replica=replica: not replica.connection.up, 3)
        assert live(replica) == 2 and "Redis cannot be reached" in replica.warnings()[0]
        np.testing.assert_array_equal(replica.registry.load("mine").chain.transform(rows), chains[1].transform(rows))
        assert replica.registry.size_routes.find_chain_for("enc", 4, 8).version == 2
    assert REGISTRY.get_sample_value("lathe_redis_up") == 0
    restarted = open_replica("there", own_redis.url)
    assert live(restarted) == 2 and restarted.warnings()
    assert restarted.registry.size_routes.read() == here.registry.size_routes.read()

    own_redis.start("--appendonly", "yes")
    for replica in (here, there, restarted):
        eventually(lambda replica=replica: replica.connection.up, 5)
        assert replica.warnings() == [] and live(replica) == 2
    assert there.registry.publish(chains[2], "mine", True) == (3, True)
    eventually(lambda: live(here) == live(restarted) == 3)
    assert REGISTRY.get_sample_value("lathe_redis_up") == 1
    assert own_redis.password not in caplog.text


def test_a_redis_emptied_while_running_gets_all_chains_back(open_replica, redis_server, chains):
    here, there = open_replica("here"), open_replica("there")
    for chain in chains:
        here.registry.publish(chain, "mine", True)
    here.registry.rollback("mine")
    here.registry.delete("mine", 3)
    here.registry.size_routes.serve_dimensions("mine")
    eventually(
        lambda: there.registry.versions("mine") == [1, 2] and there.registry.size_routes.get_current().get("enc")
    )
    redis_server.client.flushall()
    eventually(lambda: redis_server.client.exists(build_key("chain", "mine")), 5)
    joining = open_replica("joining")
    for replica in (here, there, joining):
        assert live(replica) == 2 and replica.registry.versions("mine") == [1, 2]
        assert replica.registry.read_pointer("mine") == Pointer(2, (1,), 3)
        eventually(lambda replica=replica: replica.registry.size_routes.read().get("enc") == {"4": "mine"})
        assert not list(replica.registry.root.parent.glob("chains-*"))
    assert joining.registry.publish(chains[2], "mine", True) == (4, True)
    eventually(lambda: live(here) == 4)


def test_a_replica_started_without_redis_joins_it_once_it_is_reachable(open_replica, own_redis, chains):
    own_redis.stop()
    begun = time.monotonic()
    replica = open_replica("replica", own_redis.url)
    assert time.monotonic() - begun < PATIENCE_SECONDS
    assert set(replica.registry.names()) == STARTERS and replica.registry.load("compact").version == 1
    assert "Redis cannot be reached" in replica.warnings()[0]
    own_redis.start()
    eventually(lambda: replica.connection.up, 5)
    assert replica.warnings() == [] and own_redis.client.exists(*(build_key("chain", name) for name in STARTERS)) == 3
    assert replica.registry.publish(chains[0], "mine", None) == (1, True)
    assert live(open_replica("other", own_redis.url)) == 1


# Another Redis


def test_switching_between_two_redis_keeps_every_copy_and_mixes_no_chains(
    open_replica, redis_server, own_redis, chains
):
    theirs = open_replica("theirs", own_redis.url)
    theirs.registry.publish(chains[1], "mine", True)
    theirs.registry.publish(chains[1], "only-there", True)
    mine = open_replica("mine")
    for number in (0, 2):
        mine.registry.publish(chains[number], "mine", True)
    mine.registry.publish(chains[0], "only-here", True)
    mine.registry.size_routes.serve_dimensions("only-here")
    versions = {path: content for path, content in content_of(mine.registry.root).items() if path.parts[1:] > ("0",)}
    mine.stop()
    for url, version, names in [
        (own_redis.url, 1, {"mine", "only-there"}),
        (redis_server.url, 2, {"mine", "only-here"}),
    ]:
        moved = open_replica("mine", url)
        eventually(lambda moved=moved: moved.connection.up, 5)
        assert live(moved) == version and set(moved.registry.names()) == names | STARTERS
        moved.stop()
    kept = [content_of(folder) for folder in mine.registry.root.parent.glob("chains-*")]
    assert any(versions.items() <= content.items() for content in kept)
    assert theirs.registry.size_routes.read().get("enc") is None  # a route is no use to a Redis that lacks its chain
    assert theirs.registry.versions("mine") == [1] and "only-here" not in theirs.registry.names()


@pytest.mark.parametrize("secret", [":wrong-horse@", ""])
def test_with_a_wrong_password_a_replica_serves_starters_and_never_shows_the_password(
    secret, open_replica, redis_server, chains, caplog
):
    caplog.set_level(logging.DEBUG)
    replica = open_replica("replica", f"redis://{secret}127.0.0.1:{redis_server.port}/0")
    assert set(replica.registry.names()) == STARTERS and replica.registry.load("compact").version == 1
    (warning,) = replica.warnings()
    assert "password" in warning and "LATHE_REDIS_URL" in warning
    message = fails_within_seconds(lambda: replica.registry.publish(chains[0], "mine", None), "redis_unreachable")
    assert "horse" not in warning + message + caplog.text
    assert redis_server.client.dbsize() == 0 and "mine" not in replica.registry.names()


def test_the_data_of_a_newer_lathe_or_of_somebody_else_in_redis_is_refused_and_left_unchanged(
    open_replica, redis_server, chains
):
    redis_server.client.set(IDENTITY, json.dumps({"id": "f" * 32, "schema": 2}))
    replica = open_replica("replica")
    assert any("newer Lathe (schema 2" in warning for warning in replica.warnings())
    assert set(replica.registry.names()) == STARTERS
    for change in (
        lambda: replica.registry.publish(chains[0], "mine", True),
        lambda: replica.registry.size_routes.assign("enc", "4", "compact", replace=True),
    ):
        fails_within_seconds(change, "redis_foreign")
    assert redis_server.client.keys() == [IDENTITY.encode()]

    redis_server.client.set(IDENTITY, "not ours")
    replica = open_replica("another")
    assert any(IDENTITY in warning for warning in replica.warnings())
    assert redis_server.client.get(IDENTITY) == b"not ours" and replica.registry.load("compact").version == 1


# Redis full


def test_a_full_redis_refuses_changes_completely_and_chains_still_serve(open_replica, own_redis, chains):
    replica, client = open_replica("replica", own_redis.url), own_redis.client
    replica.registry.publish(chains[0], "mine", True)
    before = {key: client.dump(key) for key in client.keys()}
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 100_000)
    assert "full" in fails_within_seconds(lambda: replica.registry.publish(chains[1], "mine", True), "redis_full")
    fails_within_seconds(lambda: replica.registry.publish(chains[1], "other", True), "redis_full")
    fails_within_seconds(lambda: replica.registry.size_routes.assign("enc", "4", "mine", replace=True), "redis_full")
    client.config_set("maxmemory", 0)
    assert {key: client.dump(key) for key in client.keys()} == before
    assert live(replica) == 1 and replica.registry.versions("mine") == [1] and replica.connection.up
    assert "other" not in replica.registry.names()
    assert replica.registry.publish(chains[1], "mine", True) == (2, True)


def test_a_fit_that_ends_while_redis_is_full_publishes_its_chain_once_there_is_room(
    open_replica, own_redis, rows, tmp_path
):
    replica, client = open_replica("replica", own_redis.url), own_redis.client
    np.save(tmp_path / "rows.npy", np.tile(rows, (5, 1)) + np.arange(300)[:, None] / 1000)
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 100_000)
    said = []

    def make_room(_, message):
        said.append(message)
        if "full" in message:
            client.config_set("maxmemory", 0)

    asked = NewFit(name="mine", source=str(tmp_path / "rows.npy"), steps=[{"kind": "r2"}])
    settings = Settings(home=tmp_path / "home")
    done = run_fit(
        asked, PublishContext(settings, replica.registry, TrainedEncoders(settings.home), "lathe fit"), make_room
    )
    assert done["promoted"] and live(replica) == 1
    assert sum("waiting: Redis is full" in message for message in said) == 1


# Trained encoders

MODEL_MANIFEST = {"method": "pft", "base": {"name": "tiny"}, "certificate": {}}


@pytest.fixture
def model(tmp_path):
    """Return a folder with the files of a model: weights of two and a half pieces, an empty file, a folder."""
    folder = tmp_path / "model"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "modules.json").write_text("[]")
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (folder / "empty.txt").write_text("")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 10_240)
    return folder


def allow(_manifest):
    return []


def models_in(client):
    """Return the keys of models in Redis that do not expire."""
    return [
        key
        for key in client.keys("lathe:files:*")
        if client.ttl(key) == -1 and b'"method"' in client.hget(key, "manifest.json")
    ]


def test_models_of_one_replica_are_copied_promoted_and_deleted_at_the_other(open_replica, redis_server, model):
    here, there = open_replica("here").trained, open_replica("there").trained
    assert here.publish("mine", model, MODEL_MANIFEST, None) == (1, True)
    assert here.publish("mine", model, MODEL_MANIFEST, None) == (2, False)
    eventually(lambda: there.versions("mine") == [1, 2])
    assert content_of(there.root / "mine" / "2" / "model") == content_of(model) and there.live("mine") == 1
    assert [spec.name for spec in TrainedSpecs(there.root).list_live("float32")] == ["mine@1"]
    assert there.promote("mine", 2, allow).live == 2
    eventually(lambda: here.live("mine") == 2)
    assert here.rollback("mine").live == 1
    eventually(lambda: there.live("mine") == 1)
    there.delete("mine", 2)
    eventually(lambda: here.versions("mine") == [1])
    assert len(models_in(redis_server.client)) == 1
    assert here.publish("mine", model, MODEL_MANIFEST, None)[0] == 3  # numbers are not used again


def test_an_upload_of_files_that_another_replica_has_committed_keeps_them(open_replica, redis_server, model):
    here, there = open_replica("here").trained, open_replica("there").trained
    here.publish("mine", model, MODEL_MANIFEST, None)
    (key,) = models_in(redis_server.client)
    content = redis_server.client.hgetall(key)
    eventually(lambda: there.versions("mine") == [1])
    _, uploaded = there.upload_version(there.root / "mine" / "1", None)  # by a job that runs again, and is killed
    assert models_in(redis_server.client) == [key] and redis_server.client.hgetall(key) == content
    assert 0 < redis_server.client.ttl(uploaded)


def test_a_model_is_promoted_where_it_was_not_copied_yet(open_replica, model):
    here = open_replica("here").trained
    later = open_replica("later")
    later.stop_replicator()
    here.publish("mine", model, MODEL_MANIFEST, None)
    here.publish("mine", model, MODEL_MANIFEST, None)
    assert later.trained.promote("mine", 2, allow).live == 2 and later.trained.versions("mine") == [1, 2]


def test_a_replica_that_joins_later_and_a_command_get_all_trained_encoders(open_replica, redis_server, model, tmp_path):
    open_replica("first").trained.publish("mine", model, MODEL_MANIFEST, None)
    later = open_replica("later").trained
    eventually(lambda: later.live("mine") == 1)
    opened = open_trained(Home(tmp_path / "command"), redis_server.url)
    assert content_of(opened.root / "mine" / "1" / "model") == content_of(model)
    assert type(open_trained(Home(tmp_path / "alone"))) is TrainedEncoders


@pytest.mark.parametrize("how", ["changed", "path"])
def test_a_model_altered_in_redis_is_refused_and_the_earlier_one_serves(how, open_replica, redis_server, model):
    here = open_replica("here")
    here.trained.publish("mine", model, MODEL_MANIFEST, None)
    before = set(models_in(redis_server.client))
    here.trained.publish("mine", model, MODEL_MANIFEST, True)
    (key,) = set(models_in(redis_server.client)) - before
    if how == "changed":
        redis_server.client.hset(key, "model/model.safetensors:1", b"x" * (1 << 20))
    else:
        manifest = redis_server.client.hget(key, "manifest.json")
        redis_server.client.hset(key, "manifest.json", manifest.replace(b"empty.txt", b"../up.txt"))
    joining = open_replica("joining")
    eventually(lambda: joining.trained.refused and joining.trained.versions("mine"))  # Redis gives them in any order
    assert joining.trained.versions("mine") == [1]
    assert any("the encoder mine@2 was altered in Redis" in warning for warning in joining.warnings())
    assert not (joining.trained.root / "mine" / "up.txt").exists()


def test_files_damaged_on_disk_are_fetched_again_before_a_promotion(open_replica, model):
    trained = open_replica("here").trained
    trained.publish("mine", model, MODEL_MANIFEST, None)
    trained.publish("mine", model, MODEL_MANIFEST, None)
    weights = trained.root / "mine" / "2" / "model" / "model.safetensors"
    weights.write_bytes(b"damaged")
    assert trained.promote("mine", 2, allow).live == 2
    assert weights.read_bytes() == (model / "model.safetensors").read_bytes()
