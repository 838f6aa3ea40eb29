"""Transforms that store a vector in fewer bits per dimension."""

from transforms.codes.quantization import Binary, Int8, Quantizer

__all__ = ["Binary", "Int8", "Quantizer"]
