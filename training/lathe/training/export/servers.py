"""Rules by which servers read a sentence-transformers model, of which they run fewer modules than the library.

The rules are taken from the servers' sources; the servers themselves are not run.

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
"""Software that is to read an export; `any` is all of them."""

STOCK = "sentence_transformers.models."
"""Prefix of the types of stock modules in modules.json that the library, from version 2 on, and servers read."""
STOCK_MODULES = ("Transformer", "Pooling", "Dense", "Normalize")
"""Modules that have those types."""
POOLINGS = {"pooling_mode_cls_token", "pooling_mode_mean_tokens", "pooling_mode_lasttoken"}
"""Ways to pool that both servers know."""
ACTIVATIONS = ("torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh")
"""Activation functions of Dense modules that both servers know."""


@dataclass(frozen=True)
class ModelServer:
    """Server that reads sentence-transformers models, and how many of their Dense modules it runs.

    Attributes:
        name: its name.
        dense: maximum number of Dense modules that it runs; None for any.
    """

    name: str
    dense: int | None


SERVERS = {"tei": ModelServer("Text Embeddings Inference", None), "vllm": ModelServer("vLLM", 1)}
"""Servers by the name of the reader."""


def find_incompatibility(folder: Path, modules: list[dict[str, Any]], server: ModelServer) -> str | None:
    """Return the reason why a server would give other vectors than sentence-transformers for an exported model.

    None if it gives the same once normalized.

    Args:
        folder: folder of the model.
        modules: content of its modules.json.
        server: the server.
    """
    kinds = [module["type"].removeprefix(STOCK) for module in modules]
    if unknown := [kind for kind in kinds if kind not in STOCK_MODULES]:
        return f"it does not run {unknown[0]}, and then no Dense module either"
    if kinds[:2] != ["Transformer", "Pooling"]:
        return "it reads models that begin with a Transformer and a Pooling only"

    pooling = json.loads((folder / modules[1]["path"] / "config.json").read_text())
    if not {key for key, used in pooling.items() if key.startswith("pooling_mode") and used} <= POOLINGS:
        return "it does not pool like this model"
    if kinds[-1] != "Normalize":
        return "it normalizes at the end, and this chain does not"

    dense = [index for index, kind in enumerate(kinds) if kind == "Dense"]
    if server.dense is not None and len(dense) > server.dense:
        return f"it runs {server.dense} Dense module, and this chain needs {len(dense)}"

    for index in dense:
        config = json.loads((folder / modules[index]["path"] / "config.json").read_text())
        if (activation := config.get("activation_function", ACTIVATIONS[0])) not in ACTIVATIONS:
            return f"the activation function {activation} is none that all servers know"
        if config["bias"] and "Normalize" in kinds[:index]:
            return (
                "it leaves out the normalization before an added vector (of a mean, for example), which then has "
                "another weight; a chain without one, such as r2 with geopres or pca without centring, has no such step"
            )

    return None
