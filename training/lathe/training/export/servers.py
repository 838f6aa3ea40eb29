"""Rules by which servers read a sentence-transformers model. Servers run fewer kinds of modules than the library.

The rules are taken from the servers' source code; the servers themselves are not run.

Text Embeddings Inference, commit 028192f13e24: backends/src/lib.rs, `ModuleType`, `ModuleConfig` and
`parse_dense_paths_from_modules`: entries of modules.json have `idx`, `name`, `path` and one of the four types of
`STOCK_MODULES`, or all Dense modules are left out with a warning. backends/candle/src/models/dense.rs, `DenseConfig`
and `Dense::load` (commit 0d1b698f4617): a Dense module has `in_features`, `out_features` and `bias`, its tensors are
`linear.weight` and `linear.bias`, and its activation is one of `ACTIVATIONS`. After the pooling the server runs every
Dense module, and normalizes once at the end unless a request says otherwise; Normalize modules are not run.

vLLM, commit 00620f91ea18: vllm/model_executor/models/adapters.py, `_load_st_projector` and `_load_dense_weights`: runs
the first Dense module, whose tensors may be `linear.weight` and `linear.bias`, then normalizes.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Reader = Literal["sentence-transformers", "tei", "vllm", "any"]
"""Software that is to read an export; `any` means each of the others."""

STOCK = "sentence_transformers.models."
"""Prefix of the types of stock modules in modules.json that the library, from version 2 on, and servers read."""
STOCK_MODULES = ("Transformer", "Pooling", "Dense", "Normalize")
"""Names of the stock modules."""
POOLINGS = {"pooling_mode_cls_token", "pooling_mode_mean_tokens", "pooling_mode_lasttoken"}
"""Pooling modes that both servers support."""
ACTIVATIONS = ("torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh")
"""Activation functions of Dense modules that both servers support."""


@dataclass(frozen=True)
class ModelServer:
    """Server that reads sentence-transformers models, and how many of their Dense modules it runs.

    Attributes:
        name: name of the server.
        dense: maximum number of Dense modules that the server runs; None for any number.
    """

    name: str
    dense: int | None


SERVERS = {"tei": ModelServer("Text Embeddings Inference", None), "vllm": ModelServer("vLLM", 1)}
"""Servers by the name of the reader."""


def find_incompatibility(folder: Path, modules: list[dict[str, Any]], server: ModelServer) -> str | None:
    """Return why a server would give other vectors than sentence-transformers for an exported model, or None.

    None means that the server gives the same vectors once they are normalized.

    Args:
        folder: folder of the model.
        modules: content of the model's modules.json.
        server: the server.
    """
    kinds = [module["type"].removeprefix(STOCK) for module in modules]
    if unknown := [kind for kind in kinds if kind not in STOCK_MODULES]:
        return f"it does not support the module {unknown[0]}, and then leaves out all Dense modules too"
    if kinds[:2] != ["Transformer", "Pooling"]:
        return "it reads only models that begin with a Transformer and a Pooling"

    pooling = json.loads((folder / modules[1]["path"] / "config.json").read_text())
    if not {key for key, used in pooling.items() if key.startswith("pooling_mode") and used} <= POOLINGS:
        return "it does not support the pooling of this model"
    if kinds[-1] != "Normalize":
        return "it normalizes at the end, and this chain does not"

    dense = [index for index, kind in enumerate(kinds) if kind == "Dense"]
    if server.dense is not None and len(dense) > server.dense:
        return f"it runs {server.dense} Dense module, and this chain needs {len(dense)}"

    for index in dense:
        config = json.loads((folder / modules[index]["path"] / "config.json").read_text())
        if (activation := config.get("activation_function", ACTIVATIONS[0])) not in ACTIVATIONS:
            return f"it may not support the activation function {activation}"
        if config["bias"] and "Normalize" in kinds[:index]:
            return (
                "it leaves out the normalization before a vector is added (such as a mean), which then has another "
                "weight; chains that add no vector, such as r2 with geopres or pca without centring, are not affected"
            )

    return None
