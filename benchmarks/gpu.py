"""Runs all checks that need a GPU, in 25 minutes, with one report: `python -m benchmarks.gpu --out benchmarks/results`.

Each check runs in a process of its own, so that one that fails or hangs leaves the others alone; the report names what
failed, with the end of its output. With `--device cpu --quick` the same checks run without a GPU, as far as they go.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from benchmarks.report import markdown_table, parser, write_report

TOTAL_SECONDS = 25 * 60
MIN_COSINE = {"float32": 0.9999, "bfloat16": 0.995}
"""Minimum cosine of a text's vectors on the device to those of the CPU in float32."""

Figures = dict[str, Any]
Vectors = NDArray[np.float32]


class CheckError(Exception):
    """A check whose figures are wrong."""


class SkipError(Exception):
    """A check that cannot run here.

    The message says what is missing.
    """


def main() -> None:
    """Run the checks, write the report, and print a table.

    The exit status is 1 if a check failed.
    """
    options = parser(__doc__)
    options.add_argument("--device", default="cuda", help="of everything that can run on one")
    options.add_argument("--only", choices=list(CHECKS), action="append", help="leave the other checks out")
    options.add_argument("--check", choices=list(CHECKS), help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.check:
        answer_check(arguments.check, arguments.device, arguments.quick)
        return
    deadline = time.monotonic() + TOTAL_SECONDS
    figures: Figures = {"device": arguments.device, "checks": {}}
    for name in arguments.only or CHECKS:
        figures["checks"][name] = run_check(name, arguments, deadline - time.monotonic())
        print(f"  {name}: {figures['checks'][name]['outcome']}", file=sys.stderr)
        # After each check: what was measured stays if the machine is taken.
        path = write_report(arguments.out, "gpu", figures)
    rows = [[name, check["outcome"], f"{check['seconds']:.0f}"] for name, check in figures["checks"].items()]
    print(markdown_table(["check", "outcome", "s"], rows))
    print(f"\n{path}", file=sys.stderr)
    sys.exit(any(check["outcome"] == "failed" for check in figures["checks"].values()))


def run_check(name: str, arguments: argparse.Namespace, seconds: float) -> Figures:
    """Run a check in a process of its own.

    Returns:
        Its outcome and seconds, with its figures or the problem.
    """
    command = [sys.executable, "-m", "benchmarks.gpu", "--check", name, "--device", arguments.device]
    begun = time.monotonic()
    if seconds <= 0:
        return {"outcome": "no time", "seconds": 0.0}
    try:
        ended = subprocess.run(
            command + ["--quick"] * arguments.quick,
            capture_output=True,
            text=True,
            timeout=min(seconds, CHECKS[name][1]),
        )
    except subprocess.TimeoutExpired:
        return {"outcome": "failed", "seconds": time.monotonic() - begun, "problem": "not done in time"}
    spent: Figures = {"seconds": round(time.monotonic() - begun, 1)}
    try:
        return spent | dict(json.loads(ended.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        return spent | {"outcome": "failed", "problem": ended.stderr[-2000:]}


def answer_check(name: str, device: str, quick: bool) -> None:
    """Run a check in this process and print its outcome as a line of JSON."""
    outcome: Figures
    try:
        outcome = {"outcome": "passed", "figures": CHECKS[name][0](device, quick)}
    except SkipError as error:
        outcome = {"outcome": "skipped", "problem": str(error)}
    except CheckError as error:
        outcome = {"outcome": "failed", "problem": str(error)}
    print(json.dumps(outcome))


def read_docstrings(count: int) -> list[str]:
    """Return texts that are available on every machine."""
    from benchmarks.texts import read_texts

    return read_texts("pydoc:", count)


def write_texts(folder: Path, texts: list[str]) -> Path:
    """Write texts to a file in a folder and return its path."""
    path = folder / "texts.jsonl"
    path.write_bytes(b"".join(orjson.dumps({"text": text}) + b"\n" for text in texts))
    return path


def encode(dtype: Any, device: str, texts: list[str], **options: Any) -> tuple[Vectors, float]:
    """Encode texts on a device.

    Returns:
        Unit vectors `(n, d)`, and the texts per second of a second pass.
    """
    from lathe.training.encoder.encoder import Encoder
    from lathe.training.encoder.spec import EncoderSpec

    encoder = Encoder(EncoderSpec(name="encoder", dtype=dtype, **options), device)
    vectors = encoder.encode(texts).vectors
    begun = time.perf_counter()
    encoder.encode(texts)
    return vectors, round(len(texts) / (time.perf_counter() - begun), 1)


def require_alike(found: Vectors, expected: Vectors, least: float) -> float:
    """Return the smallest cosine of rows to the expected rows.

    Raises:
        CheckError: if it is under `least`.
    """
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    cosine = float(((found * expected).sum(axis=1) / norms).min())
    if not cosine >= least:
        raise CheckError(f"least cosine {cosine:.6f}, at least {least} is required")
    return round(cosine, 6)


def check_machine(device: str, _quick: bool) -> Figures:
    """Return the device and the versions of the software on it."""
    import torch

    figures: Figures = {"torch": torch.__version__, "flash_attn": find_spec("flash_attn") is not None}
    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            raise CheckError("PyTorch finds no GPU")
        known = torch.cuda.get_device_properties(torch.device(device))
        figures |= {"name": known.name, "gigabytes": round(known.total_memory / 2**30, 1), "cuda": torch.version.cuda}
    return figures


def check_encoder(device: str, quick: bool) -> Figures:
    """Compare vectors on the device with the CPU's in float32, in each dtype, and time them."""
    texts = read_docstrings(200 if quick else 4000)
    expected, rate = encode("float32", "cpu", texts)
    figures: Figures = {"cpu float32": {"texts_per_second": rate}}
    for dtype, least in MIN_COSINE.items():
        vectors, rate = encode(dtype, device, texts)
        figures[dtype] = {"texts_per_second": rate, "least_cosine": require_alike(vectors, expected, least)}
    return figures


def check_attention(device: str, quick: bool) -> Figures:
    """Compare flash attention, where it is installed and the device a GPU, with PyTorch's own."""
    texts = read_docstrings(200 if quick else 4000)
    kinds = {"sdpa": {"attention": "sdpa"}, "eager": {"attention": "eager"}}
    if device.startswith("cuda") and find_spec("flash_attn"):
        kinds["flash_attention_2"] = {"attention": "flash_attention_2"}
    figures: Figures = {}
    expected, _ = encode("float32", device, texts)
    for name, options in kinds.items():
        vectors, rate = encode("bfloat16", device, texts, **options)
        alike = require_alike(vectors, expected, MIN_COSINE["bfloat16"])
        figures[name] = {"texts_per_second": rate, "least_cosine": alike}
    if "flash_attention_2" not in kinds:
        figures["flash_attention_2"] = "not installed" if device.startswith("cuda") else "needs a GPU"
    return figures


def check_server(device: str, quick: bool) -> Figures:
    """Serve from a worker on the device, and compare its vectors with the CPU's, raw and through a chain.

    Rates are measured too.
    """
    from benchmarks.serve import embed, make_target
    from benchmarks.server import Server
    from benchmarks.sockets import closed_loop

    texts = read_docstrings(200 if quick else 4000)
    parts = [texts[start : start + 32] for start in range(0, len(texts), 32)]
    figures: Figures = {}
    vectors: dict[tuple[str, int | None], Vectors] = {}
    with tempfile.TemporaryDirectory() as folder:
        source = write_texts(Path(folder), texts[:1200])
        for place, dtype in (("cpu", "float32"), (device, "float32"), (device, "bfloat16")):
            name = f"{place} {dtype}"
            home = Path(folder) / name.replace(" ", "-")
            steps = ["--steps", "r2,truncation:128", "--serve-dimensions"]
            run_lathe(["fit", "--name", "small", "--source", str(source), *steps], home, place, LATHE_DTYPE=dtype)
            server = Server(home, LATHE_DEVICE=place, LATHE_DTYPE=dtype, LATHE_CACHE_BYTES="0")
            try:
                server.wait_for_workers(1)
                target = make_target(server.url, "/v1/embeddings")
                for size in (None, 128):
                    bodies = [orjson.dumps({"input": part, "dimensions": size}) for part in parts]
                    vectors[name, size] = embed(target, bodies).astype(np.float32)
                    rate = len(texts) / closed_loop(target.url, bodies, 8).seconds
                    alike = require_alike(vectors[name, size], vectors["cpu float32", size], MIN_COSINE[dtype])
                    figures[f"{name}, {size or 'all'} dimensions"] = {
                        "texts_per_second": round(rate, 1),
                        "least_cosine_to_cpu": alike,
                    }
                singles = [orjson.dumps({"input": text}) for text in texts]
                rate = len(texts) / closed_loop(target.url, singles, 64).seconds
                figures[f"{name}, single texts"] = {"texts_per_second": round(rate, 1)}
            finally:
                server.stop()
    return figures


def check_chains(device: str, quick: bool) -> Figures:
    """Fit chains on the device and apply them there, and compare the outputs with the CPU's."""
    import torch

    from lathe.transforms import Chain, parse_steps

    rows = np.random.default_rng(0).normal(size=(2000 if quick else 200_000, 384)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    on_device = torch.from_numpy(rows).to(device)
    figures: Figures = {}
    for steps in ("r2,pca:128", "abtt:3,whitening:64", "r2,geopres:128,steps=50", "r2,pca:64,int8"):
        chain = Chain(parse_steps(steps)).fit(rows[:20_000])
        expected = chain.floats(rows)
        moved = chain.to(device).fold()
        reduced = moved.floats(on_device)
        begun = time.perf_counter()
        moved.floats(on_device).sum().item()  # waits for the device
        seconds = time.perf_counter() - begun
        alike = require_alike(reduced.cpu().numpy(), expected, 0.999)
        figures[steps] = {"rows_per_second": round(len(rows) / seconds), "least_cosine_to_cpu": alike}
    return figures


def check_fit(device: str, quick: bool) -> Figures:
    """Fit a chain of texts on the device from the command line, and embed the texts through it."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        texts = read_docstrings(1200 if quick else 10_000)
        source = write_texts(Path(folder), texts)
        fit = ["fit", "--name", "mine", "--source", str(source), "--steps", "r2,geopres:64"]
        figures["fit_seconds"] = run_lathe(fit, Path(folder) / "home", device)
        out = Path(folder) / "vectors.npy"
        figures["embed_seconds"] = run_lathe(
            ["embed", "--source", str(source), "--chain", "mine", "--out", str(out)],
            Path(folder) / "home",
            device,
        )
        shape = np.load(out).shape
        if shape != (len(texts), 64):
            raise CheckError(f"embed wrote {shape} vectors of {len(texts)} texts")
    return figures


def check_training(device: str, quick: bool) -> Figures:
    """Train on pairs on the device: plainly, and with REZE's regularizer."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        halves = [text.split() for text in read_docstrings(160 if quick else 2000)]
        pairs = [{"anchor": " ".join(w[: len(w) // 2]), "positive": " ".join(w[len(w) // 2 :])} for w in halves]
        pairs = [pair for pair in pairs if all(pair.values())]
        sources = []
        for number in range(2):
            path = Path(folder) / f"pairs{number}.jsonl"
            path.write_bytes(b"".join(orjson.dumps(pair) + b"\n" for pair in pairs[number::2]))
            sources.append({"jsonl": str(path), "anchor": "anchor", "positive": "positive"})
        job = Path(folder) / "job.yaml"
        job.write_text(json.dumps({"sources": sources}))  # JSON is YAML
        for method in ("ft", "reze"):
            command = ["train", method, "--config", str(job), "--out", f"{folder}/{method}"]
            figures[f"{method}_seconds"] = run_lathe(command, Path(folder) / "home", device)
    return figures


def run_lathe(arguments: list[str], home: Path, device: str, **settings: str) -> float:
    """Run a command of Lathe on a device with a state folder and settings of its own, and return its seconds."""
    from benchmarks.server import LATHE, own_environment

    begun = time.monotonic()
    environment = own_environment(home, LATHE_DEVICE=device, **settings)
    ended = subprocess.run([*LATHE, *arguments], env=environment, capture_output=True, text=True)
    if ended.returncode:
        raise CheckError(f"lathe {' '.join(arguments[:2])} ended with {ended.returncode}: {ended.stderr[-1500:]}")
    return round(time.monotonic() - begun, 1)


def check_faiss(device: str, quick: bool) -> Figures:
    """Search on the GPU with FAISS, and compare the neighbours with the CPU's."""
    if find_spec("faiss") is None:
        raise SkipError("faiss is not installed")
    import faiss

    from benchmarks.ann.data import find_nearest

    generator = np.random.default_rng(0)
    rows = generator.normal(size=(2000 if quick else 1_000_000, 128)).astype(np.float32)
    queries = rows[:200] + 0.1 * generator.normal(size=(200, 128)).astype(np.float32)
    index: Any = faiss.IndexFlatIP(128)
    index.add(rows)
    _, expected = index.search(queries, 10)
    figures: Figures = {}
    if device.startswith("cuda"):
        if not hasattr(faiss, "StandardGpuResources"):
            raise SkipError("this FAISS was built without GPU: install faiss-gpu-cu12")
        index = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index)
    begun = time.perf_counter()
    _, ids = index.search(queries, 10)
    figures["queries_per_second"] = round(len(queries) / (time.perf_counter() - begun), 1)
    figures["overlap"] = float((ids == expected).mean())
    figures["overlap_of_benchmark"] = float((find_nearest(queries, rows, 10) == expected).mean())
    if figures["overlap"] < 0.99:
        raise CheckError(f"neighbours differ from the CPU's: {figures}")
    return figures


def check_geopres(device: str, quick: bool) -> Figures:
    """Run GeoPres's benchmark on the device."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "benchmarks.geopres", "--device", device, "--out", out]
        command += ["--only", "step", *(["--quick"] if quick else [])]
        ended = subprocess.run(command, capture_output=True, text=True)
        if ended.returncode:
            raise CheckError(ended.stderr[-1500:])
        return dict(json.loads((Path(out) / "geopres.json").read_text())["figures"])


def check_tests(_device: str, _quick: bool) -> Figures:
    """Run the tests that need a GPU.

    Without a GPU, pytest skips them.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-k", "gpu", "tests/transforms/test_chain.py"]
    ended = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTEST_ADDOPTS": ""})
    if ended.returncode:
        raise CheckError(ended.stdout[-1500:])
    return {"output": ended.stdout[-500:]}


CHECKS: dict[str, tuple[Callable[[str, bool], Figures], int]] = {
    "machine": (check_machine, 60),
    "tests": (check_tests, 120),
    "encoder": (check_encoder, 240),
    "attention": (check_attention, 240),
    "server": (check_server, 300),
    "chains": (check_chains, 120),
    "fit": (check_fit, 240),
    "training": (check_training, 300),
    "faiss": (check_faiss, 120),
    "geopres": (check_geopres, 300),
}
"""Each check and the seconds it may take; those that matter most come first, should the time not suffice."""


if __name__ == "__main__":
    main()
