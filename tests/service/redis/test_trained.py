from concurrent.futures import ThreadPoolExecutor

import pytest

from lathe.service.encoders.trained import TrainedEncoders
from lathe.service.home import Home
from lathe.service.registries import open_trained
from tests.helpers import eventually

pytestmark = pytest.mark.services

MANIFEST = {"method": "pft", "base": {"name": "tiny"}, "certificate": {}}


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


def content_of(folder):
    """Return the content of all files of a folder, by relative path."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def allow(_manifest):
    return []


def models_in(client):
    """Return the keys of models in Redis that do not expire."""
    return [
        key
        for key in client.keys("lathe:files:*")
        if client.ttl(key) == -1 and b'"method"' in client.hget(key, "manifest.json")
    ]


def test_versions_of_one_replica_are_copied_promoted_and_deleted_at_the_other(open_replica, redis_server, model):
    here, there = open_replica("here").trained, open_replica("there").trained
    assert here.publish("mine", model, MANIFEST, None) == (1, True)
    assert here.publish("mine", model, MANIFEST, None) == (2, False)
    eventually(lambda: there.versions("mine") == [1, 2])
    assert content_of(there.root / "mine" / "2" / "model") == content_of(model) and there.live("mine") == 1
    assert [spec.name for spec in there.specs("float32")] == ["mine@1"]
    assert there.promote("mine", 2, allow).live == 2
    eventually(lambda: here.live("mine") == 2)
    assert here.rollback("mine").live == 1
    eventually(lambda: there.live("mine") == 1)
    there.delete("mine", 2)
    eventually(lambda: here.versions("mine") == [1])
    assert len(models_in(redis_server.client)) == 1
    assert here.publish("mine", model, MANIFEST, None)[0] == 3  # numbers are not used again


def test_an_upload_of_files_that_another_replica_has_committed_keeps_them(open_replica, redis_server, model):
    here, there = open_replica("here").trained, open_replica("there").trained
    here.publish("mine", model, MANIFEST, None)
    (key,) = models_in(redis_server.client)
    content = redis_server.client.hgetall(key)
    eventually(lambda: there.versions("mine") == [1])
    upload = there.upload_version(there, "mine", 1)  # a second run of the job, that ends without committing
    assert models_in(redis_server.client) == [key] and redis_server.client.hgetall(key) == content
    assert 0 < redis_server.client.ttl(upload.key)


def test_a_version_is_promoted_where_it_was_not_copied_yet(open_replica, model):
    here = open_replica("here").trained
    later = open_replica("later")
    later.replicator.stop()
    here.publish("mine", model, MANIFEST, None)
    here.publish("mine", model, MANIFEST, None)
    assert later.trained.promote("mine", 2, allow).live == 2 and later.trained.versions("mine") == [1, 2]


def test_a_replica_that_joins_later_and_a_command_get_all_trained_encoders(open_replica, redis_server, model, tmp_path):
    open_replica("first").trained.publish("mine", model, MANIFEST, None)
    later = open_replica("later").trained
    eventually(lambda: later.live("mine") == 1)
    opened = open_trained(Home(tmp_path / "command"), redis_server.url)
    assert content_of(opened.root / "mine" / "1" / "model") == content_of(model)
    assert type(open_trained(Home(tmp_path / "alone"))) is TrainedEncoders


def test_two_replicas_that_publish_at_once_get_two_versions_and_one_for_the_same_job(open_replica, redis_server, model):
    here, there = open_replica("here").trained, open_replica("there").trained
    with ThreadPoolExecutor() as pool:
        versions = list(pool.map(lambda one: one.publish("mine", model, MANIFEST, None, "a"), (here, there)))
        assert versions == [(1, True)] * 2 and there.find_published("mine", "a") == 1
        assert here.find_published("mine", "b") is None
        before = set(models_in(redis_server.client))
        manifests = [MANIFEST | {"method": method} for method in ("ft", "reze")]
        versions = list(pool.map(lambda one, own: one.publish("mine", model, own, False)[0], (here, there), manifests))
    assert sorted(versions) == [2, 3] and len(set(models_in(redis_server.client)) - before) == 2


@pytest.mark.parametrize("how", ["changed", "missing", "path"])
def test_a_version_altered_in_redis_is_refused_and_the_earlier_one_serves(how, open_replica, redis_server, model):
    here = open_replica("here")
    here.trained.publish("mine", model, MANIFEST, None)
    before = set(models_in(redis_server.client))
    here.trained.publish("mine", model, MANIFEST, True)
    (key,) = set(models_in(redis_server.client)) - before
    if how == "changed":
        redis_server.client.hset(key, "model/model.safetensors:1", b"x" * (1 << 20))
    elif how == "missing":
        redis_server.client.delete(key)
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
    trained.publish("mine", model, MANIFEST, None)
    trained.publish("mine", model, MANIFEST, None)
    weights = trained.root / "mine" / "2" / "model" / "model.safetensors"
    weights.write_bytes(b"damaged")
    assert trained.promote("mine", 2, allow).live == 2
    assert weights.read_bytes() == (model / "model.safetensors").read_bytes()
