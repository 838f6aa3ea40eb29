#!/usr/bin/env python3
"""Carries out a Dockerfile where no container engine runs, and tries what it made.

    sudo docker/check.py --root /tmp/images [--build-arg NAME=VALUE] [--bind FOLDER] [docker/Dockerfile]

Each stage is a chroot in --root, made by debootstrap of Debian's own Python 3.11 in place of the python:3.11-slim
image. RUN and COPY are done as written, with this machine's configuration of apt and pip. Then the last stage is
started as its user, with a loopback of its own: its health check must pass, a text must be embedded, and the stop
signal must end it in order.

What it cannot show: the real base image, layers, volumes, and how an engine runs the result. Needs root and Linux.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from dockerfile import Instruction, Stage, ignore_patterns, ignored, read_dockerfile, substituted

CONTEXT = Path(__file__).resolve().parent.parent
SUITE = "bookworm"
BASE_PACKAGES = ["ca-certificates", "python3", "python3-dev", "python3-pip", "python3-venv"]
MACHINE_FILES = ["/etc/apt/apt.conf.d", "/etc/apt/sources.list.d", "/etc/apt/sources.list", "/etc/pip.conf"]
MACHINE_FILES += ["/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs", "/usr/local/share/ca-certificates"]
MACHINE_FILES += ["/root/.config/pip"]
MACHINE_VARIABLES = ("PIP_", "SSL_CERT", "REQUESTS_CA", "CURL_CA", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ASKED = {"inputs": "What is a lathe?", "dimensions": 64}
READY_SECONDS = 180
STOP_SECONDS = 40


class Chroot:
    """One stage's files and state.

    Attributes:
        root: where the files are.
        environment: what ENV has set.
        arguments: what ARG has declared, as RUN sees it too.
        folder: WORKDIR.
        user: USER; empty: root.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = {"PATH": DEFAULT_PATH}
        self.arguments: dict[str, str] = {}
        self.folder = "/"
        self.user = ""

    def command(self, words: list[str], folder: str | None = None) -> list[str]:
        """A command that runs in here, as the user and in the folder of this moment."""
        user = [f"--userspec={self.user}"] if self.user else []
        return ["chroot", *user, str(self.root), "/usr/bin/env", "-C", folder or self.folder, *words]

    def run(self, words: list[str], **more: str) -> None:
        """Run one to its end."""
        subprocess.run(self.command(words), env={**self.environment, **self.arguments, **more}, check=True)

    def inside(self, path: str) -> Path:
        """A path of the image, on this machine."""
        return self.root / os.path.normpath(os.path.join(self.folder, path)).lstrip("/")  # noqa: PTH118


def base(root: Path) -> Path:
    """What every stage begins with, made once."""
    made = root / "base"
    if not (made / "done").exists():
        shutil.rmtree(made, ignore_errors=True)
        subprocess.run(["debootstrap", "--variant=minbase", SUITE, str(made)], check=True)
        lend(made, [])
        image = Chroot(made)
        for words in (["apt-get", "update"], ["apt-get", "install", "-qy", "--no-install-recommends", *BASE_PACKAGES]):
            image.run(words, DEBIAN_FRONTEND="noninteractive")
        (made / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        (made / "done").touch()
    return made


def lend(root: Path, folders: list[str]) -> None:
    """Give a root this machine's way to its packages, and the devices that everything expects."""
    for name in MACHINE_FILES:
        target = (root / name.lstrip("/")).parent
        target.mkdir(parents=True, exist_ok=True)
        if Path(name).exists():
            subprocess.run(["cp", "--archive", "--remove-destination", name, str(target)], check=True)
    for name in ["/dev", "/proc", *folders]:
        (root / name.lstrip("/")).mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--rbind", name, str(root / name.lstrip("/"))], check=True)


def build(stages: list[Stage], root: Path, given: dict[str, str], folders: list[str]) -> Chroot:
    """Carry out the stages; the last one."""
    begun = base(root)
    named: dict[str, Chroot] = {}
    for number, stage in enumerate(stages):
        say(f"stage {stage.name or number} from {stage.image}")
        target = root / f"stage-{stage.name or number}"
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run(["cp", "--archive", "--one-file-system", str(begun), str(target)], check=True)
        lend(target, folders)
        image = named[stage.name or str(number)] = Chroot(target)
        for instruction in stage.instructions:
            carry_out(instruction, image, named, given)
    return image


def carry_out(instruction: Instruction, image: Chroot, named: dict[str, Chroot], given: dict[str, str]) -> None:
    """One instruction."""
    variables = {**image.arguments, **image.environment}
    began = time.monotonic()
    if instruction.keyword == "RUN":
        machine = {key: value for key, value in os.environ.items() if key.upper().startswith(MACHINE_VARIABLES)}
        image.run(instruction.words, **machine, DEBIAN_FRONTEND="noninteractive")
    elif instruction.keyword == "COPY":
        copy(instruction, image, named)
    elif instruction.keyword == "ENV":
        pairs = [word.split("=", 1) for word in instruction.words]
        image.environment |= {name: substituted(value, variables) for name, value in pairs}
    elif instruction.keyword == "ARG":
        name, _, default = instruction.value.partition("=")
        image.arguments[name] = given.get(name, default)
    elif instruction.keyword == "WORKDIR":
        image.folder = substituted(instruction.value, variables)
        image.inside(".").mkdir(parents=True, exist_ok=True)
    elif instruction.keyword == "USER":
        image.user = instruction.value
    say(f"{time.monotonic() - began:6.1f} s  line {instruction.line}: {instruction.keyword} {instruction.value[:90]}")


def copy(instruction: Instruction, image: Chroot, named: dict[str, Chroot]) -> None:
    """Files of the checkout, less what .dockerignore says, or of another stage."""
    *sources, target = instruction.words
    other = instruction.flags.get("from")
    patterns = ignore_patterns(CONTEXT)
    for name in sources:
        source = named[other].inside(name) if other else CONTEXT / name
        place = image.inside(target)
        place = place / source.name if source.is_file() and (target.endswith("/") or place.is_dir()) else place
        if source.is_file():
            shutil.copy(source, place)
        else:
            shutil.copytree(
                source, place, symlinks=True, dirs_exist_ok=True, ignore=None if other else leaving_out(patterns)
            )


def leaving_out(patterns: list[str]) -> Callable[[str, list[str]], set[str]]:
    """For `copytree`: what the builder would not be sent."""

    def left_out(folder: str, names: list[str]) -> set[str]:
        place = Path(folder).relative_to(CONTEXT)
        return {name for name in names if ignored(str(place / name), patterns)}

    return left_out


def attempt(image: Chroot, instructions: tuple[Instruction, ...]) -> None:
    """Start the image as an engine would; it must come up, answer, and stop in order.

    Raises:
        RuntimeError: if it does not.
    """
    last = {instruction.keyword: instruction for instruction in instructions}
    _, _, health = last["HEALTHCHECK"].value.partition("CMD ")
    environment = {**image.environment, "HOME": "/var/lib/lathe", "LATHE_API_KEYS": "a-key", "HF_HUB_OFFLINE": "1"}
    alone = ["unshare", "--net", "/bin/sh", "-c", 'ip link set lo up && exec "$@"', "alone"]
    server = subprocess.Popen(alone + image.command(last["ENTRYPOINT"].words + last["CMD"].words), env=environment)
    beside = ["nsenter", f"--net=/proc/{server.pid}/ns/net"]
    try:
        deadline = time.monotonic() + READY_SECONDS
        probe = beside + image.command(json.loads(health))
        while subprocess.run(probe, env=environment, stderr=subprocess.DEVNULL).returncode:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the health check did not pass")
            time.sleep(1)
        say("the health check passes")
        script = (
            "import json, urllib.request as r; q = r.Request('http://127.0.0.1:8080/embed', "
            f"json.dumps({ASKED}).encode(), {{'authorization': 'Bearer a-key', 'content-type': 'application/json'}}); "
            "a = json.load(r.urlopen(q)); print(len(a[0]), 'dimensions'); import hnswlib"
        )
        subprocess.run(beside + image.command(["python", "-c", script]), env=environment, check=True)
        server.send_signal(getattr(signal, last["STOPSIGNAL"].value))
        if status := server.wait(STOP_SECONDS):
            raise RuntimeError(f"asked to stop, it ended with {status}")
        say("it stops in order")
    finally:
        server.kill()


def say(line: str) -> None:
    """Progress, beside what the commands print."""
    print(f"== {line}", flush=True)


def main() -> None:
    """Read the command line, go where mounts and processes end with this command, and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dockerfile", nargs="?", type=Path, default=CONTEXT / "docker/Dockerfile")
    parser.add_argument("--root", type=Path, required=True, help="folder for the images; takes some GB")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--bind", action="append", default=[], metavar="FOLDER", help="of this machine, seen inside")
    options = parser.parse_args()
    if os.environ.get("DOCKERFILE_CHECK") is None:
        away = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        os.environ["DOCKERFILE_CHECK"] = "away"
        sys.exit(subprocess.run([*away, sys.executable, *sys.argv]).returncode)
    given = dict(pair.split("=", 1) for pair in options.build_arg)
    stages = read_dockerfile(options.dockerfile)
    image = build(stages, options.root, given, options.bind)
    attempt(image, stages[-1].instructions)


if __name__ == "__main__":
    main()
