"""Export of a chain of transforms and its encoder as one sentence-transformers model.

folder/
├── modules.json …        the encoder, as sentence-transformers saves it
├── N_Dense, N_Normalize  the folded chain as stock modules, numbered after the modules of the encoder
├── N_Quantization, lathe_quantization.py   only with a quantizer, for which there is no stock module
└── README.md, lathe.json metadata
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.encoder.text_encoder import SIDE_PROMPTS
from lathe.training.errors import ExportError
from lathe.training.export.folder import (
    PROBE_TEXTS,
    SHIPPED,
    Exported,
    compare_codes,
    import_shipped,
    measure_difference,
    open_staging_folder,
    prepare_encoder,
    write_description,
)
from lathe.training.export.servers import SERVERS, STOCK, STOCK_MODULES, Reader, find_incompatibility
from lathe.transforms.base import Map
from lathe.transforms.chain import Chain
from lathe.transforms.codes import Binary, Int8, Quantizer
from lathe.transforms.linear import Affine, Normalize, Selection

QUANTIZATION = SHIPPED / "lathe_quantization.py"
"""Module that is copied into exports with a quantizer."""
POOLING_MODES = {
    "cls": "cls_token",
    "max": "max_tokens",
    "mean": "mean_tokens",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean": "weightedmean_tokens",
    "lasttoken": "lasttoken",
}
"""Names of pooling modes in version 6, and in the keys `pooling_mode_…` that all versions and servers read."""
PLAIN_TEXT = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
"""`modality_config` of version 6 for a model that takes plain texts. Earlier versions do not have this setting."""
FEATURE = "sentence_embedding"
"""Key of the embedding in the features that modules pass on."""
OLDEST = "3.4"
"""Oldest version of sentence-transformers that was tested. Version 2 reads Dense modules only from `pytorch_model.bin`,
which is a pickle and is not written."""


def export_sentence_transformers(
    chain: Chain, encoder: Encoder | None, folder: Path, reference: str, reader: Reader = "sentence-transformers"
) -> Exported:
    """Write encoder and chain of transforms to a folder as one sentence-transformers model. Other vectors raise.

    Args:
        chain: fitted chain of transforms.
        encoder: encoder of the vectors that the chain takes; saved in float32.
        folder: folder to create; an existing folder must be empty.
        reference: name of the chain, for README.md and lathe.json.
        reader: software that is to read the model; a model that would give other vectors there is refused.

    Returns:
        The folder, its files and the largest difference from the chain's output.

    Raises:
        ExportError: if the chain is not exportable, the encoder is missing or not the chain's, the folder is not empty,
            or the model would give other vectors than the chain, in sentence-transformers or in `reader`.
        OSError: if a file cannot be written; nothing is left in the folder.
    """
    encoder = prepare_encoder(chain, encoder)
    sides: list[str | None] = [*SIDE_PROMPTS] if encoder.routed else [None]
    raw = np.concatenate([encoder.encode(PROBE_TEXTS, side).vectors for side in sides])
    floats = chain.without_quantizer().floats(raw)
    with open_staging_folder(folder) as staging:
        encoder.join_routes().save(str(staging), create_model_card=False)
        # Not every version and server reads the format of the installed version.
        modules = _use_common_formats(staging, json.loads((staging / "modules.json").read_text()), encoder.max_length)
        unit = [] if modules[-1]["type"].endswith(".Normalize") else [Normalize()]  # chains take unit vectors

        for step in [*unit, *chain.fold().float_steps]:
            modules += _write_step(step, staging, len(modules))

        _write_modules(staging, modules)
        # Checked as a user would load it, but without quantization, whose code the library would copy to its cache.
        exported = Encoder(EncoderSpec(reference, str(staging)), "cpu")
        outputs = np.concatenate([exported.encode(PROBE_TEXTS, side, normalize=False).vectors for side in sides])
        difference = measure_difference(outputs, floats, "the sentence-transformers model")

        if chain.quantizer is not None:
            modules += _write_step(chain.quantizer, staging, len(modules))
            _write_modules(staging, modules)
            outputs, codes = _run_shipped_module(staging, modules[-1]["path"], floats)
            expected = chain.quantizer.transform(floats)
            compare_codes(codes, expected, QUANTIZATION.name)
            difference = max(
                difference, measure_difference(outputs, chain.dequantize(expected), QUANTIZATION.name, codes=True)
            )

        for key, server in SERVERS.items():
            if reader in (key, "any") and (problem := find_incompatibility(staging, modules, server)):
                raise ExportError(f"{server.name} would serve other vectors: {problem}")
        usage = _format_usage(chain.quantizer is not None) + _format_servers(staging, modules)
        write_description(staging, chain, reference, usage)

    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return Exported(folder, files, difference)


def _run_shipped_module(folder: Path, path: str, floats: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Run the quantization module in an exported model's folder on floats `(n, k)`.

    Returns:
        The decoded floats `(n, k)` and the byte codes.
    """
    step = import_shipped(folder / QUANTIZATION.name).Quantization.load(str(folder), path)
    features = step({FEATURE: torch.from_numpy(floats.copy())})
    return features[FEATURE].numpy(), features["codes"].numpy()


def _use_common_formats(folder: Path, modules: list[dict[str, Any]], max_length: int) -> list[dict[str, Any]]:
    """Rewrite the settings files of a saved encoder in common formats, and return the new entries of modules.json.

    All versions and servers read these formats.
    """
    common = []
    for module in modules:
        name = module["type"].rpartition(".")[2]
        if not module["type"].startswith("sentence_transformers.") or name not in STOCK_MODULES:
            common.append(module)
            continue

        common.append(module | {"type": STOCK + name})
        if name == "Pooling":
            _rewrite(folder / module["path"] / "config.json", _use_common_pooling)

        if name == "Normalize":
            _rewrite(folder / module["path"] / "config.json", lambda _: {})

    _rewrite(folder / "sentence_bert_config.json", lambda config: _use_common_transformer(config, max_length))
    return common


def _rewrite(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Apply a function to the content of a JSON file, in place. A missing file is skipped."""
    if path.is_file():
        path.write_text(json.dumps(change(json.loads(path.read_text())), indent=2) + "\n")


def _use_common_pooling(config: dict[str, Any]) -> dict[str, Any]:
    """Convert pooling settings to the keys that all versions of sentence-transformers read.

    Settings that already have these keys are returned unchanged.
    """
    if "pooling_mode" not in config:
        return config

    modes = [config["pooling_mode"]] if isinstance(config["pooling_mode"], str) else config["pooling_mode"]
    return {
        "word_embedding_dimension": config["embedding_dimension"],
        **{f"pooling_mode_{key}": mode in modes for mode, key in POOLING_MODES.items()},
        "include_prompt": config.get("include_prompt", True),
    }


def _use_common_transformer(config: dict[str, Any], max_length: int) -> dict[str, Any]:
    """Convert a text model's transformer settings to the keys that all versions of sentence-transformers read.

    Settings of any other model are returned unchanged.
    """
    if config.get("modality_config") != PLAIN_TEXT:
        return config
    return {"max_seq_length": max_length, "do_lower_case": config.get("do_lower_case", False)}


def _write_modules(folder: Path, modules: list[dict[str, Any]]) -> None:
    (folder / "modules.json").write_text(json.dumps(modules, indent=2) + "\n")


def _write_step(step: Map, folder: Path, index: int) -> list[dict[str, Any]]:
    """Write a folded step as numbered module folders, and return their modules.json entries. Some quantizers raise.

    For a quantizer, `lathe_quantization.py` is copied into the folder.

    Raises:
        ExportError: for a quantizer other than `int8` and `binary`.
    """
    if isinstance(step, Normalize):
        return [_write_module(folder, index, "Normalize", STOCK + "Normalize", {}, {})]

    if isinstance(step, Quantizer):
        if not isinstance(step, Int8 | Binary):
            raise ExportError(
                f"there is no sentence-transformers module for {step.kind}: export the chain without that step"
            )
        (folder / QUANTIZATION.name).write_bytes(QUANTIZATION.read_bytes())
        tensors = {name: buffer.float() for name, buffer in step.named_buffers()}
        kind = f"{QUANTIZATION.stem}.Quantization"
        return [_write_module(folder, index, "Quantization", kind, {"kind": step.kind}, tensors)]

    if isinstance(step, Selection):
        step = step.as_affine()

    assert isinstance(step, Affine)
    config: dict[str, Any] = {
        "in_features": step.weight.shape[1],
        "out_features": step.weight.shape[0],
        "bias": step.bias is not None,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    tensors = {"linear.weight": step.weight} | ({} if step.bias is None else {"linear.bias": step.bias})
    # A Dense module does not normalize, so an affine map that normalizes becomes two modules.
    entries = [_write_module(folder, index, "Dense", STOCK + "Dense", config, tensors)]

    return entries + (_write_step(Normalize(), folder, index + 1) if step.normalize else [])


def _write_module(
    folder: Path, index: int, name: str, kind: str, config: dict[str, Any], tensors: dict[str, Tensor]
) -> dict[str, Any]:
    """Write a module's subfolder with config.json and tensors in float32, and return the modules.json entry.

    `kind` is the import path of the module's class.
    """
    path = folder / f"{index}_{name}"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if tensors:
        contiguous = {key: tensor.to("cpu", torch.float32).contiguous() for key, tensor in tensors.items()}
        save_file(contiguous, path / "model.safetensors", metadata={"format": "pt"})
    return {"idx": index, "name": str(index), "path": path.name, "type": kind}


def _format_usage(own_code: bool) -> str:
    """Format the usage text for README.md, which says whether to trust the exported code."""
    trust = ", trust_remote_code=True" if own_code else ""
    why = (
        "\n\nThere is no stock module for quantization: `lathe_quantization.py` in this folder is the remote code.\n"
        "Embeddings are the decoded floats; `model.encode(texts, output_value=None)` also returns the `codes`."
        if own_code
        else ""
    )
    return (
        "```python\nfrom sentence_transformers import SentenceTransformer\n\n"
        f'model = SentenceTransformer("path/to/this/folder"{trust})\nmodel.encode(["some text"])\n```\n\n'
        f"Needs sentence-transformers {OLDEST} or newer.{why}"
    )


def _format_servers(folder: Path, modules: list[dict[str, Any]]) -> str:
    """Format a list for README.md of which servers give the same vectors for the exported model."""
    lines = ["", ""]
    for server in SERVERS.values():
        problem = find_incompatibility(folder, modules, server)
        lines.append(f"- {server.name}: {f'not for it: {problem}' if problem else 'the same vectors, normalized'}.")
    return "\n".join(lines)
