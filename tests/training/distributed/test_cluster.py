import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lathe.training.distributed import cluster, ray_engine
from lathe.training.distributed.cluster import ANSWER_SECONDS, CONNECT_SECONDS, make_ray_folder
from lathe.training.distributed.engine import require_same_versions
from lathe.training.distributed.worker import Introduction, RayWorker, Token, describe_environment
from lathe.training.errors import EngineError
from lathe.training.sources.shards import Shard
from tests.helpers import find_free_port


def test_a_malformed_address_is_refused_and_the_format_is_named():
    for address in ("ray://head:10001", "head", ":6379", "head:port", ""):
        with pytest.raises(EngineError, match="HOST:PORT"), ray_engine(address, 1):
            pass


def test_a_port_without_a_listener_raises_engine_error():
    address = f"127.0.0.1:{find_free_port()}"
    with pytest.raises(EngineError, match=f"no Ray cluster answers at {address}"), ray_engine(address, 1):
        pass


@pytest.mark.release
@pytest.mark.services  # it waits as long as a user would
def test_a_listener_that_is_not_ray_is_given_up_within_the_time_limits():
    with socket.create_server(("127.0.0.1", 0)) as bound:
        address, begun = f"127.0.0.1:{bound.getsockname()[1]}", time.monotonic()
        with pytest.raises(EngineError, match=address), ray_engine(address, 1):
            pass
        assert time.monotonic() - begun < CONNECT_SECONDS + ANSWER_SECONDS + 2


def test_without_ray_installed_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EngineError, match=r"pip install 'lathe-training\[ray\]'"), ray_engine(None, 1):
        pass


def test_a_ray_that_does_not_start_in_time_is_reported_with_its_reason(monkeypatch):
    class Late:
        """Stands in for Ray on a machine that is too busy. What Ray raises then is an `Exception`."""

        @staticmethod
        def init(**_):
            raise Exception("The current node timed out during startup.")  # noqa: TRY002

        @staticmethod
        def shutdown():
            pass

    monkeypatch.setitem(sys.modules, "ray", Late)
    monkeypatch.setattr(cluster, "find_spec", lambda _: True)
    with pytest.raises(EngineError, match="Ray cannot be used: The current node timed out"), ray_engine(None, 1):
        pass


def introduction(**other):
    """Build the introduction of a worker with these versions, some replaced."""
    return Introduction("node-7", 1, describe_environment(None) | other)


def test_a_worker_of_the_same_versions_is_accepted():
    require_same_versions(describe_environment(None), introduction())


@pytest.mark.parametrize("what", ["lathe-training", "torch"])
def test_a_worker_of_another_version_is_refused_with_its_node_and_both_versions(what):
    with pytest.raises(
        EngineError, match=rf"node-7 .* {what} is 0\.0\.9 there and {describe_environment(None)[what][:3]}"
    ):
        require_same_versions(describe_environment(None), introduction(**{what: "0.0.9"}))


def test_a_worker_whose_encoder_differs_is_refused_with_the_difference():
    mine, theirs = {"name": "e", "fingerprint": "aa"}, {"name": "e", "fingerprint": "bb"}
    with pytest.raises(EngineError, match="the encoder's fingerprint is bb there and aa here"):
        require_same_versions(describe_environment(None) | {"encoder": mine}, introduction(encoder=theirs))
    with pytest.raises(EngineError, match="the encoder's layer is 3 there and None here"):
        require_same_versions(describe_environment(None) | {"encoder": mine}, introduction(encoder=mine | {"layer": 3}))
    with pytest.raises(EngineError, match="encoder is None there"):
        require_same_versions(describe_environment(None) | {"encoder": mine}, introduction())


def test_a_worker_that_lacks_the_shared_folder_or_a_file_raises_engine_error(tmp_path):
    worker, token = RayWorker(None, None, "cpu", 1), Token.write(tmp_path)
    shard = Shard(file=str(tmp_path / "a.npy"), key="k", width=3, stop=5)
    with pytest.raises(EngineError, match=r"a\.npy is not on .*every node"):
        worker.encode([shard], "text", [tmp_path], token)
    for unseen in (replace(token, file=tmp_path / "nowhere" / "token"), replace(token, secret="another disk's")):
        with pytest.raises(EngineError, match="LATHE_HOME must lie in a folder that all nodes share"):
            worker.encode([shard], "text", [tmp_path], unseen)


def test_make_ray_folder_deletes_folders_of_ended_processes_and_no_others(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = {"dead": f"lathe-ray-{ended.pid}-x", "mine": f"lathe-ray-{os.getpid()}-x", "other": "lathe-rayon"}
    for name in names.values():
        (tmp_path / name / "session").mkdir(parents=True)
    made = Path(make_ray_folder(tmp_path))
    assert made.is_dir() and made.name.startswith(f"lathe-ray-{os.getpid()}-")
    assert {path.name for path in tmp_path.iterdir()} == {names["mine"], names["other"], made.name}
