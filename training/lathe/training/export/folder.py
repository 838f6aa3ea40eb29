"""Export folders, which appear only when they are complete and checked, and checks that all exports share."""

import json
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.training.encoder.encoder import Encoder
from lathe.training.errors import ExportError
from lathe.transforms.base import Map
from lathe.transforms.chain import Chain
from lathe.transforms.linear import Affine, Normalize, Selection

TOLERANCE = 1e-4
"""Maximum difference between an export and the chain in float32, relative to the largest output entry if that is above
1."""

SHIPPED = Path(__file__).parent / "shipped"
"""Folder of the modules that are copied into exports."""

AFFINE: tuple[type[Map], ...] = (Affine, Selection, Normalize)
"""Steps of a chain of transforms that every export format supports."""

PROBE_ROWS = 64
"""Number of random vectors on which an export is compared with the chain."""
PROBE_TEXTS = [
    "What is a lathe?",
    "A lathe turns a workpiece about an axis while a tool cuts it to shape.",
    "The quarterly report shows revenue growing faster than costs for the third year running.",
    "¿Dónde está la biblioteca?",
    "x",
    "def add(a, b): return a + b",
    "Refund my last payment, please: I was charged twice. " * 8,
]
"""Texts on which an export with an encoder is compared with the chain: short, long, other languages, code."""


@dataclass(frozen=True)
class Exported:
    """Result of an export.

    Attributes:
        folder: exported folder.
        files: names of its files.
        difference: largest difference between outputs of the export and of the chain on the probe texts or vectors,
            relative to the largest output if that is above 1.
    """

    folder: Path
    files: list[str]
    difference: float


@contextmanager
def open_staging_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder for an export, and move its content to `folder` at the end. A non-empty folder raises.

    The temporary folder is next to `folder`. On any error it is deleted. Missing parent folders are created, and
    removed again after an error.

    Raises:
        ExportError: if `folder` is a file or a folder that is not empty.
    """
    is_dangling = folder.is_symlink() and not folder.exists()
    if is_dangling or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise ExportError(f"{folder} already exists; name a new or an empty folder")

    folder = folder.absolute()
    created = [parent for parent in folder.parents if not parent.exists()]
    # Next to the folder, because a rename is atomic only within a file system.
    staging = folder.with_name(f".{folder.name}.{secrets.token_hex(6)}")

    try:
        staging.mkdir(parents=True)
        yield staging
        if folder.exists():  # it is empty, and must stay the same folder: it may be a process's current folder
            for path in staging.iterdir():
                path.rename(folder / path.name)
            staging.rmdir()
        else:
            staging.rename(folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        with suppress(OSError):  # a folder that is not empty, because of another process, stays
            for parent in created:
                parent.rmdir()
        raise


def write_description(folder: Path, chain: Chain, reference: str, usage: str) -> None:
    """Write `README.md` with usage, and `lathe.json` with the metadata of the chain of transforms, to the folder.

    If the chain is cut to fewer dimensions, its certificate is stored under a key with the dimensions it was measured
    at.

    Args:
        folder: folder to write to.
        chain: exported chain of transforms.
        reference: name of the chain.
        usage: Markdown text on how to load the export.
    """
    described = {key: value for key, value in chain.metadata.items() if key != "manifest_sha256"}
    full_dimensions = described.get("output_dimensions", chain.output_dimensions)
    described |= {"input_dimensions": chain.input_dimensions, "output_dimensions": chain.output_dimensions}

    if full_dimensions != chain.output_dimensions and "certificate" in described:
        described[f"certificate_at_{full_dimensions}"] = described.pop("certificate")

    (folder / "lathe.json").write_text(json.dumps({"chain": reference} | described, indent=1) + "\n")
    steps = ", ".join(step["kind"] for step in chain.metadata.get("steps", chain.specs()))
    sizes = f"{chain.input_dimensions} → {chain.output_dimensions} dimensions"
    (folder / "README.md").write_text(f"# {reference}\n\nFitted by Lathe: {steps}; {sizes}.\n\n{usage}\n")


def check_exportable(chain: Chain) -> int:
    """Raise `ExportError` if a chain of transforms cannot be exported, else return its input dimensions.

    Refused is a chain that is not fitted, accepts any dimensions, has a step that is not an affine map, or transforms
    queries and documents differently.
    """
    if not chain.fitted:
        raise ExportError("this chain is not fitted: fit it before it is exported")
    if chain.input_dimensions is None:
        raise ExportError("this chain has no fitted step and takes any dimensions: there is nothing to export")

    for step in chain.float_steps:
        if step.two_sided:
            # Software that loads an export applies it to queries and documents alike, which would give wrong vectors.
            raise ExportError(
                f"{step.kind} transforms queries and documents differently, which exports cannot express: fold the "
                "chain for queries and for documents, and export each"
            )
        if not all(isinstance(part, AFFINE) for part in step.primitives()):
            raise ExportError(f"{step.kind} is not an affine map: Lathe serves such a chain, but cannot export it")

    return chain.input_dimensions


def sample_probe_vectors(chain: Chain) -> NDArray[np.float32]:
    """Return the vectors `(64, d)` float32 on which an export is compared with the chain of transforms.

    The vectors are the same random unit vectors in every call, except that the first is zero.

    Raises:
        ExportError: if the chain is not exportable.
    """
    rows = np.random.default_rng(0).standard_normal((PROBE_ROWS, check_exportable(chain))).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[0] = 0
    return rows


def import_shipped(path: Path) -> Any:
    """Execute a Python file of an export, and return it as a module, which is not added to `sys.modules`.

    No __pycache__ is written next to the file.
    """
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    module = module_from_spec(spec)
    # The loader's own `exec_module` would leave a __pycache__ in the export.
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), vars(module))
    return module


def measure_difference(outputs: NDArray[Any], expected: NDArray[Any], what: str, codes: bool = False) -> float:
    """Return the largest relative difference of an export's outputs from the chain's. Above `TOLERANCE`, raise.

    The difference is relative to the largest output if that is above 1.

    Args:
        outputs: outputs of the export, `(n, k)`.
        expected: outputs of the chain, `(n, k)`.
        what: name of the export, for the message.
        codes: whether the numbers are decoded codes. The largest hundredth of the differences is then ignored, because
            a float between two codes may be rounded either way.

    Raises:
        ExportError: if the shapes differ, or the difference exceeds `TOLERANCE` or is NaN.
    """
    if outputs.shape != expected.shape:
        raise ExportError(f"{what} gives outputs {outputs.shape} instead of {expected.shape}: it was not written")

    scale = max(1.0, float(np.abs(expected).max()))
    differences = np.sort(np.abs(outputs.astype(np.float64) - expected).ravel()) / scale
    difference = float(differences[-1 - (len(differences) // 100 if codes else 0)])
    if not difference <= TOLERANCE:
        raise ExportError(f"{what} differs by {difference:.1e}, more than {TOLERANCE:g}: it was not written")

    return difference


def compare_codes(outputs: NDArray[Any], expected: NDArray[Any], what: str) -> None:
    """Raise `ExportError` if an export's byte codes differ from the codes of its chain of transforms.

    Shape and dtype must be equal, and at least 99 % of the codes. Single codes may differ where a float lies between
    two codes and is rounded the other way.
    """
    same = outputs.shape == expected.shape and outputs.dtype == expected.dtype and (outputs == expected).mean() >= 0.99
    if not same:
        raise ExportError(f"the codes of {what} differ from the codes of the chain: it was not written")


def prepare_encoder(chain: Chain, encoder: Encoder | None) -> Encoder:
    """Check that a chain of transforms fits an encoder, and restore the encoder's layers in place. A mismatch raises.

    The encoder gets its original layers and padded batches again, so that the export does not need Lathe's attention
    (`Encoder.restore_model`).

    Raises:
        ExportError: if the chain is not exportable, there is no encoder, or the chain was fitted on another encoder's
            vectors or on vectors of other dimensions.
    """
    check_exportable(chain)
    if encoder is None:
        raise ExportError("this chain was fitted on vectors without an encoder: name their encoder with --encoder")

    fitted_on = (chain.metadata.get("encoder") or {}).get("fingerprint", encoder.fingerprint)
    if fitted_on != encoder.fingerprint or chain.input_dimensions != encoder.dimensions:
        raise ExportError(
            f"the chain takes vectors of another embedding space (encoder {fitted_on}, {chain.input_dimensions} "
            f"dimensions) than {encoder.name} gives ({encoder.fingerprint}, {encoder.dimensions} dimensions)"
        )

    encoder.restore_model()
    return encoder
