"""Export of a chain as an ONNX graph, alone and behind its encoder.

folder/
├── chain.onnx      `vectors` (n, d) → `embeddings` (n, k); with a quantizer also `codes` and `queries`
├── decode.onnx     `codes` → `embeddings`; only with a quantizer
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

from lathe.training.encoder.encoder import Encoder
from lathe.training.errors import ExportError
from lathe.training.export.folder import (
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
from lathe.training.export.onnx_codes import add_decoding, add_encoding, code_type
from lathe.training.export.onnx_nodes import OPSET, GraphBuilder
from lathe.transforms.base import Map
from lathe.transforms.chain import Chain
from lathe.transforms.linear import Affine, Normalize, Selection
from lathe.transforms.statistics import rounding_threshold

VECTORS, EMBEDDINGS, CODES, QUERIES = "vectors", "embeddings", "codes", "queries"
"""Names of the chain graph's input and outputs; `queries` are the floats before quantization."""
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

The output `codes` holds the codes, `embeddings` the floats that they stand for, and `queries` the floats before
quantization. Queries stay floats: the inner product of a query's `queries` and a document's `embeddings` is the score
of the document's code. `decode.onnx` decodes stored codes:

```python
decoder = onnxruntime.InferenceSession("decode.onnx")
codes = session.run(["codes"], {"vectors": vectors})[0]
decoder.run(["embeddings"], {"codes": codes})
```"""
"""Remark of README.md on the quantizer's output."""


def export_onnx(chain: Chain, encoder: Encoder | None, folder: Path, reference: str) -> Exported:
    """Write a chain to a folder as ONNX graphs, with its encoder if one is given, and check their output.
    Return the folder, its files and the largest difference from the chain.

    chain.onnx maps vectors to outputs; decode.onnx decodes the codes of a chain that has them; with an encoder,
    model.onnx maps token ids to outputs, and the tokenizer's files are written beside it.

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
        raise ExportError(
            "ONNX export needs onnx, onnxscript and onnxruntime: pip install 'lathe-training[onnx]'"
        ) from error

    if encoder is not None and require_encoder(chain, encoder).static:
        raise ExportError(
            f"{encoder.name} is static, which no graph of token ids and a mask is: export sentence-transformers"
        )

    require_exportable(chain)
    with open_staging_folder(folder) as staging:
        graph = ChainGraph(onnx, chain).build_chain()
        session = _open_checked(onnx, onnxruntime, graph, staging / "chain.onnx")
        probes = sample_probe_vectors(chain)

        if chain.quantizer is None:
            floats = EMBEDDINGS
            outputs = session.run([floats], {VECTORS: probes})[0]
            difference = require_close(outputs, chain.transform(probes), "chain.onnx")
        else:
            floats = QUERIES
            decoder = ChainGraph(onnx, chain).build_decoder()
            decoding = _open_checked(onnx, onnxruntime, decoder, staging / "decode.onnx")
            difference = _require_codes(session, decoding, chain, probes)

        if encoder is not None:
            path = staging / "model.onnx"
            _trace_encoder(encoder, path)
            traced = onnx.load(path)
            # Models of different versions cannot be merged.
            graph.ir_version = traced.ir_version
            merged = onnx.compose.merge_models(traced, graph, io_map=[(ENCODED, VECTORS)])
            path.unlink()
            onnx.save(merged, path, save_as_external_data=_is_large(encoder), location="model.onnx.data")
            session = onnxruntime.InferenceSession(path)
            inputs = _tokenize(encoder, PROBE_TEXTS)
            # Floats, because rounding of the encoder's vectors may tip codes.
            outputs = session.run([floats], {name: tensor.numpy() for name, tensor in inputs.items()})[0]
            expected = chain.transform_queries(encoder.encode(PROBE_TEXTS).vectors)
            difference = max(difference, require_close(outputs, expected, "model.onnx"))
            encoder.model.tokenizer.save_pretrained(str(staging))

        usage = USAGE if chain.quantizer is None else USAGE + USAGE_OF_CODES
        usage += "" if encoder is None else USAGE_OF_MODEL.replace("MAX", str(encoder.max_length))
        write_description(staging, chain, reference, usage)

    return Exported(folder, sorted(path.name for path in folder.iterdir()), difference)


def _open_checked(onnx: Any, onnxruntime: Any, graph: Any, path: Path) -> Any:
    onnx.checker.check_model(graph, full_check=True)
    onnx.save(graph, path)
    return onnxruntime.InferenceSession(path)


def _require_codes(session: Any, decoder: Any, chain: Chain, probes: NDArray[np.float32]) -> float:
    """Raise `ExportError` unless the ONNX graphs encode and decode probes as the chain does.
    Return the largest difference of their floats from the chain's.

    Args:
        session: opened chain.onnx.
        decoder: opened decode.onnx.
        chain: fitted chain with a quantizer.
        probes: vectors `(n, d)`.

    Raises:
        ExportError: if codes differ by more than rounding, or floats by more than `TOLERANCE`.
    """
    embeddings, codes, queries = session.run([EMBEDDINGS, CODES, QUERIES], {VECTORS: probes})
    require_codes(codes, chain.transform(probes), "chain.onnx")
    decoded, expected = decoder.run([EMBEDDINGS], {CODES: codes})[0], chain.dequantize(codes)

    return max(
        require_close(queries, chain.transform_queries(probes), "chain.onnx"),
        require_close(embeddings, expected, "chain.onnx"),
        require_close(decoded, expected, "decode.onnx"),
    )


class ChainGraph(GraphBuilder):
    """Builder of one ONNX graph of a folded chain, either of the chain or of its decoder.

    As in the chain, zero rows stay zero, and outputs that are only rounding error become zero.

    Args:
        onnx: the imported onnx module.
        chain: fitted chain.
    """

    def __init__(self, onnx: Any, chain: Chain) -> None:
        super().__init__(onnx)
        self.chain = chain.fold()

    def build_chain(self) -> Any:
        """Build the ONNX model of the chain, which maps `vectors` to `embeddings`.
        With a quantizer, these are decoded codes, and the model has the outputs `codes` and `queries` too.
        """
        at = VECTORS
        for step in self.chain.float_steps:
            at = self.add_step(step, at)

        outputs = [self.describe_floats(EMBEDDINGS)]
        if self.chain.quantizer is not None:
            self.add_node("Identity", [at], QUERIES)
            at = add_decoding(self, self.chain.quantizer, add_encoding(self, self.chain.quantizer, at, CODES))
            outputs += [self.describe_codes(), self.describe_floats(QUERIES)]

        self.add_node("Identity", [at], EMBEDDINGS)
        shape = ["batch", self.chain.input_dimensions]
        return self.build_model([self.describe(VECTORS, "FLOAT", shape)], outputs)

    def build_decoder(self) -> Any:
        """Build the ONNX model that decodes the input `codes` of a quantizing chain to the output `embeddings`."""
        assert self.chain.quantizer is not None
        self.add_node("Identity", [add_decoding(self, self.chain.quantizer, CODES)], EMBEDDINGS)
        return self.build_model([self.describe_codes()], [self.describe_floats(EMBEDDINGS)])

    def describe_floats(self, name: str) -> Any:
        """Return the ONNX description (ValueInfoProto) of a float output `(n, k)` of the chain with this name."""
        return self.describe(name, "FLOAT", ["batch", self.chain.output_dimensions])

    def describe_codes(self) -> Any:
        """Return the ONNX description (ValueInfoProto) of the chain's codes `(n, bytes)`."""
        assert self.chain.quantizer is not None
        return self.describe(CODES, code_type(self.chain.quantizer), ["batch", self.chain.bytes_per_vector])

    def add_step(self, step: Map, x: str) -> str:
        """Add the nodes of one float step, applied to the tensor named `x`, and return the name of its output.

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
        raise ExportError(f"there is no ONNX form of {step.kind}")

    def add_affine(self, x: str, step: Affine) -> str:
        """Add the nodes of W x + b for each row of the tensor named `x`, and return the name of the output.

        Rows that are only rounding error become zero. The output is normalized if `step.normalize`.
        """
        y = self._add_linear(x, step.weight, step.bias)
        before = self.add_norm(x)
        tolerance = self.add_node("Mul", [before, self.add_number(rounding_threshold(step.weight.float(), step.gain))])
        is_zero = self.add_node("Equal", [before, self.add_number(0.0)])
        residue_only = self.add_node("LessOrEqual", [self.add_norm(y), tolerance])  # false for NaN, which stays
        y = self.add_node("Where", [self.add_node("Or", [is_zero, residue_only]), self.add_number(0.0), y])
        return self.add_normalization(y) if step.normalize else y

    def _add_linear(self, x: str, weight: torch.Tensor, bias: torch.Tensor | None = None) -> str:
        y = self.add_node("MatMul", [x, self.add_constant(weight.T.cpu().numpy())])
        return y if bias is None else self.add_node("Add", [y, self.add_constant(bias.cpu().numpy())])


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
        """Encode token tensors `(n, t)`, given in the order of `names`, to unit vectors `(n, d)`."""
        features: dict[str, Any] = dict(zip(self.names, inputs, strict=True))
        for step in self.steps:
            features = step(features)
        return torch.nn.functional.normalize(features["sentence_embedding"], dim=1)


def _trace_encoder(encoder: Encoder, path: Path) -> None:
    """Trace an encoder from token ids to unit vectors, and write it to `path` as an ONNX file.
    Warnings and logs are suppressed.

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
    """Tokenize texts to the CPU tensors `(n, t)` that the encoder takes.
    Return them by name, in the order of `TOKEN_INPUTS`.
    """
    features = encoder.model.preprocess(texts)
    return {name: features[name].cpu() for name in TOKEN_INPUTS if name in features}


def _is_large(encoder: Encoder) -> bool:
    """Return whether the encoder's weights in float32 exceed `ONE_FILE_BYTES`, too many for one protobuf file."""
    return bool(sum(parameter.numel() * 4 for parameter in encoder.model.parameters()) > ONE_FILE_BYTES)
