"""Run every block of README.md and docs/, the long ones too: `python -m tests.docs [PAGE…]`.

With pages named, such as docs/serving.md, only theirs are run.
"""

import sys

import pytest

if __name__ == "__main__":
    pages = [word for page in sys.argv[1:] for word in ("--page", page)]
    sys.exit(pytest.main(["tests/docs/test_blocks.py", "--all-blocks", "-m", "", "-v", *pages]))
