"""The images: stand-ins of the base images, made from Debian's packages, and Lathe's own, built from docker/Dockerfile.

No image registry is needed. A stand-in has the name of the image it replaces, so the Dockerfile and docker-compose.yml
are used as they are.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.containers.engine import Engine

ROOT = Path(__file__).resolve().parents[2]
MIRROR = "http://deb.debian.org/debian"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
ROOTS = {
    "python": ("bookworm", "ca-certificates,python3,python3-venv"),
    "beside": ("testing", "nginx,redis-server,prometheus,wget"),  # `resolve` of upstreams.conf needs nginx 1.27.3
}
"""Suite and packages of each Debian root."""
STAND_INS = {
    "python:3.11-slim-bookworm": ("python", 'CMD ["python"]'),
    "nginx:1.30-alpine": ("beside", 'CMD ["nginx"]'),
    "redis:8.6-alpine": ("beside", 'CMD ["redis-server"]'),
    "prom/prometheus:v3.13.2": ("beside", 'ENTRYPOINT ["prometheus"]\nUSER nobody'),
}
"""Root and configuration of each image."""
OWNERS = {"data": "redis", "prometheus": "nobody"}
"""Folders of the images that are mounted volumes, and who owns them."""
CLEAN_APT = 'Dir::Cache::pkgcache "";\nDir::Cache::srcpkgcache "";\n'
"""Configuration of apt in Docker's Debian images: without it each layer with `apt-get` has 80 MB of cache."""
BUILT = {"lathe:latest": "serve", "lathe-worker:latest": "worker"}
"""Images that are built, and their targets."""
PACKAGE_PORT = 8970
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
UNUSED = ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale")


def make_roots(packages: Path, folder: Path) -> None:
    """Make a Debian root for each stand-in in a folder, unless it is there already."""
    environment = {**os.environ, "DEBOOTSTRAP_DIR": f"{packages}/usr/share/debootstrap"}
    program = [f"{packages}/usr/sbin/debootstrap", "--variant=minbase", f"--keyring={KEYRING}"]
    for name, (suite, included) in ROOTS.items():
        root = folder / name
        if (root / "made").exists():
            continue
        shutil.rmtree(root, ignore_errors=True)
        command = [*program, f"--include={included}", suite, str(root), MIRROR]
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
        if name == "python":
            _complete_python(root)
        else:
            for volume, owner in OWNERS.items():
                subprocess.run(["chroot", root, "install", "--directory", "--owner", owner, f"/{volume}"], check=True)
        (root / "etc/apt/apt.conf.d/docker-clean").write_text(CLEAN_APT)
        for unused in UNUSED:
            shutil.rmtree(root / unused)
            (root / unused).mkdir()
        (root / "made").touch()


def _complete_python(root: Path) -> None:
    """Add what the python image has and Debian splits off: the command `python` and the headers, without a compiler.

    Also add this machine's certificates, and the configuration of its pip with local folders as addresses.
    """
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    headers = root / "headers"
    headers.mkdir()
    subprocess.run(["apt-get", "-qq", "download", "libpython3.11-dev"], cwd=headers, check=True)
    subprocess.run(["dpkg", "--extract", *headers.glob("*.deb"), headers], check=True)
    shutil.copytree(headers / "usr/include", root / "usr/include", dirs_exist_ok=True)
    shutil.rmtree(headers)
    if CERTIFICATES.exists():
        shutil.copy(CERTIFICATES, root / CERTIFICATES.relative_to("/"))
    lines = [f"cert = {CERTIFICATES}"] if CERTIFICATES.exists() else []
    lines += [f"{name} = {_replace_folders(value)}" for name, value in read_package_locations().items()]
    (root / "etc/pip.conf").write_text("[global]\n" + "\n".join(lines) + "\n")


def read_package_locations() -> dict[str, str]:
    """Return where this machine's pip looks for packages: `index-url`, `extra-index-url` and `find-links`, if set."""
    done = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    found = re.findall(r"^(?:global|:env:)\.(index-url|extra-index-url|find-links)='(.*)'$", done.stdout, re.MULTILINE)
    return {name: value.replace("\\n", " ") for name, value in found}


def _replace_folders(value: str) -> str:
    """Return locations of packages with each local folder replaced by its address at `serve_packages`."""
    return " ".join(
        re.sub(r"^(?:file://)?/", f"http://127.0.0.1:{PACKAGE_PORT}/", location) for location in value.split()
    )


@contextmanager
def serve_packages() -> Iterator[None]:
    """Serve the machine's local folders of packages, and nothing else, on the loopback during the block."""
    folders = [
        Path(location.removeprefix("file://")).resolve().parent if name != "find-links" else Path(location)
        for name, value in read_package_locations().items()
        for location in value.split()
        if location.removeprefix("file://").startswith("/")
    ]

    class Handler(SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            """Return the file of a path of a URL, or one that does not exist if the path is outside the folders."""
            found = Path(super().translate_path(path)).resolve()
            inside = any(found.is_relative_to(folder) for folder in folders)
            return str(found) + ("/" if path.endswith("/") else "") if inside else "/nonexistent"

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", PACKAGE_PORT), partial(Handler, directory="/")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def import_stand_ins(engine: Engine, roots: Path) -> None:
    """Import the roots under the names of the images they stand in for, unless they are there already."""
    for image, (root, changes) in STAND_INS.items():
        if engine.docker("images", "--quiet", image):
            continue
        options = [word for change in changes.splitlines() for word in ("--change", change)]
        with subprocess.Popen(["tar", "--create", "--directory", roots / root, "."], stdout=subprocess.PIPE) as tar:
            engine.docker("import", *options, "-", image, stdin=tar.stdout)


def build_image(engine: Engine, tag: str, target: str, *arguments: str) -> float:
    """Build a target of docker/Dockerfile with the machine's network and return the seconds it took."""
    began = time.monotonic()
    given = [word for argument in ("TORCH_INDEX_URL=", *arguments) for word in ("--build-arg", argument)]
    options = ["--network", "host", "--progress", "plain", "--file", "docker/Dockerfile"]
    engine.docker("build", *options, "--tag", tag, "--target", target, *given, ".", cwd=ROOT)
    return round(time.monotonic() - began, 1)
