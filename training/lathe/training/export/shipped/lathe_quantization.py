"""Quantization to a byte or a bit per dimension, for sentence-transformers.

This file belongs to a model exported by Lathe. `sentence_embedding` becomes the decoded floats, so
that similarities can be computed as usual; `codes` holds the codes, int8 `(n, k)` or packed uint8
`(n, ⌈k/8⌉)`.
"""

import json
import os
import shutil

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


class Quantization(nn.Module):
    """Last module of a model whose chain of transforms ends in `int8` or `binary`.

    int8: round(x/scale) + zero_point, within −128…127. binary: a bit per dimension, x > 0, the
    first in the highest bit; a set bit is decoded to +size, an unset bit to −size.
    """

    def __init__(self, kind: str, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self.kind = kind
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Quantize `sentence_embedding`: add its `codes`, and replace it by the decoded floats.

        The features are changed in place and returned.
        """
        x = features["sentence_embedding"].float()
        if self.kind == "int8":
            scale, zero_point = self.get_buffer("scale"), self.get_buffer("zero_point")
            codes = torch.clamp(torch.round(x / scale) + zero_point, -128, 127)
            features["codes"] = codes.to(torch.int8)
            features["sentence_embedding"] = (codes - zero_point) * scale
            return features

        bits = x > 0
        octets = nn.functional.pad(bits.to(torch.uint8), (0, -x.shape[1] % 8)).reshape(len(x), -1, 8)
        shifts = torch.arange(7, -1, -1, dtype=torch.uint8, device=x.device)
        features["codes"] = torch.sum(octets << shifts, dim=2, dtype=torch.uint8)
        size = self.get_buffer("size")
        decoded = torch.where(bits, size, -size)
        features["sentence_embedding"] = torch.where(bits.any(dim=1, keepdim=True), decoded, 0)

        return features

    def save(self, output_path: str, *args: object, **kwargs: object) -> None:
        """Write `config.json` and `model.safetensors` to a folder, and a copy of this file to its parent folder.

        The copy lies next to the model's `modules.json`.
        """
        with open(os.path.join(output_path, "config.json"), "w") as file:  # noqa: PTH118, PTH123
            json.dump({"kind": self.kind}, file)
        shutil.copyfile(__file__, os.path.join(output_path, "..", os.path.basename(__file__)))  # noqa: PTH118, PTH119
        save_file(dict(self.named_buffers()), os.path.join(output_path, "model.safetensors"))  # noqa: PTH118

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: object) -> "Quantization":
        """Load the module from the local folder of a model and the subfolder that `save` wrote."""
        folder = os.path.join(model_name_or_path, subfolder)  # noqa: PTH118
        with open(os.path.join(folder, "config.json")) as file:  # noqa: PTH118, PTH123
            kind = json.load(file)["kind"]
        return cls(kind, load_file(os.path.join(folder, "model.safetensors")))  # noqa: PTH118
