"""Compile to bytecode all that a server and its processes import: `python -m lathe.service.processes.precompile`.

Without it the first start compiles for ten seconds, and where Python writes no bytecode every start does.
"""

import sys
from importlib import import_module

from lathe.service.processes.fork_server import PRELOADED


def main() -> None:
    """Import the modules of server, encoders and jobs once, so that Python writes their bytecode files."""
    sys.dont_write_bytecode = False
    for name in ("lathe.service.cli.main", "lathe.service.cli.server", *PRELOADED):
        import_module(name)


if __name__ == "__main__":
    main()
