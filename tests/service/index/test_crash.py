import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.trial
@pytest.mark.parametrize("options", [[], ["--chain", "codes48"], ["--chain", "codes48", "--originals", "none"]])
def test_acknowledged_index_writes_survive_a_killed_writer_and_power_loss(tmp_path, options):
    # In a process of its own: the trials fork, which needs one without threads.
    command = [sys.executable, "-m", "benchmarks.crash", "--quick", "--seed", "7", "--out", str(tmp_path), *options]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (written,) = tmp_path.glob("crash*.json")
    figures = json.loads(written.read_text())["figures"]
    assert figures["failures"] == []
    assert figures["writes_acknowledged"] > 10
    assert figures["power_lost"] == 6
