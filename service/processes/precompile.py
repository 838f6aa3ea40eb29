"""Write the bytecode of what a server and its processes import: `python -m service.processes.precompile`.

Without it the first start compiles for ten seconds, and where Python is told to write no bytecode every start does.
"""

import sys
from importlib import import_module

from service.processes.fork_server import PRELOADED


def main() -> None:
    """Import everything once, and let Python write the bytecode."""
    sys.dont_write_bytecode = False
    for name in ("service.cli.main", "service.cli.server", *PRELOADED):
        import_module(name)


if __name__ == "__main__":
    main()
