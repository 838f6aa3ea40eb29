"""Codes: vectors in a byte or a bit per dimension, or in a budget of bytes by transform coding."""

from lathe.transforms.codes.code_decoder import CodeDecoder
from lathe.transforms.codes.lloyd_max import build_threshold_table
from lathe.transforms.codes.product_coding import CENTROIDS, ProductCoding
from lathe.transforms.codes.quantization import Binary, Int8, Quantizer
from lathe.transforms.codes.transform_coding import CLIP_DEVIATIONS, MAX_CLIPPED, TransformCoding

__all__ = [
    "CENTROIDS",
    "CLIP_DEVIATIONS",
    "MAX_CLIPPED",
    "Binary",
    "CodeDecoder",
    "Int8",
    "ProductCoding",
    "Quantizer",
    "TransformCoding",
    "build_threshold_table",
]
