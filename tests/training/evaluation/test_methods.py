import numpy as np
import pytest

from lathe.training.evaluation.methods import EvaluatedMethod, hash_chain
from lathe.training.workspace import digest
from lathe.transforms import Chain, parse_steps

WIDTH = 24
ENCODER = "f" * 32


@pytest.fixture(scope="module")
def rows():
    found = np.random.default_rng(0).normal(0.4, 1, size=(400, WIDTH)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def nested(rows):
    """Return the method of a fitted nested chain."""
    chain = Chain(parse_steps("geopres:12,nested=true,steps=5")).fit(rows)
    return EvaluatedMethod("mine@1", "chain", chain, "k", ENCODER)


def test_hash_chain_differs_for_different_maps_of_equal_tensors(rows, tmp_path):
    keys = []
    for number, (steps, normalize) in enumerate([("r2", True), ("r2", False), ("rand:seed=1", True), ("r2", True)]):
        Chain(parse_steps(steps), normalize).fit(rows).save(tmp_path / str(number))
        keys.append(hash_chain(Chain.load(tmp_path / str(number))))
    assert len(set(keys[:3])) == 3 and keys[3] == keys[0]


def test_hash_chain_is_the_same_in_memory_on_disk_and_every_time(nested, tmp_path):
    nested.chain.save(tmp_path / "saved")
    loaded = Chain.load(tmp_path / "saved")
    assert {hash_chain(chain) for chain in [nested.chain] * 20 + [loaded]} == {hash_chain(nested.chain)}
    assert hash_chain(nested.chain) == digest(loaded.metadata["tensors_sha256"], True, loaded.specs())[:32]
