import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from lathe.training.errors import ExportError
from lathe.training.export.sentence_transformers_folder import export_sentence_transformers
from lathe.training.export.servers import SERVERS, find_incompatibility
from lathe.transforms import Chain

CHAINS = {
    "nested": ("r2,geopres:64,nested=true,steps=5", True),
    "whitened": ("whitening:32", True),
    "truncated": ("truncation:64", True),
    "any length": ("pca:48", False),
    "two products": ("r2,geopres:20,steps=5", False),
    "bytes": ("r2,geopres:24,steps=5,int8", True),
    "bits": ("r2,geopres:20,steps=5,binary", True),
}
IMPORT = re.compile(r"\b(?:import|from)\s+lathe\b|[\"']lathe\.(?:transforms|training|service)\b")


@dataclass
class Export:
    """Chain and the folder that it was exported to."""

    chain: Chain
    folder: Path
    files: list[str]
    difference: float

    @property
    def quantises(self):
        return self.chain.quantizer is not None

    def load(self):
        return SentenceTransformer(str(self.folder), trust_remote_code=self.quantises, device="cpu")


@pytest.fixture(scope="module")
def make(fitted, encoder, tmp_path_factory):
    """Return a function that exports a chain, each once."""
    made = {}

    def export(name):
        if name not in made:
            chain = fitted(*CHAINS[name])
            folder = tmp_path_factory.mktemp("models") / "model"
            exported = export_sentence_transformers(chain, encoder, folder, f"{name}@1")
            made[name] = Export(chain, folder, exported.files, exported.difference)
        return made[name]

    return export


@pytest.fixture(scope="module", params=["nested", "whitened", "two products", "bytes", "bits"])
def export(request, make):
    return make(request.param)


def read_readme_code(export):
    """Return the code of the README, with the folder's path filled in."""
    (code,) = re.findall(r"```python\n(.*?)\n```", (export.folder / "README.md").read_text(), re.DOTALL)
    assert "path/to/this/folder" in code
    return code.replace("path/to/this/folder", str(export.folder))


def test_the_folder_has_sentence_transformers_own_modules_unless_the_chain_has_codes_and_imports_no_lathe(export):
    """The difference from the chain is at most 1e-4."""
    modules = json.loads((export.folder / "modules.json").read_text())
    types = [module["type"] for module in modules]
    own = [kind for kind in types if not kind.startswith("sentence_transformers.")]
    assert own == (["lathe_quantization.Quantization"] if export.quantises else [])
    assert types[-1] in own or not export.quantises
    assert any(export.folder.glob("*.py")) == export.quantises
    assert [module["idx"] for module in modules] == list(range(len(modules)))
    assert all((export.folder / module["path"]).is_dir() for module in modules)
    assert len({module["path"] for module in modules}) == len(modules)
    there = {path for path in export.folder.rglob("*") if path.is_file()}
    assert {str(path.relative_to(export.folder)) for path in there} == {*export.files}
    assert {"README.md", "lathe.json", "modules.json"} <= {*export.files} and 0 <= export.difference <= 1e-4
    for path in there:
        if path.suffix in {".py", ".json", ".md"} and not path.name.startswith("tokenizer"):
            assert not IMPORT.search(path.read_text()), path.name


def test_the_loaded_model_equals_encoder_and_chain(export, new_texts, new_vectors, decided):
    """Only a model with codes needs to run code of its own, and returns the chain's codes."""
    model = export.load()
    assert model.get_embedding_dimension() == export.chain.output_dimensions
    found, expected = model.encode(new_texts), export.chain.floats(new_vectors)
    assert found.shape == expected.shape and found.dtype == np.float32
    clear = decided(export.chain, new_vectors) if export.quantises else np.ones(expected.shape, bool)
    np.testing.assert_allclose(found[clear], expected[clear], atol=1e-4)
    assert ("trust_remote_code=True" in read_readme_code(export)) == export.quantises
    if export.quantises:
        with pytest.raises(ValueError, match="trust_remote_code"):
            SentenceTransformer(str(export.folder), device="cpu")
        rows = model.encode(new_texts, output_value=None)
        codes, expected = np.stack([np.asarray(row["codes"]) for row in rows]), export.chain.transform(new_vectors)
        assert (codes.dtype, codes.shape) == (expected.dtype, expected.shape)
        assert (export.chain.dequantize(codes) == export.chain.dequantize(expected))[clear].all()


@pytest.mark.parametrize("name", ["nested", "bytes"])
def test_the_readme_code_gives_the_chains_vectors(make, name, encoder, decided):
    export, names = make(name), {}
    *lines, last = read_readme_code(export).splitlines()
    exec("\n".join(lines), names)
    raw = encoder.encode(["some text"]).vectors
    found, expected = eval(last, names), export.chain.floats(raw)
    clear = decided(export.chain, raw) if export.quantises else np.ones(expected.shape, bool)
    np.testing.assert_allclose(found[clear], expected[clear], atol=1e-4)


def test_versions_3_to_5_and_servers_find_the_settings_that_they_read(export):
    modules = json.loads((export.folder / "modules.json").read_text())
    kinds = [module["type"] for module in modules if not module["type"].startswith("lathe_")]
    assert {kind.rpartition(".")[0] for kind in kinds} == {"sentence_transformers.models"}
    pooling = json.loads((export.folder / modules[1]["path"] / "config.json").read_text())
    assert pooling["word_embedding_dimension"] == 384
    assert [key for key, used in pooling.items() if key.startswith("pooling_mode") and used] == [
        "pooling_mode_mean_tokens"
    ]
    transformer = json.loads((export.folder / "sentence_bert_config.json").read_text())
    assert transformer.keys() == {"max_seq_length", "do_lower_case"}
    for module in modules[2:]:
        config = json.loads((export.folder / module["path"] / "config.json").read_text())
        assert not any(key.startswith("module_") for key in config)  # unknown before version 5


def test_a_model_with_an_unknown_activation_is_not_for_a_server(make, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(make("nested").folder, folder)
    modules = json.loads((folder / "modules.json").read_text())
    (dense,) = [module for module in modules if module["type"].endswith(".Dense")]
    config = json.loads((folder / dense["path"] / "config.json").read_text())
    config["activation_function"] = "torch.nn.modules.activation.GELU"
    (folder / dense["path"] / "config.json").write_text(json.dumps(config))
    for server in SERVERS.values():
        assert "activation function" in find_incompatibility(folder, modules, server)


def serve_by_rules(folder, texts, server):
    """Return the vectors that a server gives: pooled, through its Dense modules, normalized."""
    modules = json.loads((folder / "modules.json").read_text())
    model = SentenceTransformer(str(folder), device="cpu")
    vectors = torch.nn.Sequential(*list(model)[:2])(model.preprocess(texts))["sentence_embedding"]
    dense = [module for module in modules if module["type"] == "sentence_transformers.models.Dense"]
    for module in dense[: server.dense]:
        tensors = load_file(folder / module["path"] / "model.safetensors")
        vectors = torch.nn.functional.linear(vectors, tensors["linear.weight"], tensors.get("linear.bias"))
    return torch.nn.functional.normalize(vectors).detach().numpy()


@pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)
def test_a_server_gives_the_chains_vectors_or_the_reason_is_found_why_not(make, new_texts, new_vectors, server):
    problems = {}
    for name in ("nested", "truncated", "whitened", "two products", "any length"):
        export = make(name)
        modules = json.loads((export.folder / "modules.json").read_text())
        problems[name] = find_incompatibility(export.folder, modules, server)
        expected = export.chain.floats(new_vectors)
        unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
        served = serve_by_rules(export.folder, new_texts, server)
        equal = served.shape == unit.shape and np.abs(served - unit).max() < 1e-4
        assert equal or problems[name] is not None, name
        says = f"{server.name}: {'not for it' if problems[name] else 'the same vectors'}"
        assert says in (export.folder / "README.md").read_text()
    assert problems["nested"] is problems["truncated"] is None
    assert "normalization before a vector is added" in problems["whitened"]
    assert "normalizes at the end" in problems["any length"]


def test_an_export_for_a_server_that_would_give_other_vectors_is_refused(fitted, encoder, make, tmp_path):
    for name, reason in [
        ("whitened", "Text Embeddings Inference would serve other vectors"),
        ("bytes", "Quantization"),
    ]:
        with pytest.raises(ExportError, match=reason):
            export_sentence_transformers(fitted(*CHAINS[name]), encoder, tmp_path / "model", "x@1", "any")
        assert not (tmp_path / "model").exists()
    exported = export_sentence_transformers(make("truncated").chain, encoder, tmp_path / "model", "x@1", "any")
    assert "modules.json" in exported.files
