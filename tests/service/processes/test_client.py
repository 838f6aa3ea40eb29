import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lathe.service.processes.client import LOST, ForkServer, create_process_starter
from lathe.service.processes.program import Program, Spawner
from tests.helpers import eventually
from tests.service.processes.started import MODULE, ROOT, SECONDS, Started, closing


def is_running(pid):
    """Return whether a process exists and is not a zombie."""
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.fixture(autouse=True)
def search_path(monkeypatch):
    """Let new Pythons find the program under test: they do not search the working directory."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def forks():
    """Start a fork server that preloads nothing."""
    with closing(ForkServer(())) as starter:
        yield starter


@pytest.fixture(params=["forked", "spawned"])
def starter(request):
    """Return a fork server, and a spawner."""
    with closing(ForkServer(()) if request.param == "forked" else Spawner()) as found:
        yield found


def test_a_program_gets_arguments_environment_and_output_inherits_the_rest_and_has_a_session_and_empty_input(
    starter, tmp_path
):
    with (tmp_path / "log").open("wb") as output:
        started = Started(starter, "one", "two words", output=output.fileno(), LATHE_X="ü = 1\n2")
    with started.socket:
        about = started.about()
        assert about["arguments"] == ["one", "two words"]
        given = {name: value for name, value in about["environment"].items() if name not in ("LC_CTYPE", "PWD")}
        own = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "PYTHONPATH": str(ROOT)}
        assert given == own | {"LATHE_X": "ü = 1\n2"}
        assert about["pid"] == about["session"] == started.process.pid
        assert about["input"] == ""
        assert about["folder"] == str(Path.cwd())
        assert about["niceness"] == os.nice(0)
        mask = os.umask(0o22)
        os.umask(mask)
        assert about["mask"] == mask
        hangup = str(int(signal.getsignal(signal.SIGHUP)))  # ignored where the tests run behind nohup
        assert about["signals"] == ["0", "0", hangup]
        assert about["threads"] == 1
        command = Path(f"/proc/{started.process.pid}/cmdline").read_bytes()
        assert MODULE.encode() in command  # what `ps` shows
        assert started.end() == 0
    assert (tmp_path / "log").read_text() == "written to its output\n"


def test_the_fork_server_keeps_no_descriptors_of_programs_open(forks):
    first, second = Started(forks), Started(forks)
    with first.socket, second.socket:
        first.about(), second.about()
        first.socket.shutdown(socket.SHUT_WR)
        assert first.process.wait(SECONDS) == 9  # it found the end, so nobody else holds the other side
        assert second.process.poll() is None
        second.end()


def test_a_program_killed_before_it_is_forked_never_runs(tmp_path):
    with closing(ForkServer(("time", MODULE))) as forks, (tmp_path / "log").open("wb") as output:
        started = Started(forks, output=output.fileno())
        started.process.kill()
        with started.socket:
            status = started.process.wait(SECONDS)
    assert status in (LOST, -signal.SIGKILL)
    if status == LOST:
        assert (tmp_path / "log").read_text() == ""


def test_a_missing_module_fails_its_own_program_only(tmp_path):
    with closing(ForkServer(("tests.no_such_module",))) as forks, (tmp_path / "log").open("wb") as output:
        wrong = forks.start(Program("tests.no_such_module", (), dict(os.environ), output=output.fileno()))
        assert wrong.wait(SECONDS) == 1
        assert "No module named 'tests.no_such_module'" in (tmp_path / "log").read_text()
        started = Started(forks)
        with started.socket:
            started.about()
            assert started.end() == 0


def test_programs_go_on_without_a_killed_fork_server_and_another_one_is_started(forks):
    first = Started(forks)
    with first.socket:
        first.about()
        server = forks._server.pid
        os.kill(server, signal.SIGKILL)
        forks._server.wait(SECONDS)
        with pytest.raises(subprocess.TimeoutExpired):
            first.process.wait(0.2)
        assert first.process.poll() is None
        first.process.kill()
        assert first.socket.recv(1) == b""
        assert first.process.wait(SECONDS) == LOST
        second = Started(forks)
        with second.socket:
            second.about()
            assert forks._server.pid != server
            assert second.end() == 0


@pytest.mark.filterwarnings("error")
def test_a_closed_fork_server_starts_again_when_it_is_needed_without_keys(forks, monkeypatch):
    """A handle that is dropped closes its socket."""
    forks.close()
    monkeypatch.setenv("LATHE_ADMIN_KEYS", "a-secret")
    started = Started(forks)
    with started.socket:
        started.about()
        assert b"a-secret" not in Path(f"/proc/{forks._server.pid}/environ").read_bytes()
        watched = started.process._status
        del started.process
    assert watched.fileno() == -1


OWNER = f"""
import os, sys
from lathe.service.processes.client import ForkServer
from lathe.service.processes.program import Program
forks = ForkServer(())
output = open(os.devnull, "wb")
programs = []
for descriptor, lasting in zip(map(int, sys.argv[1:]), (False, True)):
    program = Program("{MODULE}", (), dict(os.environ), descriptor, output.fileno(), lasting)
    programs.append(forks.start(program))
print(forks._server.pid, *(process.pid for process in programs), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_lasting_programs_survive_the_server_and_all_other_processes_end_with_it(how):
    (ours, theirs), (lasting_ours, lasting_theirs) = socket.socketpair(), socket.socketpair()
    with ours, lasting_ours:  # open to the end, so that no program ends because its socket does
        with theirs, lasting_theirs:
            passed = [theirs.fileno(), lasting_theirs.fileno()]
            owner = subprocess.Popen(
                [sys.executable, "-c", OWNER, *map(str, passed)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=passed,
            )
        with owner:
            server, bound, lasting = (int(word) for word in owner.stdout.readline().split())
            owner.send_signal(how)
            owner.wait(SECONDS)
        eventually(lambda: not is_running(server) and not is_running(bound))
        assert is_running(lasting)
        lasting_ours.settimeout(SECONDS)
        assert json.loads(lasting_ours.makefile().readline())["pid"] == lasting
    eventually(lambda: not is_running(lasting))


def test_create_process_starter_forks_for_the_cpu_and_spawns_for_gpus():
    for device, expected in [("cpu", ForkServer), ("cuda", Spawner), ("cuda:1", Spawner), ("mps", Spawner)]:
        starter = create_process_starter(device)
        assert isinstance(starter, expected if sys.platform == "linux" else Spawner), device
