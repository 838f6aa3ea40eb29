import json
import subprocess
import sys
from pathlib import Path

import pytest


def kill_writers(trials, *options):
    """Run the trials in a process of their own, since they fork, and return their figures."""
    command = [sys.executable, "-m", "tests.behaviour.indexes.crash", "--trials", str(trials), "--seed", "7", *options]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)
    assert figures["power_lost"] == trials // 2
    return figures


@pytest.mark.release
def test_acknowledged_index_writes_survive_six_kills_and_three_power_losses():
    assert kill_writers(6)["writes_acknowledged"] > 0


@pytest.mark.release
@pytest.mark.parametrize("options", [[], ["--chain", "codes48"], ["--chain", "codes48", "--originals", "none"]])
def test_acknowledged_writes_survive_a_killed_writer_and_power_loss_in_each_kind_of_index(options):
    assert kill_writers(12, *options)["writes_acknowledged"] > 10
