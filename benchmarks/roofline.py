"""The machine's limit for encoding: the rate of matrix products at the model's shapes, beside a forward pass.

One process a core, one thread each, as the server's workers: all measure at the same time, and their rates add up.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from benchmarks.report import parser, write_report

SECONDS = 2.0
"""Seconds for which each shape's product is repeated."""

KINDS = {
    "matrix products": ("addmm", "::mm", "bmm", "linear"),
    "attention": ("scaled_dot_product",),
    "layer norm": ("layer_norm",),
    "activation": ("gelu",),
    "embedding": ("embedding",),
}
"""Parts of the names of PyTorch's operators, by kind; all others only move and convert numbers."""

Figures = dict[str, Any]


def measure_roofline(texts: list[str], dtype: str) -> Figures:
    """Measure the limit of all cores for these texts, and the time of a forward pass by kind of operation.

    `products_gflops` is the rate of the model's matrix products, `gflop_per_text` what a text takes, attention
    included, and `limit_texts_per_second` their ratio: no server that computes these products can encode more.
    """
    cores = os.cpu_count() or 1
    workers = [_Worker(dtype, texts) for _ in range(cores)]
    try:
        products = sum(_ask_all(workers, "products"))
        forwards = _ask_all(workers, "forward")
        profiles = _ask_all(workers, "profile")
        flops = workers[0].ask("flops")
        shares: Counter[str] = Counter()
        for profile in profiles:
            shares.update(profile)
        total = sum(shares.values())
        return {
            "processes": cores,
            "products_gflops": round(products / 1e9, 1),
            "gflop_per_text": round(flops / 1e9, 4),
            "limit_texts_per_second": round(products / flops, 1),
            "forward_texts_per_second": round(sum(forwards), 1),
            "forward_to_limit": round(sum(forwards) * flops / products, 3),
            "share_of_forward": {kind: round(seconds / total, 3) for kind, seconds in shares.most_common()},
        }
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.wait()


def _ask_all(workers: "list[_Worker]", question: str) -> list[Any]:
    """Send a request to all processes at once, and return their answers."""
    for worker in workers:
        worker.write(question)
    return [worker.read() for worker in workers]


class _Worker:
    """A process of one thread with the encoder and the tokenized texts."""

    def __init__(self, dtype: str, texts: list[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.roofline", "--worker", dtype],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ask(texts)

    def ask(self, question: Any) -> Any:
        """Send a request to the process, and return its answer."""
        self.write(question)
        return self.read()

    def write(self, question: Any) -> None:
        """Write a line of JSON to the process."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()

    def read(self) -> Any:
        """Read a line of JSON from the process."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


class _Model:
    """The encoder, and the batches of its texts as a worker of the server makes them."""

    def __init__(self, dtype: Any, texts: list[str]) -> None:
        import torch

        from lathe.training.encoder.encoder import Encoder
        from lathe.training.encoder.packing import PackedLinear
        from lathe.training.encoder.spec import EncoderSpec

        torch.set_num_threads(1)
        self.encoder = Encoder(EncoderSpec(name="encoder", dtype=dtype), "cpu")
        self.batches = self.encoder.tokenize(texts, None)
        self.count = len(texts)
        self.layers = [
            module
            for module in self.encoder.transformer.modules()
            if isinstance(module, torch.nn.Linear | PackedLinear)
        ]
        # The pooler's product is computed for one token of a batch, if at all.
        self.layers = [layer for layer in self.layers if layer is not self._find_pooler()]

    def _find_pooler(self) -> Any:
        """Return the linear layer that poolers of BERT have, or None without one."""
        return getattr(getattr(self.encoder.transformer.auto_model, "pooler", None), "dense", None)

    def flops(self) -> float:
        """Return the floating-point operations of a text on average: products of its tokens, and their attention."""
        tokens = sum(int(batch.tokens.sum()) for batch in self.batches)
        squares = sum(int((batch.tokens**2).sum()) for batch in self.batches)
        config = self.encoder.transformer.auto_model.config
        weights = sum(layer.weight.numel() for layer in self.layers)
        attention = 4 * int(config.num_hidden_layers) * int(config.hidden_size) * squares
        return float(2 * weights * tokens + attention) / self.count

    def products(self) -> float:
        """Measure the floating-point operations per second of the model's products with one batch of the usual size."""
        import torch

        rows = max(batch.padded for batch in self.batches)
        dtype = self.layers[0].weight.dtype
        flops = seconds = 0.0
        with torch.inference_mode():
            for layer in _distinct_shapes(self.layers):
                inputs = torch.randn(rows, layer.in_features, dtype=dtype)
                layer = _leave_out_gelu(layer)
                layer(inputs)
                begun, count = time.perf_counter(), 0
                while (spent := time.perf_counter() - begun) < SECONDS:
                    layer(inputs)
                    count += 1
                share = sum(same.weight.shape == layer.weight.shape for same in self.layers)
                flops += share * 2 * rows * layer.weight.numel()
                seconds += share * spent / count
        return flops / seconds

    def run_forward(self) -> float:
        """Run one pass over all batches, without tokenizing, and return the texts per second."""
        import torch

        begun = time.perf_counter()
        with torch.inference_mode():
            for batch in self.batches:
                self.encoder.forward(batch, normalize=True)
        return self.count / (time.perf_counter() - begun)

    def forward(self) -> float:
        """Return the texts per second of a second pass, after one in which kernels are made."""
        self.run_forward()
        return self.run_forward()

    def profile(self) -> dict[str, float]:
        """Return the seconds of a pass by kind of operation.

        "between operations" is the time of Python and of the dispatcher.
        """
        from torch.profiler import ProfilerActivity
        from torch.profiler import profile as record

        with record(activities=[ProfilerActivity.CPU]) as recorded:
            seconds = self.count / self.run_forward()
        seconds_by_kind: Counter[str] = Counter()
        for event in recorded.key_averages():
            seconds_by_kind[_find_kind(event.key)] += event.self_cpu_time_total / 1e6
        return dict(seconds_by_kind) | {"between operations": max(0.0, seconds - sum(seconds_by_kind.values()))}


def _distinct_shapes(layers: list[Any]) -> Iterator[Any]:
    """Yield one layer of each shape."""
    yield from {layer.weight.shape: layer for layer in layers}.values()


def _leave_out_gelu(layer: Any) -> Any:
    """Return a layer that computes only the product of a packed layer.

    Any other layer is returned unchanged.
    """
    from lathe.training.encoder.packing import PackedLinear

    return PackedLinear(layer.unpack()) if isinstance(layer, PackedLinear) else layer


def _find_kind(name: str) -> str:
    """Return the kind of an operator."""
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), "moving and converting")


def _answer_requests(dtype: str) -> None:
    """Answer the lines of stdin: first the texts, then names of measurements."""
    model = _Model(dtype, json.loads(sys.stdin.readline()))
    print("0", flush=True)
    for line in sys.stdin:
        measure = {"products": model.products, "forward": model.forward, "profile": model.profile, "flops": model.flops}
        print(json.dumps(measure[json.loads(line)]()), flush=True)


def main() -> None:
    """Measure both dtypes and write the raw JSON.

    With `--worker DTYPE`, run as one of the processes instead.
    """
    options = parser(__doc__)
    options.add_argument("--texts", default="pydoc:", help="source of texts")
    options.add_argument("--count", type=int, default=800, help="texts of each pass")
    options.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.worker:
        _answer_requests(arguments.worker)
        return
    from benchmarks.texts import read_texts

    texts = read_texts(arguments.texts, arguments.count)
    figures = {dtype: measure_roofline(texts, dtype) for dtype in ("bfloat16", "float32")}
    print(json.dumps(figures, indent=1))
    print(f"\n{write_report(arguments.out, 'roofline', figures)}", file=sys.stderr)


if __name__ == "__main__":
    main()
