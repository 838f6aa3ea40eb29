"""Fits with a real Ray on this machine."""

import os
import signal
import subprocess
import sys
import types
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from lathe.training.distributed.pool import MAX_TRIES, Pool, Task
from lathe.training.errors import EngineError, SourceError
from lathe.training.fitting.encoded_shards import HASHES, POSITION, VECTORS
from lathe.training.fitting.encoding import LOCAL, encode_source
from lathe.training.fitting.fit import fit_new_chain
from lathe.training.fitting.requests import NewFit
from lathe.training.sources.source import open_source
from lathe.transforms.chain import parse_steps
from lathe.transforms.progress import no_progress
from lathe.transforms.statistics import moments_of

pytestmark = [pytest.mark.services, pytest.mark.release, pytest.mark.timeout(200)]
ROOT = Path(__file__).parents[3]
FILES = 40
WIDTH = 10


def folder_of_vectors(folder, rows=30):
    generator = np.random.default_rng(0)
    for file in range(FILES):
        np.save(folder / f"{file:02}.npy", generator.standard_normal((rows, WIDTH)).astype(np.float32) + 0.3)
    return str(folder)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    return folder_of_vectors(tmp_path_factory.mktemp("vectors"))


def fit(engine, source, encoder, workspace, steps, on_progress=no_progress):
    request = NewFit(name="name", steps=[step.spec() for step in parse_steps(steps)], source=source, bad_shards="skip")
    with fit_new_chain(request, encoder, workspace, on_progress, engine=engine) as fitted:
        return fitted.chain, fitted.certificate, fitted.encoded.digest


def pids(engine):
    return [introduction.pid for introduction in engine.pool.ready.values()]


@pytest.mark.parametrize("steps", ["r2,pca:4", "r2,geopres:4,steps=20"])
def test_a_ray_fit_on_vectors_equals_the_local_fit(engine, vectors, tmp_path, steps):
    shared, local = (fit(by, vectors, None, tmp_path, steps) for by in (engine, LOCAL))
    assert shared[0].metadata["provenance"]["rows_digest"] == local[0].metadata["provenance"]["rows_digest"]
    assert shared[0] == local[0] and shared[1:] == local[1:]


def test_moments_by_ray_equal_the_local_ones_although_a_worker_is_killed(engine, tmp_path):
    np.save(tmp_path / "rows.npy", np.random.default_rng(1).standard_normal((30_000, WIDTH), dtype=np.float32) + 9)
    encoded = encode_source(open_source(str(tmp_path / "rows.npy")), None, tmp_path / "work", no_progress, engine)
    chosen = np.arange(0, 30_000, 2)
    killed = pids(engine)[0]
    os.kill(killed, signal.SIGKILL)
    shared, local = (moments_of(by.select_rows(encoded.vectors, chosen)) for by in (engine, LOCAL))
    for name, array in shared.arrays().items():
        np.testing.assert_allclose(array, local.arrays()[name], rtol=1e-9, atol=0)
    assert killed not in pids(engine)


def test_after_a_kill_of_the_driver_finished_shards_are_not_encoded_again(engine, vectors, tmp_path):
    """At most the two shards that the workers were at are encoded again, and the files equal the local ones."""
    import ray

    script = """
import sys
from pathlib import Path
from lathe.training.distributed import ray_engine
from lathe.training.fitting.encoding import encode_source
from lathe.training.sources.source import open_source

with ray_engine(sys.argv[1], 2, 2) as engine:
    encode_source(open_source(sys.argv[2]), None, Path(sys.argv[3]), lambda *at: print(*at, flush=True), engine)
"""
    work = tmp_path / "work"
    address = ray.get_runtime_context().gcs_address
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", script, address, vectors, str(work)],
        stdout=subprocess.PIPE, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    with child:
        for line in child.stdout:
            if float(line.split()[0]) > 0.2:
                break
        child.send_signal(signal.SIGKILL)
    done = {path: path.stat().st_mtime_ns for path in work.rglob(POSITION)}
    assert 0.2 * FILES < len(done) < FILES
    joined = encode_source(open_source(vectors), None, work, no_progress, engine)
    again = [path for path, then in done.items() if path.stat().st_mtime_ns != then]
    assert len(again) <= 2  # what its two workers were at
    local = encode_source(open_source(vectors), None, tmp_path / "local", no_progress)
    assert joined.digest == local.digest
    for name in (VECTORS, HASHES):
        for path in (tmp_path / "local").rglob(name):
            assert path.read_bytes() == (work / path.parent.name / name).read_bytes()


def test_a_damaged_file_is_skipped_or_refused_by_ray_as_by_the_local_engine(engine, tmp_path):
    folder = tmp_path / "some"
    folder.mkdir()
    written = folder_of_vectors(folder)
    bad = np.load(folder / "07.npy")
    bad[5, 5] = np.inf
    np.save(folder / "07.npy", bad)
    shared, local = (fit(by, written, None, tmp_path, "pca:4") for by in (engine, LOCAL))
    assert shared[0] == local[0] and "07.npy was left out" in " ".join(shared[1]["warnings"])
    assert shared[1] == local[1]
    with pytest.raises(SourceError, match=r"07\.npy.* row 6"):
        encode_source(open_source(written), None, tmp_path / "work", no_progress, engine)


def test_two_files_of_equal_name_and_content_are_encoded_once_and_count_twice(engine, tmp_path):
    for name in ("a", "b"):
        (tmp_path / "some" / name).mkdir(parents=True)
        np.save(tmp_path / "some" / name / "rows.npy", np.ones((7, 3), np.float32))
    fractions = []
    encoded = encode_source(
        open_source(str(tmp_path / "some")), None, tmp_path / "work", lambda done, _: fractions.append(done), engine
    )
    assert encoded.vectors.shape == (14, 3) and len(list((tmp_path / "work").rglob(VECTORS))) == 1
    assert fractions[-1] == 1.0


def pool_of(actor, count=1):
    import ray

    remote = ray.remote(num_cpus=1)(actor)
    return Pool(remote.remote, lambda worker: worker.introduce.remote(), lambda introduction: None, count)


def test_pool_names_a_task_that_kills_workers_or_runs_out_of_memory(engine):
    """Other tasks are done."""

    class Mortal:
        def introduce(self):
            return "a worker"

        def encode(self, number):
            if number == 1:
                os._exit(1)
            if number == 2:
                raise MemoryError
            return number

    def tasks(numbers):
        return [Task(f"shard {number}", "encode", (number,)) for number in numbers]

    with closing(pool_of(Mortal)) as pool:
        assert [(done.number, done.result) for done in pool.run_tasks(tasks([5, 6]))] == [(0, 5), (1, 6)]
        [done] = pool.run_tasks(tasks([2]))
        assert isinstance(done.error, EngineError) and "memory at shard 2: use fewer workers" in str(done.error)
        with pytest.raises(EngineError, match=f"{MAX_TRIES} workers died at shard 1"):
            list(pool.run_tasks(tasks([1])))


def test_pool_raises_engine_error_with_the_reason_if_a_worker_cannot_start(engine):
    class Unable:
        def introduce(self):
            raise ValueError("the encoder e5 cannot be loaded: there is no such folder")

    with closing(pool_of(Unable)) as pool, pytest.raises(EngineError, match="worker cannot start: the encoder e5 can"):
        list(pool.run_tasks([]))


def test_pool_raises_engine_error_if_a_worker_lacks_a_package(engine):
    elsewhere = types.ModuleType("only_in_this_process")
    elsewhere.Worker = type("Worker", (), {"__module__": elsewhere.__name__, "introduce": lambda self: None})
    sys.modules[elsewhere.__name__] = elsewhere
    with closing(pool_of(elsewhere.Worker)) as pool:
        with pytest.raises(EngineError, match="No module named 'only_in_this_process'.* needs the same installation"):
            list(pool.run_tasks([]))
