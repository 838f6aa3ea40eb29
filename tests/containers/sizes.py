"""Sizes of the images, and how long a server takes to start with and without bytecode."""

import time
from typing import Any

from tests.containers.engine import Engine

LARGE_LAYER = 50_000_000
CHANGED = "FROM lathe:latest\nUSER root\nRUN {}\nUSER 10001:10001\n"
VARIANTS = {
    "none": CHANGED.format("find /opt/lathe -name __pycache__ -prune -exec rm -r {} +"),
    "of what is imported": "FROM lathe:latest\n",
    "of all": CHANGED.format("python -W ignore -m compileall -q /opt/lathe/lib || true"),
}
"""Dockerfiles of images with different bytecode."""
STARTS = 2


def measure_sizes(engine: Engine) -> dict[str, Any]:
    """Return the bytes of each image and of its layers over 50 MB, with the instruction that made each."""
    found = {}
    for image in ("lathe:latest", "lathe-worker:latest", "python:3.11-slim-bookworm"):
        lines = engine.docker("history", "--human=false", "--no-trunc", "--format", "{{.Size}}\t{{.CreatedBy}}", image)
        layers = [(int(size), made) for size, _, made in (line.partition("\t") for line in lines.splitlines())]
        large = [[size, made[-80:]] for size, made in layers if size > LARGE_LAYER]
        found[image] = {"bytes": sum(size for size, _ in layers), "layers_over_50_MB": large}
    return found


def measure_starts(engine: Engine) -> dict[str, Any]:
    """Return the size of the image and the seconds until a server is ready, by how much bytecode the image has."""
    found = {}
    for name, dockerfile in VARIANTS.items():
        tag = f"lathe-bytecode:{name.replace(' ', '-')}"
        engine.docker("build", "--tag", tag, "-", input=dockerfile)
        seconds = [start_once(engine, tag) for _ in range(STARTS)]
        inside = engine.docker("run", "--rm", "--entrypoint", "du", tag, "-sb", "/opt/lathe")
        found[name] = {"seconds_until_ready": seconds, "bytes_of_opt_lathe": int(inside.split()[0])}
        engine.docker("rmi", tag)
    return found


def start_once(engine: Engine, tag: str) -> float:
    """Start a server of an image with a read-only file system on one core and return the seconds until it is ready."""
    options = ["--detach", "--read-only", "--tmpfs", "/tmp", "--env", "LATHE_API_KEYS=use", "--cpus", "1"]
    began = time.monotonic()
    container = engine.docker("run", *options, tag)
    probe = "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/health/ready', timeout=4)"
    ask = 'until python -S -E -c "$0" 2>/dev/null; do sleep 0.3; done'
    engine.docker("exec", container, "sh", "-c", ask, probe)
    took = round(time.monotonic() - began, 1)
    engine.docker("rm", "--force", "--volumes", container)
    return took
