"""Chains: transforms applied in order as one."""

from lathe.transforms.chain.chain import Chain, serves_dimensions
from lathe.transforms.chain.folding import affine_parts
from lathe.transforms.chain.retained_subspace import leading_query_maps, retained_subspace
from lathe.transforms.chain.serialized import deserialize_chain, serialize_chain
from lathe.transforms.chain.steps import build_steps, parse_steps

__all__ = [
    "Chain",
    "affine_parts",
    "build_steps",
    "deserialize_chain",
    "leading_query_maps",
    "parse_steps",
    "retained_subspace",
    "serialize_chain",
    "serves_dimensions",
]
