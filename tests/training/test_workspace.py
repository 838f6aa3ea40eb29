import os
import signal
import subprocess
import sys
import time

import pytest

from lathe.training.workspace import KEPT_SECONDS, claim_workspace_folder, get_folder_lock

KILLED = """
import os, signal, sys
from pathlib import Path
from lathe.training.workspace import claim_workspace_folder
with claim_workspace_folder(Path(sys.argv[1]), "key") as folder:
    (folder / "work").write_text("half done")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def folders(root):
    """Return the names of the folders in a workspace."""
    return sorted(path.name for path in root.iterdir() if path.is_dir())


def leave_failed_run(root, key):
    """Leave the folder of a run that stopped with an error, and return it."""
    with pytest.raises(RuntimeError), claim_workspace_folder(root, key) as folder:
        (folder / "work").write_text("half done")
        raise RuntimeError
    return folder


def test_a_key_claimed_twice_at_once_and_another_key_get_folders_of_their_own(tmp_path):
    with claim_workspace_folder(tmp_path, "a") as one, claim_workspace_folder(tmp_path, "a") as again:
        assert one.is_dir() and again.is_dir()
    with claim_workspace_folder(tmp_path, "b") as other:
        assert len({one, again, other}) == 3


def test_a_folder_is_kept_after_an_error_and_claimed_again_with_its_contents(tmp_path):
    left = leave_failed_run(tmp_path, "key")
    with claim_workspace_folder(tmp_path, "key") as found:
        assert found == left
        assert (found / "work").read_text() == "half done"
    assert folders(tmp_path) == []


def test_the_folder_of_a_killed_process_is_claimed_again_with_its_contents(tmp_path):
    run = subprocess.run([sys.executable, "-P", "-c", KILLED, str(tmp_path)], check=False)
    assert run.returncode == -signal.SIGKILL
    with claim_workspace_folder(tmp_path, "key") as found:
        assert (found / "work").read_text() == "half done"


def test_a_folder_left_longer_than_kept_seconds_is_deleted_and_a_younger_one_is_kept(tmp_path):
    old, young = leave_failed_run(tmp_path, "old"), leave_failed_run(tmp_path, "young")
    now = time.time()
    os.utime(old, (now, now - KEPT_SECONDS - 60))
    os.utime(young, (now, now - KEPT_SECONDS + 60))
    with claim_workspace_folder(tmp_path, "key"):
        assert not old.exists()
        assert young.exists()


def test_an_old_folder_in_use_is_not_deleted(tmp_path):
    with claim_workspace_folder(tmp_path, "busy") as busy:
        os.utime(busy, (0, 0))
        with claim_workspace_folder(tmp_path, "key"):
            assert busy.exists()


def test_a_claim_holds_the_folders_lock_until_its_end(tmp_path):
    with claim_workspace_folder(tmp_path, "key") as folder:
        assert not is_free(folder)
    assert is_free(folder)


def is_free(folder):
    """Return whether a folder's lock can be taken."""
    lock = get_folder_lock(folder)
    try:
        with lock.acquire(blocking=False):
            return True
    except TimeoutError:
        return False
