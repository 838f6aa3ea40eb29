"""Export of a chain as FAISS vector transforms.

folder/
├── 0.vt, 1.vt …   the folded chain: LinearTransform and NormalizationTransform, in order
├── chain.index    empty IndexPreTransform with these transforms in front of an IndexFlatIP
└── README.md, lathe.json
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from training.errors import ExportError
from training.export.folder import (
    Exported,
    open_staging_folder,
    require_close,
    require_exportable,
    sample_probe_vectors,
    write_description,
)
from transforms.base import Map
from transforms.chain import Chain
from transforms.linear import Affine, Normalize, Selection

USAGE = """```python
import faiss

index = faiss.read_index("chain.index")        # empty; takes unit vectors of the encoder
index.add(vectors)
index.search(queries, 10)

hnsw = faiss.IndexHNSWFlat(WIDTH, 32, faiss.METRIC_INNER_PRODUCT)   # or put the transforms before your own
index = faiss.IndexPreTransform(hnsw)
for name in NAMES:
    index.prepend_transform(faiss.read_VectorTransform(name))
```"""
"""Code example in the exported README.md; WIDTH and NAMES are replaced."""


def export_faiss(chain: Chain, folder: Path, reference: str) -> Exported:
    """Write a chain as FAISS transforms and an empty index with them; check its output, and return what was written.

    Args:
        chain: fitted chain without a quantizer.
        folder: folder to create; an existing one must be empty.
        reference: name of the chain, for README.md and lathe.json.

    Raises:
        ExportError: if faiss is not installed, the chain quantizes or is not exportable, the folder is not empty, or
            the index gives other vectors than the chain.
        OSError: if a file cannot be written; nothing is left in the folder.
    """
    try:
        import faiss
    except ImportError as error:
        raise ExportError("FAISS export needs faiss: pip install 'lathe[faiss]'") from error
    if chain.quantizer is not None:
        raise ExportError(
            f"FAISS has no transform for {chain.quantizer.kind} codes: export a chain without that step "
            "and let the index quantise, as IndexScalarQuantizer or IndexBinaryFlat do"
        )
    probes = sample_probe_vectors(chain)
    with open_staging_folder(folder) as staging:
        vector_transforms: list[Any] = []
        width = require_exportable(chain)
        for step in chain.fold().transforms:
            vector_transforms += _to_faiss_transforms(faiss, step, width)
            width = vector_transforms[-1].d_out
        index = faiss.IndexPreTransform(faiss.IndexFlatIP(width))
        names = [f"{number}.vt" for number in range(len(vector_transforms))]
        for name, part in reversed(list(zip(names, vector_transforms, strict=True))):
            faiss.write_VectorTransform(part, str(staging / name))
            index.prepend_transform(faiss.read_VectorTransform(str(staging / name)))
        faiss.write_index(index, str(staging / "chain.index"))
        read: Any = faiss.read_index(str(staging / "chain.index"))
        read.add(probes[1:])  # FAISS knows no rule that a zero vector stays zero
        found = read.index.reconstruct_n(0, len(probes) - 1)
        difference = require_close(found, chain.transform(probes[1:]), "the FAISS index")
        usage = USAGE.replace("WIDTH", str(width)).replace("NAMES", json.dumps(names[::-1]))
        write_description(staging, chain, reference, usage)
    return Exported(folder, sorted(path.name for path in folder.iterdir()), difference)


def _to_faiss_transforms(faiss: Any, step: Map, width: int) -> list[Any]:
    """Convert one folded step for `width`-dimensional vectors to a list of one or two FAISS vector transforms."""
    if isinstance(step, Normalize):
        return [faiss.NormalizationTransform(width, 2.0)]
    if isinstance(step, Selection):
        step = step.as_affine()
    assert isinstance(step, Affine)
    weight = np.ascontiguousarray(step.weight.cpu().numpy(), dtype=np.float32)
    linear = faiss.LinearTransform(weight.shape[1], weight.shape[0], step.bias is not None)
    faiss.copy_array_to_vector(weight.ravel(), linear.A)
    if step.bias is not None:
        faiss.copy_array_to_vector(step.bias.cpu().numpy().astype(np.float32), linear.b)
    linear.is_trained = True
    linear.set_is_orthonormal()
    return [linear, *(_to_faiss_transforms(faiss, Normalize(), linear.d_out) if step.normalize else [])]
