import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.trial
def test_acknowledged_index_writes_survive_a_killed_writer_and_power_loss(tmp_path):
    # In a process of its own: the trials fork, which needs one without threads.
    command = [sys.executable, "-m", "benchmarks.crash", "--quick", "--seed", "7", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "crash.json").read_text())["figures"]
    assert figures["failures"] == []
    assert figures["writes_acknowledged"] > 50
    assert figures["power_lost"] == 6
