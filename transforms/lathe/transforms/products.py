"""Products of matrices, by the library that is fastest on the processor.

PyTorch multiplies matrices in float32 by Intel's MKL, which uses no AVX-512 on AMD's processors and takes twice as long
there as oneDNN, which PyTorch has too.
"""

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from lathe.transforms.processor import is_amd

MIN_ONEDNN_ROWS = 64
"""Number of rows from which oneDNN is called: below, its call takes longer than the product."""


@cache
def prefers_onednn() -> bool:
    """Return whether float32 matrix products are faster by oneDNN than by MKL here.

    They are on AMD's processors, if this build of PyTorch has oneDNN.
    """
    return is_amd() and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def multiply_rows(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the product xWᵀ + b, `(n, k)`, for rows x `(n, d)`, a weight W `(k, d)` and a bias b `(k,)` or None.

    On AMD's processors oneDNN multiplies 64 or more float32 rows. It is not used where a gradient or a graph of PyTorch
    is recorded.
    """
    if (
        not torch.compiler.is_compiling()  # before the number of rows is read, which a graph leaves open
        and x.dim() == 2
        and len(x) >= MIN_ONEDNN_ROWS
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and not x.requires_grad
        and prefers_onednn()
    ):
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return product
    return functional.linear(x, weight, bias)
