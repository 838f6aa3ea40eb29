"""The kinds of Lathe's own transforms and the modules of their classes, without importing torch.

Command lines list the kinds, and `transforms.base.registry` imports a module when its kind is first used.
"""

from collections.abc import Mapping

KINDS: Mapping[str, str] = {
    "abtt": "transforms.linear.abtt",
    "autoencoder": "transforms.learned.autoencoder",
    "binary": "transforms.codes.quantization",
    "codes": "transforms.codes.transform_coding",
    "flow": "transforms.learned.flow",
    "geopres": "transforms.learned.geopres",
    "int8": "transforms.codes.quantization",
    "leanvec": "transforms.linear.leanvec",
    "low_rank_affine": "transforms.linear.alignment",
    "mc": "transforms.linear.debias",
    "normalize": "transforms.linear.normalize",
    "pca": "transforms.linear.pca",
    "procrustes": "transforms.linear.alignment",
    "product_codes": "transforms.codes.product_coding",
    "query_adapter": "transforms.learned.query_adapter",
    "r1": "transforms.linear.debias",
    "r2": "transforms.linear.debias",
    "rand": "transforms.linear.debias",
    "random_projection": "transforms.linear.random_projection",
    "random_selection": "transforms.linear.selection",
    "residual_mlp": "transforms.learned.residual_mlp",
    "sides": "transforms.chain.sides",
    "truncation": "transforms.linear.selection",
    "whitening": "transforms.linear.whitening",
}
"""Name of the module that defines the class, by kind."""
