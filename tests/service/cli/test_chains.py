"""`lathe chains compare`: two chains on the rows of a source."""

import numpy as np
import pytest

from lathe.service.chains.registry import Registry
from lathe.service.home import Home
from lathe.transforms import Chain, parse_steps
from tests.helpers import require_one_line

ENCODER = "e" * 32


def fitted(dimensions, fingerprint=ENCODER, seed=0):
    """Fit a nested chain on 60 random rows, with an encoder's fingerprint in its metadata, or without an encoder."""
    chain = Chain(parse_steps(f"r2,geopres:steps=2,dimensions={dimensions},nested=true"))
    chain.fit(np.random.default_rng(seed).normal(size=(60, 8)) + 1)
    chain.metadata = {} if fingerprint is None else {"encoder": {"fingerprint": fingerprint}}
    return chain


@pytest.fixture
def source(tmp_path):
    """Build a state folder with size routes that an admin assigned to other chains than the first ones."""
    home = Home(tmp_path / "alone")
    registry = Registry(home.chains)
    for name in ("alpha", "beta"):
        registry.publish(fitted(4), name, None)
    registry.publish(fitted(6), "gamma", None)
    registry.publish(fitted(4, "f" * 32), "taken", None)
    registry.publish(fitted(4, None), "bare", None)
    for route, ref in (("4", "beta"), ("3", "gamma"), ("2", "taken"), ("nested", "beta"), ("5", "gone"), ("1", "bare")):
        registry.size_routes.assign(ENCODER, route, ref, replace=True)
    return home


@pytest.fixture(params=["folder", pytest.param("redis", marks=pytest.mark.services)])
def target(request, tmp_path):
    """Return the variables that name a target of an import, and its chains."""
    if request.param == "folder":
        home = Home(tmp_path / "target")
        return {"LATHE_HOME": home.root}, Registry(home.chains)
    replica = request.getfixturevalue("open_replica")()
    url = request.getfixturevalue("redis_server").url
    return {"LATHE_HOME": tmp_path / "cli", "LATHE_REDIS_URL": url}, replica.registry


def test_chains_import_copies_chains_and_size_routes_and_keeps_those_in_use(run, source, target):
    """A second import changes nothing. A route to a chain that is missing, or not of this encoder, is skipped."""
    told, registry = target
    size_routes = registry.size_routes
    registry.publish(fitted(4, "0" * 32), "taken", None)
    registry.publish(fitted(3), "mine", None)
    size_routes.assign(ENCODER, "3", "mine", replace=True)

    status, out, _ = run("chains", "import", source.root, **told)

    assert status == 0 and out.splitlines() == [
        "alpha: 1 versions",
        "bare: 1 versions",
        "beta: 1 versions",
        "gamma: 1 versions",
        "taken: skipped, the name is in use here",
        "dimensions 4 of encoder eeeeeeeeeeee: beta",
        "dimensions 3 of encoder eeeeeeeeeeee: skipped, mine serves it here",
        "dimensions 2 of encoder eeeeeeeeeeee: skipped, taken here is another chain or does not serve it",
        "dimensions without a route of their own of encoder eeeeeeeeeeee: beta",
        "dimensions 5 of encoder eeeeeeeeeeee: skipped, gone here is another chain or does not serve it",
        "dimensions 1 of encoder eeeeeeeeeeee: skipped, bare here is another chain or does not serve it",
    ]
    if hasattr(size_routes, "pull"):
        size_routes.pull()
    assert size_routes.read()[ENCODER] == {"3": "mine", "4": "beta", "nested": "beta"}

    status, out, _ = run("chains", "import", source.root, **told)

    assert status == 0 and "alpha: skipped" in out and "dimensions 4 of encoder eeeeeeeeeeee: beta, as before" in out


def test_chains_import_refuses_a_folder_without_chains(run, tmp_path):
    status, _, err = run("chains", "import", tmp_path)
    assert status == 1 and "holds no chains" in err


@pytest.fixture
def vectors(run, tmp_path, home):
    """Fit a chain of 4 and one of 24 dimensions on vectors of no encoder, and return the file of other vectors."""
    generator = np.random.default_rng(0)
    rows = (generator.normal(size=(700, 48)) * np.geomspace(1, 0.1, 48) + 0.3).astype(np.float32)
    np.save(tmp_path / "fit.npy", rows[:400])
    np.save(tmp_path / "other.npy", rows[400:])
    for name, size in (("small", 4), ("large", 24)):
        if not (home / "chains" / name).exists():
            status, _, err = run("fit", "--name", name, "--steps", f"r2,pca:{size}", "--source", tmp_path / "fit.npy")
            assert status == 0, err
    return tmp_path / "other.npy"


def test_compare_says_which_chain_finds_more_of_the_raw_neighbours(run, vectors):
    status, out, _ = run("chains", "compare", "small", "large", "--source", vectors)

    assert status == 0
    assert "small@1" in out and "large@1 finds more of them: large@1 less small@1 is +" in out
    assert "on 300 rows." in out


def test_texts_are_encoded_with_the_encoder_of_the_chains(run, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"the {word} of number {n}\n" for n in range(20) for word in ("lathe", "mill")))

    status, out, _ = run("chains", "compare", "compact", "debias", "--source", texts)

    assert status == 0 and "compact@1" in out and "on 40 rows." in out


def test_chains_that_cannot_be_compared_are_refused_in_one_line(run, vectors, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"a text of number {n}\n" for n in range(40)))
    for first, second, source, words in [
        ("small", "nothing", vectors, "nothing"),
        ("small", "compact", vectors, "48"),
        ("small", "large", texts, "name a source of vectors"),
    ]:
        require_one_line(run("chains", "compare", first, second, "--source", source), words)
