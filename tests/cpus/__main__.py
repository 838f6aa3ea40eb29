"""Runs the tests that compare numbers as older CPUs would: `python -m tests.cpus [MACHINE …] [--tests TEST …]`.

It ends with 1 where a machine fails, and names it with the variables to set to run a single test as it would.
"""

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.cpus.machines import MACHINES, QUICK_TESTS, Machine, select_tests


def run(name: str, machine: Machine, tests: list[str]) -> bool:
    """Run the tests as one machine would, print what they say, and return whether they passed."""
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests]
    ended = subprocess.run(command, env=os.environ | machine.environment, capture_output=True, text=True, check=False)
    lines = ended.stdout.strip().splitlines()
    passed = ended.returncode == 0
    print(f"{name}: {lines[-1] if lines else 'no test ran'} ({time.monotonic() - began:.0f} s)", flush=True)
    if not passed:
        variables = " ".join(f"{key}={value!r}" for key, value in machine.environment.items())
        print(ended.stdout, ended.stderr, f"{name} FAILED, which is: {variables}", sep="\n", flush=True)
    return passed


def main() -> int:
    """Run the machines that were named, or all, and return the status to exit with."""
    parser = argparse.ArgumentParser(prog="python -m tests.cpus", description=__doc__.splitlines()[0])
    parser.add_argument("machines", nargs="*", metavar="MACHINE", help=f"{', '.join(MACHINES)}; by default all")
    parser.add_argument("--processes", type=int, default=1, help="machines at a time (default: 1)")
    parser.add_argument(
        "--tests", nargs="+", default=[], metavar="TEST", help="what pytest takes, in place of the list"
    )
    parser.add_argument("--quick", action="store_true", help="only the tests of every change")
    arguments = parser.parse_args()
    if unknown := set(arguments.machines) - set(MACHINES):
        parser.error(f"no machine {', '.join(sorted(unknown))}; there are {', '.join(MACHINES)}")
    tests = arguments.tests or (QUICK_TESTS if arguments.quick else select_tests())
    chosen = {name: MACHINES[name] for name in arguments.machines or MACHINES}
    for name in [name for name, machine in chosen.items() if not machine.possible]:
        print(f"{name}: left out, this CPU lacks {chosen.pop(name).needs}")
    with ThreadPoolExecutor(arguments.processes) as pool:
        passed = list(pool.map(lambda name: run(name, chosen[name], tests), chosen))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
