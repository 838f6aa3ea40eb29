"""Quantizers, which store a vector in one byte or one bit per dimension."""

from transforms.codes.quantization import Binary, Int8, Quantizer

__all__ = ["Binary", "Int8", "Quantizer"]
