"""Export of a chain as an ONNX graph, alone and behind its encoder.

folder/
├── chain.onnx      `vectors` (n, d) → `embeddings` (n, k); with a quantizer also `codes`
├── model.onnx      token ids → `embeddings`: encoder, pooling and chain in one; only with an encoder
├── tokenizer.json  …  the encoder's tokenizer
└── README.md, lathe.json
"""

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from training.encoder.encoder import Encoder
from training.errors import ExportError
from training.export.folder import (
    PROBE_TEXTS,
    Exported,
    open_staging_folder,
    require_close,
    require_codes,
    require_encoder,
    require_exportable,
    sample_probe_vectors,
    write_description,
)
from transforms.base import Map
from transforms.chain import Chain
from transforms.codes import Binary, Int8
from transforms.linear import Affine, Normalize, Selection
from transforms.statistics import rounding_threshold

OPSET = 18
"""ONNX operator set of the graphs."""
VECTORS, EMBEDDINGS, CODES = "vectors", "embeddings", "codes"
"""Names of the chain graph's input and outputs."""
ENCODED = "encoded"
"""Name of the encoder graph's output, which is connected to the chain graph's input."""
TOKEN_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""Names of the tokenizer's outputs that a model may take."""
ONE_FILE_BYTES = 1_900_000_000
"""Size of the weights from which on they go to a file of their own, since a protobuf is limited to 2 GB."""

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

The output `codes` holds the codes, one byte or one bit a dimension; `embeddings` the floats that they stand for."""
"""Remark of README.md on the quantizer's output."""


def export_onnx(chain: Chain, encoder: Encoder | None, folder: Path, reference: str) -> Exported:
    """Write a chain as chain.onnx and, with an encoder, both as model.onnx; check them, and return what was written.

    Args:
        chain: fitted chain.
        encoder: encoder of the vectors that the chain takes; traced in float32. None writes chain.onnx only.
        folder: folder to create; an existing one must be empty.
        reference: name of the chain, for README.md and lathe.json.

    Raises:
        ExportError: if onnx is not installed, the chain is not exportable, the encoder is not the chain's or cannot be
            traced, the folder is not empty, or a graph gives other vectors than the chain.
        OSError: if a file cannot be written; nothing is left in the folder.
    """
    try:
        import onnx
        import onnx.compose
        import onnxruntime
    except ImportError as error:
        raise ExportError("ONNX export needs onnx, onnxscript and onnxruntime: pip install 'lathe[onnx]'") from error
    if encoder is not None:
        require_encoder(chain, encoder)
    require_exportable(chain)
    with open_staging_folder(folder) as staging:
        graph = ChainGraph(onnx, chain).build_model()
        onnx.checker.check_model(graph, full_check=True)
        onnx.save(graph, staging / "chain.onnx")
        session = onnxruntime.InferenceSession(staging / "chain.onnx")
        probes, codes = sample_probe_vectors(chain), chain.quantizer is not None
        found = session.run([EMBEDDINGS], {VECTORS: probes})[0]
        difference = require_close(found, chain.floats(probes), "chain.onnx", codes)
        if codes:
            require_codes(session.run([CODES], {VECTORS: probes})[0], chain.transform(probes), "chain.onnx")
        if encoder is not None:
            path = staging / "model.onnx"
            _trace_encoder(encoder, path)
            traced = onnx.load(path)
            graph.ir_version = traced.ir_version
            both = onnx.compose.merge_models(traced, graph, io_map=[(ENCODED, VECTORS)])
            path.unlink()
            onnx.save(both, path, save_as_external_data=_is_large(encoder), location="model.onnx.data")
            session = onnxruntime.InferenceSession(path)
            inputs = _tokenize(encoder, PROBE_TEXTS)
            found = session.run([EMBEDDINGS], {name: tensor.numpy() for name, tensor in inputs.items()})[0]
            expected = chain.floats(encoder.encode(PROBE_TEXTS).vectors)
            difference = max(difference, require_close(found, expected, "model.onnx", codes))
            encoder.model.tokenizer.save_pretrained(str(staging))
        usage = USAGE if encoder is None else USAGE + USAGE_OF_MODEL.replace("MAX", str(encoder.max_length))
        usage += USAGE_OF_CODES if codes else ""
        write_description(staging, chain, reference, usage)
    return Exported(folder, sorted(path.name for path in folder.iterdir()), difference)


class ChainGraph:
    """Builder of the ONNX graph of a folded chain, with one method for each kind of step.

    As in the chain, zero rows stay zero, and outputs that are only rounding error become zero.

    Args:
        onnx: the imported onnx module.
        chain: fitted chain.

    Attributes:
        nodes: ONNX nodes added so far.
        constants: ONNX initializers added so far.
    """

    def __init__(self, onnx: Any, chain: Chain) -> None:
        self.onnx = onnx
        self.chain = chain
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def build_model(self) -> Any:
        """Build the ONNX model of the chain: input `vectors`, outputs `embeddings` and, with a quantizer, `codes`.

        Adds nodes to the builder, so it must be called only once.
        """
        helper, kinds = self.onnx.helper, self.onnx.TensorProto
        at, outputs = VECTORS, []
        for step in self.chain.fold().transforms:
            if isinstance(step, Int8 | Binary):
                kind = kinds.INT8 if isinstance(step, Int8) else kinds.UINT8
                outputs.append(helper.make_tensor_value_info(CODES, kind, ["batch", "bytes"]))
            at = self.add_step(step, at)
        self.add_node("Identity", [at], EMBEDDINGS)
        width = self.chain.output_dimensions
        outputs.insert(0, helper.make_tensor_value_info(EMBEDDINGS, kinds.FLOAT, ["batch", width]))
        inputs = [helper.make_tensor_value_info(VECTORS, kinds.FLOAT, ["batch", self.chain.input_dimensions])]
        graph = helper.make_graph(self.nodes, "chain", inputs, outputs, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)

    def add_step(self, step: Map, x: str) -> str:
        """Add the nodes of one step with input name `x`; return the name of its output.

        Raises:
            ExportError: if the step has no ONNX form.
        """
        match step:
            case Normalize():
                return self.add_normalization(x)
            case Selection():
                return self.add_node("Gather", [x, self.add_constant(step.columns.cpu().numpy())], axis=-1)
            case Affine():
                return self.add_affine(x, step)
            case Int8():
                return self.add_int8(x, step)
            case Binary():
                return self.add_binary(x, step)
        raise ExportError(f"there is no ONNX form of {step.kind}")

    def add_affine(self, x: str, step: Affine) -> str:
        """Add the nodes of W x + b for each row of input `x`; return the name of the output.

        Rows that are only rounding error become zero. The output is normalized if `step.normalize`.
        """
        y = self.add_node("MatMul", [x, self.add_constant(step.weight.T.cpu().numpy())])
        if step.bias is not None:
            y = self.add_node("Add", [y, self.add_constant(step.bias.cpu().numpy())])
        before = self.add_norm(x)
        tolerance = self.add_node("Mul", [before, self.add_number(rounding_threshold(step.weight.float(), step.gain))])
        nothing = self.add_node("Equal", [before, self.add_number(0.0)])
        residue_only = self.add_node("LessOrEqual", [self.add_norm(y), tolerance])  # false for NaN, which stays
        y = self.add_node("Where", [self.add_node("Or", [nothing, residue_only]), self.add_number(0.0), y])
        return self.add_normalization(y) if step.normalize else y

    def add_normalization(self, x: str) -> str:
        """Add the nodes that L2-normalize each row of input `x`, but not zero rows; return the name of the output."""
        scaled, _ = self.add_scaling(x)
        length = self.add_node("ReduceL2", [scaled, self.add_constant(np.array([-1]))], keepdims=1)
        return self.add_node("Div", [scaled, self.add_zero_replacement(length)])

    def add_norm(self, x: str) -> str:
        """Add the nodes of the L2 norm of each row of input `x`, `(n, 1)`; return the name of the output."""
        scaled, largest = self.add_scaling(x)
        length = self.add_node("ReduceL2", [scaled, self.add_constant(np.array([-1]))], keepdims=1)
        return self.add_node("Mul", [length, largest])

    def add_scaling(self, x: str) -> tuple[str, str]:
        """Add the nodes that divide each row of input `x` by its largest absolute entry.

        Without this, squares of entries such as 1e-30 or 1e30 underflow or overflow in float32.

        Returns:
            the names of quotient and divisor.
        """
        largest = self.add_node("ReduceMax", [self.add_node("Abs", [x]), self.add_constant(np.array([-1]))], keepdims=1)
        return self.add_node("Div", [x, self.add_zero_replacement(largest)]), largest

    def add_zero_replacement(self, x: str) -> str:
        """Add the nodes that replace zeros of input `x` by ones; return the name of the output."""
        odd = self.add_node("Equal", [x, self.add_number(0.0)])
        return self.add_node("Where", [odd, self.add_number(1.0), x])

    def add_int8(self, x: str, step: Int8) -> str:
        """Add the nodes that quantize input `x` to int8, output `codes`, and decode them; return the floats' name."""
        scale = self.add_constant(step.scale.cpu().numpy())
        zero = self.add_constant(step.zero_point.cpu().numpy().astype(np.int8))
        codes = self.add_node("QuantizeLinear", [x, scale, zero], CODES, axis=1)
        return self.add_node("DequantizeLinear", [codes, scale, zero], axis=1)

    def add_binary(self, x: str, step: Binary) -> str:
        """Add the nodes that pack signs of input `x` to bits, output `codes`, and decode them; return the floats' name.

        The bits of a dimension are x > 0, the first in the highest bit, padded to whole bytes; they decode to ±size,
        and rows without a positive entry to zero.
        """
        size = step.size.cpu().numpy()
        bits = self.add_node("Greater", [x, self.add_number(0.0)])
        floats = self.add_node("Cast", [bits], to=self.onnx.TensorProto.FLOAT)
        padding = self.add_constant(np.array([0, 0, 0, -len(size) % 8]))
        octets = self.add_node(
            "Reshape",
            [self.add_node("Pad", [floats, padding]), self.add_constant(np.array([0, -(-len(size) // 8), 8]))],
        )
        weights = self.add_constant(np.array([128, 64, 32, 16, 8, 4, 2, 1], np.float32))
        weighted = self.add_node("Mul", [octets, weights])
        values = self.add_node("ReduceSum", [weighted, self.add_constant(np.array([-1]))], keepdims=0)
        self.add_node("Cast", [values], CODES, to=self.onnx.TensorProto.UINT8)
        signed = self.add_node("Where", [bits, self.add_constant(size), self.add_constant(-size)])
        some = self.add_node("ReduceMax", [floats, self.add_constant(np.array([-1]))], keepdims=1)
        return self.add_node("Mul", [signed, some])

    def add_node(self, operator: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        """Add a node; return the name of its output, a new one if none is given."""
        output = output or f"chain_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, [output], **attributes))
        return output

    def add_constant(self, values: NDArray[Any]) -> str:
        """Add an initializer, float64 converted to float32; return its name."""
        values = values.astype(np.float32) if values.dtype == np.float64 else values
        name = f"chain_constant_{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def add_number(self, value: float) -> str:
        """Add a float32 scalar as an initializer; return its name."""
        return self.add_constant(np.array(value, np.float32))


class TokensToVectors(torch.nn.Module):
    """Module that applies an encoder's modules to tensors instead of a dict of features, for tracing.

    Args:
        encoder: loaded encoder.
        names: names of the features that the input tensors stand for, in order.
    """

    def __init__(self, encoder: Encoder, names: list[str]) -> None:
        super().__init__()
        self.steps = torch.nn.ModuleList(encoder.model)
        self.names = names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Encode token tensors `(n, t)`, one for each name, to unit vectors `(n, d)`."""
        found: dict[str, Any] = dict(zip(self.names, inputs, strict=True))
        for step in self.steps:
            found = step(found)
        return torch.nn.functional.normalize(found["sentence_embedding"], dim=1)


def _trace_encoder(encoder: Encoder, path: Path) -> None:
    """Write an encoder, from token ids to unit vectors, as an ONNX file at `path`; warnings and logs are suppressed.

    Raises:
        ExportError: if torch cannot trace the encoder.
    """
    inputs = _tokenize(encoder, PROBE_TEXTS)
    axes = tuple({0: "batch", 1: "tokens"} for _ in inputs)
    module = TokensToVectors(encoder, list(inputs)).eval()
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tracer's own, about libraries that are not ours
            torch.onnx.export(
                module,
                tuple(inputs.values()),
                path,
                input_names=list(inputs),
                output_names=[ENCODED],
                opset_version=OPSET,
                dynamic_shapes=(axes,),
                external_data=_is_large(encoder),
                verbose=False,
            )
    except Exception as error:  # the tracer raises anything, by model
        raise ExportError(f"torch cannot trace the encoder {encoder.name}: {error}") from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _tokenize(encoder: Encoder, texts: list[str]) -> dict[str, torch.Tensor]:
    """Tokenize texts; return the CPU tensors `(n, t)` that the model takes, by name, in the order of `TOKEN_INPUTS`."""
    found = encoder.model.preprocess(texts)
    return {name: found[name].cpu() for name in TOKEN_INPUTS if name in found}


def _is_large(encoder: Encoder) -> bool:
    """Return whether the weights in float32 exceed `ONE_FILE_BYTES`, too many for one protobuf file."""
    return bool(sum(parameter.numel() * 4 for parameter in encoder.model.parameters()) > ONE_FILE_BYTES)
