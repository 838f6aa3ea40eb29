import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, threading
from lathe.service.jobs.runners import yield_to_others
yield_to_others(19)
seen = []
thread = threading.Thread(target=lambda: seen.append(os.nice(0)))
thread.start()
thread.join()
print(seen[0])
print(open("/proc/self/autogroup").read() if os.path.exists("/proc/self/autogroup") else "")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="priorities differ by system")
@pytest.mark.parametrize("leads_session", [True, False])
def test_a_jobs_threads_have_the_lowest_priority(leads_session):
    """The priority of a session that others are in is left alone."""
    before = Path("/proc/self/autogroup").read_text() if Path("/proc/self/autogroup").exists() else ""

    command = [sys.executable, "-P", "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=leads_session)

    assert done.stdout.splitlines()[0] == "19"
    if before.startswith("/autogroup"):
        assert done.stdout.splitlines()[1].endswith("nice 19" if leads_session else before.split(" ", 1)[1].strip())
