"""Linear layers on a CPU, with weights in the layout that oneDNN multiplies in.

In bfloat16, PyTorch's own layer converts its weights to that layout at each call. For a few hundred tokens, this takes
a third of the product's time. In float32, it calls Intel's MKL, which uses no AVX-512 on AMD's processors and takes
twice as long there as oneDNN. The layout is the CPU's own, so it is made when a model is loaded and never saved.
"""

from collections.abc import Callable

import torch

from lathe.training.encoder.devices import Agreement
from lathe.transforms.products import prefers_onednn

PACKED_AGREEMENT = 0.99
"""Minimum cosine to float32 of each compared vector with packed layers; .9995 is usual in bfloat16."""


class PackedLinear(torch.nn.Module):
    """Linear layer for inference only, with weights in oneDNN's packed layout, optionally followed by a GELU.

    Attributes:
        weight: `(outputs, inputs)` in oneDNN's layout.
        bias: `(outputs,)`, or None.
        gelu: whether the outputs go through the exact GELU.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, linear: torch.nn.Linear, gelu: bool = False) -> None:
        """Copy the weights of a linear layer into oneDNN's packed layout. The given layer is not changed."""
        super().__init__()
        self.register_buffer("weight", torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach()))
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.gelu = gelu

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Apply the layer, and the GELU if `gelu` is set, to inputs `(..., in_features)`."""
        activation, algorithm = ("gelu", "none") if self.gelu else ("none", "")
        outputs: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs, self.weight, self.bias, activation, [], algorithm
        )
        return outputs

    def unpack(self) -> torch.nn.Linear:
        """Build an ordinary linear layer with the same weights. A GELU is not part of it."""
        linear = torch.nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        linear.weight = torch.nn.Parameter(self.weight.to_dense(), requires_grad=False)
        if self.bias is not None:
            linear.bias = torch.nn.Parameter(self.bias, requires_grad=False)
        return linear


def try_packing(model: torch.nn.Module, compare: Callable[[], Agreement]) -> Agreement | None:
    """Pack a model's linear layers for oneDNN, in place, and return the agreement with float32, or None if unpacked.

    If packing is not possible, fails, or changes a vector too much, the model keeps its ordinary layers.

    Args:
        model: the transformer, in the dtype it will run in.
        compare: returns the agreement of the model's vectors with the vectors in float32.

    Returns:
        The agreement with float32; None if packing is not possible, fails, or changes a vector too much.
    """
    if not can_pack(model):
        return None

    try:
        pack_linear_layers(model)
        agreement = compare()
        if agreement.min >= PACKED_AGREEMENT:
            return agreement
    except Exception:  # models fail on unexpected layers with errors of any class
        pass

    unpack_linear_layers(model)
    return None


def can_pack(model: torch.nn.Module) -> bool:
    """Return whether packing a model's linear layers for oneDNN is possible and makes them faster.

    That is the case for a model in bfloat16 on a CPU whose bfloat16 oneDNN supports, and for a model in float32 on a
    processor of AMD. On Intel's processors float32 is as fast without packing, and worker processes share the memory of
    weights that are not packed.
    """
    weight = next(model.parameters(), None)
    if weight is None or weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False

    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32 and prefers_onednn()


def pack_linear_layers(model: torch.nn.Module) -> None:
    """Replace each linear layer of a model by a `PackedLinear`, in place, together with a GELU that follows the layer.

    A GELU is known to follow in the classes of transformers whose layer `dense` goes through `intermediate_act_fn`, as
    in BERT, RoBERTa and MPNet. Subclasses of `torch.nn.Linear` are not replaced. A layer that the model uses in several
    places is packed once.
    """
    packed: dict[tuple[torch.nn.Module, bool], PackedLinear] = {}
    for module in list(model.modules()):
        ends_in_gelu = _ends_in_gelu(module)
        for name, child in list(module._modules.items()):
            if type(child) is torch.nn.Linear:
                gelu = ends_in_gelu and name == "dense"
                # A layer in several places is packed once, so that its weights stay shared.
                if (child, gelu) not in packed:
                    packed[child, gelu] = PackedLinear(child, gelu)
                setattr(module, name, packed[child, gelu])

        # The packed layer applies the GELU itself.
        if ends_in_gelu:
            module.intermediate_act_fn = torch.nn.Identity()


def _ends_in_gelu(module: torch.nn.Module) -> bool:
    """Return whether a module has a linear layer `dense` followed by an exact GELU, `intermediate_act_fn`."""
    from transformers.activations import GELUActivation

    is_gelu = type(getattr(module, "intermediate_act_fn", None)) is GELUActivation
    return is_gelu and type(getattr(module, "dense", None)) is torch.nn.Linear


def unpack_linear_layers(model: torch.nn.Module) -> None:
    """Replace the packed layers of a model by ordinary linear layers, in place, and restore their GELUs."""
    from transformers.activations import GELUActivation

    unpacked: dict[PackedLinear, torch.nn.Linear] = {}
    for module in list(model.modules()):
        for name, child in list(module._modules.items()):
            if isinstance(child, PackedLinear):
                if child not in unpacked:
                    unpacked[child] = child.unpack()
                setattr(module, name, unpacked[child])
                if child.gelu:
                    module.intermediate_act_fn = GELUActivation()
