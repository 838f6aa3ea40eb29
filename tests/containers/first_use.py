"""How long a container takes to its first vectors, with a new volume and again with the same."""

import json
import time
from typing import Any

from tests.containers.engine import Engine

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
