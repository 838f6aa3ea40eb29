"""Export of a chain of transforms that ends in `codes` as one short NumPy file and its arrays.

folder/
├── lathe_codes.py   class Codec: encodes vectors, decodes codes, scores float queries against codes
├── codes.npz        the folded chain and the codec, without pickle
└── README.md, lathe.json
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.training.errors import ExportError
from lathe.training.export.folder import (
    SHIPPED,
    Exported,
    compare_codes,
    import_shipped,
    measure_difference,
    open_staging_folder,
    sample_probe_vectors,
    write_description,
)
from lathe.transforms.base import Map
from lathe.transforms.chain import Chain
from lathe.transforms.codes import ProductCoding, TransformCoding, build_threshold_table
from lathe.transforms.linear import Affine, Normalize, Selection

CODE, ARRAYS = "lathe_codes.py", "codes.npz"
"""Names of the files of the codec."""

USAGE = """```python
from lathe_codes import Codec

codec = Codec("codes.npz")                     # needs NumPy only
codes = codec.encode(vectors)                  # unit vectors of the encoder to uint8 (n, BYTES)
codec.decode(codes)                            # the decoded floats
codec.score(queries, codes)                    # unit vectors of queries, which stay floats
```"""
"""Code example in the exported README.md; BYTES is replaced."""


def export_numpy(chain: Chain, folder: Path, reference: str) -> Exported:
    """Write a chain of transforms that ends in `codes` to a folder as NumPy arrays and code, and check its output.

    Args:
        chain: fitted chain of transforms whose last step is `codes`.
        folder: folder to create; an existing folder must be empty.
        reference: name of the chain, for README.md and lathe.json.

    Returns:
        The folder, its files and the largest difference from the chain's output.

    Raises:
        ExportError: if the chain does not end in `codes` or is not exportable, the folder is not empty, or the code
            gives other codes or floats than the chain.
        OSError: if a file cannot be written; nothing is left in the folder.
    """
    with open_staging_folder(folder) as staging:
        difference = write_codec(staging, chain)
        assert chain.bytes_per_vector is not None
        write_description(staging, chain, reference, USAGE.replace("BYTES", str(chain.bytes_per_vector)))
    return Exported(folder, sorted(path.name for path in folder.iterdir()), difference)


def write_codec(folder: Path, chain: Chain) -> float:
    """Write and check a NumPy codec of a chain's codes, and return the largest difference. Other quantizers raise.

    The files are `lathe_codes.py` and `codes.npz`. The difference is between their floats and the chain's.

    Raises:
        ExportError: if the chain does not end in `codes` or is not exportable, or the files give other codes or floats.
    """
    quantizer = chain.quantizer
    if not isinstance(quantizer, TransformCoding):
        last = "floats" if quantizer is None else quantizer.kind
        raise ExportError(f"the NumPy export needs a chain that ends in codes, and this one ends in {last}: use onnx")

    probes = sample_probe_vectors(chain)
    arrays = _float_step_arrays(chain.fold().float_steps) | _codec_arrays(quantizer)
    (folder / CODE).write_bytes((SHIPPED / CODE).read_bytes())  # an error of a full disk names this file
    np.savez(folder / ARRAYS, allow_pickle=False, **arrays)
    codec = import_shipped(folder / CODE).Codec(folder / ARRAYS)
    codes = codec.encode(probes)
    compare_codes(codes, chain.transform(probes), CODE)
    floats = measure_difference(codec.floats(probes), chain.transform_queries(probes), CODE)

    return max(floats, measure_difference(codec.decode(codes), chain.dequantize(codes), CODE))


def _float_step_arrays(steps: list[Map]) -> dict[str, NDArray[Any]]:
    """Return the arrays that apply the folded steps before the codes, by name and in order.

    The names `step_I_multiply`, `step_I_add` and `step_I_normalize` tell the operation.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for i, step in enumerate(steps):
        linear = step.as_affine() if isinstance(step, Selection) else step
        if isinstance(linear, Affine):
            arrays[f"step_{i}_multiply"] = linear.weight.T.float().cpu().numpy()
            if linear.bias is not None:
                arrays[f"step_{i}_add"] = linear.bias.float().cpu().numpy()
        if isinstance(linear, Normalize) or (isinstance(linear, Affine) and linear.normalize):
            arrays[f"step_{i}_normalize"] = np.zeros(0, np.float32)

    return arrays


def _codec_arrays(step: TransformCoding) -> dict[str, NDArray[Any]]:
    """Return the arrays of a fitted `codes` step that `lathe_codes.Codec` reads, by name."""
    bits, octets, shifts = step.layout.cpu().numpy()
    tensors = {"mean": step.mean, "encoder": step.encoder, "decoder": step.decoder, "levels": step.inverse().levels}
    if isinstance(step, ProductCoding):
        tensors |= {"centroids": step.centroids, "deviations": step.deviations}

    return {name: tensor.float().cpu().numpy() for name, tensor in tensors.items()} | {
        "norm": np.float32(step.norm.item()),
        "bits": bits,
        "octets": octets,
        "shifts": shifts,
        "bytes": np.int64(step.bytes),
        "rounds": np.int64(step.adjustment_rounds),
        "thresholds": build_threshold_table().astype(np.float32),
    }
