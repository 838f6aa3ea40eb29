"""Exported models give the chain's vectors in the versions of sentence-transformers that their README names."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from lathe.service.chains.registry import STARTERS
from lathe.training.export.sentence_transformers_folder import export_sentence_transformers
from lathe.training.sources.source import open_source
from lathe.transforms import Chain, parse_steps
from tests.exports.environments import run_script

VERSIONS = {
    "3.4.1": ["transformers==4.48.3", "tokenizers==0.21.4", "huggingface_hub==0.28.1", "datasets==3.2.0"],
    "5.2.0": ["transformers==4.57.3", "tokenizers==0.22.1", "huggingface_hub==0.36.0", "datasets==4.1.1"],
    "6": [],  # Lathe's own environment
}
"""Packages that a version of the library is installed with."""
FITTED = {"inner": "r2,normalize,pca:48", "bytes": "r2,pca:32,int8"}
"""Steps of the chains that are fitted here: one with a normalization between two products, and one with codes."""
TOLERANCE = 1e-5
"""Maximum difference of an entry of a unit vector between Lathe and another version of the library."""

SCRIPT = """
import json, sys
import numpy as np
import sentence_transformers

version, texts, own_code = sentence_transformers.__version__, json.load(open("texts.json")), sys.argv[1] == "own"
for folder in sys.argv[2:]:
    model = sentence_transformers.SentenceTransformer(folder, device="cpu", trust_remote_code=own_code)
    np.save(f"{folder}.npy", model.encode(texts))
assert "lathe" not in sys.modules
print(version)
"""


@dataclass
class Models:
    """Exported models in one folder, and the vectors that Lathe gives for the texts beside them."""

    folder: Path
    expected: dict[str, np.ndarray]
    clear: np.ndarray
    """Which codes of the chain `bytes` a rounding error cannot change."""


@pytest.fixture(scope="module")
def models(encoder, tmp_path_factory):
    """Export a starter chain, a chain with an inner normalization, and one with codes."""
    folder = tmp_path_factory.mktemp("models")
    found = [text for batch in open_source("pydoc:").batches() for text in batch.values if 40 < len(text) < 160]
    fitted_on = encoder.encode(found[:300]).vectors
    texts = [*found[300:340], "naïve Ωmega 東京 🚲", "short", "a long text " * 400]
    (folder / "texts.json").write_text(json.dumps(texts))
    vectors = encoder.encode(texts).vectors
    chains = {"compact": Chain.load(STARTERS / "compact" / "1")}
    for name, steps in FITTED.items():
        chains[name] = Chain(parse_steps(steps)).fit(fitted_on)
        chains[name].metadata = {"encoder": encoder.describe()}
    for name, chain in chains.items():
        export_sentence_transformers(chain, encoder, folder / name, f"{name}@1")
    floats = Chain(chains["bytes"].float_steps, chains["bytes"].normalize).transform(vectors)
    steps = floats / chains["bytes"].quantizer.scale.numpy()
    clear = np.abs(steps - np.floor(steps) - 0.5) > 1e-3
    expected = {name: chain.floats(vectors) for name, chain in chains.items()}
    return Models(folder, expected, clear)


def packages_of(version):
    return [f"sentence-transformers=={version}", *VERSIONS[version]] if VERSIONS[version] else []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_version_gives_the_chains_vectors(models, version):
    for trust, names in {"stock": ["compact", "inner"], "own": ["bytes"]}.items():
        ended = run_script(SCRIPT, trust, *names, packages=packages_of(version), folder=models.folder)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.split()[-1].startswith(version)
        for name in names:
            found, expected = np.load(models.folder / f"{name}.npy"), models.expected[name]
            compared = models.clear if name == "bytes" else np.ones(expected.shape, bool)
            assert found.shape == expected.shape and compared.mean() > 0.9
            difference = np.abs(found - expected)[compared].max()
            print(f"sentence-transformers {ended.stdout.split()[-1]}, {name}: within {difference:.1e}")
            assert difference <= TOLERANCE
