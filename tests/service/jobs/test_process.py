import subprocess
import sys
from pathlib import Path

import pytest

from lathe.service.jobs.folder import FolderQueue
from lathe.service.jobs.process import run_job
from lathe.service.settings import read_settings

SCRIPT = """
import os, threading
from lathe.service.jobs.process import yield_to_others

def run():
    yield_to_others(19)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(os.nice(0)))
    thread.start()
    thread.join()
    group = "/proc/self/autogroup"
    print(seen[0], open(group).read().strip() if os.path.exists(group) else "", sep="|", flush=True)
    os._exit(0)

for leads_session in (True, False):
    if os.fork() == 0:
        leads_session and os.setsid()
        run()
    os.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="priorities differ by system")
def test_a_jobs_threads_have_the_lowest_priority():
    """The priority of a session that others are in is left alone."""
    before = Path("/proc/self/autogroup").read_text() if Path("/proc/self/autogroup").exists() else ""
    done = subprocess.run([sys.executable, "-P", "-c", SCRIPT], capture_output=True, text=True, check=True)
    leading, following = (line.split("|") for line in done.stdout.splitlines())
    assert leading[0] == following[0] == "19"
    if before.startswith("/autogroup"):
        assert leading[1].endswith("nice 19")
        assert following[1].endswith(before.split(" ", 1)[1].strip())


def test_errors_of_jobs_name_files_without_the_folders_of_this_machine(tmp_path):
    data, queue = tmp_path / "data", FolderQueue(tmp_path / "home" / "jobs")
    (data / "sets").mkdir(parents=True)
    (data / "rows.jsonl").write_text('{"text": "a"}\nnonsense')
    settings = read_settings(home=tmp_path / "home", data_root=data)

    def run_fit(path):
        request = {"name": "a", "steps": [{"kind": "r2"}], "source": {"path": path}}
        job = queue.submit("fit", {"encoder": None, "target_encoder": None, "files": [], "request": request}, {})
        run_job(queue, job.id, settings)
        return queue.get(job.id).error

    errors = [run_fit(f"{data}/./rows.jsonl#vectors"), run_fit(f"{data}/sets"), run_fit(f"{queue.root}/1/absent.npy")]
    assert all(errors) and not any(str(tmp_path) in error for error in errors), errors
    assert "rows.jsonl" in errors[0] and "folder sets has no file" in errors[1] and "absent.npy" in errors[2]
