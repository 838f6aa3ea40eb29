"""Environments of other versions of a library: a folder of packages in front of those of Lathe's own environment."""

import hashlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "build" / "exports"
"""Folder of the environments, a folder each."""

SECONDS = 600
"""Seconds that an installation or a script may take."""


def prepare_environment(packages: Sequence[str]) -> Path:
    """Install packages without those they depend on into a folder of their own, unless it is there. Return the folder.

    Args:
        packages: requirements such as `transformers==4.48.3`, at least one. What they depend on is taken from Lathe's
            environment, unless it is named too.

    Raises:
        subprocess.CalledProcessError: if pip fails; no folder is left.
    """
    digest = hashlib.sha256("\n".join(packages).encode()).hexdigest()[:12]
    folder = ROOT / f"{packages[0].replace('==', '-')}-{digest}"
    if folder.exists():
        return folder
    staging = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    install = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", staging, *packages]
    try:
        subprocess.run([sys.executable, "-m", "pip", *install], check=True, timeout=SECONDS)
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


def run_script(
    script: str, *arguments: str | Path, packages: Sequence[str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run a Python script in an environment, without a network, and return its output and status.

    Args:
        script: the code.
        arguments: its arguments.
        packages: packages of the environment; none of them for Lathe's own.
        folder: current folder of the process, and its home.
    """
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(prepare_environment(packages)) if packages else "",
    }
    command = [sys.executable, "-W", "ignore", "-c", script, *map(str, arguments)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
    )
