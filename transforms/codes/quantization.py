"""Quantizers: codes of a byte or a bit per dimension, as the last step of a chain."""

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transforms.base import FitContext, Inverse, Map, Signature, Transform
from transforms.statistics import Moments
from transforms.vectors import Vectors, finite_blocks

MIN_MAGNITUDE = 1e-30
"""What a set bit stands for at least, so that the sign of a dimension that was always 0 survives decoding."""

INT8_DEVIATIONS = 4.0
"""Standard deviations on either side of the mean that int8 covers where only moments are known."""


class Quantizer(Transform, registered=False):
    """Encode floats `(n, k)` as codes; `inverse_transform` decodes them to the floats they stand for.

    The ranges are learned, so that the codes of a row do not depend on the other rows. Compare codes by the floats they
    stand for: the product of a float query and raw codes means nothing.
    """

    bits: ClassVar[int]
    """Bits per dimension."""

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the signature of codes, which no step can follow."""
        return Signature(inputs.dimensions, inputs.empty_directions, self.kind)

    @property
    def inverse_kind(self) -> Inverse:
        """Approximate: to half a step of the code."""
        return "approximate"


class Int8(Quantizer):
    """One byte per dimension: round(x/s) + z, within −128…127, with a step s and a zero point z for each dimension.

    The range of each dimension is that of the fitted rows, 0 included, so that 0 is coded exactly; values outside are
    clipped. Fitted on moments, the range is μ ± 4σ. This is ONNX's QuantizeLinear.
    """

    kind = "int8"
    bits = 8

    def __init__(self) -> None:
        super().__init__()
        self.scale: Tensor
        self.zero_point: Tensor
        self.register_buffer("scale", torch.empty(0))
        self.register_buffer("zero_point", torch.empty(0))

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Compute step and zero point from the range of each dimension."""
        low, high = _ranges(data)
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        scale = (high - low) / 255
        scale[scale < np.finfo(np.float32).tiny] = 1  # a dimension that is always 0: any step will do
        self.scale = torch.from_numpy(scale).float()
        self.zero_point = torch.from_numpy(np.clip(np.round(-128 - low / scale), -128, 127)).float()

    def forward(self, x: Tensor) -> Tensor:
        """Encode rows `(n, k)` as int8 codes `(n, k)`."""
        return torch.clamp(torch.round(x / self.scale) + self.zero_point, -128, 127).to(torch.int8)

    def inverse(self) -> Map:
        """Return the map (code − z) · s."""
        return Int8Decoder(self.scale, self.zero_point)


class Int8Decoder(Map):
    """Decode int8 codes to the floats they stand for."""

    kind = "int8_decoder"

    def __init__(self, scale: Tensor, zero_point: Tensor) -> None:
        super().__init__()
        self.scale: Tensor
        self.zero_point: Tensor
        self.register_buffer("scale", scale)
        self.register_buffer("zero_point", zero_point)

    def forward(self, x: Tensor) -> Tensor:
        """Decode codes `(n, k)` to floats `(n, k)`."""
        return (x - self.zero_point) * self.scale


class Binary(Quantizer):
    """One bit per dimension, set if x > 0, eight to a byte, the first dimension in the highest bit.

    `numpy.packbits` order; the last byte is filled with zeros. A set bit stands for +a and an unset one for −a, with
    the mean magnitude a of that dimension among the fitted rows. The zero vector has no signs: its code is all bits
    unset, and that code stands for zero.

    Attributes:
        size: a, `(k,)`.
    """

    kind = "binary"
    bits = 1

    def __init__(self) -> None:
        super().__init__()
        self.size: Tensor
        self.register_buffer("size", torch.empty(0))

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Compute the mean magnitudes; from moments, the root mean squares."""
        if isinstance(data, Moments):
            size = np.sqrt(np.diag(data.second_moment()))
        else:
            size = sum(np.abs(block).sum(0, dtype=np.float64) for block in finite_blocks(data)) / data.shape[0]
        self.size = torch.from_numpy(np.maximum(size, MIN_MAGNITUDE)).float()

    def forward(self, x: Tensor) -> Tensor:
        """Encode rows `(n, k)` as uint8 codes `(n, ⌈k/8⌉)`."""
        bits = torch.nn.functional.pad((x > 0).to(torch.uint8), (0, -x.shape[-1] % 8))
        octets = bits.reshape(*x.shape[:-1], bits.shape[-1] // 8, 8) << _bit_shifts(x)
        return torch.sum(octets, dim=-1, dtype=torch.uint8)

    def inverse(self) -> Map:
        """Return the map from each bit to ±a."""
        return BinaryDecoder(self.size)


class BinaryDecoder(Map):
    """Decode packed bits to the floats they stand for."""

    kind = "binary_decoder"

    def __init__(self, size: Tensor) -> None:
        super().__init__()
        self.size: Tensor
        self.register_buffer("size", size)

    @property
    def input_dimensions(self) -> int | None:
        """Bytes of a row."""
        return -(-len(self.size) // 8)

    def forward(self, x: Tensor) -> Tensor:
        """Decode bytes `(n, ⌈k/8⌉)` to floats `(n, k)`."""
        bits = (x.to(torch.uint8).unsqueeze(-1) >> _bit_shifts(x) & 1).flatten(-2)[..., : len(self.size)]
        signs = bits.to(self.size.dtype) * 2 - 1
        return torch.where(x.any(dim=-1, keepdim=True), signs * self.size, 0)


def _bit_shifts(like: Tensor) -> Tensor:
    """Return the shift of each bit of a byte, the highest bit first, on the device of `like`."""
    return torch.arange(7, -1, -1, dtype=torch.uint8, device=like.device)


def _ranges(data: Moments | Vectors) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the smallest and the largest value of each dimension, `(d,)` each, float64."""
    if isinstance(data, Moments):
        spread = INT8_DEVIATIONS * np.sqrt(np.diag(data.covariance(ddof=0)))
        return data.mean - spread, data.mean + spread
    low, high = np.full(data.shape[1], np.inf), np.full(data.shape[1], -np.inf)
    for block in finite_blocks(data):
        low, high = np.minimum(low, block.min(0)), np.maximum(high, block.max(0))
    return low, high
