"""Export of a chain of transforms as FAISS vector transforms, with an empty index that may store byte codes.

folder/
├── 0.vt, 1.vt …   the folded chain: LinearTransform and NormalizationTransform, in order
├── chain.index    empty IndexPreTransform: these transforms, then an IndexFlatIP or an index of byte codes
└── README.md, lathe.json

Instead of chain.index, a chain that ends in `codes` has:
├── documents.vt, queries.vt        maps of the floats of documents and queries to the coordinates of the codes
├── documents.index                 empty IndexPreTransform that encodes documents: 0.vt … documents.vt, IndexPQ
└── lathe_codes.py, codes.npz       the codec in NumPy, which scores candidates with their norms restored
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.training.errors import ExportError
from lathe.training.export.folder import (
    Exported,
    check_exportable,
    compare_codes,
    measure_difference,
    open_staging_folder,
    sample_probe_vectors,
    write_description,
)
from lathe.training.export.numpy_codec import write_codec
from lathe.training.faiss_codes import CodeIndex, build_code_index, build_linear_transform
from lathe.transforms.base import Map
from lathe.transforms.chain import Chain
from lathe.transforms.codes import TransformCoding
from lathe.transforms.linear import Affine, Normalize, Selection
from lathe.transforms.vectors import as_tensor

USAGE = """```python
import faiss

index = faiss.read_index("chain.index")        # empty; takes unit vectors of the encoder
index.add(vectors)
index.search(queries, 10)
```"""
"""Code example in the exported README.md."""

USAGE_OF_FLOATS = """

Or put the transforms before an index of your own:

```python
hnsw = faiss.IndexHNSWFlat(SIZE, 32, faiss.METRIC_INNER_PRODUCT)
index = faiss.IndexPreTransform(hnsw)
for name in NAMES:
    index.prepend_transform(faiss.read_VectorTransform(name))
```"""
"""Code example for a chain without a quantizer; SIZE and NAMES are replaced."""

USAGE_OF_CODES = """

The index stores codes of BYTES bytes and compares queries as floats. Codes that Lathe encoded are added by
`index.index.add_sa_codes(CODES)`. Leave zero vectors out: FAISS gives them the code of some other vector."""
"""Remark of README.md on codes; BYTES and CODES are replaced."""

USAGE_OF_SIDES = """```python
import faiss
from lathe_codes import Codec

codec = Codec("codes.npz")
stored = codec.encode(vectors)                         # unit vectors of the encoder
documents = faiss.read_index("documents.index")        # empty
documents.index.add_sa_codes(stored)
index = faiss.IndexPreTransform(documents.index)       # the same codes, behind the map of queries
for name in NAMES:
    index.prepend_transform(faiss.read_VectorTransform(name))
_, candidates = index.search(queries, 100)
for query, ids in zip(queries, candidates):
    ids = ids[ids >= 0]
    best = ids[codec.score(query[None], stored[ids])[0].argsort()[::-1][:10]]
```

Queries and documents are mapped differently, so do not search `documents`. `faiss.write_index(index, "search.index")`
writes an index that can be searched after `faiss.read_index` alone. Codes of Lathe are added as those of the codec.
`documents.add(vectors)` takes vectors too; its codes are rounded, without the adjustment of levels. FAISS leaves out
the factor that restores a vector's norm, and the term ⟨q, μ⟩, which is the same for all codes; the last lines rank
candidates by the whole score. Leave zero vectors out: FAISS gives them the code of some other vector."""
"""Code example for a chain that ends in `codes`; NAMES is replaced."""


def export_faiss(chain: Chain, folder: Path, reference: str) -> Exported:
    """Write a chain of transforms to a folder as FAISS transforms and an empty index. Steps that are not affine raise.

    The index applies the transforms first. For a chain with a quantizer, it stores byte codes.

    Args:
        chain: fitted chain of transforms.
        folder: folder to create; an existing folder must be empty.
        reference: name of the chain, for README.md and lathe.json.

    Returns:
        The folder, its files and the largest difference from the chain's output.

    Raises:
        ExportError: if faiss is not installed, the chain is not exportable, FAISS cannot search its codes, the folder
            is not empty, or the index gives other vectors, codes or scores than the chain.
        OSError: if a file cannot be written; nothing is left in the folder.
    """
    try:
        import faiss
    except ImportError as error:
        raise ExportError("FAISS export needs faiss: pip install 'lathe-training[faiss]'") from error

    dimensions = check_exportable(chain)
    with open_staging_folder(folder) as staging:
        transforms: list[Any] = []
        for step in chain.fold().float_steps:
            transforms += _to_faiss_transforms(faiss, step, transforms[-1].d_out if transforms else dimensions)
        if chain.quantizer is None:
            difference, usage = _write_floats(faiss, staging, chain, transforms)
        else:
            difference, usage = _write_codes(faiss, staging, chain, transforms)
        write_description(staging, chain, reference, usage)

    return Exported(folder, sorted(path.name for path in folder.iterdir()), difference)


def _write_floats(faiss: Any, folder: Path, chain: Chain, transforms: list[Any]) -> tuple[float, str]:
    """Write transforms and an empty chain.index, check the vectors, and return the largest difference and usage text.

    Returns:
        The largest difference from the vectors of the chain of transforms, and the usage text for README.md.

    Raises:
        ExportError: if the difference exceeds `TOLERANCE`.
    """
    names = _write_transforms(faiss, folder, transforms)
    flat = faiss.IndexFlatIP(chain.output_dimensions)
    faiss.write_index(_prepend_transforms(faiss, folder, names, flat), str(folder / "chain.index"))
    read: Any = faiss.read_index(str(folder / "chain.index"))
    probes = sample_probe_vectors(chain)[1:]  # without the zero vector, which does not stay zero in FAISS
    read.add(probes)
    difference = measure_difference(
        read.index.reconstruct_n(0, len(probes)), chain.transform(probes), "the FAISS index"
    )
    usage = USAGE_OF_FLOATS.replace("SIZE", str(chain.output_dimensions)).replace("NAMES", json.dumps(names[::-1]))

    return difference, USAGE + usage


def _write_codes(faiss: Any, folder: Path, chain: Chain, transforms: list[Any]) -> tuple[float, str]:
    """Write transforms and an empty index of byte codes, check both, and return the score difference and usage text.

    If documents and queries have the same transforms, the index is chain.index. Otherwise it is documents.index, with
    both transforms as files and the NumPy codec. `transforms` may be extended in place.

    Returns:
        The largest difference from the scores of the chain of transforms, and the usage text for README.md.

    Raises:
        ExportError: if FAISS has no index of such codes, or gives other codes or scores than the chain.
    """
    assert chain.quantizer is not None
    built = build_code_index(faiss, chain.quantizer)
    probes = sample_probe_vectors(chain)[1:]

    if built.documents is built.queries:
        transforms += [] if built.documents is None else [built.documents]
        names = _write_transforms(faiss, folder, transforms)
        faiss.write_index(_prepend_transforms(faiss, folder, names, built.index), str(folder / "chain.index"))
        documents = queries = faiss.read_index(str(folder / "chain.index"))
        codes = "codes.view('uint8') + np.uint8(128)" if built.offset else "codes"
        usage = USAGE + USAGE_OF_CODES.replace("BYTES", str(chain.bytes_per_vector)).replace("CODES", codes)
    else:
        names = _write_transforms(faiss, folder, transforms)
        faiss.write_VectorTransform(built.documents, str(folder / "documents.vt"))
        faiss.write_VectorTransform(built.queries, str(folder / "queries.vt"))
        index = _prepend_transforms(faiss, folder, [*names, "documents.vt"], built.index)
        faiss.write_index(index, str(folder / "documents.index"))
        write_codec(folder, chain)
        documents = faiss.read_index(str(folder / "documents.index"))
        queries = _prepend_transforms(faiss, folder, [*names, "queries.vt"], documents.index)
        usage = USAGE_OF_SIDES.replace("NAMES", json.dumps(["queries.vt", *names[::-1]]))

    return _compare_scores(chain, probes, documents, queries, built), usage


def _compare_scores(chain: Chain, probes: NDArray[np.float32], documents: Any, queries: Any, built: CodeIndex) -> float:
    """Return the largest difference of FAISS's scores from the chain's on probe vectors. Beyond `TOLERANCE`, raise.

    The codes of the probes, none of which may be zero, are added to the index `documents`.

    Raises:
        ExportError: if the difference exceeds `TOLERANCE`, or codes differ by more than rounding.
    """
    codes = _round_vectors(chain, probes)
    faiss_codes = documents.sa_encode(probes)
    is_coded = codes.any(axis=1) & faiss_codes.any(axis=1)  # zeros are the code of the zero vector, but not in FAISS
    probes, codes, faiss_codes = probes[is_coded], codes[is_coded], faiss_codes[is_coded]
    compare_codes(faiss_codes, built.pack(codes), "the FAISS index")
    documents.index.add_sa_codes(built.pack(codes))
    scores, ids = queries.search(probes, len(codes))
    floats = chain.transform_queries(probes)

    if isinstance(chain.quantizer, TransformCoding):
        expected = chain.quantizer.score(floats, codes, np.ones(len(codes), np.float32))
        expected = expected - floats @ chain.quantizer.mean.float().cpu().numpy()[:, None]
    else:
        expected = floats @ chain.dequantize(codes).T

    return measure_difference(scores, np.take_along_axis(expected, ids, axis=1), "the scores of the FAISS index")


def _round_vectors(chain: Chain, vectors: NDArray[np.float32]) -> NDArray[Any]:
    """Encode vectors as byte codes without the adjustment of levels, which FAISS does not do."""
    step = chain.quantizer
    if not isinstance(step, TransformCoding):
        return chain.transform(vectors)
    y = step.coordinates(as_tensor(chain.transform_queries(vectors), like=step.mean))
    return step.round_coordinates(y).cpu().numpy()


def _write_transforms(faiss: Any, folder: Path, transforms: list[Any]) -> list[str]:
    """Write the transforms to files 0.vt, 1.vt … in a folder, and return the names of the files."""
    names = [f"{number}.vt" for number in range(len(transforms))]
    for name, transform in zip(names, transforms, strict=True):
        faiss.write_VectorTransform(transform, str(folder / name))
    return names


def _prepend_transforms(faiss: Any, folder: Path, names: list[str], index: Any) -> Any:
    """Build an IndexPreTransform that applies the transforms in these files, in order, before an index."""
    pipeline = faiss.IndexPreTransform(index)
    # `prepend_transform` puts a transform in front of the others, so the last one is added first.
    for name in reversed(names):
        pipeline.prepend_transform(faiss.read_VectorTransform(str(folder / name)))
    return pipeline


def _to_faiss_transforms(faiss: Any, step: Map, dimensions: int) -> list[Any]:
    """Convert a folded step of a chain to FAISS transforms, one or two with normalization."""
    if isinstance(step, Normalize):
        return [faiss.NormalizationTransform(dimensions, 2.0)]

    if isinstance(step, Selection):
        step = step.as_affine()

    assert isinstance(step, Affine)
    bias = None if step.bias is None else step.bias.float().cpu().numpy()
    linear = build_linear_transform(faiss, step.weight.float().cpu().numpy(), bias)

    return [linear, *(_to_faiss_transforms(faiss, Normalize(), linear.d_out) if step.normalize else [])]
