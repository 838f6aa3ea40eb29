"""What serving is measured against: another server in an environment of its own, and the bare library."""

import json
import os
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx

from training.encoder.encoder import locate_model
from training.encoder.spec import DEFAULT_MODEL

INFINITY = "infinity-emb[torch,server]==0.0.77"
PEER_PINS = ["click<8.2"]
"""Its command line breaks with a newer click."""

READY_SECONDS = 180


def infinity_python(folder: Path) -> Path:
    """Python with Infinity installed, with the torch that is measured here; made the first time."""
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        print(f"installing {INFINITY} into {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        torch = f"torch=={version('torch').partition('+')[0]}"
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", torch, INFINITY, *PEER_PINS], check=True)
        (folder / "installed").touch()
    return python


class Infinity:
    """Infinity serving the default encoder; its cache is off by default."""

    name = "infinity"

    def __init__(self, python: Path, dtype: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [str(python.with_name("infinity_emb")), "v2", "--model-id", locate_model(DEFAULT_MODEL)]
        command += ["--served-model-name", "encoder", "--port", str(port), "--device", "cpu", "--engine", "torch"]
        command += ["--dtype", dtype, "--no-bettertransformer", "--no-model-warmup"]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + READY_SECONDS
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit("Infinity did not start")
            time.sleep(0.5)

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            return httpx.get(f"{self.url}/health").status_code == 200
        except httpx.HTTPError:
            return False

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(60)


class BareEncode:
    """`SentenceTransformer.encode` in a process of its own, with all cores, in its own batches of 32."""

    def __init__(self, dtype: str, texts: list[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers", dtype], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ask(texts)

    def texts_per_second(self) -> float:
        """Of encoding all texts once more."""
        return float(self.ask(None))

    def ask(self, what: Any) -> Any:
        """A line to it, a line back."""
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("the process has no pipes")
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(60)


def encode_on_request() -> None:
    """The other side of `BareEncode`: the first line brings the texts, each later one has them encoded."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(os.cpu_count() or 1)
    model = SentenceTransformer(
        locate_model(DEFAULT_MODEL), device="cpu", model_kwargs={"dtype": getattr(torch, sys.argv[1])}
    )
    texts: list[str] = []
    for line in sys.stdin:
        texts = json.loads(line) or texts
        begun = time.perf_counter()
        model.encode(texts, batch_size=32)
        print(json.dumps(len(texts) / (time.perf_counter() - begun)), flush=True)


if __name__ == "__main__":
    encode_on_request()
