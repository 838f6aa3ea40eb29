"""Whether linear layers in 8 bits make an encoder faster on a CPU.

    python -m research.int8 --texts FILE --out research/results

Each set of instructions is measured in a process of its own, which oneDNN reads it in (`ONEDNN_MAX_CPU_ISA`): one that
leaves out AMX stands for the many processors without it. The dtypes take turns.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.report import markdown_table, parser, write_report
from benchmarks.texts import read_texts
from lathe.training.encoder.devices import PROBES
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER

INSTRUCTIONS = ("DEFAULT", "AVX512_CORE_BF16", "AVX512_CORE_VNNI")
WORDS = {25: 200, 190: 48}
"""Words of a text, and the number of texts of that length that are encoded at once."""
KEPT_CHANNELS = (0, 8, 32)
"""Numbers of input channels of a layer that are multiplied in float32, of which the second is timed."""
LEVELS = 127
"""Largest absolute value of an 8-bit weight."""
MIN_SIZE = 1e-12

Figures = dict[str, Any]


class Int8Linear(nn.Module):
    """A linear layer with 8-bit weights, a scale for each output, and 8-bit activations, a scale for each token.

    Some channels of the activations are far larger than all others, and would take most of the 8 bits. They are
    multiplied in float32, as in LLM.int8() (Dettmers et al. 2022).
    """

    def __init__(self, linear: nn.Linear, kept: torch.Tensor) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        rest = torch.ones(linear.in_features)
        rest[kept] = 0
        self.kept, self.rest, self.bias = kept, rest, linear.bias.detach().float()
        self.kept_weight = weight[:, kept].t().contiguous()
        quantized = weight * rest
        scales = quantized.abs().amax(dim=1).clamp_min(MIN_SIZE) / LEVELS
        zeros = torch.zeros(len(scales), dtype=torch.long)
        by_output = torch.quantize_per_channel(quantized, scales.double(), zeros, 0, torch.qint8)
        self.packed: Any = torch.ops.quantized.linear_prepack(by_output, None)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Apply the linear layer to inputs `(..., inputs)`, and return the outputs `(..., outputs)`."""
        rows = inputs.reshape(-1, inputs.shape[-1])
        scaled = rows * self.rest
        # With entries of at most 1, the one scale that the product has is that of each token.
        sizes = torch.maximum(scaled.amax(1, keepdim=True), -scaled.amin(1, keepdim=True)).clamp_min_(MIN_SIZE)
        products = torch.ops.quantized.linear_dynamic(scaled.div_(sizes), self.packed, False)
        outputs = torch.addmm(self.bias, rows[:, self.kept], self.kept_weight).addcmul_(products, sizes)
        return outputs.reshape(*inputs.shape[:-1], -1)


def main() -> None:
    """Measure every set of instructions, write the raw JSON, and print the tables."""
    options = parser(__doc__)
    options.add_argument("--texts", required=True, help="source of long texts")
    options.add_argument("--rounds", type=int, default=6)
    options.add_argument("--instructions", help="measure this process alone, and print JSON")
    arguments = options.parse_args()
    rounds = 2 if arguments.quick else arguments.rounds
    if arguments.instructions:
        print(json.dumps(measure(arguments.texts, rounds)))
        return
    figures: Figures = {}
    for name in INSTRUCTIONS:
        command = [sys.executable, "-W", "ignore", "-m", "research.int8", "--texts", arguments.texts]
        command += ["--rounds", str(rounds), "--instructions", name]
        environment = os.environ | {"ONEDNN_MAX_CPU_ISA": name, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        figures[name] = json.loads(done.stdout.splitlines()[-1])
    path = write_report(arguments.out, "int8", figures)
    print(format_tables(figures))
    print(f"\n{path}", file=sys.stderr)


def measure(source: str, rounds: int) -> Figures:
    """Measure rates of the dtypes in turns, agreement by number of kept channels, and shares of the time."""
    torch.set_num_threads(1)
    words = " ".join(read_texts(source, 500)).split()
    encoders = {name: Encoder(replace(DEFAULT_ENCODER, dtype=name), "cpu") for name in ("float32", "bfloat16")}
    encoders["int8"] = load_int8(KEPT_CHANNELS[1])
    figures: Figures = {"rates": {}, "least_cosine": {}, "time": {}}
    for length, count in WORDS.items():
        texts = [" ".join(words[length * place : length * (place + 1)]) for place in range(count)]
        rates: dict[str, list[float]] = {name: [] for name in encoders}
        for _ in range(rounds + 1):
            for name, encoder in encoders.items():
                begun = time.perf_counter()
                tokens = encoder.encode(texts).tokens
                rates[name].append(count / (time.perf_counter() - begun))
        figures["rates"][str(length)] = {name: [round(rate, 1) for rate in found[1:]] for name, found in rates.items()}
        figures.setdefault("tokens", {})[str(length)] = round(float(np.mean(tokens)), 1)
    expected = encoders["float32"].encode(texts).vectors
    for kept in KEPT_CHANNELS:
        found = load_int8(kept).encode(texts).vectors
        figures["least_cosine"][str(kept)] = round(float((found * expected).sum(1).min()), 5)
    for name, encoder in encoders.items():
        figures["time"][name] = share_time(encoder, texts)
    return figures


def load_int8(kept: int) -> Encoder:
    """Load the default encoder with 8-bit linear layers that leave out the largest channels, found on `PROBES`."""
    encoder = Encoder(replace(DEFAULT_ENCODER, dtype="float32"), "cpu")
    model = encoder.transformer
    largest: dict[nn.Module, torch.Tensor] = {}

    def note(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        found = inputs[0].detach().flatten(0, -2).abs().amax(dim=0)
        largest[layer] = torch.maximum(largest[layer], found) if layer in largest else found

    hooks = [layer.register_forward_pre_hook(note) for layer in model.modules() if type(layer) is nn.Linear]
    encoder.encode(PROBES)
    for hook in hooks:
        hook.remove()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and child in largest:
                setattr(module, name, Int8Linear(child, largest[child].topk(kept).indices))
    return encoder


def share_time(encoder: Encoder, texts: list[str]) -> dict[str, float]:
    """Return milliseconds by operation of one encoding, those of at least 2 % of the whole."""
    with profile(activities=[ProfilerActivity.CPU]) as measured:
        encoder.encode(texts)
    rows = {row.key: row.self_cpu_time_total / 1000 for row in measured.key_averages()}
    total = sum(rows.values())
    ordered = sorted(rows.items(), key=lambda row: -row[1])
    return {"total": round(total)} | {name: round(value) for name, value in ordered if value >= 0.02 * total}


def format_tables(figures: Figures) -> str:
    """Format rates and agreement."""
    rows = []
    for name, measured in figures.items():
        for length, rates in measured["rates"].items():
            medians = {dtype: statistics.median(found) for dtype, found in rates.items()}
            cells = [f"{medians[dtype]:.0f} ({min(found):.0f} to {max(found):.0f})" for dtype, found in rates.items()]
            best = max(medians["float32"], medians["bfloat16"])
            rows.append([name, f"{measured['tokens'][length]:.0f}", *cells, f"{medians['int8'] / best:.2f}"])
    header = ["instructions", "tokens", "float32", "bfloat16", "int8", "int8 to the faster of both"]
    cosines = figures[INSTRUCTIONS[0]]["least_cosine"]
    return f"{markdown_table(header, rows)}\n\nleast cosine by kept channels: {cosines}"


if __name__ == "__main__":
    main()
