import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from cachetools import LRUCache

from lathe.service.chains.pointer import Pointer
from lathe.service.chains.registry import Registry
from lathe.service.chains.version_folder import promote_with_gates
from lathe.service.errors import BadValueError, ConflictError, UnknownNameError
from lathe.transforms import ArtifactError, Chain, parse_steps


def fitted(steps="r2,geopres:4,steps=0", width=8, seed=0, fingerprint="enc"):
    """Fit a chain on 60 random rows, with an encoder's fingerprint in its metadata, or none."""
    rows = np.random.default_rng(seed).normal(size=(60, width)) + 1
    chain = Chain(parse_steps(steps)).fit(rows)
    chain.metadata = {"encoder": {"fingerprint": fingerprint} if fingerprint else None}
    return chain


@pytest.fixture
def files(tmp_path):
    """Return an empty registry in a folder."""
    return Registry(tmp_path / "chains")


@pytest.fixture(params=["files", pytest.param("redis", marks=pytest.mark.services)])
def registry(request):
    """Return an empty registry in a folder, and one that replicas share over Redis."""
    if request.param == "files":
        return request.getfixturevalue("files")
    return request.getfixturevalue("open_replica")().registry


def test_over_the_limit_of_loaded_chains_the_least_recently_used_one_is_dropped_from_memory(files):
    files.loaded = LRUCache(2)
    for name in ("first", "second", "third"):
        files.publish(fitted(), name, None)
    first, second = files.load("first"), files.load("second")
    assert files.load("first") is first
    files.load("third")
    assert files.load("first") is first
    assert files.load("second") is not second


def test_rollback_returns_to_earlier_live_versions_and_then_raises_conflict_error(registry):
    for seed in range(3):
        registry.publish(fitted(seed=seed), "mine", True)
    assert [registry.rollback("mine").live for _ in range(2)] == [2, 1]
    with pytest.raises(ConflictError):
        registry.rollback("mine")
    assert promote_with_gates(registry, "mine", 3).live == 3
    assert registry.rollback("mine").live == 1


def test_changes_of_what_is_not_there_raise_and_change_nothing(registry):
    registry.publish(fitted(), "mine", True)
    for change in (partial(promote_with_gates, registry), registry.delete):
        with pytest.raises(UnknownNameError, match="no version 7"):
            change("mine", 7)
        for name in ("nobody", "a/b"):
            with pytest.raises(UnknownNameError, match=f"there is no chain '{name}'; there are: .*mine"):
                change(name, 1)
    with pytest.raises(UnknownNameError):
        registry.rollback("nobody")
    assert registry.read_pointer("mine") == Pointer(1, (), 1)
    assert "mine" in registry.names() and not (registry.root / "nobody").exists()


def test_delete_removes_a_version_and_never_reuses_its_number_and_the_last_frees_the_name(registry):
    """The live version cannot be deleted while there are others."""
    registry.publish(fitted(), "mine", None)
    registry.publish(fitted(seed=1), "mine", None)
    with pytest.raises(ConflictError):
        registry.delete("mine", 1)
    registry.delete("mine", 2)
    with pytest.raises(UnknownNameError):
        registry.load("mine@2")
    assert registry.publish(fitted(), "mine", None) == (3, False)
    for version in (3, 1):
        registry.delete("mine", version)
    assert "mine" not in registry.names()
    assert registry.publish(fitted(), "mine", None) == (4, True)


def test_a_chain_without_a_live_version_resolves_only_by_version_number(files):
    files.publish(fitted(), "mine", False)
    assert files.load("mine@1").ref == "mine@1"
    for ref in ("mine", "mine@01", "mine@\u0661", "mine@" + "1" * 5000, "mine@-1", "mine\n", "", "@1"):
        with pytest.raises(UnknownNameError):
            files.resolve(ref)


def test_publish_refuses_invalid_chain_names(files):
    for name in ("", "a/b", "../a", ".a", "a@1", "a+b", "none", "x" * 65, "a b", "mine\n"):
        with pytest.raises(BadValueError):
            files.publish(fitted(), name, None)


@pytest.mark.parametrize("damage", ["truncate", "flip", "manifest"])
def test_a_damaged_version_cannot_be_loaded_or_promoted_and_the_live_one_still_serves(files, damage):
    registry = files
    registry.publish(fitted(), "mine", None)
    registry.publish(fitted(seed=1), "mine", None)
    tensors, manifest = (registry.root / "mine/2" / name for name in ("chain.safetensors", "manifest.json"))
    if damage == "truncate":
        tensors.write_bytes(tensors.read_bytes()[:-10])
    elif damage == "flip":
        content = bytearray(tensors.read_bytes())
        content[-1] ^= 1
        tensors.write_bytes(content)
    else:
        manifest.write_text(manifest.read_text().replace('"nested": false', '"nested": true'))
    with pytest.raises(ArtifactError):
        registry.load("mine@2")
    with pytest.raises(ArtifactError):
        promote_with_gates(registry, "mine", 2)
    assert registry.load("mine").version == 1
    assert registry.read_pointer("mine").live == 1
    states = {v["version"]: v["state"] for v in registry.describe("mine")["versions"]}
    assert states[1] == "ready"
    assert states[2] == ("ready" if damage in ("truncate", "flip") else "corrupt")  # the manifest tells only of itself


@pytest.mark.parametrize(
    "content",
    [
        b'{"live": [1], "earlier": [], "last": 1}',
        b'{"live": 1, "earlier": [], "last": 1' + b"0" * 30 + b"}",
        b'{"live": 1, "earlier": [], "last": 1, "forced": {"1": [{}]}}',
        b"[" * 100_000,
    ],
)
def test_an_invalid_pointer_file_leaves_versions_loadable_by_number(files, content):
    files.publish(fitted("r2"), "mine", None)
    (files.root / "mine/pointer.json").write_bytes(content)
    described = files.describe("mine")
    assert (described["live"], described["versions"][0]["state"]) == (None, "ready")
    assert files.load("mine@1").version == 1
    with pytest.raises(ArtifactError):
        files.load("mine")


def test_another_registry_on_the_folder_sees_a_promotion_at_once_and_a_version_that_is_replaced(files):
    other = Registry(files.root)
    files.publish(fitted(), "mine", None)
    assert other.load("mine").version == 1
    files.publish(fitted(seed=1), "mine", True)
    assert other.load("mine").version == 2
    before = files.load("mine@1").digest
    shutil.rmtree(files.root / "mine")
    files.publish(fitted(seed=9), "mine", None)
    assert files.load("mine@1").digest != before


def test_concurrent_publishes_of_one_name_get_distinct_version_numbers(files):
    def publish_some(_):
        registry = Registry(files.root)  # with locks of its own, as in another process
        for _ in range(8):
            registry.publish(fitted("r2"), "mine", None)

    with ThreadPoolExecutor(2) as publishers:
        list(publishers.map(publish_some, range(2)))
    assert files.versions("mine") == list(range(1, 17))
    assert files.read_pointer("mine").live == 1
    for version in files.versions("mine"):
        assert files.load(f"mine@{version}").version == version


@pytest.fixture
def size_routes(registry):
    """Return the size routes that go with the registry."""
    return registry.size_routes


def publish(registry, size_routes, name, steps, **more):
    """Publish a chain of some steps as live, and let it serve its dimensions. Return the size routes it then has."""
    quick = steps.replace("geopres:", "geopres:steps=2,dimensions=")
    registry.publish(fitted(quick, **more), name, True)
    return size_routes.serve_dimensions(name)


def test_a_size_route_changes_by_an_explicit_request_alone(registry, size_routes):
    """Fits, promotions, rollbacks and deletions of other chains change no answer to a request for dimensions."""
    assert publish(registry, size_routes, "first", "r2,geopres:4") == ["4"]
    before = size_routes.read()
    for seed in (1, 2):
        registry.publish(fitted("geopres:steps=2,dimensions=4", seed=seed), "second", True)
    promote_with_gates(registry, "second", 1)
    registry.rollback("second")
    registry.delete("second", 1)
    assert size_routes.read() == before
    assert size_routes.find_chain_for("enc", 4, encoder_dimensions=384).name == "first"
    assert size_routes.serve_dimensions("second") == ["4"]
    assert size_routes.find_chain_for("enc", 4, encoder_dimensions=384).name == "second"


def test_size_routes_apply_to_one_encoder_and_fewer_dimensions_only(files):
    """A chain without an encoder gets no route."""
    size_routes = files.size_routes
    publish(files, size_routes, "first", "geopres:4")
    with pytest.raises(BadValueError):
        size_routes.find_chain_for("another", 4, encoder_dimensions=384)
    assert publish(files, size_routes, "unnamed", "geopres:3", fingerprint=None) == []
    assert publish(files, size_routes, "debias", "r2") == []


def test_a_route_is_free_if_its_chain_is_deleted_or_does_not_serve_the_size(registry, size_routes):
    publish(registry, size_routes, "first", "geopres:4")
    registry.delete("first", 1)
    with pytest.raises(BadValueError):
        size_routes.find_chain_for("enc", 4, encoder_dimensions=384)
    assert publish(registry, size_routes, "second", "geopres:4") == ["4"]
    assert publish(registry, size_routes, "second", "geopres:3") == ["3"]
    with pytest.raises(BadValueError, match="there are 3, 384"):
        size_routes.find_chain_for("enc", 4, encoder_dimensions=384)
    assert publish(registry, size_routes, "third", "geopres:4") == ["4"]
