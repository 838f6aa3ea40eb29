"""Codes of a byte or a bit a dimension: the last step of a chain that is to be small."""

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transforms.base.signature import Outline
from transforms.base.transform import Inverse, Run, Transform
from transforms.statistics.moments import Moments
from transforms.vectors import Vectors, finite_blocks

SMALLEST_SIZE = 1e-30

INT8_SPREAD = 4.0
"""Standard deviations either side of the mean that int8 covers where only moments are known."""


class Quantizer(Transform, registered=False):
    """Floats `(n, k)` to codes; `inverse_transform` gives the floats that codes stand for.

    The ranges are learned and kept, so that one row is coded as any number of rows are. Compare
    codes by the floats they stand for: a float query times raw codes means nothing.
    """

    bits: ClassVar[int]

    def after(self, before: Outline) -> Outline:
        """Codes, which nothing can follow."""
        return Outline(before.width, before.missing, self.kind)

    @property
    def inverse_kind(self) -> Inverse:
        """Approximate: to half a step of the code."""
        return "approximate"


class Int8(Quantizer):
    """A byte a dimension: round(x/s) + z, within −128…127, with a step s and a zero z for each dimension.

    The range of each dimension is the smallest and the largest value among the fitted rows, 0
    included, so that 0 is coded exactly; what lies outside is clipped. Fitted on moments, it is
    μ ± 4σ. This is ONNX's QuantizeLinear.
    """

    kind = "int8"
    bits = 8

    def __init__(self) -> None:
        super().__init__()
        self.scale: Tensor
        self.zero_point: Tensor
        self.register_buffer("scale", torch.empty(0))
        self.register_buffer("zero_point", torch.empty(0))

    def learn(self, data: Moments | Vectors, run: Run) -> None:
        """The ranges."""
        low, high = ranges(data)
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        scale = (high - low) / 255
        scale[scale < np.finfo(np.float32).tiny] = 1  # always zero: any step will do
        self.scale = torch.from_numpy(scale).float()
        self.zero_point = torch.from_numpy(np.clip(np.round(-128 - low / scale), -128, 127)).float()

    def forward(self, x: Tensor) -> Tensor:
        """Codes `(n, k)`, int8."""
        return torch.clamp(torch.round(x / self.scale) + self.zero_point, -128, 127).to(torch.int8)

    def inverse(self) -> Transform:
        """(code − z) · s."""
        return FromInt8(self.scale, self.zero_point)


class FromInt8(Transform, registered=False):
    """The floats that int8 codes stand for."""

    kind = "from_int8"

    def __init__(self, scale: Tensor, zero_point: Tensor) -> None:
        super().__init__()
        self.scale: Tensor
        self.zero_point: Tensor
        self.register_buffer("scale", scale)
        self.register_buffer("zero_point", zero_point)

    def forward(self, x: Tensor) -> Tensor:
        """Floats `(n, k)`."""
        return (x - self.zero_point) * self.scale


class Binary(Quantizer):
    """A bit a dimension, whether x > 0, eight to a byte, the first dimension in the highest bit.

    `numpy.packbits` order; the last byte is filled with zeros. A set bit stands for +a and an
    unset one for −a, with the mean size a of that dimension among the fitted rows. Zero has no
    sign: it is coded as all bits unset, and those bits stand for it.
    """

    kind = "binary"
    bits = 1

    def __init__(self) -> None:
        super().__init__()
        self.size: Tensor
        self.register_buffer("size", torch.empty(0))

    def learn(self, data: Moments | Vectors, run: Run) -> None:
        """The mean sizes; of moments, the root mean squares."""
        if isinstance(data, Moments):
            size = np.sqrt(np.diag(data.second_moment()))
        else:
            size = sum(np.abs(block).sum(0, dtype=np.float64) for block in finite_blocks(data)) / data.shape[0]
        # A dimension that was always 0 has a sign all the same, which codes of codes must keep.
        self.size = torch.from_numpy(np.maximum(size, SMALLEST_SIZE)).float()

    def forward(self, x: Tensor) -> Tensor:
        """Codes `(n, ⌈k/8⌉)`, uint8."""
        bits = torch.nn.functional.pad((x > 0).to(torch.uint8), (0, -x.shape[-1] % 8))
        octets = bits.reshape(*x.shape[:-1], bits.shape[-1] // 8, 8) << shifts(x)
        return torch.sum(octets, dim=-1, dtype=torch.uint8)

    def inverse(self) -> Transform:
        """±a by each bit."""
        return FromBinary(self.size)


class FromBinary(Transform, registered=False):
    """The floats that packed bits stand for."""

    kind = "from_binary"

    def __init__(self, size: Tensor) -> None:
        super().__init__()
        self.size: Tensor
        self.register_buffer("size", size)

    @property
    def input_dimensions(self) -> int | None:
        """The bytes of a row."""
        return -(-len(self.size) // 8)

    def forward(self, x: Tensor) -> Tensor:
        """Floats `(n, k)` of bytes `(n, ⌈k/8⌉)`."""
        bits = (x.to(torch.uint8).unsqueeze(-1) >> shifts(x) & 1).flatten(-2)[..., : len(self.size)]
        signs = bits.to(self.size.dtype) * 2 - 1
        return torch.where(x.any(dim=-1, keepdim=True), signs * self.size, 0)


def shifts(like: Tensor) -> Tensor:
    """Where each bit of a byte stands, the highest first."""
    return torch.arange(7, -1, -1, dtype=torch.uint8, device=like.device)


def ranges(data: Moments | Vectors) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The smallest and largest value of each dimension, `(d,)` each, float64."""
    if isinstance(data, Moments):
        spread = INT8_SPREAD * np.sqrt(np.diag(data.covariance(ddof=0)))
        return data.mean - spread, data.mean + spread
    low, high = np.full(data.shape[1], np.inf), np.full(data.shape[1], -np.inf)
    for block in finite_blocks(data):
        low, high = np.minimum(low, block.min(0)), np.maximum(high, block.max(0))
    return low, high
