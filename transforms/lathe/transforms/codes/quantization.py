"""Quantizers: codes of one byte or one bit per dimension, as the last step of a chain."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lathe.transforms.base import FitContext, Map, Signature, Transform
from lathe.transforms.statistics import Moments
from lathe.transforms.vectors import Vectors, as_tensor, finite_blocks

MIN_MAGNITUDE = 1e-30
"""Minimum decoded magnitude a, so that a dimension that was 0 in all fitted rows still decodes to a sign."""

INT8_DEVIATIONS = 4.0
"""Half the extent of the int8 range around the mean, in standard deviations, if fitted on moments."""

DECODED_ROWS = 4096
"""Number of codes that are decoded at a time to be scored: 6 MB of floats at 384 dimensions."""


class Quantizer(Transform, registered=False):
    """Base class of quantizers, which encode floats `(n, k)` as codes of bytes.

    `inverse_transform` decodes codes to floats.

    The ranges are learned in the fit, so that the code of a row does not depend on the other rows. Decode codes before
    comparing them: the dot product of a float query and raw codes means nothing. `score` does so.
    """

    inverse_kind = "approximate"  # decoding restores values up to the quantization error
    code_dtype: torch.dtype = torch.uint8
    """Dtype of the codes."""

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the input signature marked as codes of this kind, so that no step may follow."""
        return Signature(inputs.dimensions, inputs.zero_variance_directions, self.kind)

    def code_bytes(self, dimensions: int) -> int:
        """Return the number of bytes of the code of a vector of `dimensions` dimensions.

        Subclasses define this method.
        """
        raise TypeError(f"{type(self).__name__} must define code_bytes")

    def recode(self, floats: Any) -> Any:
        """Return the codes that decode to `floats` `(n, k)`, which `inverse_transform` returned.

        By default the floats are encoded again.
        """
        return self.transform(floats)

    def score(self, queries: Any, codes: Any) -> Any:
        """Return the inner products `(a, n)` of float queries `(a, k)` with decoded codes. Codes of another size raise.

        The codes are decoded a block at a time.

        Returns:
            A tensor for a tensor of queries, else a NumPy array.

        Raises:
            NotFittedError: before `fit`.
            InputError: for codes of another size.
        """
        like = next(self.buffers())
        encoded = as_tensor(queries, like=like)
        scores = encoded.new_empty(len(encoded), len(codes))
        for rows, decoded in self._decode_blocks(codes):
            scores[:, rows] = encoded @ decoded.T
        return scores.to(queries.device) if isinstance(queries, Tensor) else scores.cpu().numpy()

    def decoded_norms(self, codes: Any) -> Any:
        """Return the L2 norms `(n,)` of the vectors that codes stand for.

        An inner product over this norm is the cosine with a query of norm 1.

        Returns:
            A tensor for a tensor of codes, else a NumPy array.
        """
        norms = next(self.buffers()).new_empty(len(codes))
        for rows, decoded in self._decode_blocks(codes):
            norms[rows] = torch.linalg.vector_norm(decoded, dim=1)
        return norms.to(codes.device) if isinstance(codes, Tensor) else norms.cpu().numpy()

    def _decode_blocks(self, codes: Any) -> Iterator[tuple[slice, Tensor]]:
        """Decode codes a block at a time.

        Yields the slice of the block's rows, and the decoded vectors `(m, k)`.
        """
        for start in range(0, len(codes), DECODED_ROWS):
            rows = slice(start, start + DECODED_ROWS)
            yield rows, self.inverse_transform(torch.as_tensor(codes[rows]).to(self.device))

    def clipped_share(self, rows: Any) -> float | None:
        """Return the share of the values of rows `(n, k)` that lie beyond the fitted range.

        None, as by default, for codes without a range.
        """
        return None


class Int8(Quantizer):
    """Int8 quantization: round(x/s) + z, clipped to −128…127, with a scale s and a zero point z for each dimension.

    The range of each dimension is the range of the fitted rows, extended to include 0, so that 0 is coded exactly;
    values outside are clipped. Fitted on moments, the range is μ ± 4σ. This is ONNX's QuantizeLinear.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import Int8
        >>> rows = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
        >>> step = Int8().fit(rows)
        >>> codes = step.transform(rows)
        >>> codes.dtype, codes.shape
        (dtype('int8'), (300, 8))
        >>> bool((abs(step.inverse_transform(codes) - rows) < step.scale.numpy()).all())
        True
    """

    kind = "int8"
    shapes = {"scale": ("k",), "zero_point": ("k",)}
    entry_ranges = {"scale": (torch.finfo(torch.float32).tiny, math.inf), "zero_point": (-128, 127)}
    code_dtype = torch.int8
    scale: Tensor
    zero_point: Tensor

    def code_bytes(self, dimensions: int) -> int:
        """Return the number of dimensions, because each takes one byte."""
        return dimensions

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Compute and store scale and zero point of each dimension from its range in the data, extended to 0."""
        low, high = _find_ranges(data)
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        scale = (high - low) / 255
        scale[scale < np.finfo(np.float32).tiny] = 1  # a dimension that is always 0: any step will do
        self.scale = torch.from_numpy(scale).float()
        # The lower end becomes −128; the zero point is rounded to a whole code, so that 0 decodes to exactly 0.
        self.zero_point = torch.from_numpy(np.clip(np.round(-128 - low / scale), -128, 127)).float()

    def forward(self, x: Tensor) -> Tensor:
        """Encode rows `(n, k)` as int8 codes `(n, k)`.

        Values outside the fitted range are clipped.
        """
        # `round` takes halves to the even number, as QuantizeLinear does; a cast without the clamp would wrap around.
        return torch.clamp(torch.round(x / self.scale) + self.zero_point, -128, 127).to(torch.int8)

    def clipped_share(self, rows: Any) -> float:
        """Return the share of the values of rows `(n, k)` that are clipped."""
        steps = torch.round(as_tensor(rows, like=self.scale) / self.scale) + self.zero_point
        return float(((steps < -128) | (steps > 127)).float().mean())

    def inverse(self) -> Map:
        """Return the decoder as a map, (code − zero point) · scale, `(n, k)` to `(n, k)`."""
        return _Int8Decoder(scale=self.scale, zero_point=self.zero_point)


class _Int8Decoder(Map):
    """Decoder of int8 codes: (code − zero point) · scale."""

    kind = "int8_decoder"
    scale: Tensor
    zero_point: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.zero_point) * self.scale


class Binary(Quantizer):
    """Binary quantization: one bit per dimension, set if x > 0, packed eight to a byte, the first in the highest bit.

    `numpy.packbits` order; the last byte is padded with zeros. A set bit decodes to +a and an unset bit to −a, where a
    is the mean magnitude of that dimension in the fitted rows. A zero vector has no signs: its code is all zeros, and a
    code of all zeros decodes to the zero vector.

    Attributes:
        size: a, `(k,)`.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import Binary
        >>> rows = np.array([[1, -2, 3, 4, -5, -6, -7, -8, 9]], np.float32)
        >>> step = Binary().fit(rows)
        >>> step.transform(rows)
        array([[176, 128]], dtype=uint8)
        >>> step.inverse_transform(step.transform(rows)).tolist() == rows.tolist()
        True
    """

    kind = "binary"
    shapes = {"size": ("k",)}
    entry_ranges = {"size": (0, math.inf)}
    size: Tensor

    def code_bytes(self, dimensions: int) -> int:
        """Return ⌈k/8⌉ for k dimensions, because each takes one bit."""
        return -(-dimensions // 8)

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Compute the magnitude a `(k,)` to which each dimension is decoded, and store it.

        It is the mean absolute value, or the root mean square if fitted on moments, and at least `MIN_MAGNITUDE`.
        """
        # The mean magnitude minimizes the squared error of ±a. Moments lack it; the root mean square is an upper bound.
        if isinstance(data, Moments):
            size = np.sqrt(np.diag(data.second_moment()))
        else:
            size = sum(np.abs(block).sum(0, dtype=np.float64) for block in finite_blocks(data)) / data.shape[0]
        self.size = torch.from_numpy(np.maximum(size, MIN_MAGNITUDE)).float()

    def forward(self, x: Tensor) -> Tensor:
        """Encode rows `(n, k)` as one bit per dimension, packed into uint8 codes `(n, ⌈k/8⌉)`.

        A bit is 1 where the value is above 0.
        """
        bits = torch.nn.functional.pad((x > 0).to(torch.uint8), (0, -x.shape[-1] % 8))
        octets = bits.reshape(*x.shape[:-1], bits.shape[-1] // 8, 8) << _bit_shifts(x)
        # The shifted bits are disjoint, so their sum is their union; without a dtype torch would sum in int64.
        return torch.sum(octets, dim=-1, dtype=torch.uint8)

    def inverse(self) -> Map:
        """Return the decoder as a map from packed bits to ±a in each dimension.

        A code of zeros becomes the zero vector.
        """
        return _BinaryDecoder(size=self.size)


class _BinaryDecoder(Map):
    """Decoder of packed bits to ±a in each dimension.

    A code of zeros becomes the zero vector.
    """

    kind = "binary_decoder"
    size: Tensor

    @property
    def input_dimensions(self) -> int | None:
        """Number of bytes in a packed row, ⌈k/8⌉."""
        return -(-len(self.size) // 8)

    def forward(self, x: Tensor) -> Tensor:
        """Decode packed bits `(n, ⌈k/8⌉)` to floats `(n, k)`: +a for a set bit and −a for an unset one.

        A code of zeros becomes the zero vector.
        """
        # `apply` converts codes to the dtype of the buffers; float32 holds all 256 byte values exactly.
        bits = (x.to(torch.uint8).unsqueeze(-1) >> _bit_shifts(x) & 1).flatten(-2)[..., : len(self.size)]
        signs = bits.to(self.size.dtype) * 2 - 1
        return torch.where(x.any(dim=-1, keepdim=True), signs * self.size, 0)


def _bit_shifts(like: Tensor) -> Tensor:
    """Return the positions 7, 6, …, 0 of the bits of a byte as a uint8 tensor `(8,)`, on the device of `like`."""
    return torch.arange(7, -1, -1, dtype=torch.uint8, device=like.device)


def _find_ranges(data: Moments | Vectors) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return minimum and maximum `(d,)` of each dimension, from moments the mean ± 4 standard deviations. NaN raises.

    Raises:
        InputError: if the vectors hold NaN or inf.
    """
    if isinstance(data, Moments):
        spread = INT8_DEVIATIONS * np.sqrt(np.diag(data.covariance(ddof=0)))
        return data.mean - spread, data.mean + spread
    low, high = np.full(data.shape[1], np.inf), np.full(data.shape[1], -np.inf)
    for block in finite_blocks(data):
        low, high = np.minimum(low, block.min(0)), np.maximum(high, block.max(0))
    return low, high
