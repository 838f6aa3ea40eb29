"""Docker from Debian's packages, unpacked into a folder and run in namespaces of its own.

Nothing is installed on the machine. The engine and all that it starts live in a mount and a process namespace, and
during the trials in a network namespace too, so they end with the process that opened the namespaces, and the
machine's own network is never changed.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PACKAGES = ("docker.io", "iptables", "debootstrap")
INSIDE = "LATHE_CONTAINERS_INSIDE"
"""Environment variable that is set in the namespaces."""
CGROUPS = Path("/sys/fs/cgroup")
KEYS = Path("/etc/docker")
"""Folder in which the engine creates a key, wherever its other files are."""
START_SECONDS = 60
STOP_SECONDS = 60


def unpack_packages(folder: Path) -> Path:
    """Download `PACKAGES`, with the packages they need and the machine lacks, and unpack them. Return their root."""
    root, archives = folder / "engine", folder / "debs"
    if (root / "usr/sbin/dockerd").exists():
        return root
    (archives / "partial").mkdir(parents=True, exist_ok=True)
    download = ["install", "--yes", "--download-only", "--no-install-recommends", *PACKAGES]
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(["apt-get", "-qq", "-o", f"Dir::Cache::archives={archives}", *download], check=True)
    for archive in archives.glob("*.deb"):
        subprocess.run(["dpkg", "--extract", archive, root], check=True)
    for name in ("iptables", "ip6tables"):  # on a machine where packages are installed, update-alternatives does this
        link = root / "usr/sbin" / name
        if not link.exists():
            link.symlink_to(f"{name}-nft")
    shutil.rmtree(archives)
    return root


def enter_namespaces(arguments: list[str], network: bool) -> None:
    """Run this program again in new namespaces with other arguments, and exit if that fails.

    Args:
        arguments: arguments of the program.
        network: whether it gets a network of its own, with a loopback only, or uses the machine's.
    """
    alone = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *(["--net"] if network else [])]
    script = '[ "$0" = shared ] || ip link set lo up; exec "$@"'
    module = sys.modules["__main__"].__spec__.parent
    words = ["sh", "-c", script, "alone" if network else "shared", sys.executable, "-m", module, *arguments]
    environment = {**os.environ, INSIDE: "yes", "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    done = subprocess.run([*alone, *words], env=environment)
    if done.returncode:
        sys.exit(done.returncode)


class Engine:
    """A running engine.

    Args:
        root: unpacked packages.
        folder: folder for images, containers and volumes, and for the socket.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self.folder = folder
        libraries = root / "usr/lib/x86_64-linux-gnu"
        self.environment = {
            **os.environ,
            "PATH": f"{root}/usr/sbin:{root}/usr/bin:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": str(libraries),
            "XTABLES_LIBDIR": str(libraries / "xtables"),
            "DOCKER_HOST": f"unix://{folder}/docker.sock",
            "DOCKER_CONFIG": str(folder / "config"),
            "DOCKER_BUILDKIT": "1",
        }

    def docker(self, *words: str, check: bool = True, **options: object) -> str:
        """Run a docker command and return its output.

        Raises:
            CalledProcessError: if it fails and `check` is set.
        """
        command = [str(self.root / "usr/bin/docker"), *words]
        done = subprocess.run(command, env=self.environment, text=True, stdout=subprocess.PIPE, **options)
        if check and done.returncode:
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout)
        return done.stdout.strip()

    @contextmanager
    def run(self, network: bool) -> Iterator["Engine"]:
        """Run the engine during the block.

        Args:
            network: whether containers get networks of their own, for which the engine changes the network it runs in.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        had_keys = KEYS.exists()
        options = ["--data-root", f"{self.folder}/data", "--exec-root", f"{self.folder}/exec"]
        options += ["--pidfile", f"{self.folder}/docker.pid", "--host", self.environment["DOCKER_HOST"]]
        options += ["--oom-score-adjust", "0"]
        if not network:
            self._forget_containers()
            options += ["--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false"]
        (self.folder / "docker.pid").unlink(missing_ok=True)  # of an engine in namespaces that are gone
        with (self.folder / "dockerd.log").open("ab") as log:
            daemon = subprocess.Popen(["dockerd", *options], env=self.environment, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not self.docker("version", "--format", "{{.Server.Version}}", check=False, stderr=subprocess.DEVNULL):
                if daemon.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"dockerd does not start: see {self.folder}/dockerd.log")
                time.sleep(0.2)
            yield self
        finally:
            daemon.terminate()
            daemon.wait(STOP_SECONDS)
            for group in ("docker/buildkit", "*/docker/buildkit", "docker", "*/docker"):
                for folder in CGROUPS.glob(group):
                    with suppress(OSError):  # another engine of this machine has its containers in it
                        folder.rmdir()
            if not had_keys:
                shutil.rmtree(KEYS, ignore_errors=True)

    def _forget_containers(self) -> None:
        """Remove containers and networks that an interrupted run left.

        An engine that starts makes the bridges of the networks it knows, here in the machine's own network.
        """
        for name in ("containers", "network"):
            shutil.rmtree(self.folder / "data" / name, ignore_errors=True)
