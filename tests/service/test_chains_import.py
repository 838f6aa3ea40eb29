import numpy as np
import pytest

from service.home import Home
from service.places import Places
from service.registry import Registry
from transforms import Chain, parse_steps

ENCODER = "e" * 32


def fitted(dimensions, fingerprint=ENCODER, seed=0):
    chain = Chain(parse_steps(f"r2,geopres:steps=2,dimensions={dimensions},nested=true"))
    chain.fit(np.random.default_rng(seed).normal(size=(60, 8)) + 1)
    chain.metadata = {"encoder": {"fingerprint": fingerprint}}
    return chain


@pytest.fixture
def source(tmp_path):
    """A state folder where chains were given sizes by hand that they would not have taken by themselves."""
    home = Home(tmp_path / "alone")
    registry = Registry(home.chains)
    places = Places(home.places, registry)
    for name in ("alpha", "beta"):
        registry.publish(fitted(4), name, None)
    registry.publish(fitted(6), "gamma", None)
    registry.publish(fitted(4, "f" * 32), "taken", None)
    for place, ref in (("4", "beta"), ("3", "gamma"), ("2", "taken"), ("nested", "beta"), ("5", "gone")):
        places.assign(ENCODER, place, ref, replace=True)
    return home


@pytest.fixture(params=["folder", pytest.param("redis", marks=pytest.mark.services)])
def target(request, tmp_path):
    """Where chains are imported to: the variables that name it, and its chains and places."""
    if request.param == "folder":
        home = Home(tmp_path / "target")
        registry = Registry(home.chains)
        return {"LATHE_HOME": home.root}, registry, Places(home.places, registry)
    replica = request.getfixturevalue("open_replica")()
    url = request.getfixturevalue("redis_server").url
    return {"LATHE_HOME": tmp_path / "cli", "LATHE_REDIS_URL": url}, replica.registry, replica.places


def test_chains_come_with_the_sizes_they_were_given_and_what_is_in_use_stays(run, source, target):
    told, registry, places = target
    registry.publish(fitted(4, "0" * 32), "taken", None)
    registry.publish(fitted(3), "mine", None)
    places.assign(ENCODER, "3", "mine", replace=True)

    status, out, _ = run("chains", "import", source.root, **told)

    assert status == 0 and out.splitlines() == [
        "alpha: 1 versions",
        "beta: 1 versions",
        "gamma: 1 versions",
        "taken: left alone, the name is in use here",
        "dimensions 4 of encoder eeeeeeeeeeee: beta",
        "dimensions 3 of encoder eeeeeeeeeeee: left alone, mine has it here",
        "dimensions 2 of encoder eeeeeeeeeeee: left out, taken here is another chain or does not answer it",
        "sizes without a chain of their own of encoder eeeeeeeeeeee: beta",
        "dimensions 5 of encoder eeeeeeeeeeee: left out, gone here is another chain or does not answer it",
    ]
    if hasattr(places, "pull"):
        places.pull()
    assert places.read()[ENCODER] == {"3": "mine", "4": "beta", "nested": "beta", "6": "gamma"}

    status, out, _ = run("chains", "import", source.root, **told)

    assert status == 0 and "alpha: left alone" in out and "dimensions 4 of encoder eeeeeeeeeeee: beta, as before" in out


def test_a_folder_without_chains_is_refused(run, tmp_path):
    status, _, err = run("chains", "import", tmp_path)
    assert status == 1 and "holds no chains" in err
