"""ONNX nodes that encode floats as the codes of a quantizer, and nodes that decode codes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.training.errors import ExportError
from lathe.training.export.onnx_nodes import GraphBuilder
from lathe.transforms.codes import CENTROIDS, Binary, Int8, ProductCoding, Quantizer, TransformCoding, threshold_table

BYTE = 8
"""Number of bits in a byte."""


def code_type(quantizer: Quantizer) -> str:
    """Return the ONNX data type of a quantizer's codes, "INT8" or "UINT8"."""
    return "INT8" if isinstance(quantizer, Int8) else "UINT8"


def add_encoding(graph: GraphBuilder, step: Quantizer, x: str, output: str) -> str:
    """Add the nodes that encode floats `x` `(n, k)` as codes `(n, bytes)`. Return the codes' name, which is `output`.

    Raises:
        ExportError: if the quantizer has no ONNX form.
    """
    match step:
        case Int8():
            return graph.add_node("QuantizeLinear", [x, *_add_int8_constants(graph, step)], output, axis=1)
        case Binary():
            return _add_binary_encoding(graph, step, x, output)
        case ProductCoding():
            return _add_product_encoding(graph, step, x, output)
        case TransformCoding():
            return _add_transform_encoding(graph, step, x, output)
    raise ExportError(f"there is no ONNX form of {step.kind}: use --format faiss")


def add_decoding(graph: GraphBuilder, step: Quantizer, codes: str) -> str:
    """Add the nodes that decode codes `(n, bytes)` to floats `(n, k)`, and return the floats' name.

    Raises:
        ExportError: if the quantizer has no ONNX form.
    """
    match step:
        case Int8():
            return graph.add_node("DequantizeLinear", [codes, *_add_int8_constants(graph, step)], axis=1)
        case Binary():
            floats = _add_binary_decoding(graph, step, codes)
        case ProductCoding():
            floats = _add_reconstruction(graph, step, _add_centroid_values(graph, step, codes))
        case TransformCoding():
            floats = _add_reconstruction(graph, step, _add_cell_values(graph, step, codes))
        case _:
            raise ExportError(f"there is no ONNX form of {step.kind}: use --format faiss")
    return graph.add_zero_rows(floats, graph.add_cast(codes, "FLOAT"))


def _add_int8_constants(graph: GraphBuilder, step: Int8) -> tuple[str, str]:
    zero_point = step.zero_point.cpu().numpy().astype(np.int8)
    return graph.add_constant(step.scale.cpu().numpy()), graph.add_constant(zero_point)


def _add_binary_encoding(graph: GraphBuilder, step: Binary, x: str, output: str) -> str:
    """Add the nodes that pack the signs of floats `x` `(n, k)` into bytes, and return the codes' name, `output`.

    A bit is x > 0, the first in the highest bit of a byte.
    """
    octets, shifts = _binary_places(len(step.size))
    bits = graph.add_cast(graph.add_node("Greater", [x, graph.add_number(0.0)]), "FLOAT")
    weights = _packing_weights(octets, shifts, step.code_bytes(len(step.size)))
    return graph.add_cast(graph.add_node("MatMul", [bits, graph.add_constant(weights)]), "UINT8", output)


def _add_binary_decoding(graph: GraphBuilder, step: Binary, codes: str) -> str:
    octets, shifts = _binary_places(len(step.size))
    bits = graph.add_cast(_add_cells(graph, codes, np.ones_like(octets), octets, shifts), "BOOL")
    size = step.size.cpu().numpy()
    return graph.add_node("Where", [bits, graph.add_constant(size), graph.add_constant(-size)])


def _add_transform_encoding(graph: GraphBuilder, step: TransformCoding, x: str, output: str) -> str:
    """Add the nodes that encode floats `x` `(n, k)` as codes `(n, bytes)`, and return the codes' name, `output`.

    They map centred floats to coordinates, find each one's cell among its thresholds, and pack the cells' numbers into
    bytes. Rows of zeros, and no others, get codes of zeros.
    """
    bits, octets, shifts = step.layout.cpu().numpy()
    centred = graph.add_node("Sub", [x, graph.add_constant(step.mean.cpu().numpy())])
    y = graph.add_node("MatMul", [centred, graph.add_constant(step.encoder.T.cpu().numpy())])
    # Binary search for the number of thresholds below each value; those of b bits begin at entry 2^b of the table.
    table, cells = graph.add_constant(threshold_table()), graph.add_integers(np.zeros_like(bits))

    for position in reversed(range(bits.max())):
        half = np.where(bits > position, 1 << position, 0)
        entries = graph.add_node("Add", [cells, graph.add_integers((1 << bits) + np.maximum(half - 1, 0))])
        above = graph.add_cast(graph.add_node("Greater", [y, graph.add_node("Gather", [table, entries])]), "INT32")
        cells = graph.add_node("Add", [cells, graph.add_node("Mul", [above, graph.add_integers(half)])])

    # A cell's number is cut where its byte ends. Bits of a byte are disjoint, so a sum packs them.
    remaining = graph.add_integers(1 << (BYTE - shifts))
    parts = [graph.add_node(operator, [cells, remaining]) for operator in ("Mod", "Div")]
    weights = np.concatenate(
        [_packing_weights(octets, shifts, step.bytes), _packing_weights(octets + 1, 0 * shifts, step.bytes)]
    )
    both = graph.add_cast(graph.add_node("Concat", parts, axis=1), "FLOAT")
    code = graph.add_node("MatMul", [both, graph.add_constant(weights)])
    # The code of zeros is the zero vector's; a row that would get it moves by one cell in its last coordinate.
    moved = graph.add_constant(_packing_weights(octets[-1:], shifts[-1:], step.bytes))
    is_zero = graph.add_node("Equal", [graph.add_row_reduction("ReduceMax", code), graph.add_number(0.0)])
    code = graph.add_zero_rows(graph.add_node("Where", [is_zero, moved, code]), x)

    return graph.add_cast(code, "UINT8", output)


def _add_product_encoding(graph: GraphBuilder, step: ProductCoding, x: str, output: str) -> str:
    """Add the nodes that encode floats `x` `(n, k)` by the nearest centroid of each byte.
    Return the name of the codes `(n, bytes)`, which is `output`.

    They map centred floats to coordinates, byte by byte, and compare those of a byte with its 256 centroids. Rows of
    zeros get codes of zeros.
    """
    books, offsets, positions = (tensor.cpu().numpy() for tensor in step.prepare_books())
    octets, width, _ = books.shape
    # Columns of zeros fill the bytes with fewer coordinates than others.
    encoder = np.zeros((step.encoder.shape[1], octets * width), np.float32)
    encoder[:, positions] = step.encoder.T.cpu().numpy()
    centred = graph.add_node("Sub", [x, graph.add_constant(step.mean.cpu().numpy())])
    y = graph.add_node("MatMul", [centred, graph.add_constant(encoder)])
    y = graph.add_node("Reshape", [y, graph.add_constant(np.array([0, octets, width]))])
    products = graph.add_node("MatMul", [graph.add_node("Transpose", [y], perm=[1, 0, 2]), graph.add_constant(books)])
    distances = graph.add_node("Sub", [graph.add_constant(offsets), products])
    nearest = graph.add_node("ArgMin", [distances], axis=2, keepdims=0)
    code = graph.add_cast(graph.add_node("Transpose", [nearest], perm=[1, 0]), "FLOAT")

    return graph.add_cast(graph.add_zero_rows(code, x), "UINT8", output)


def _add_centroid_values(graph: GraphBuilder, step: ProductCoding, codes: str) -> str:
    octets = step.layout[1].cpu().numpy()
    numbers = graph.add_node("Gather", [graph.add_cast(codes, "INT32"), graph.add_integers(octets)], axis=1)
    starts = graph.add_integers(CENTROIDS * np.arange(len(octets)))
    centroids = graph.add_constant(step.centroids.cpu().numpy().ravel())
    return graph.add_node("Gather", [centroids, graph.add_node("Add", [numbers, starts])])


def _add_cell_values(graph: GraphBuilder, step: TransformCoding, codes: str) -> str:
    bits, octets, shifts = step.layout.cpu().numpy()
    cells = _add_cells(graph, codes, bits, octets, shifts)
    entries = graph.add_node("Add", [cells, graph.add_integers(1 << bits)])
    return graph.add_node("Gather", [graph.add_constant(step.inverse().levels.cpu().numpy()), entries])


def _add_reconstruction(graph: GraphBuilder, step: TransformCoding, values: str) -> str:
    """Add the nodes that map decoded coordinates `(n, m)` back to floats `(n, k)`, and return the floats' name.

    They scale what the values map to so that the result has the step's norm if it has one, and add the mean. Codes of
    zeros are not yet made zero vectors.
    """
    mean = step.mean.cpu().numpy()
    residual = graph.add_node("MatMul", [values, graph.add_constant(step.decoder.cpu().numpy())])
    if step.norm.any():
        # The positive f with ‖mean + f·residual‖ = norm.
        squared_rest = max(float(step.norm) ** 2 - float((mean.astype(np.float64) ** 2).sum()), 0)
        along = graph.add_node("MatMul", [residual, graph.add_constant(mean[:, None])])
        tiny = graph.add_number(float(np.finfo(np.float32).tiny))
        square = graph.add_node("Max", [graph.add_row_reduction("ReduceSumSquare", residual), tiny])
        under_root = graph.add_node(
            "Add",
            [graph.add_node("Mul", [along, along]), graph.add_node("Mul", [square, graph.add_number(squared_rest)])],
        )
        numerator = graph.add_node("Sub", [graph.add_node("Sqrt", [under_root]), along])
        residual = graph.add_node("Mul", [residual, graph.add_node("Div", [numerator, square])])

    return graph.add_node("Add", [residual, graph.add_constant(mean)])


def _add_cells(graph: GraphBuilder, codes: str, bits: NDArray[Any], octets: NDArray[Any], shifts: NDArray[Any]) -> str:
    """Add the nodes that unpack the number of each coordinate's cell from codes.
    Return the name of the numbers, int32 `(n, m)`.

    Args:
        graph: graph to extend.
        codes: name of the codes, uint8 `(n, bytes)`.
        bits: number of bits of each coordinate `(m,)`.
        octets: byte that holds its lowest bit `(m,)`; the others may reach into the next byte.
        shifts: position of its lowest bit there `(m,)`.
    """
    integers = graph.add_cast(codes, "INT32")
    word = graph.add_node("Gather", [integers, graph.add_integers(octets)], axis=1)
    beyond = bits + shifts > BYTE

    if beyond.any():
        following = graph.add_node("Gather", [integers, graph.add_integers(octets + beyond)], axis=1)
        following = graph.add_node("Mul", [following, graph.add_integers(beyond << BYTE)])
        word = graph.add_node("Add", [word, following])

    shifted = graph.add_node("Div", [word, graph.add_integers(1 << shifts)])
    return graph.add_node("Mod", [shifted, graph.add_integers(1 << bits)])


def _binary_places(dimensions: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, for each dimension, the byte of its sign bit and the bit's position in that byte, `(k,)` each.

    They are in the order of `numpy.packbits`.
    """
    positions = np.arange(dimensions)
    return positions // BYTE, BYTE - 1 - positions % BYTE


def _packing_weights(octets: NDArray[Any], shifts: NDArray[Any], length: int) -> NDArray[np.float32]:
    """Build the matrix `(m, length)` whose product with m numbers packs them into bytes.
    Row i has 2^shift in the column of the number's byte, and bytes beyond the code are left out.
    """
    weights = np.zeros((len(octets), length + 1), np.float32)
    weights[np.arange(len(octets)), octets] = 2.0**shifts
    return weights[:, :length]
