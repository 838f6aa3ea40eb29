"""REZE against other methods on targets, numbers of rows and seeds, with tables, figures and a report.

python -m research.reze_experiment --config experiment.yaml --out build/rivals
"""

import argparse
import os
import sys
from pathlib import Path

from benchmarks.starters import print_progress
from lathe.training.finetuning.job import read_settings
from research.arguments import find_spec
from research.reze_experiment.report import format_terminal, write_report
from research.reze_experiment.run import run_experiment
from research.reze_experiment.settings import ExperimentSettings


def main() -> None:
    """Run the experiment, or go on with it where it stopped, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True, help="YAML file, see research/reze.md")
    parser.add_argument("--out", type=Path, required=True, help="folder for all results; a stopped run goes on there")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="trainings at once, of one thread")
    parser.add_argument("--device", help="torch device; without it the best available")
    arguments = parser.parse_args()

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    settings = read_settings(arguments.config, ExperimentSettings)
    results = run_experiment(
        settings, find_spec(settings.encoder), arguments.device, arguments.out, arguments.processes, print_progress
    )
    findings, files = write_report(results, arguments.out)

    print(format_terminal(results, findings))
    print("\n".join(map(str, files)), file=sys.stderr)


if __name__ == "__main__":
    main()
