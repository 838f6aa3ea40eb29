"""Runs other engines for the default encoder, each in a process of its own whose environment need not hold Lathe.

`python rivals.py ENGINE GRAPH` answers lines of JSON on stdin: `{"texts": […]}` sets the texts, `{"save": "FILE"}`
writes their vectors as .npy, `{}` encodes them and answers texts a second, or with `{"clock": "process_time"}` texts a
second of processor time. `python rivals.py export MODEL GRAPH` writes
the folder that the engines load: the ONNX graph of the encoder with its tokenizer. Every engine gets all cores, and
batches of 32 texts of similar length.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BATCH = 32
MAX_TOKENS = int(os.environ.get("MAX_TOKENS", "256"))
CORES = len(os.sched_getaffinity(0))

Vectors = NDArray[np.float32]
Encode = Callable[[Sequence[str]], Vectors]
Run = Callable[[dict[str, NDArray[np.int64]]], Any]
"""Function from a graph's inputs to token embeddings `(b, t, d)`."""


def export_graph(model: str, graph: Path) -> None:
    """Write the ONNX graph by PyTorch, its int8 weights beside it, and the tokenizer's files."""
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from transformers import AutoModel, AutoTokenizer

    encoder = AutoModel.from_pretrained(model, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.save_pretrained(graph)
    encoder.config.save_pretrained(graph)
    (graph / "onnx").mkdir()
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = tokenizer(["two texts", "of different length"], return_tensors="pt", padding=True)
    rows, tokens = torch.export.Dim("rows", min=1), torch.export.Dim("tokens", min=2, max=512)
    torch.onnx.export(
        encoder,
        kwargs={name: inputs[name] for name in names},
        f=graph / "onnx" / "model.onnx",
        input_names=list(names),
        output_names=["last_hidden_state"],
        dynamic_shapes={name: {0: rows, 1: tokens} for name in names},
        external_data=False,
        dynamo=True,
    )
    quantize_dynamic(graph / "onnx" / "model.onnx", graph / "onnx" / "int8.onnx", weight_type=QuantType.QInt8)


def load_fastembed(graph: Path) -> Encode:
    """Load FastEmbed with the exported graph as a model of its own, and return its encoding function."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model(
        "exported", PoolingType.MEAN, True, ModelSource(hf="exported"), 384, model_file="onnx/model.onnx"
    )
    model = TextEmbedding("exported", specific_model_path=str(graph), threads=CORES)
    return lambda texts: encode_by_length(texts, lambda batch: np.stack(list(model.embed(batch, batch_size=BATCH))))


def load_onnxruntime(graph: Path, file: str = "model.onnx") -> Encode:
    """Load plain ONNX Runtime, and return its encoding function."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = CORES
    session = InferenceSession(graph / "onnx" / file, options, providers=["CPUExecutionProvider"])
    names = {entry.name for entry in session.get_inputs()}
    return make_tokenizing_encoder(
        graph, lambda inputs: session.run(None, {name: inputs[name] for name in names & inputs.keys()})[0]
    )


def load_openvino(graph: Path, precision: str) -> Encode:
    """Load plain OpenVINO with activations of a precision, `f32` or `bf16`, and return its encoding function."""
    import openvino as ov

    core = ov.Core()
    hints = {"INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": CORES}
    compiled = core.compile_model(str(graph / "onnx" / "model.onnx"), "CPU", hints)
    names = {name for entry in compiled.inputs for name in entry.names}
    return make_tokenizing_encoder(
        graph, lambda inputs: compiled({name: inputs[name] for name in names & inputs.keys()})[compiled.output(0)]
    )


def make_tokenizing_encoder(graph: Path, run: Run) -> Encode:
    """Return a function that tokenizes texts, runs a graph, and takes the unit means of its token embeddings."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(graph / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding()

    def encode_batches(texts: Sequence[str]) -> Vectors:
        vectors = []
        for start in range(0, len(texts), BATCH):
            tokens = tokenizer.encode_batch(list(texts[start : start + BATCH]))
            ids = np.array([each.ids for each in tokens], np.int64)
            mask = np.array([each.attention_mask for each in tokens], np.int64)
            embedded = run({"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)})
            means = (embedded * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
            vectors.append(means / np.linalg.norm(means, axis=1, keepdims=True))
        return np.concatenate(vectors).astype(np.float32)

    return lambda texts: encode_by_length(texts, encode_batches)


def encode_by_length(texts: Sequence[str], encode: Encode) -> Vectors:
    """Encode texts longest first, as sentence-transformers does, and return their vectors in the order of the texts."""
    order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
    return encode([texts[place] for place in order])[np.argsort(order)]


ENGINES: dict[str, Callable[[Path], Encode]] = {
    "fastembed": load_fastembed,
    "onnxruntime": load_onnxruntime,
    "onnxruntime int8": lambda graph: load_onnxruntime(graph, "int8.onnx"),
    "openvino": lambda graph: load_openvino(graph, "f32"),
    "openvino bf16": lambda graph: load_openvino(graph, "bf16"),
}


def answer_requests(encode: Encode) -> None:
    """Answer the lines of JSON on stdin, as the module describes."""
    texts: list[str] = []
    for line in sys.stdin:
        request = json.loads(line)
        texts = request.get("texts", texts)
        clock = getattr(time, request.get("clock", "perf_counter"))
        begun = clock()
        vectors = encode(texts)
        rate = len(texts) / (clock() - begun)
        if "save" in request:
            np.save(request["save"], vectors)
        print(json.dumps(rate), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "export":
        export_graph(sys.argv[2], Path(sys.argv[3]))
    else:
        answer_requests(ENGINES[sys.argv[1]](Path(sys.argv[2])))
