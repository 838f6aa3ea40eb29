"""What is imported before it is needed: nothing that takes seconds. Each case is a process of its own."""

import os
import subprocess
import sys

import pytest

COMMANDS = ["--help", "chains list"]
COMMAND = (
    "from lathe.service.cli.main import main\ntry: main()\nexcept SystemExit as end: assert not end.code, end.code"
)
PRINT = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"

MODELS = {"sentence_transformers", "transformers", "tokenizers", "huggingface_hub"}
ARRAYS = {"torch", "numpy", "scipy", "pandas", "sklearn", "pyarrow"}
SERVER = {"fastapi", "starlette", "uvicorn"}
CASES = {
    **{f"lathe {words}": (COMMAND, words.split(), MODELS | ARRAYS | SERVER) for words in COMMANDS},
    "the package of transforms and its errors": (
        "from lathe.transforms.errors import TransformError; from lathe.transforms import StepError",
        [],
        ARRAYS,
    ),
    "an encoder process and a job, before a model is loaded": (
        "import lathe.service.encoders.engine.worker, lathe.service.jobs.process",
        [],
        MODELS | SERVER | {"pandas", "scipy", "sklearn"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_importing_loads_no_heavy_library_that_is_not_needed(case, tmp_path):
    code, words, unwanted = CASES[case]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LATHE_")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{code}\n{PRINT}", *words],
        env=environment | {"LATHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stderr.split()) & unwanted == set()
    assert "compact" in done.stdout or "list" not in words
