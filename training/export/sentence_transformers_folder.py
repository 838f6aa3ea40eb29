"""Export of a chain and its encoder as one sentence-transformers model.

folder/
├── modules.json …        the encoder, as sentence-transformers saves it
├── N_Dense, N_Normalize  the folded chain as stock modules, numbered after the encoder's
├── N_Quantization, lathe_quantization.py   only with a quantizer, for which there is no stock module
└── README.md, lathe.json metadata
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from training.encoder.encoder import Encoder
from training.encoder.spec import EncoderSpec
from training.errors import ExportError
from training.export.folder import (
    PROBE_TEXTS,
    SHIPPED,
    Exported,
    import_shipped,
    open_staging_folder,
    require_close,
    require_codes,
    require_encoder,
    write_description,
)
from transforms.base import Map
from transforms.chain import Chain
from transforms.codes import Binary, Int8, Quantizer
from transforms.linear import Affine, Normalize, Selection

QUANTIZATION = SHIPPED / "lathe_quantization.py"
"""Module that is copied into exports with a quantizer."""
DENSE = "sentence_transformers.base.modules.dense.Dense"
"""Import path of the stock Dense module in modules.json."""
NORMALIZE = "sentence_transformers.base.modules.normalize.Normalize"
"""Import path of the stock Normalize module in modules.json."""
FEATURE = "sentence_embedding"
"""Key under which modules pass the embedding on."""
OLDEST = "6.0"
"""Oldest version of sentence-transformers that has the stock modules under these import paths."""


def export_sentence_transformers(chain: Chain, encoder: Encoder | None, folder: Path, reference: str) -> Exported:
    """Write encoder and chain as one sentence-transformers model; check its output, and return what was written.

    Args:
        chain: fitted chain.
        encoder: encoder of the vectors that the chain takes; saved in float32.
        folder: folder to create; an existing one must be empty.
        reference: name of the chain, for README.md and lathe.json.

    Raises:
        ExportError: if the chain is not exportable, the encoder is missing or not the chain's, the folder is not empty,
            or the model gives other vectors than the chain.
        OSError: if a file cannot be written; nothing is left in the folder.
    """
    encoder = require_encoder(chain, encoder)
    floats = Chain(chain.float_steps, chain.normalize).floats(encoder.encode(PROBE_TEXTS).vectors)
    with open_staging_folder(folder) as staging:
        encoder.model.save(str(staging), create_model_card=False)
        modules = json.loads((staging / "modules.json").read_text())
        unit = [] if modules[-1]["type"].endswith(".Normalize") else [Normalize()]  # chains take unit vectors
        for step in [*unit, *chain.fold().float_steps]:
            modules += _write_step(step, staging, len(modules))
        _write_modules(staging, modules)
        # Checked as a user would load it, before a quantisation, which the library loads by a copy in its cache.
        found = Encoder(EncoderSpec(reference, str(staging)), "cpu").encode(PROBE_TEXTS, normalize=False).vectors
        difference = require_close(found, floats, "the sentence-transformers model")
        if chain.quantizer is not None:
            modules += _write_step(chain.quantizer, staging, len(modules))
            _write_modules(staging, modules)
            found, codes = _run_shipped_module(staging, modules[-1]["path"], floats)
            expected = chain.quantizer.transform(floats)
            require_codes(codes, expected, QUANTIZATION.name)
            difference = max(
                difference, require_close(found, chain.dequantize(expected), QUANTIZATION.name, codes=True)
            )
        write_description(staging, chain, reference, _format_usage(chain.quantizer is not None))
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return Exported(folder, files, difference)


def _run_shipped_module(folder: Path, path: str, floats: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Run the quantization module shipped in a folder on `(n, k)` floats; return the decoded floats and the codes.

    Args:
        folder: exported model with `lathe_quantization.py`, which is imported and executed.
        path: subfolder of the module's tensors.
        floats: outputs of the float steps.
    """
    step = import_shipped(folder / QUANTIZATION.name).Quantization.load(str(folder), path)
    features = step({FEATURE: torch.from_numpy(floats.copy())})
    return features[FEATURE].numpy(), features["codes"].numpy()


def _write_modules(folder: Path, modules: list[dict[str, Any]]) -> None:
    """Write `modules.json`, the list of a model's modules, to the folder, replacing an existing one."""
    (folder / "modules.json").write_text(json.dumps(modules, indent=2) + "\n")


def _write_step(step: Map, folder: Path, index: int) -> list[dict[str, Any]]:
    """Write one folded step as one or two module subfolders, numbered from `index`; return their modules.json entries.

    For a quantizer, `lathe_quantization.py` is copied into the folder too.

    Raises:
        ExportError: for a quantizer other than `int8` and `binary`.
    """
    if isinstance(step, Normalize):
        names = {"module_input_name": FEATURE, "module_output_name": FEATURE}
        return [_write_module(folder, index, "Normalize", NORMALIZE, names, {})]
    if isinstance(step, Quantizer):
        if not isinstance(step, Int8 | Binary):
            raise ExportError(
                f"there is no sentence-transformers module of {step.kind}: export the chain without that step"
            )
        shutil.copyfile(QUANTIZATION, folder / QUANTIZATION.name)
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
        "module_input_name": FEATURE,
        "module_output_name": FEATURE,
    }
    tensors = {"linear.weight": step.weight} | ({} if step.bias is None else {"linear.bias": step.bias})
    entries = [_write_module(folder, index, "Dense", DENSE, config, tensors)]
    return entries + (_write_step(Normalize(), folder, index + 1) if step.normalize else [])


def _write_module(
    folder: Path, index: int, name: str, kind: str, config: dict[str, Any], tensors: dict[str, Tensor]
) -> dict[str, Any]:
    """Write a module's subfolder: config.json and, if it has tensors, model.safetensors; return its modules.json entry.

    Args:
        folder: folder of the model.
        index: position of the module, and prefix of the subfolder's name.
        name: rest of the subfolder's name.
        kind: import path of the module's class.
        config: constructor arguments, for config.json.
        tensors: state, stored as float32.
    """
    path = folder / f"{index}_{name}"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if tensors:
        contiguous = {key: tensor.to("cpu", torch.float32).contiguous() for key, tensor in tensors.items()}
        save_file(contiguous, path / "model.safetensors", metadata={"format": "pt"})
    return {"idx": index, "name": str(index), "path": path.name, "type": kind}


def _format_usage(own_code: bool) -> str:
    """Return the Markdown text on how to load the model; `own_code` adds why remote code must be trusted."""
    trust = ", trust_remote_code=True" if own_code else ""
    why = (
        "\n\nNo stock module quantises, so `lathe_quantization.py` here does; that is the code to trust.\n"
        "Embeddings are the floats that the codes stand for; `model.encode(texts, output_value=None)`\n"
        "holds the `codes` too."
        if own_code
        else ""
    )
    return (
        "```python\nfrom sentence_transformers import SentenceTransformer\n\n"
        f'model = SentenceTransformer("path/to/this/folder"{trust})\nmodel.encode(["some text"])\n```\n\n'
        f"Needs sentence-transformers {OLDEST} or newer.{why}"
    )
