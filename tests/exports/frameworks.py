"""Runs the tests of the framework packages in integrations/: `python -m tests.exports.frameworks`.

The frameworks are installed into an environment of their own, without torch. There each package's tests, and with
LangChain its standard tests, ask a real `lathe serve` and compare its vectors with those of sentence-transformers.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from lathe import service
from lathe.training.encoder.loading import locate_model
from lathe.transforms import Chain
from tests.service.conftest import SENTENCES, LiveServer

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "build/frameworks"
PYTHON = HOME / "bin/python"
FRAMEWORKS = ["haystack-ai==3.4.0", "langchain-tests==1.1.9", "langchain-core", "llama-index-core"]
TOOLS = ["hatchling", "httpx2", "numpy", "pytest", "pytest-timeout", "setuptools"]
PACKAGES = ["langchain-lathe", "llama-index-embeddings-lathe", "lathe-haystack"]

KEY, ADMIN_KEY = "use-key", "admin-key-of-32-characters-or-more"
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
PROMPTS = {"query": "query: ", "document": "passage: "}
ENCODERS = [
    {"name": "plain", "model": MODEL},
    {"name": "prompted", "model": MODEL, "prompts": PROMPTS, "default_prompt_name": "document"},
]


def main() -> int:
    """Install the frameworks and packages, start a server, run the tests, and return the exit status."""
    install()
    with tempfile.TemporaryDirectory() as folder:
        expected = Path(folder) / "expected.npz"
        write_expected(expected)
        variables = {"LATHE_API_KEYS": KEY, "LATHE_ENCODERS": json.dumps(ENCODERS), "LATHE_DTYPE": "float32"}
        variables |= {"LATHE_ADMIN_KEYS": ADMIN_KEY, "LATHE_LOG_LEVEL": "warning"}
        server = LiveServer(Path(folder) / "home", HF_HUB_OFFLINE="1", **variables)
        try:
            return max(run_tests(package, server.url, expected) for package in PACKAGES)
        finally:
            server.stop()


def install() -> None:
    """Create the environment if it is missing, and install the packages of this checkout into it."""
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", HOME], check=True)
    subprocess.run([*pip, "--constraint", ROOT / "constraints.txt", *FRAMEWORKS, *TOOLS], check=True)
    named = [ROOT / "integrations" / package for package in ["lathe-client", *PACKAGES]]
    subprocess.run([*pip, "--force-reinstall", "--no-deps", "--no-build-isolation", *named], check=True)


def write_expected(path: Path) -> None:
    """Write texts, and their vectors by sentence-transformers: plain, reduced by a chain, and with prompts."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(locate_model(MODEL)), device="cpu")
    plain = model.encode(SENTENCES)
    chain = Chain.load(Path(service.__file__).parent / "chains/starter_chains/compact/1")
    prompted = {name: model.encode(SENTENCES, prompt=prompt) for name, prompt in PROMPTS.items()}
    np.savez(path, texts=np.array(SENTENCES), plain=plain, compact=chain.transform(plain), **prompted)


def run_tests(package: str, url: str, expected: Path) -> int:
    """Run a package's tests in the environment of the frameworks, and return the exit status."""
    given = {"LATHE_TEST_URL": url, "LATHE_TEST_VECTORS": str(expected), "LATHE_API_KEY": KEY}
    given["LATHE_TEST_ADMIN_KEY"] = ADMIN_KEY
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    folder = ROOT / "integrations" / package
    print(f"{package}:", flush=True)
    command = [PYTHON, "-m", "pytest", "-q", "--rootdir", folder, "-c", folder / "pyproject.toml", folder / "tests"]
    return subprocess.run([*command, "-p", "no:cacheprovider"], env=kept | given, cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(main())
