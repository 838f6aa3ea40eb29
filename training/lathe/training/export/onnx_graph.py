"""Export of a chain of transforms as an ONNX graph, alone and together with its encoder.

folder/
├── chain.onnx      `vectors` (n, d) → `embeddings` (n, k), before codes; also `codes` if they are `int8` or `binary`
├── lathe_codes.py, codes.npz   encode and decode, only if the chain ends in `codes` or `product_codes`
├── model.onnx      token ids → `embeddings`: encoder, pooling and chain in one graph; only with an encoder
├── tokenizer.json  …  the encoder's tokenizer
└── README.md, lathe.json
"""

import copy
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.text_encoder import ROUTED
from lathe.training.errors import ExportError
from lathe.training.export.folder import (
    PROBE_TEXTS,
    Exported,
    check_exportable,
    compare_codes,
    measure_difference,
    open_staging_folder,
    prepare_encoder,
    sample_probe_vectors,
    write_description,
)
from lathe.training.export.numpy_codec import USAGE as USAGE_OF_CODEC
from lathe.training.export.numpy_codec import write_codec
from lathe.transforms.chain import Chain
from lathe.transforms.codes import Binary, TransformCoding

OPSET = 18
"""ONNX operator set of the graphs."""
VECTORS, EMBEDDINGS, CODES = "vectors", "embeddings", "codes"
"""Names of the chain graph's input and outputs."""
TOKEN_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""Names of the tokenizer's outputs that a model may take."""
ONE_FILE_BYTES = 1_900_000_000
"""Size of the weights above which they are written to a separate file, since a protobuf is limited to 2 GB."""

USAGE = """```python
import onnxruntime

session = onnxruntime.InferenceSession("chain.onnx")
session.run(["embeddings"], {"vectors": vectors})    # float32 (n, d), unit vectors of the encoder
```"""
"""Code example of README.md for chain.onnx."""
USAGE_OF_MODEL = """

```python
from transformers import AutoTokenizer

session = onnxruntime.InferenceSession("model.onnx")
tokenizer = AutoTokenizer.from_pretrained(".")
batch = tokenizer(["some text"], padding=True, truncation=True, max_length=MAX, return_tensors="np")
session.run(["embeddings"], {i.name: batch[i.name] for i in session.get_inputs()})
```

Prompts, where the encoder has them, go before the text."""
"""Code example of README.md for model.onnx; MAX is replaced."""

USAGE_OF_CODES = """

The output `codes` holds the codes of documents. `embeddings` are the floats before quantization, which queries need."""
"""Remark of README.md on a chain that ends in `int8` or `binary`."""


def export_onnx(chain: Chain, encoder: Encoder | None, folder: Path, reference: str) -> Exported:
    """Write a chain of transforms to a folder as ONNX graphs, with the encoder if given. Static encoders raise.

    chain.onnx maps vectors to outputs. For a chain that ends in `codes` or `product_codes`, the NumPy codec that
    encodes and decodes is also written. With an encoder, model.onnx maps token ids to outputs, and the tokenizer's
    files are also written.

    Args:
        chain: fitted chain of transforms.
        encoder: encoder of the vectors that the chain takes; traced in float32. None writes the chain only.
        folder: folder to create; an existing folder must be empty.
        reference: name of the chain, for README.md and lathe.json.

    Returns:
        The folder, its files and the largest difference from the chain's output.

    Raises:
        ExportError: if onnx is not installed, the chain is not exportable, the encoder is static, routed, not the
            chain's or cannot be traced, the folder is not empty, or a graph gives other vectors than the chain.
        OSError: if a file cannot be written; nothing is left in the folder.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ExportError(
            "ONNX export needs onnx, onnxscript and onnxruntime: pip install 'lathe-training[onnx]'"
        ) from error

    if encoder is not None and encoder.routed:
        raise ExportError(f"{encoder.name} {ROUTED}, which one ONNX graph cannot do: export sentence-transformers")
    if encoder is not None and prepare_encoder(chain, encoder).static:
        raise ExportError(
            f"{encoder.name} is static and has no graph of token ids and a mask: export sentence-transformers"
        )

    check_exportable(chain)
    has_codec = isinstance(chain.quantizer, TransformCoding)
    with open_staging_folder(folder) as staging:
        path, graph, probes = staging / "chain.onnx", _ChainGraph(chain), sample_probe_vectors(chain)
        _write_graph(graph, {VECTORS: torch.from_numpy(probes)}, {0: "batch"}, graph.outputs, path)
        outputs = onnxruntime.InferenceSession(path).run(graph.outputs, {VECTORS: probes})
        difference = measure_difference(outputs[0], chain.transform_queries(probes), path.name)
        if CODES in graph.outputs:
            compare_codes(outputs[1], chain.transform(probes), path.name)
        if has_codec:
            difference = max(difference, write_codec(staging, chain))

        if encoder is not None:
            path, inputs = staging / "model.onnx", _tokenize(encoder, PROBE_TEXTS)
            model = _TokensToOutputs(encoder, list(inputs), graph)
            weight_bytes = sum(parameter.numel() * 4 for parameter in encoder.model.parameters())  # in float32
            is_large = weight_bytes > ONE_FILE_BYTES  # too large for one protobuf file
            _write_graph(model, inputs, {0: "batch", 1: "tokens"}, graph.outputs, path, is_large)
            tokens = {name: tensor.numpy() for name, tensor in inputs.items()}
            # Floats are compared, because rounding of the encoder's vectors may change codes.
            found = onnxruntime.InferenceSession(path).run([EMBEDDINGS], tokens)[0]
            expected = chain.transform_queries(encoder.encode(PROBE_TEXTS).vectors)
            difference = max(difference, measure_difference(found, expected, path.name))
            encoder.model.tokenizer.save_pretrained(str(staging))

        usage = USAGE + (USAGE_OF_CODES if CODES in graph.outputs else "")
        usage += f"\n\n{USAGE_OF_CODEC.replace('BYTES', str(chain.bytes_per_vector))}" if has_codec else ""
        usage += "" if encoder is None else USAGE_OF_MODEL.replace("MAX", str(encoder.max_length))
        write_description(staging, chain, reference, usage)

    return Exported(folder, sorted(path.name for path in folder.iterdir()), difference)


class _ChainGraph(torch.nn.Module):
    """Module that applies a folded chain of transforms in float32, for tracing.

    Attributes:
        outputs: names of the outputs.
    """

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        self.chain = copy.deepcopy(chain.fold()).float().cpu()
        # Codes with unequal bits cannot be written as a graph: the NumPy codec encodes them.
        self.has_codes = chain.quantizer is not None and not isinstance(chain.quantizer, TransformCoding)
        self.outputs = [EMBEDDINGS, CODES] if self.has_codes else [EMBEDDINGS]

    def forward(self, vectors: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Transform unit vectors `(n, d)` to floats `(n, k)`, and to codes if the chain ends in `int8` or `binary`."""
        floats: torch.Tensor = self.chain(vectors, side="query")
        if not self.has_codes:
            return floats
        quantizer = self.chain.quantizer
        assert quantizer is not None
        return floats, _pack_signs(floats) if isinstance(quantizer, Binary) else quantizer(floats)


def _pack_signs(floats: torch.Tensor) -> torch.Tensor:
    """Pack the signs of floats `(n, k)` as bits into uint8 `(n, ⌈k/8⌉)`, as `Binary` does.

    ONNX cannot shift bytes, so bits are multiplied by powers of 2 and added up.
    """
    bits = torch.nn.functional.pad((floats > 0).int(), (0, -floats.shape[1] % 8))
    values = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.int32)
    return (bits.reshape(len(floats), -1, 8) * values).sum(dim=-1).to(torch.uint8)


class _TokensToOutputs(torch.nn.Module):
    """Module that applies an encoder and then a chain of transforms to token tensors instead of a dict of features.

    Args:
        encoder: loaded encoder.
        names: names of the features that the input tensors stand for, in order.
        chain: the chain.
    """

    def __init__(self, encoder: Encoder, names: list[str], chain: _ChainGraph) -> None:
        super().__init__()
        self.steps = torch.nn.ModuleList(encoder.model)
        self.names = names
        self.chain = chain

    def forward(self, *inputs: torch.Tensor) -> Any:
        features: dict[str, Any] = dict(zip(self.names, inputs, strict=True))
        for step in self.steps:
            features = step(features)
        return self.chain(torch.nn.functional.normalize(features["sentence_embedding"], dim=1))


def _write_graph(
    module: torch.nn.Module,
    inputs: dict[str, torch.Tensor],
    axes: dict[int, str],
    outputs: Sequence[str],
    path: Path,
    is_large: bool = False,
) -> None:
    """Trace a module, and write it to `path` as ONNX without warnings and logs. A module that is not traceable raises.

    Args:
        module: the module.
        inputs: example inputs by name.
        axes: names of the axes of an input that may have any length.
        outputs: names of the outputs.
        path: the ONNX file.
        is_large: whether weights are written to a separate file.

    Raises:
        ExportError: if torch cannot trace the module.
    """
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)

    shapes = tuple(axes for _ in inputs)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of the tracer about other libraries
            program = torch.onnx.export(
                module.eval(),
                tuple(inputs.values()),
                input_names=list(inputs),
                output_names=list(outputs),
                opset_version=OPSET,
                dynamic_shapes=(shapes,) if isinstance(module, _TokensToOutputs) else shapes,  # `*inputs` is one entry
                verbose=False,
            )
        # Stack traces of the tracing, with paths of this machine.
        for node in program.model.graph.all_nodes():
            node.metadata_props.clear()
        program.save(path, external_data=is_large)
    except Exception as error:  # the tracer raises errors of many classes
        raise ExportError(f"torch cannot trace {path.stem}: {error}") from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _tokenize(encoder: Encoder, texts: list[str]) -> dict[str, torch.Tensor]:
    """Tokenize texts to the input tensors of a model, by name."""
    features = encoder.model.preprocess(texts)
    return {name: features[name].cpu() for name in TOKEN_INPUTS if name in features}
