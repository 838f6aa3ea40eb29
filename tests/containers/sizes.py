"""Sizes of the images, and how long a server takes to start: with and without bytecode, and to its first vectors."""

import json
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
USERS = {"of the image": (), "1234": ("--user", "1234:1234")}
"""Options of `docker run` for the users that a new volume is tried with."""
EMBED = """
import json, pathlib, time, urllib.error, urllib.request
home = pathlib.Path("/state/lathe")
while True:
    try:
        key = (home / "admin.key").read_text().strip()
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        body = b'{"inputs": "What is a lathe?"}'
        answer = urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:8080/embed", body, headers), timeout=4)
        break
    except (OSError, urllib.error.URLError):
        time.sleep(0.1)
print(json.dumps({
    "dimensions": len(json.load(answer)[0]),
    "key": key,
    "mode_of_the_volume": oct(home.parent.stat().st_mode & 0o7777),
    "mode_of_the_state_folder": oct(home.stat().st_mode & 0o7777),
    "owner_of_the_state_folder": home.stat().st_uid,
}))
"""
"""Program that asks for the vectors of a text with the generated key until they come, in a container."""


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


def measure_first_use(engine: Engine) -> dict[str, Any]:
    """Return the seconds from `docker run` to the first vectors, with a new volume and again with the same, by user.

    No key is set, so the one that the server generates is in the volume, and must be the same the second time.
    """
    found = {}
    for name, user in USERS.items():
        engine.docker("volume", "create", "first-use")
        first, second = embed_once(engine, user), embed_once(engine, user)
        engine.docker("volume", "rm", "first-use")
        if first.pop("key") != second.pop("key"):
            raise RuntimeError(f"the volume of the user {name} does not keep its key")
        found[name] = first | {"seconds_again": second["seconds"]}
    return found


def embed_once(engine: Engine, user: tuple[str, ...]) -> dict[str, Any]:
    """Run the image with the volume `first-use` until it has embedded a text, and return what `EMBED` prints."""
    options = ["--detach", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--volume", "first-use:/state", *user]
    began = time.monotonic()
    container = engine.docker("run", *options, "lathe:latest")
    said = engine.docker("exec", container, "python", "-S", "-E", "-c", EMBED)
    seconds = round(time.monotonic() - began, 1)
    engine.docker("rm", "--force", container)
    return {"seconds": seconds} | json.loads(said)
