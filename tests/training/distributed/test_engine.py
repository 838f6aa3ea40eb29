"""Moments by blocks against moments in one pass, with a worker in this process.

What Ray adds is in tests/behaviour/fits/test_ray.py.
"""

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lathe.training.distributed import engine, ray_engine
from lathe.training.distributed.engine import (
    ANSWER_SECONDS,
    CONNECT_SECONDS,
    SharedRows,
    check_same_versions,
    make_ray_folder,
)
from lathe.training.distributed.worker import Introduction, RayWorker, Token, describe_environment
from lathe.training.errors import EngineError
from lathe.training.fitting.encoding import LOCAL
from lathe.training.fitting.stacked import StackedVectors, VectorFile
from lathe.training.sources.shards import Shard
from lathe.transforms import Chain, InputError, parse_steps
from lathe.transforms.chain import deserialize_chain, serialize_chain
from lathe.transforms.statistics import Moments, SharedVectors, moments_of, unit_moments
from lathe.transforms.vectors import BLOCK_ROWS

WIDTH = 12
SIZES = (1, 3000, BLOCK_ROWS, 2 * BLOCK_ROWS + 5, 7)


def compute_block_moments(blocks, chain, unit):
    """Yield the moments of blocks, computed by a worker in this process."""
    worker = RayWorker(None, None, "cpu", 1)
    return (Moments.from_arrays(worker.moments(block, chain, unit)) for block in blocks)


@pytest.fixture(scope="module")
def values():
    return np.random.default_rng(0).standard_normal((sum(SIZES), WIDTH)).astype(np.float32) + 0.5


@pytest.fixture(scope="module", params=["one file", "several files"])
def vectors(request, values, tmp_path_factory):
    """Return the values as one memory map, or stacked from several files."""
    folder, sizes = tmp_path_factory.mktemp("vectors"), SIZES if request.param == "several files" else (len(values),)
    parts, start = [], 0
    for number, size in enumerate(sizes):
        values[start : start + size].tofile(folder / str(number))
        parts.append(VectorFile(folder / str(number), size))
        start += size
    if len(parts) == 1:
        return np.memmap(parts[0].path, np.float32, "r", shape=values.shape)
    return StackedVectors(parts, WIDTH)


@pytest.fixture(scope="module", params=["all", "four fifths"])
def chosen(request, values):
    """Return the indices of the rows to fit on: all, or about four fifths."""
    return np.flatnonzero(values[:, 0] < {"all": np.inf, "four fifths": 1.3}[request.param])


def assert_equal_moments(a, b):
    assert a.count == b.count and a.fourth == b.fourth
    for name, array in a.arrays().items():
        np.testing.assert_array_equal(array, b.arrays()[name])


@pytest.mark.parametrize("of", [moments_of, unit_moments])
def test_moments_by_blocks_equal_those_of_one_pass_bit_for_bit(vectors, chosen, of):
    for rows in (chosen, chosen[:1], chosen[[0, -1]], chosen[:BLOCK_ROWS], chosen[: BLOCK_ROWS + 1]):
        assert_equal_moments(of(SharedRows(vectors, rows, compute_block_moments)), of(LOCAL.select_rows(vectors, rows)))


@pytest.mark.parametrize("steps", ["mc,abtt,whitening:6", "normalize,r2,geopres:4,steps=5,int8"])
def test_a_chain_fitted_on_shared_rows_equals_one_fitted_on_local_rows(vectors, chosen, steps):
    shared, here = Chain(parse_steps(steps)), Chain(parse_steps(steps))
    shared.fit(SharedRows(vectors, chosen, compute_block_moments))
    here.fit(LOCAL.select_rows(vectors, chosen))
    assert shared == here


def test_view_through_two_chains_gives_rows_transformed_by_both(vectors, chosen):
    rows = SharedRows(vectors, chosen, compute_block_moments)
    assert isinstance(rows, SharedVectors)  # else fits would read the rows here, and ask no worker for their moments
    one = Chain(parse_steps("r2"), normalize=False).fit(vectors)
    two = Chain(parse_steps("pca:5"), normalize=False).fit(rows.view_through(one))
    behind = rows.view_through(one).view_through(two)
    np.testing.assert_array_equal(behind[:50], two.transform(one.transform(vectors[chosen[:50]])))
    assert behind.shape == behind[:].shape


def test_a_row_that_is_not_finite_is_named_by_its_position_among_the_fitted_rows(values, tmp_path):
    bad = values.copy()
    bad[BLOCK_ROWS + 40, 3] = np.nan
    bad.tofile(tmp_path / "bad")
    vectors = np.memmap(tmp_path / "bad", np.float32, "r", shape=bad.shape)
    with pytest.raises(InputError, match=rf"row {BLOCK_ROWS + 30} "):
        moments_of(SharedRows(vectors, np.arange(10, len(bad)), compute_block_moments))


def test_a_block_of_shared_rows_has_only_the_files_that_hold_its_rows(vectors, values):
    for block in SharedRows(vectors, np.arange(len(values)), compute_block_moments).blocks():
        held = sum(part.rows for part in block.parts)
        assert 0 <= block.rows.min() and block.rows.max() < held
        assert block.parts[0].rows > block.rows[0] and held - block.parts[-1].rows <= block.rows[-1]


@pytest.mark.parametrize("normalize", [True, False])
def test_a_serialized_chain_is_the_same_map_without_metadata(vectors, values, normalize):
    chain = Chain(parse_steps("r2,normalize,geopres:4,steps=0"), normalize).fit(vectors)
    chain.metadata = {"provenance": {"command": "lathe fit --source secret"}}
    again = deserialize_chain(serialize_chain(chain))
    assert again == chain and again.metadata == {} and b"secret" not in serialize_chain(chain)
    np.testing.assert_array_equal(again.transform(values[:9]), chain.transform(values[:9]))
    assert deserialize_chain(serialize_chain(Chain(parse_steps("normalize"), normalize))).normalize == normalize


def test_a_malformed_address_is_refused_and_the_format_is_named():
    for address in ("ray://head:10001", "head", ":6379", "head:port", ""):
        with pytest.raises(EngineError, match="HOST:PORT"), ray_engine(address, 1):
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
    monkeypatch.setattr(engine, "find_spec", lambda _: True)
    with pytest.raises(EngineError, match="Ray cannot be used: The current node timed out"), ray_engine(None, 1):
        pass


def introduction(**other):
    """Build the introduction of a worker with these versions, some replaced."""
    return Introduction("node-7", 1, describe_environment(None) | other)


def test_a_worker_of_the_same_versions_is_accepted():
    check_same_versions(describe_environment(None), introduction())


@pytest.mark.parametrize("what", ["lathe-training", "torch"])
def test_a_worker_of_another_version_is_refused_with_its_node_and_both_versions(what):
    with pytest.raises(
        EngineError, match=rf"node-7 .* {what} is 0\.0\.9 there and {describe_environment(None)[what][:3]}"
    ):
        check_same_versions(describe_environment(None), introduction(**{what: "0.0.9"}))


def test_a_worker_whose_encoder_differs_is_refused_with_the_difference():
    mine, theirs = {"name": "e", "fingerprint": "aa"}, {"name": "e", "fingerprint": "bb"}
    with pytest.raises(EngineError, match="the encoder's fingerprint is bb there and aa here"):
        check_same_versions(describe_environment(None) | {"encoder": mine}, introduction(encoder=theirs))
    with pytest.raises(EngineError, match="the encoder's layer is 3 there and None here"):
        check_same_versions(describe_environment(None) | {"encoder": mine}, introduction(encoder=mine | {"layer": 3}))
    with pytest.raises(EngineError, match="encoder is None there"):
        check_same_versions(describe_environment(None) | {"encoder": mine}, introduction())


def test_a_worker_that_lacks_the_shared_folder_or_a_file_raises_engine_error(tmp_path):
    worker, token = RayWorker(None, None, "cpu", 1), Token.write(tmp_path)
    shard = Shard(file=str(tmp_path / "a.npy"), key="k", width=3, stop=5)
    with pytest.raises(EngineError, match=r"a\.npy is not on .*every node"):
        worker.encode([shard], "text", [tmp_path], token)
    for unseen in (replace(token, file=tmp_path / "nowhere" / "token"), replace(token, secret="another disk's")):
        with pytest.raises(EngineError, match="LATHE_HOME must be in a folder that all nodes share"):
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
