"""Chains: transforms applied in order as one."""

from lathe.transforms.chain.chain import Chain, deserialize_chain, serialize_chain, serves_dimensions
from lathe.transforms.chain.folding import list_affine_maps
from lathe.transforms.chain.retained_subspace import build_leading_query_maps, retained_subspace
from lathe.transforms.chain.steps import build_steps, parse_steps

__all__ = [
    "Chain",
    "list_affine_maps",
    "build_steps",
    "deserialize_chain",
    "build_leading_query_maps",
    "parse_steps",
    "retained_subspace",
    "serialize_chain",
    "serves_dimensions",
]
