import json
import subprocess
import sys
from pathlib import Path

import pytest


def kill_writers(folder, trials, *options):
    """Run the trials in a process of their own, since they fork, and return their figures."""
    command = [sys.executable, "-m", "tests.behaviour.indexes.crash", "--trials", str(trials), "--seed", "7"]
    done = subprocess.run(
        [*command, "--out", str(folder), *options],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (written,) = folder.glob("crash*.json")
    figures = json.loads(written.read_text())["figures"]
    assert figures["failures"] == []
    assert figures["power_lost"] == trials // 2
    return figures


def test_acknowledged_index_writes_survive_ten_kills_and_five_power_losses(tmp_path):
    assert kill_writers(tmp_path, 10)["writes_acknowledged"] > 0


@pytest.mark.trial
@pytest.mark.parametrize("options", [[], ["--chain", "codes48"], ["--chain", "codes48", "--originals", "none"]])
def test_acknowledged_writes_survive_a_killed_writer_and_power_loss_in_each_kind_of_index(tmp_path, options):
    assert kill_writers(tmp_path, 12, *options)["writes_acknowledged"] > 10
