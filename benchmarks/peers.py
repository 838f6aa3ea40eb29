"""Peers that serving is compared with: another server and other engines in environments of their own, the library."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from benchmarks import rivals
from benchmarks.sockets import find_free_port
from lathe.training.encoder.loading import locate_model
from lathe.training.encoder.spec import DEFAULT_MODEL

INFINITY = "infinity-emb[torch,server]==0.0.77"
PEER_PINS = ["click<8.2"]
"""Infinity's command line breaks with a newer click. Its engine `optimum` starts with no optimum that goes with this
torch."""

ENGINES = ["transformers", "onnx", "onnxscript", "onnxruntime", "openvino", "fastembed"]
"""Packages of the other engines. sentence-transformers' ONNX backend is not among them: it needs optimum-onnx, which
cannot be installed beside the sentence-transformers that is measured here."""

READY_SECONDS = 180


def install_infinity(folder: Path) -> Path:
    """Install Infinity with the torch that is measured here, and return its Python.

    Nothing is done if it is installed.
    """
    return _make_environment(folder, [INFINITY, *PEER_PINS])


def install_engines(folder: Path) -> Path:
    """Install the packages of `benchmarks.rivals`, and return their Python.

    Nothing is done if they are installed.
    """
    return _make_environment(folder, ENGINES)


def _make_environment(folder: Path, packages: list[str]) -> Path:
    """Install packages and the torch that is measured here into a folder, unless they are there.

    Returns:
        The folder's Python.
    """
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        print(f"installing {', '.join(packages)} into {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        torch = f"torch=={version('torch').partition('+')[0]}"
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", torch, *packages], check=True)
        (folder / "installed").touch()
    return python


class Infinity:
    """Infinity serving the default encoder, with its cache off, as by default."""

    name = "infinity"

    def __init__(self, python: Path, dtype: str) -> None:
        port = find_free_port()
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
        """Return whether the server answers."""
        try:
            return httpx.get(f"{self.url}/health").status_code == 200
        except httpx.HTTPError:
            return False

    def stop(self) -> None:
        """End the server."""
        self.process.terminate()
        self.process.wait(60)


class EngineProcess:
    """An engine in a process of its own, which answers lines of JSON.

    The protocol is that of `benchmarks.rivals`.
    """

    def __init__(self, command: list[str], texts: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            command,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.request({"texts": list(texts)})

    def texts_per_second(self) -> float:
        """Encode all texts once, and return the texts per second."""
        return self.request({})

    def vectors(self) -> NDArray[np.float32]:
        """Return the vectors of all texts, `(n, d)`."""
        with tempfile.TemporaryDirectory() as folder:
            self.request({"save": f"{folder}/vectors.npy"})
            array: NDArray[np.float32] = np.load(f"{folder}/vectors.npy")
        return array

    def request(self, fields: Any) -> float:
        """Send a request to the process as a line of JSON, and return its answer."""
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("the process has no pipes")
        self.process.stdin.write(json.dumps(fields) + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait(60)


class BareEncode(EngineProcess):
    """`SentenceTransformer.encode` with all cores, in its own batches of 32."""

    def __init__(self, dtype: str, texts: Sequence[str]) -> None:
        super().__init__([sys.executable, "-m", "benchmarks.peers", dtype], texts)


class Rival(EngineProcess):
    """An engine of `benchmarks.rivals`, with all cores, in batches of 32."""

    def __init__(self, python: Path, engine: str, graph: Path, texts: Sequence[str]) -> None:
        super().__init__([str(python), rivals.__file__, engine, str(graph)], texts)


def export_graph(python: Path, graph: Path, model: str | None = None) -> None:
    """Write the ONNX graph of a model, by default of the default encoder, which the engines load."""
    command = [str(python), rivals.__file__, "export", model or locate_model(DEFAULT_MODEL), str(graph)]
    subprocess.run(command, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"}, stdout=sys.stderr)


def encode_on_request() -> None:
    """Encode the texts whenever a line requests it, as the process of `BareEncode`."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(os.cpu_count() or 1)
    model = SentenceTransformer(
        locate_model(DEFAULT_MODEL), device="cpu", model_kwargs={"dtype": getattr(torch, sys.argv[1])}
    )
    rivals.answer_requests(lambda texts: np.asarray(model.encode(list(texts), batch_size=32), np.float32))


if __name__ == "__main__":
    encode_on_request()
