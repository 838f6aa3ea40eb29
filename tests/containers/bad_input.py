"""Mistakes in how an image is run: each must be reported in one line."""

from typing import Any

from tests.containers.engine import Engine

RUN = ("run", "--rm", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--network", "lathe_back")
KEY = ("--env", "LATHE_API_KEYS=use")
REDIS = ("--env", "LATHE_REDIS_URL=redis://:{}@redis:6379/0")
FILL = "cat /dev/zero > /state/filler 2>/dev/null"
UNKNOWN_CHAIN = (
    "mkdir -p lathe/chains/old/1; echo '{\"format\": 0}' > lathe/chains/old/1/manifest.json; "
    'echo \'{"live": 1, "earlier": [], "last": 1}\' > lathe/chains/old/pointer.json'
)
SECONDS = 60


def try_mistakes(engine: Engine) -> dict[str, Any]:
    """Make each mistake once and return exit statuses (124: it went on) and what was said of each."""
    foreign = ("--opt", "type=tmpfs", "--opt", "device=tmpfs", "--opt", "o=size=1m,uid=12345,mode=755")
    engine.docker("volume", "create", *foreign, "foreign")
    full = ("--tmpfs", "/state:size=64k,mode=1777")
    foreign = ("--volume", "foreign:/state")
    right, wrong = ((REDIS[0], REDIS[1].format(password)) for password in ("secret", "wrong"))
    milvus, gpu = ("--env", "LATHE_INDEX_URL=http://milvus:19530"), ("--env", "LATHE_DEVICE=cuda")
    worker = ("lathe-worker:latest", "worker")
    mistakes = {
        "no keys": run(engine, ()),
        "wrong password of Redis, server": run(engine, (*KEY, *wrong)),
        "wrong password of Redis, worker": run(engine, wrong, *worker),
        "full volume, server": run(engine, (*KEY, *full), before=FILL),
        "full volume, worker": run(engine, (*right, *full), *worker, before=FILL),
        "volume of another owner, server": run(engine, (*KEY, *foreign)),
        "volume of another owner, worker": run(engine, (*right, *foreign), *worker),
        "chain of an unknown format": run(engine, KEY, before=UNKNOWN_CHAIN),
        "no GPU, server": run(engine, (*KEY, *gpu)),
        "no GPU, worker": run(engine, (*right, *gpu), *worker),
        "Milvus without its client": run(engine, (*KEY, *milvus)),
    }
    engine.docker("volume", "rm", "foreign")
    return mistakes


def run(
    engine: Engine, options: tuple[str, ...], image: str = "lathe:latest", command: str = "serve", before: str = "true"
) -> dict[str, Any]:
    """Run an image for up to `SECONDS` and return its exit status, and the first lines that are errors or warnings.

    Args:
        engine: the engine.
        options: options of `docker run`.
        image: the image.
        command: subcommand of lathe.
        before: command of the shell that runs first in the container.
    """
    words = f"{before}; timeout --kill-after 30 {SECONDS} lathe {command} 2>&1; echo status $?"
    said = engine.docker(*RUN, *options, "--entrypoint", "sh", image, "-c", words).splitlines()
    lines = [line for line in said[:-1] if line.startswith(("lathe:", "Warning:")) or '"warning"' in line]
    return {"exit_status": int(said[-1].split()[1]), "said": lines[:3], "lines_in_all": len(said) - 1}
