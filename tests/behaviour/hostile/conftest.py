"""Artifacts of real chains, changed by somebody who gave them valid digests."""

import hashlib
import json
import resource
import time
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from lathe.service.chains.registry import Registry
from lathe.transforms import Chain, certify, parse_steps
from lathe.transforms.artifact import FitDistribution
from lathe.transforms.artifact.folder import manifest_digest

WIDTH = 16
MAX_SECONDS, MAX_WAIT_SECONDS = 1.0, 10.0
MAX_BYTES = 100_000_000


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Forger:
    """A registry with one chain of 16 dimensions, and changes to its files that keep all digests valid."""

    def __init__(self, registry, name):
        self.registry = registry
        self.folder = registry.root / name / "1"
        self.ref = f"{name}@1"

    def change_manifest(self, change):
        """Change the parsed manifest in place, and seal it."""
        path = self.folder / "manifest.json"
        manifest = json.loads(path.read_bytes())
        change(manifest)
        manifest["manifest_sha256"] = manifest_digest(manifest)
        path.write_text(json.dumps(manifest))

    def change_tensors(self, change):
        tensors = load((self.folder / "chain.safetensors").read_bytes())
        change(tensors)
        self.write_payload(save({name: tensor.contiguous() for name, tensor in tensors.items()}))

    def write_payload(self, payload):
        (self.folder / "chain.safetensors").write_bytes(payload)
        self.change_manifest(lambda m: m.update(tensors_sha256=hashlib.sha256(payload).hexdigest()))

    def change_distribution(self, change):
        """Change the arrays of the fit distribution in place, and seal them."""
        path = self.folder / "reference.safetensors"
        tensors = load(path.read_bytes())
        change(tensors)
        path.write_bytes(save({name: tensor.contiguous() for name, tensor in tensors.items()}))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        self.change_manifest(lambda m: m["reference"].update(sha256=digest))


@pytest.fixture(scope="session")
def rows():
    return (np.random.default_rng(0).normal(size=(600, WIDTH)) + 0.5).astype(np.float32)


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory, rows):
    """Return a function that fits steps once, with certificate and distribution, and returns the folder."""
    made = {}

    def fit(steps):
        if steps not in made:
            chain = Chain(parse_steps(steps)).fit(rows[:500])
            chain.metadata = {
                "encoder": {"name": "e", "model": "m", "fingerprint": "enc"},
                "provenance": {"gates": {"recall_at_10": 0.0}},
                "certificate": certify(chain, rows[500:], n_fit=500, seed=0),
            }
            distribution = FitDistribution.measure(rows[:500], rows[500:], None)
            made[steps] = tmp_path_factory.mktemp("artifact") / "1"
            chain.save(made[steps], {"name": "mine", "version": 1}, distribution)
        return made[steps]

    return fit


@pytest.fixture
def forge(tmp_path, artifacts):
    """Return a function that puts a chain into a new registry, to be changed there."""
    import shutil

    def build(steps="r2,pca:8"):
        registry = Registry(tmp_path / "chains")
        (registry.root / "mine").mkdir(parents=True)
        shutil.copytree(artifacts(steps), registry.root / "mine" / "1")
        (registry.root / "mine" / "pointer.json").write_text('{"live": null, "earlier": [], "last": 1}')
        return Forger(registry, "mine")

    return build


@pytest.fixture
def within_limits():
    """Return a context manager that fails if its block computes for over a second, waits, or takes over 100 MB."""

    @contextmanager
    def limited():
        begun, computed, before = time.monotonic(), time.process_time(), peak_bytes()
        yield
        assert time.process_time() - computed < MAX_SECONDS
        assert time.monotonic() - begun < MAX_WAIT_SECONDS  # on a busy machine
        assert peak_bytes() - before < MAX_BYTES

    torch.set_num_threads(1)
    return limited
