"""Compares Lathe with ONNX Runtime and OpenVINO on texts of 40, 240 and 512 tokens, each on one core, without HTTP.

All texts of a length have the same number of tokens, so that no engine pads; in a last set, lengths are mixed. Rates
are texts a second of processor time, so that other programs on the machine take nothing from them but its caches.
"""

import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import rivals
from benchmarks.gpu import copy_model, make_passages
from benchmarks.peers import EngineProcess, Rival, export_graph, install_engines
from benchmarks.report import markdown_table, parser, write_report

COUNTS = {40: 128, 240: 32, 512: 16}
"""Lengths of texts in tokens that are measured, and how many texts of each."""

ENGINES = ["openvino bf16", "onnxruntime int8", "onnxruntime"]


def main() -> None:
    """Measure, write the raw JSON, and print the table."""
    options = parser(__doc__)
    options.add_argument("--before", type=Path, help="checkout of an earlier Lathe, which is measured too")
    options.add_argument("--engines-python", type=Path, help="Python of an environment with the other engines")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--answer", nargs=2, metavar=("MODEL", "DTYPE"), help="be Lathe's side of the comparison")
    arguments = options.parse_args()
    if arguments.answer:
        answer(*arguments.answer)
        return

    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # of the processes too, which start as many threads
    os.environ["MAX_TOKENS"] = "512"
    python = arguments.engines_python or install_engines(Path("build/peers/engines"))
    with tempfile.TemporaryDirectory() as folder:
        model, graph = copy_model(Path(folder) / "model"), Path(folder) / "graph"
        export_graph(python, graph, model)
        sides: dict[str, EngineProcess] = {"lathe bf16": start_lathe(Path(), model, "bfloat16")}
        if arguments.before:
            sides["lathe bf16, before"] = start_lathe(arguments.before, model, "bfloat16")
        sides |= {engine: Rival(python, engine, graph, ["a text"]) for engine in ENGINES}
        exact = start_lathe(Path(), model, "float32")
        figures = {
            name: measure(texts, sides, exact, arguments.rounds)
            for name, texts in make_text_sets(model, arguments.quick).items()
        }
        for side in (*sides.values(), exact):
            side.stop()

    path = write_report(arguments.out, "lengths", figures)
    columns = list(figures)
    rows = [
        [name, *(f"{statistics.median(figures[column]['rates'][name]):.1f}" for column in columns)]
        + [f"{min(figures[column]['least_cosine'][name] for column in columns):.4f}"]
        for name in sides
    ]
    print(markdown_table(["texts a second of one core", *columns, "least cosine to float32"], rows))
    print(f"\n{path}", file=sys.stderr)


def answer(model: str, dtype: Any) -> None:
    """Encode by Lathe what is asked for on stdin, as the engines of `benchmarks.rivals` do."""
    from lathe.training.encoder.encoder import Encoder
    from lathe.training.encoder.spec import EncoderSpec

    encoder = Encoder(EncoderSpec(model, model, dtype=dtype), "cpu")
    rivals.answer_requests(lambda texts: encoder.encode(texts).vectors)


def start_lathe(checkout: Path, model: str, dtype: str) -> EngineProcess:
    """Start a process that encodes by the Lathe of a checkout."""
    paths = ":".join(str(checkout.absolute() / part) for part in ("transforms", "training", "service"))
    code = f"import sys; sys.path.append({str(Path.cwd())!r}); from benchmarks.lengths import main; main()"
    return EngineProcess(
        ["env", f"PYTHONPATH={paths}", sys.executable, "-P", "-c", code, "--answer", model, dtype], ["a text"]
    )


def make_text_sets(model: str, quick: bool) -> dict[str, list[str]]:
    """Return texts of each length in tokens, and texts of 120 to 360, cut from docstrings."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{model}/tokenizer.json")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    sets = {}
    for tokens, count in COUNTS.items():
        encodings = {text: tokenizer.encode(text) for text in make_passages(3 * tokens, count // 8 if quick else count)}
        # The last of `tokens` is [SEP]; offsets end where the token does.
        sets[f"{tokens} tokens"] = [text[: each.offsets[tokens - 2][1]] for text, each in encodings.items()]
    return sets | {"120 to 360 tokens": make_passages(240, 8 if quick else 96)}


def measure(texts: Sequence[str], sides: dict[str, EngineProcess], exact: EngineProcess, rounds: int) -> dict[str, Any]:
    """Return the rates of all sides, and the least cosine of their vectors to the float32 vectors.

    The sides are measured alternately after one round to warm up.
    """
    for side in (*sides.values(), exact):
        side.request({"texts": list(texts)})
    expected = exact.vectors()
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, side in sides.items():
            rate = side.request({"clock": "process_time"})
            if turn:
                rates[name].append(round(rate, 2))
    cosines = {name: float(np.min((side.vectors() * expected).sum(axis=1))) for name, side in sides.items()}
    return {"texts": len(texts), "rates": rates, "least_cosine": cosines}


if __name__ == "__main__":
    main()
