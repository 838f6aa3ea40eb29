"""The kinds of Lathe's own transforms and the modules of their classes, without importing torch.

Command lines list the kinds, and `lathe.transforms.base.transform` imports a module when its kind is first used.
"""

from collections.abc import Mapping

KINDS: Mapping[str, str] = {
    "abtt": "lathe.transforms.linear.debias",
    "autoencoder": "lathe.transforms.baselines.autoencoder",
    "binary": "lathe.transforms.codes.quantization",
    "codes": "lathe.transforms.codes.transform_coding",
    "contrastive_alignment": "lathe.transforms.learned.contrastive_alignment",
    "flow": "lathe.transforms.baselines.flow",
    "geopres": "lathe.transforms.learned.geopres",
    "int8": "lathe.transforms.codes.quantization",
    "itq": "lathe.transforms.linear.itq",
    "low_rank_affine": "lathe.transforms.linear.alignment",
    "mc": "lathe.transforms.baselines.debiasing",
    "normalize": "lathe.transforms.linear.affine",
    "pca": "lathe.transforms.linear.pca",
    "procrustes": "lathe.transforms.linear.alignment",
    "product_codes": "lathe.transforms.codes.product_coding",
    "query_adapter": "lathe.transforms.learned.query_adapter",
    "r1": "lathe.transforms.baselines.debiasing",
    "r2": "lathe.transforms.linear.debias",
    "rand": "lathe.transforms.baselines.debiasing",
    "random_projection": "lathe.transforms.baselines.random_reductions",
    "random_selection": "lathe.transforms.baselines.random_reductions",
    "sides": "lathe.transforms.chain.sides",
    "truncation": "lathe.transforms.linear.selection",
    "whitening": "lathe.transforms.linear.whitening",
}
"""Name of the module that defines the class, by kind."""
