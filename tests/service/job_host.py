"""Does jobs as `service.jobs.local_process` does, one after another: a line of JSON comes in for each, and goes out."""

import json
import os
import sys
from pathlib import Path

import torch

from service.jobs.local_process import run_job
from service.settings import read_settings


def main() -> None:
    """Read jobs until there are no more."""
    done = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        told = json.loads(line)
        os.environ.clear()
        os.environ.update(told["environment"])
        folder, settings = Path(told["folder"]), read_settings()
        with (folder / "log.txt").open("ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        torch.set_num_threads(settings.job_threads)
        run_job(folder, settings)
        sys.stdout.flush()
        done.write("done\n")
        done.flush()


main()
