"""Build the images, run Compose, and try what docs/deployment.md promises: `python -m tests.containers`.

Takes root, Linux and Debian's packages, some 15 GB of disk, and about half an hour. Everything runs in namespaces of
its own, and nothing is left but the folder `--work`, from which a second run goes on faster.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.report import write_report
from tests.containers import bad_input, first_use, images, trials
from tests.containers.compose import Compose
from tests.containers.engine import INSIDE, Engine, enter_namespaces, unpack_packages

KILLS = 20
BUILT = "seconds-to-build.json"


def build(engine: Engine, work: Path) -> dict[str, Any]:
    """Import the stand-ins and build both images."""
    images.import_stand_ins(engine, work / "roots")
    with images.serve_packages():
        return {target: images.build_image(engine, tag, target) for tag, target in images.BUILT.items()}


def list_trials(compose: Compose, kills: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return all trials in their order: the services are started first."""
    engine = compose.engine
    return {
        "first use": partial(first_use.measure_first_use, engine),
        "start": partial(trials.start, compose),
        "worker killed": partial(trials.kill_worker, compose),
        "redis stopped": partial(trials.stop_redis, compose),
        "redis full": partial(trials.fill_redis, compose),
        "redis flushed": partial(trials.flush_redis, compose),
        "index killed": partial(trials.kill_index, compose),
        "rolling upgrade": partial(trials.upgrade, compose),
        "keys changed": partial(trials.change_keys, compose),
        "bad input": partial(bad_input.try_mistakes, engine),
        "replicas killed": partial(trials.kill_replicas, compose, kills),
    }


def run_trials(compose: Compose, wanted: list[str], kills: int, write: Callable[[dict[str, Any]], object]) -> list[str]:
    """Run trials, all or the wanted ones, take everything down, and return the names of those that failed.

    Args:
        compose: the services.
        wanted: names of trials; empty: all.
        kills: number of times that a replica is killed.
        write: called after each trial with the figures so far.
    """
    figures: dict[str, Any] = {"versions": read_versions(compose.engine)}
    try:
        for name, trial in list_trials(compose, kills).items():
            if wanted and name not in wanted:
                continue
            print(f"== {name}", flush=True)
            try:
                figures[name] = trial()
            except (RuntimeError, httpx2.HTTPError, subprocess.CalledProcessError) as error:
                figures[name] = {"failed": str(error)}
            print(json.dumps(figures[name], indent=1), flush=True)
            write(figures)
    finally:
        compose.run("--profile", "*", "down", "--volumes", "--timeout", "20")
    return [name for name, figure in figures.items() if "failed" in figure]


def read_versions(engine: Engine) -> dict[str, str]:
    """Return the versions of the engine and of the programs beside Lathe."""

    def ask(image: str, *words: str) -> str:
        return engine.docker("run", "--rm", "--network", "none", "--entrypoint", *words[:1], image, *words[1:])

    return {
        "docker": engine.docker("version", "--format", "{{.Server.Version}}"),
        "redis": ask("redis:8.6-alpine", "redis-server", "--version").split()[2].removeprefix("v="),
        "nginx": ask("nginx:1.30-alpine", "sh", "-c", "nginx -v 2>&1").rpartition("/")[2],
        "python": ask("python:3.11-slim-bookworm", "python", "--version").split()[1],
    }


def main() -> None:
    """Read the command line, then prepare, build and try, each in its namespaces."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/containers"), help="folder of roots and images")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder of containers.json")
    parser.add_argument("--trial", action="append", default=[], metavar="NAME", help="this trial alone; several may be")
    parser.add_argument("--kills", type=int, default=KILLS, help="times that a replica is killed")
    parser.add_argument("--stage", choices=["build", "trials"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    work = options.work.resolve()
    if os.environ.get(INSIDE) is None:
        if os.geteuid():
            sys.exit("the trials of containers take root: they make namespaces and mount file systems")
        packages = unpack_packages(work)
        images.make_roots(packages, work / "roots")
        enter_namespaces(["--stage", "build", *sys.argv[1:]], network=False)
        enter_namespaces(["--stage", "trials", *sys.argv[1:]], network=True)
        shutil.rmtree(work / "exec", ignore_errors=True)
        return
    engine = Engine(work / "engine", work)
    if options.stage == "build":
        with engine.run(network=False):
            seconds = build(engine, work)
        if not (work / BUILT).exists():  # what a later run builds comes from the engine's cache
            (work / BUILT).write_text(json.dumps(seconds))
        return
    sys.argv[1:] = [word for word in sys.argv[1:] if word not in ("--stage", "trials")]
    earlier = options.out / "containers.json"
    known = json.loads(earlier.read_text())["figures"] if options.trial and earlier.exists() else {}
    known["seconds to build"] = json.loads((work / BUILT).read_text())

    def write(figures: dict[str, Any]) -> None:
        """Write the figures, and those that an earlier run has of other trials."""
        write_report(options.out, "containers", known | figures)

    with engine.run(network=True):
        failed = run_trials(Compose(engine), options.trial, options.kills, write)
    if failed:
        sys.exit(f"these trials failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
