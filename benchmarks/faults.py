"""Plant faults in a copy of the code, one after another, and record which of them the tests catch.

Each fault changes one line of one area. The tests named with it are run on the copy; a fault that they pass survives.
Tests that fail before any fault is planted settle nothing.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import markdown_table, parser, write_report
from benchmarks.search_path import search_path

ROOT = Path(__file__).parent.parent
COPIED = ("transforms", "training", "service", "benchmarks", "docs", "tests", "pyproject.toml", "README.md", "deploy")
TEST_SECONDS = 600


@dataclass(frozen=True)
class Fault:
    """A wrong line.

    Attributes:
        area: of the code.
        path: file that is changed.
        right: text that is there once.
        wrong: text in its place.
        tests: files whose tests should fail.
    """

    area: str
    path: str
    right: str
    wrong: str
    tests: str


FAULTS = [
    Fault(
        "merged moments",
        "transforms/lathe/transforms/statistics/moments.py",
        "self.count * other.count / total",
        "self.count",
        "tests/transforms/test_moments.py",
    ),
    Fault(
        "R2 learns from unit rows",
        "transforms/lathe/transforms/linear/debias.py",
        "else unit_moments(data)\n        norm",
        "else moments_of(data)\n        norm",
        "tests/transforms/test_r2.py",
    ),
    Fault(
        "power of whitening",
        "transforms/lathe/transforms/linear/whitening.py",
        "-power / 2",
        "-power",
        "tests/transforms/test_whitening.py",
    ),
    Fault(
        "uncentred PCA",
        "transforms/lathe/transforms/linear/pca.py",
        'if self.center == "none"',
        'if self.center == "data"',
        "tests/transforms/test_pca.py",
    ),
    Fault(
        "range of int8",
        "transforms/lathe/transforms/codes/quantization.py",
        "np.minimum(low, 0), np.maximum(high, 0)",
        "low, high",
        "tests/transforms/test_quantization.py",
    ),
    Fault(
        "spectral start of GeoPres",
        "transforms/lathe/transforms/learned/geopres.py",
        "(dimensions + 2)",
        "(dimensions + 20)",
        "tests/transforms/test_geopres.py",
    ),
    Fault(
        "gradient of the angular loss",
        "transforms/lathe/transforms/learned/losses/cosine_losses.py",
        "(4 / pairs)",
        "(2 / pairs)",
        "tests/transforms/test_losses.py",
    ),
    Fault(
        "learning rate",
        "transforms/lathe/transforms/base/training_log.py",
        "(step + 1) / warm",
        "step / warm",
        "tests/transforms/test_descent.py",
    ),
    Fault(
        "key of a checkpoint",
        "transforms/lathe/transforms/learned/descent.py",
        "(vectors[:1], vectors[-1:], mean)",
        "(vectors[:1], vectors[-1:])",
        "tests/transforms/test_checkpoint.py",
    ),
    Fault(
        "bias of folded maps",
        "transforms/lathe/transforms/linear/affine.py",
        "bias = bias + following.bias.double()",
        "bias = bias - following.bias.double()",
        "tests/transforms/test_affine.py",
    ),
    Fault(
        "digest of tensors",
        "transforms/lathe/transforms/artifact/folder.py",
        'hexdigest() != manifest.get("tensors_sha256")',
        'hexdigest() == ""',
        "tests/transforms/test_artifact.py",
    ),
    Fault(
        "rescored recall",
        "transforms/lathe/transforms/quality/metrics.py",
        "reduced.topk(k * oversampling, dim=1)",
        "reduced.topk(k, dim=1)",
        "tests/transforms/test_metrics.py",
    ),
    Fault(
        "moments behind an affine map",
        "transforms/lathe/transforms/incremental/propagation.py",
        "found.mean = found.mean + as_float64(affine.bias)",
        "pass",
        "tests/transforms/test_propagated_moments.py",
    ),
    Fault(
        "equal rows on both sides of a split",
        "training/lathe/training/fitting/fit.py",
        "return np.flatnonzero(~held), rows[np.sort(first)]",
        "return np.flatnonzero(~held), rows",
        "tests/training/test_fitting.py",
    ),
    Fault(
        "gates",
        "training/lathe/training/fitting/gates.py",
        "found <= wanted if is_upper_bound(gate) else found >= wanted",
        "found >= wanted if is_upper_bound(gate) else found >= wanted",
        "tests/training/test_fitting.py tests/service/chains/test_gates.py",
    ),
    Fault(
        "REZE's active dimensions",
        "training/lathe/training/finetuning/regularizers/shrinkage.py",
        "ratio * (1 - ROUNDING))) + 1",
        "ratio * (1 - ROUNDING))) + 2",
        "tests/training/finetuning/test_shrinkage.py",
    ),
    Fault(
        "REZE's threshold",
        "training/lathe/training/finetuning/regularizers/shrinkage.py",
        "middle + settings.scale",
        "middle - settings.scale",
        "tests/training/finetuning/test_shrinkage.py",
    ),
    Fault(
        "mining margins",
        "training/lathe/training/finetuning/mining.py",
        "absolute_margin=settings.absolute_margin",
        "absolute_margin=settings.relative_margin",
        "tests/training/finetuning/test_negatives.py",
    ),
    Fault(
        "near duplicates",
        "training/lathe/training/synthesis/near_duplicates.py",
        "if similarity >= self.similarity",
        "if similarity > 1",
        "tests/training/synthesis",
    ),
    Fault(
        "a cached text's prompt",
        "service/lathe/service/encoders/cache.py",
        "encoder.spec.dtype, prompt, side",
        "encoder.spec.dtype, None, side",
        "tests/service/encoders/test_cache.py",
    ),
    Fault(
        "admin keys",
        "service/lathe/service/auth.py",
        "if _equals_any(token, self.admin):\n            return",
        "if _equals_any(token, (*self.admin, *self.api)):\n            return",
        "tests/service/http/test_access.py",
    ),
    Fault(
        "an empty key",
        "service/lathe/service/auth.py",
        "return equal and bool(token)",
        "return True",
        "tests/service/http/test_access.py",
    ),
    Fault(
        "ranges in filters",
        "service/lathe/service/index/embedded/schema.py",
        '"lte": "<="',
        '"lte": "<"',
        "tests/service/index/test_fields_and_filters.py",
    ),
    Fault(
        "a record's sync",
        "service/lathe/service/index/embedded/record.py",
        "PRAGMA synchronous = FULL",
        "PRAGMA synchronous = OFF",
        "tests/service/index/test_record.py",
    ),
    Fault(
        "requests of other sites",
        "service/lathe/service/http/origins.py",
        '(b"same-origin", b"none")',
        '(b"same-origin", b"none", b"cross-site")',
        "tests/service/http/test_origins.py",
    ),
    Fault(
        "width of vectors",
        "service/lathe/service/codec.py",
        "if found != dimensions:",
        "if found > dimensions:",
        "tests/service/http/test_bad_input.py tests/service/index/test_indexes_bad_input.py",
    ),
    Fault(
        "private state",
        "service/lathe/service/home.py",
        "stat.S_IMODE(now.st_mode) & ~0o077",
        "stat.S_IMODE(now.st_mode)",
        "tests/service/monitoring/test_state_folder.py",
    ),
    Fault(
        "ranks of drifting rows",
        "service/lathe/service/monitoring/drift/tally.py",
        "(ranks * TENTHS).astype(int)",
        "(ranks * 0).astype(int)",
        "tests/service/monitoring/test_drift.py",
    ),
    Fault(
        "version numbers",
        "service/lathe/service/chains/registry.py",
        "max([pointer.last, *self.versions(name)]) + 1",
        "max([0, *self.versions(name)]) + 1",
        "tests/service/chains/test_registry.py",
    ),
    Fault(
        "order of batches",
        "training/lathe/training/encoder/batching.py",
        "key=lambda index: -lengths[index]",
        "key=lambda index: lengths[index]",
        "tests/training/test_batches.py",
    ),
]


def main() -> None:
    """Plant each fault, run its tests, and write `faults.json`."""
    given = parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copyfile(source, copy / name)
        tests = sorted({name for fault in FAULTS for name in fault.tests.split()})
        failing = {name for name in tests if not (passes(copy, name) or passes(copy, name))}  # some time out once
        settled = [fault for fault in FAULTS if not failing & set(fault.tests.split())]
        results = [plant(copy, fault) for fault in settled]
    if failing:
        print("not settled, since they fail without any fault:", ", ".join(sorted(failing)), file=sys.stderr)
    rows = [[result["area"], result["path"], "caught" if result["caught"] else "**survived**"] for result in results]
    print(markdown_table(["fault", "file", ""], rows))
    print(
        "raw figures:",
        write_report(given.out, "faults", {"faults": results, "failing": sorted(failing)}),
        file=sys.stderr,
    )


def plant(copy: Path, fault: Fault) -> dict[str, Any]:
    """Run a fault's tests on the copy while the fault is in it; return the fault, and whether a test failed."""
    path = copy / fault.path
    text = path.read_text()
    if text.count(fault.right) != 1:
        sys.exit(f"{fault.path} must hold this once: {fault.right!r}")
    path.write_text(text.replace(fault.right, fault.wrong))
    try:
        caught = not passes(copy, fault.tests)
    finally:
        path.write_text(text)
    print(f"{'caught' if caught else 'SURVIVED'}: {fault.area}", file=sys.stderr, flush=True)
    return asdict(fault) | {"caught": caught}


def passes(copy: Path, tests: str) -> bool:
    """Run tests in the copy, up to the first that fails; return whether all passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests.split()]
    environment = os.environ | {"PYTHONPATH": search_path(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=copy, env=environment, timeout=TEST_SECONDS, capture_output=True).returncode == 0


if __name__ == "__main__":
    main()
